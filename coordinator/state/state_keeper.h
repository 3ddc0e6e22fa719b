// Keeps the coordinator's state: what changes goes to the store on a thread of its own, in batches, so that nobody
// waits for a disk. docs/restart.md says what is kept and why.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/engine/cache_index.h"
#include "coordinator/state/request_journal.h"
#include "coordinator/state/response_journal.h"
#include "coordinator/state/state_store.h"

namespace gyre {

// For which model and which KV cache the state was made.
struct ServingRecord {
  uint64_t model_hash = 0;
  uint32_t context = 0, num_blocks = 0, block_size = 0;
  bool operator==(const ServingRecord&) const = default;
};

struct KeeperOptions {
  BookLimits requests;
  Duration write_interval = std::chrono::milliseconds(50);  // of tokens; what begins is written at once
  size_t units_at_once = 4096;                              // of the cache's index, in one write
};

// Thread-safe, and every call returns at once.
class StateKeeper {
 public:
  // `found` is what OpenSqliteStore has read. kDataLoss: it can't be understood.
  static StatusOr<std::unique_ptr<StateKeeper>> Start(std::unique_ptr<StateStore> store, const StoredState& found,
                                                      const KeeperOptions& options);
  // Writes what is left.
  ~StateKeeper();

  uint64_t term() const { return term_; }
  uint64_t cluster_id() const { return cluster_id_; }
  // As the store had them at the start; nullopt: it had none.
  const std::optional<ClusterRecord>& cluster() const { return cluster_; }
  const std::optional<ServingRecord>& serving() const { return serving_; }
  // Sets the model and settings that are served from now on. With another model, old requests and plan are forgotten.
  void Serve(const ServingRecord& record);
  void Record(const ClusterRecord& record);
  // The index of the KV cache as the store had it at the start, and what changes in it.
  const CacheIndex& cache() const { return cache_; }
  void Keep(const CacheNews& news);

  // Responses for later ones, as the store had them at the start (once), and what changes in them.
  std::vector<KeptResponse> TakeResponses() { return std::exchange(found_responses_, {}); }
  void KeepResponses(const std::vector<ResponseJournal::Change>& changes);

  // Requests: see RequestJournal. What has no events yet may be reattached too.
  uint64_t NewReader() { return next_reader_++; }
  // `durable` is called once, on the keeper's thread, when the request is in the store, or when the store failed: then
  // it lives as long as this process.
  void Begin(const Request& request, uint64_t reader, std::function<void()> durable);
  void OnEvent(const std::string& id, uint64_t reader, const Event& event);
  void Leave(const std::string& id, uint64_t reader);
  void Forget(const std::string& id, uint64_t reader);
  StatusOr<Request> Reattach(const std::string& id, uint64_t tenant, uint64_t reader);
  size_t open_requests() const;
  // Waits until all that was said before is written.
  Status Flush();

 private:
  StateKeeper(std::unique_ptr<StateStore> store, const StoredState& found, const KeeperOptions& options);
  Status Restore(const StoredState& found);
  void TakeUnits(StateBatch* batch) GYRE_REQUIRES(mutex_);
  void Loop();
  void Tell(bool failed_before);
  Deadline NextWrite() const GYRE_REQUIRES(mutex_);

  const std::unique_ptr<StateStore> store_;
  const KeeperOptions options_;
  const uint64_t term_, cluster_id_;
  std::optional<ClusterRecord> cluster_;
  std::optional<ServingRecord> serving_;
  CacheIndex cache_;
  std::vector<KeptResponse> found_responses_;
  std::atomic<uint64_t> next_reader_{1};

  mutable Mutex mutex_;
  CondVar changed_;
  RequestJournal book_ GYRE_GUARDED_BY(mutex_);
  std::optional<std::string> new_cluster_ GYRE_GUARDED_BY(mutex_), new_serving_ GYRE_GUARDED_BY(mutex_);
  uint64_t generation_ GYRE_GUARDED_BY(mutex_) = 0;  // of the store's index, and of what waits to be written
  bool cache_afresh_ GYRE_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::string> new_units_ GYRE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> new_responses_ GYRE_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> waiting_ GYRE_GUARDED_BY(mutex_);  // for the next write
  bool urgent_ GYRE_GUARDED_BY(mutex_) = false;
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  Status last_write_ GYRE_GUARDED_BY(mutex_);
  Deadline written_at_ GYRE_GUARDED_BY(mutex_){};
  std::thread thread_;
};

// The record as the store's value, and back. kDataLoss.
std::string EncodeCluster(const ClusterRecord& record);
StatusOr<ClusterRecord> DecodeCluster(const std::string& bytes);

}  // namespace gyre
