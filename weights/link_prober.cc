#include "weights/link_prober.h"

#include <exception>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace gyre {

LinkProber::~LinkProber() {
  stopping_ = true;
  requests_.Close();
  if (thread_.joinable()) thread_.join();
}

void LinkProber::Ask(std::vector<WeightSource> peers, std::string name, Transport transport) {
  if (!thread_.joinable()) {
    StatusOr<std::thread> started = StartThread("prober", [this] { Run(); });
    if (!started.ok()) return Log(LogLevel::kWarn, "links are not measured: {}", Message(started.status()));
    thread_ = *std::move(started);
  }
  requests_.Push({std::move(peers), std::move(name), transport});
}

void LinkProber::Run() {
  while (!stopping_) {
    const std::optional<Request> request = requests_.Pop(kNoDeadline);
    if (!request) continue;
    StageProbed probed;
    for (const WeightSource& peer : request->peers) {
      if (stopping_) return;
      // No exception may leave the thread: a link that can't be measured for lack of memory counts as unknown.
      try {
        probed.links.push_back(stock_->Probe(peer, request->name, request->transport));
      } catch (const std::exception& e) {
        probed.links.push_back({.to = peer.name, .failure = e.what()});
      }
    }
    done_(std::move(probed));
  }
}

}  // namespace gyre
