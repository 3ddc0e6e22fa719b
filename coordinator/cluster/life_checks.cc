#include "coordinator/cluster/life_checks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

// Pauses before the attempts.
constexpr Duration kPauses[] = {milliseconds(0), milliseconds(20), milliseconds(80), milliseconds(300),
                                milliseconds(1000)};
constexpr Duration kConnectTimeout = milliseconds(250);

// Whoever is cut off answers nothing, so only a refusal tells.
bool IsRefused(const std::string& address, const std::function<bool()>& stopped) {
  const StatusOr<int> fd = ConnectTcp(address, After(kConnectTimeout), stopped);
  if (fd.ok()) ::close(*fd);
  return !fd.ok() && Message(fd.status()).find(std::strerror(ECONNREFUSED)) != std::string::npos;
}

}  // namespace

LifeChecks::~LifeChecks() {
  stopping_ = true;
  begun_.Close();
  if (thread_.joinable()) thread_.join();
}

void LifeChecks::Begin(Check check) {
  begun_.Push({.check = std::move(check), .at = Clock::now()});
  if (thread_.joinable()) return;
  StatusOr<std::thread> started = StartThread("life-checks", [this] {
    // No exception may leave the thread.
    try {
      Run();
    } catch (const std::exception& e) {
      Log(LogLevel::kWarn, "the coordinator stops checking whether workers that left are still alive: {}", e.what());
    }
  });
  if (started.ok()) {
    thread_ = *std::move(started);
  } else {
    // Time tells, too.
    Log(LogLevel::kWarn, "the coordinator can't check whether a worker is still alive: {}", Message(started.status()));
  }
}

void LifeChecks::Run() {
  std::deque<Attempt> waiting;
  while (!stopping_) {
    Deadline next = kNoDeadline;
    for (const Attempt& a : waiting) next = std::min(next, a.at);
    if (auto begun = begun_.Pop(next)) {
      waiting.push_back(*std::move(begun));
      continue;
    }
    for (size_t left = waiting.size(); left > 0 && !stopping_; --left) {
      Attempt attempt = std::move(waiting.front());
      waiting.pop_front();
      if (attempt.at > Clock::now()) {
        waiting.push_back(std::move(attempt));
      } else if (IsRefused(attempt.check.address, [this] { return stopping_.load(); })) {
        gone_(attempt.check);
      } else if (++attempt.number < std::size(kPauses)) {
        attempt.at = After(kPauses[attempt.number]);
        waiting.push_back(std::move(attempt));
      }
    }
  }
}

}  // namespace gyre
