// Files and batches of OpenAI's API in a folder: what a server needs to go on with them after a kill.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "batch/batch_lines.h"
#include "batch/results_file.h"

namespace gyre {

struct StoredFile {
  std::string id;  // "file-..."
  std::string name, purpose;
  uint64_t bytes = 0;
  int64_t created = 0;  // seconds since 1970, as all times here
  uint64_t tenant = 0;
};

enum class BatchState : uint8_t { kInProgress, kCancelling, kCompleted, kCancelled };
std::string_view NameOf(BatchState state);  // as OpenAI's API has it

struct StoredBatch {
  std::string id;                     // "batch_..."
  std::string endpoint;               // "/v1/chat/completions"
  std::string input, output, errors;  // ids of files; the answers with code 200, and the others
  std::string metadata = "{}";        // JSON, an object
  BatchState state = BatchState::kInProgress;
  int64_t created = 0, ended = 0;  // 0: it has not
  uint64_t tenant = 0;
  uint64_t total = 0, completed = 0, failed = 0;  // requests
};

struct BatchLimits {
  uint64_t file_bytes = uint64_t{512} << 20;
  size_t files = 10000, batches = 1000;  // of a tenant
  size_t requests = 50000;               // of a batch
};

// Thread-safe, but that one thread takes and answers requests. A client finds only files and batches of its own tenant.
// Every change is on the disk when its call returns; no lock is held over the disk.
class BatchStore {
 public:
  // Makes the folder, which no other store has until this one ends. Batches that were running go on. What can't be read
  // is left aside, with a line in the log; what a killed process had not written to its end is removed.
  // kFailedPrecondition: another process has the folder.
  static StatusOr<std::unique_ptr<BatchStore>> Open(const std::string& folder, const BatchLimits& limits = {});
  ~BatchStore();
  BatchStore(const BatchStore&) = delete;
  BatchStore& operator=(const BatchStore&) = delete;

  // kResourceExhausted: too many files; kInvalidArgument: too large, or another purpose than "batch".
  StatusOr<StoredFile> AddFile(uint64_t tenant, std::string name, std::string purpose, std::string_view bytes);
  StatusOr<StoredFile> FindFile(uint64_t tenant, const std::string& id) const;  // kNotFound
  std::vector<StoredFile> Files(uint64_t tenant) const;                         // newest first
  StatusOr<std::string> Content(uint64_t tenant, const std::string& id) const;
  // kFailedPrecondition: a batch that runs or ends needs it. A batch whose results are removed may go when there are
  // too many.
  Status RemoveFile(uint64_t tenant, const std::string& id);

  // `metadata`: JSON, an object. kNotFound: no such file. kInvalidArgument: the file is no batch for this endpoint.
  // kResourceExhausted: there are too many batches, and all have results that nobody has deleted.
  StatusOr<StoredBatch> Create(uint64_t tenant, const std::string& file, const std::string& endpoint,
                               const std::string& metadata);
  StatusOr<StoredBatch> Find(uint64_t tenant, const std::string& id) const;
  std::vector<StoredBatch> Batches(uint64_t tenant) const;  // newest first
  // What runs still gets its answer. kFailedPrecondition: it has ended.
  StatusOr<StoredBatch> Cancel(uint64_t tenant, const std::string& id);

  // For the one who runs them.
  struct Job {
    std::string batch;
    uint64_t tenant = 0;
    BatchLine where;
    BatchRequest request;
  };
  // The next request, the oldest batch first; nullopt: there is none now. Each is given out once, and again after
  // PutBack. One that is not in its file any more gets a failure as its answer.
  std::optional<Job> Take();
  // Does nothing for a request that is not given out.
  void PutBack(const Job& job);
  // Writes its answer; the batch may end with it. After an error of the disk the request is given out again. A body
  // that no JSON can hold counts as a failure.
  Status Answer(const Job& job, int status_code, std::string_view request_id, std::string_view body);

 private:
  // A batch that runs, with what is left of it.
  struct Running {
    std::vector<BatchLine> requests;                 // without an answer when it began to run here, the last one first
    std::set<std::string> given_out;                 // requests, by custom_id
    std::shared_ptr<ResultsFile> answers, failures;  // written by the thread that answers
  };

  BatchStore(std::string folder, const BatchLimits& limits) : folder_(std::move(folder)), limits_(limits) {}
  Status Lock();
  Status Load() GYRE_REQUIRES(mutex_);
  // Removes what a process that was killed has left in the folder: what it had not written to its end, and contents
  // that no file and no batch has.
  void Sweep() const GYRE_REQUIRES(mutex_);
  // The same for one that is new, whose input nobody removes meanwhile; sets its total and writes it.
  StatusOr<Running> BeginNew(StoredBatch* batch) const;
  // Opens its files and finds what is left.
  StatusOr<Running> Begin(const StoredBatch& batch) const;
  // Writes a line of the batch's results and counts it. After an error the request is given out again.
  Status AddResult(const Job& job, const BatchResult& result);
  // The oldest batch of the tenant whose results have been removed; null: there is none.
  const StoredBatch* OldestToForget(uint64_t tenant) const GYRE_REQUIRES(mutex_);
  // Makes room for one batch of the tenant and says which one went; kResourceExhausted: there is none to forget.
  StatusOr<std::optional<StoredBatch>> MakeRoom(uint64_t tenant) GYRE_REQUIRES(mutex_);
  void Unlink(const StoredBatch& batch) const;  // its description and its results
  // A request that Take has chosen, read from its file.
  StatusOr<BatchRequest> ReadRequest(const Job& job, const std::string& input, const std::string& endpoint) const;
  // Whether the batch ends now: then it does, and has to be written.
  bool EndIfDone(StoredBatch* batch) GYRE_REQUIRES(mutex_);
  // A batch that has ended, with its files. Until it is written none of them can be removed.
  Status WriteEnded(const StoredBatch& batch);
  Status Write(const StoredBatch& batch) const;
  Status Write(const StoredFile& file) const;
  std::string ContentPath(const std::string& file) const { return folder_ + "/" + file + ".jsonl"; }
  std::string InfoPath(const std::string& id) const { return folder_ + "/" + id + ".json"; }

  const std::string folder_;
  const BatchLimits limits_;
  int lock_ = -1;  // a file descriptor
  mutable Mutex mutex_;
  std::map<std::string, StoredFile> files_ GYRE_GUARDED_BY(mutex_);
  std::map<std::string, StoredBatch> batches_ GYRE_GUARDED_BY(mutex_);
  std::map<std::string, Running> running_ GYRE_GUARDED_BY(mutex_);
  std::multiset<std::string> beginning_ GYRE_GUARDED_BY(mutex_);  // inputs of batches that are being made
  std::map<uint64_t, size_t> adding_ GYRE_GUARDED_BY(mutex_);     // files that a tenant is sending
  std::set<std::string> ending_ GYRE_GUARDED_BY(mutex_);          // batches whose end is not written yet
  bool left_aside_ GYRE_GUARDED_BY(mutex_) = false;  // something in the folder can't be read: nothing is forgotten
};

}  // namespace gyre
