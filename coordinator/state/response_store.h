// The responses that clients may go on from: a ResponseJournal for all threads, which a StateKeeper writes down where
// there is one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unix_time.h"
#include "coordinator/state/response_journal.h"
#include "coordinator/state/state_keeper.h"

namespace gyre {

// Thread-safe. The functions are ResponseJournal's.
class ResponseStore {
 public:
  // keeper: has what was kept before; outlives the store. null: responses end with the process.
  explicit ResponseStore(const ResponseLimits& limits = {}, StateKeeper* keeper = nullptr)
      : keeper_(keeper), book_(limits) {
    if (keeper_ == nullptr) return;
    MutexLock lock(&mutex_);
    book_.Restore(keeper_->TakeResponses(), UnixSeconds());
    Write();
  }

  void Keep(KeptResponse response) {
    MutexLock lock(&mutex_);
    book_.Keep(std::move(response), UnixSeconds());
    Write();
  }
  StatusOr<KeptResponse> Find(const std::string& id, uint64_t tenant) {
    MutexLock lock(&mutex_);
    auto found = book_.Find(id, tenant, UnixSeconds());
    Write();
    return found;
  }
  StatusOr<std::vector<KeptResponse>> Conversation(const std::string& id, uint64_t tenant) {
    MutexLock lock(&mutex_);
    auto found = book_.Conversation(id, tenant, UnixSeconds());
    Write();
    return found;
  }
  Status Delete(const std::string& id, uint64_t tenant) {
    MutexLock lock(&mutex_);
    const Status status = book_.Delete(id, tenant, UnixSeconds());
    Write();
    return status;
  }

 private:
  // The keeper only takes notes; its own thread writes.
  void Write() GYRE_REQUIRES(mutex_) {
    const auto changes = book_.TakeChanges();
    if (keeper_ != nullptr && !changes.empty()) keeper_->KeepResponses(changes);
  }

  StateKeeper* const keeper_;
  Mutex mutex_;
  ResponseJournal book_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
