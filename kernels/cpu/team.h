// The threads of one backend: OpenMP, without a parallel region where the work is too small to pay for one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/affinity.h"

namespace gyre::cpu {

class Team {
 public:
  // `cpus`: of each thread; empty = the system moves them. Whoever calls For may use all of them, as what it starts begins with its
  // mask; the other threads stay on one each.
  explicit Team(int threads, std::vector<int> cpus = {}) : threads_(threads), cpus_(std::move(cpus)) {}
  int threads() const { return threads_; }

  // Calls f(begin, end), or f(begin, end, thread), over parts of [0, items), one a thread; boundaries are multiples of `grain`. `nanoseconds`: what
  // all of it takes on one thread, roughly; under kWorthwhile it stays on the caller's.
  template <typename Fn>
  void For(size_t items, size_t grain, double nanoseconds, const Fn& f) const {
    const size_t grains = (items + grain - 1) / grain, parts = std::min(static_cast<size_t>(threads_), grains);
    if (parts <= 1 || nanoseconds < kWorthwhile) {
      Settle(0);
      if (items > 0) Call(f, 0, items, 0);
      return;
    }
    // All threads, also where some get nothing: libgomp ends those that a region leaves out, and starts others for the next.
#pragma omp parallel for num_threads(threads_) schedule(static, 1)
    for (int t = 0; t < threads_; ++t) {
      const auto i = static_cast<size_t>(t);
      Settle(i);
      const size_t begin = grains * i / parts * grain, end = std::min(items, grains * (i + 1) / parts * grain);
      if (i < parts && begin < end) Call(f, begin, end, i);
    }
  }

 private:
  static constexpr double kWorthwhile = 20000;

  template <typename Fn>
  static void Call(const Fn& f, size_t begin, size_t end, size_t thread) {
    if constexpr (std::is_invocable_v<const Fn&, size_t, size_t, size_t>) f(begin, end, thread);
    else f(begin, end);
  }

  // Sends the calling thread, the team's number i, where it belongs, once.
  void Settle(size_t i) const {
    if (cpus_.empty()) return;
    thread_local uint64_t settled = 0;
    const uint64_t place = id_ << 16 | i;
    if (settled == place) return;
    settled = place;
    StayOn(i == 0 ? std::span(cpus_) : std::span(cpus_).subspan(i % cpus_.size(), 1));
  }
  static uint64_t NextId() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const int threads_;
  const std::vector<int> cpus_;
  const uint64_t id_ = NextId();
};

}  // namespace gyre::cpu
