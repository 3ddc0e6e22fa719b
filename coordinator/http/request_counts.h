// Counts of HTTP requests by route and status.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "coordinator/http/server_options.h"

namespace gyre::http {

// Thread-safe. The size is limited, as routes and statuses are few; no text of a client is kept.
class RequestCounts {
 public:
  using Counts = std::map<std::pair<std::string, int>, uint64_t>;  // {route, status}; "" = no route, 0 = no answer

  void Add(const RequestRecord& record) {
    MutexLock lock(&mutex_);
    ++counts_[{record.route, record.status}];
  }
  Counts Read() const {
    MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  mutable Mutex mutex_;
  Counts counts_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre::http
