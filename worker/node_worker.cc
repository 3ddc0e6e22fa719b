#include "worker/node_worker.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace gyre {

Worker& NodeWorker::Become(const std::string& name, const NodeModel& model, NodePort& port) {
  if (worker_ != nullptr && worker_->control().name() == name) return *worker_;
  // Another name is another worker; the weights would be the same, but the bulk links find it by its name.
  if (worker_ != nullptr) worker_->Stop();
  WorkerOptions w{.name = name,
                  .model = model.model(),
                  .device = options_.device,
                  .threads = options_.threads,
                  .exact = model.exact(),
                  .port = &port.ring(),
                  .weights = &port.stock()};
  w.on_fatal = [this](const Status& why) {
    MutexLock lock(&mutex_);
    fatal_ = why;
  };
  worker_ = std::make_shared<Worker>(std::move(w));
  if (options_.on_worker) options_.on_worker(*worker_);
  port.ring().SetBulkHandler(name, [weak = std::weak_ptr<Worker>(worker_)](std::unique_ptr<Link> link) {
    if (const auto alive = weak.lock()) alive->ServeBulk(std::move(link));
  });
  return *worker_;
}

void NodeWorker::Drop() {
  if (worker_ != nullptr) worker_->Stop();
  worker_ = nullptr;
}

void NodeWorker::WaitForStage(const std::function<bool()>& ends) const {
  if (worker_ == nullptr) return;
  const auto free = std::make_shared<std::atomic<bool>>(false);
  worker_->OnStageThread([free] { *free = true; });
  // A step takes no longer, as the coordinator sees it too (EngineOptions::step_timeout).
  const Deadline give_up = After(std::chrono::minutes(10));
  while (!*free && !ends()) {
    if (Clock::now() > give_up) {
      Log(LogLevel::kError, "the stage does not come to an end of its step, so this process ends");
      std::_Exit(1);  // its thread can't be joined
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status NodeWorker::Fatal() const {
  MutexLock lock(&mutex_);
  return fatal_;
}

}  // namespace gyre
