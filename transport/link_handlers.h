// The handlers of links that belong to no hop: bulk links to a worker of this process, and links for weights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/hello.h"
#include "transport/link.h"

namespace gyre {

// Thread-safe.
class LinkHandlers {
 public:
  using Handler = std::function<void(std::unique_ptr<Link>)>;

  // {} removes the handler; a handler that is being called returns first.
  void SetBulk(const std::string& worker, Handler handler) { Set(worker, std::move(handler)); }
  void SetWeights(const RingKey& key, Handler handler);
  // The key of links for weights; nullopt: this process takes none.
  std::optional<RingKey> weights_key() const;

  // Calls `link` and hands its result to the handler that the hello names. kNotFound: there is none of that name, and
  // `link` is not called.
  Status HandOver(const Hello& hello, const std::function<StatusOr<std::unique_ptr<Link>>()>& link);

 private:
  struct Entry {
    Handler handler;
    int calls = 0;
  };
  void Set(const std::string& name, Handler handler);

  mutable Mutex mutex_;
  CondVar called_;
  std::map<std::string, Entry> entries_ GYRE_GUARDED_BY(mutex_);  // by worker; the one for weights beside them
  RingKey weights_key_ GYRE_GUARDED_BY(mutex_){};                 // counts while that one has a handler
};

}  // namespace gyre
