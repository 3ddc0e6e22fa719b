#include "weights/link_prober.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "base/log.h"

namespace gyre {

LinkProber::~LinkProber() {
  stopping_ = true;
  requests_.Close();
  if (thread_.joinable()) thread_.join();
}

void LinkProber::Ask(std::vector<WeightSource> peers, std::string name, Transport transport) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& e) {
      return Log(LogLevel::kWarn, "no thread to measure links: {}", e.what());
    }
  }
  requests_.Push({std::move(peers), std::move(name), transport});
}

void LinkProber::Run() {
  pthread_setname_np(pthread_self(), "prober");
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
