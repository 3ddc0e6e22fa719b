#include "transport/link_handlers.h"

#include <exception>
#include <optional>

namespace gyre {
namespace {

// The key, among the workers' names, of the handler of links for weights. No worker has this name.
const std::string kWeightsName = "@weights";

}  // namespace

void LinkHandlers::Set(const std::string& name, Handler handler) {
  MutexLock lock(&mutex_);
  Entry& entry = entries_[name];
  entry.handler = std::move(handler);
  while (!entry.handler && entry.calls > 0) called_.Wait(&mutex_);
}

void LinkHandlers::SetWeights(const RingKey& key, Handler handler) {
  {
    MutexLock lock(&mutex_);
    weights_key_ = key;
  }
  Set(kWeightsName, std::move(handler));
}

std::optional<RingKey> LinkHandlers::weights_key() const {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(kWeightsName);
  if (it == entries_.end() || !it->second.handler) return std::nullopt;
  return weights_key_;
}

Status LinkHandlers::HandOver(const Hello& hello, const std::function<StatusOr<std::unique_ptr<Link>>()>& link) {
  const std::string& to = hello.role == LinkRole::kWeights ? kWeightsName : hello.to;
  Handler handler;
  {
    MutexLock lock(&mutex_);
    const auto it = entries_.find(to);
    if (it == entries_.end() || !it->second.handler) return NotFound("no worker {} here", to);
    handler = it->second.handler;
    ++it->second.calls;
  }
  Status status;
  try {
    StatusOr<std::unique_ptr<Link>> made = link();
    status = made.status();
    if (made.ok()) handler(*std::move(made));
  } catch (const std::exception& e) {
    status = ResourceExhausted("{}: {}", to, e.what());
  }
  MutexLock lock(&mutex_);
  --entries_[to].calls;
  called_.SignalAll();
  return status;
}

}  // namespace gyre
