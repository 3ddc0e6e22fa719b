// Prompts of requests that were taken to be the cause of lost rings: whoever asked may ask again.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"

namespace gyre {

// Thread-safe. Remembers hashes of the last 64 prompts, each for ten minutes.
class PoisonPrompts {
 public:
  void Add(const std::vector<TokenId>& prompt, Deadline now);
  // kInvalidArgument: the prompt is one of them. Not a code after which clients and proxies send it again by
  // themselves.
  Status Check(const std::vector<TokenId>& prompt, Deadline now);

 private:
  Mutex mutex_;
  std::deque<std::pair<uint64_t, Deadline>> until_ GYRE_GUARDED_BY(mutex_);  // by hash, the oldest first
};

}  // namespace gyre
