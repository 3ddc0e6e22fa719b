// A drafter in another process: a worker that offers to draft (docs/speculation.md).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/engine/drafter.h"

namespace gyre {

// Without a worker it is not ready, and nothing is asked. It keeps the texts, so that a worker that comes later, or
// comes back, gets them whole. A question that is not answered in time is answered without drafts, as its text waits
// for it; then nothing is asked until the worker has answered. All functions: any thread.
class RemoteDrafter : public Drafter {
 public:
  // A worker's stream.
  struct Stream {
    std::string name;
    // Sends a question with a number; before it, the texts that `ended` count no more. It must not block, and is not
    // called once Detach has returned.
    std::function<void(uint64_t number, DraftQuestion question, std::vector<SeqId> ended)> ask;
    // Ends the stream, for a reason: another one has taken its place, or it is not accepted any more. It must not
    // block, and is not called once Detach has returned.
    std::function<void(const Status& why)> displaced;
    // Whether its worker may still have what people write. May be empty.
    std::function<Status()> accepted;
  };

  // An answer may take `patience`, and four times as long as such an answer took lately, but no more than a second.
  static StatusOr<std::shared_ptr<RemoteDrafter>> Start(Duration patience = std::chrono::milliseconds(200));
  ~RemoteDrafter() override;

  // Whether a worker of this name may attach. kFailedPrecondition: another one drafts, and answers. One of the same
  // name takes the place of the one before, whose end may not have been noticed.
  Status CheckAttach(const std::string& name);
  // Its number. Errors as CheckAttach.
  StatusOr<uint64_t> Attach(Stream stream);
  // An answer; at most as many tokens count as were asked for. Numbers that nobody waits for are passed over.
  void Answer(uint64_t stream, uint64_t number, std::vector<TokenId> drafts);
  // Ends the stream of a worker that is not accepted any more.
  void CheckStream();
  // The stream ended: what it was asked is answered without drafts.
  void Detach(uint64_t stream);

  void Draft(DraftQuestion question, std::function<void(std::vector<TokenId>)> answer) override;
  void End(SeqId seq) override;
  void Stop() override;
  Duration each() const override { return Duration(each_.load(std::memory_order_relaxed)); }
  bool ready() const override { return ready_.load(std::memory_order_relaxed); }

 private:
  struct Text {
    std::vector<TokenId> tokens;  // what drafts were asked for behind
    uint64_t stream = 0;          // the one that knows them
  };
  struct Asked {
    std::function<void(std::vector<TokenId>)> answer;  // empty: it was answered without drafts
    uint32_t most = 0;
    Deadline at, until;
  };

  explicit RemoteDrafter(Duration patience) : patience_(patience) {}
  Status MayAttach(const std::string& name) const GYRE_REQUIRES(mutex_);
  // Calls answers, without the lock; Stop waits for that.
  using Answers = std::vector<std::function<void()>>;
  void Call(const Answers& answers);
  Answers TakeOwed() GYRE_REQUIRES(mutex_);
  void Loop();
  void SetReady() GYRE_REQUIRES(mutex_) { ready_ = stream_.has_value() && !late_; }

  const Duration patience_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Stream> stream_ GYRE_GUARDED_BY(mutex_);
  uint64_t number_ GYRE_GUARDED_BY(mutex_) = 0;  // of the last stream
  uint64_t questions_ GYRE_GUARDED_BY(mutex_) = 0;
  bool late_ GYRE_GUARDED_BY(mutex_) = false;  // it owes an answer whose time has run out
  bool stopped_ GYRE_GUARDED_BY(mutex_) = false;
  int calling_ GYRE_GUARDED_BY(mutex_) = 0;  // threads that call answers
  std::unordered_map<SeqId, Text> texts_ GYRE_GUARDED_BY(mutex_);
  std::vector<SeqId> ended_ GYRE_GUARDED_BY(mutex_);
  std::map<uint64_t, Asked> asked_ GYRE_GUARDED_BY(mutex_);
  std::atomic<int64_t> each_{0};  // nanoseconds
  std::atomic<bool> ready_{false};
  std::thread thread_;
};

}  // namespace gyre
