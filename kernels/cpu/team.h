// The threads of one backend: OpenMP, but without a parallel region if the work is too small to pay for one.
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
#include "base/startable_threads.h"

namespace gyre::cpu {

// Work of one core in a nanosecond, roughly: whether a parallel region pays follows from it.
inline constexpr double kMacsPerNs = 16, kBytesPerNs = 10, kElemsPerNs = 0.3;

// The threads that the calling thread's parallel regions may have, until EndTeamThreads.
struct TeamThreads {
  int wanted = 1;     // as many as were asked for at most
  int startable = 1;  // of these
};
inline TeamThreads& ThreadsOfCaller() {
  thread_local TeamThreads threads;
  return threads;
}

class Team {
 public:
  // `cpus`: the processor of each thread; empty = the system schedules them. The calling thread may use all of them,
  // because threads that it starts inherit its mask; the other threads are pinned to one each.
  explicit Team(int threads, std::vector<int> cpus = {}) : threads_(threads), cpus_(std::move(cpus)) {}
  int threads() const { return threads_; }

  // Calls f(begin, end) or f(begin, end, thread) for parts of [0, items); boundaries are multiples of `grain`. Each
  // thread has a fixed range, divided into shares. A thread that finishes its own range steals shares of others,
  // because cores differ in speed and the host may run something else on some. `nanoseconds`: rough duration on one
  // thread; below kWorthwhile all runs on the calling thread.
  template <typename Fn>
  void For(size_t items, size_t grain, double nanoseconds, const Fn& f) const {
    Run<true>(items, grain, nanoseconds, f);
  }
  // The same without stealing: for memory that the thread of a range shall be the first to touch.
  template <typename Fn>
  void ForStatic(size_t items, size_t grain, double nanoseconds, const Fn& f) const {
    Run<false>(items, grain, nanoseconds, f);
  }

 private:
  static constexpr double kWorthwhile = 20000;  // nanoseconds
  static constexpr size_t kMinShares = 16;      // per range, if it has as many grains
  static constexpr size_t kMaxRuns = 256;       // with more threads some begin with a neighbour's range
  struct alignas(64) ClaimedShares {
    size_t shares;  // of one range; accessed through std::atomic_ref
  };

  template <bool stealing, typename Fn>
  void Run(size_t items, size_t grain, double nanoseconds, const Fn& f) const {
    const size_t grains = (items + grain - 1) / grain, threads = std::min(static_cast<size_t>(threads_), grains);
    if (threads <= 1 || nanoseconds < kWorthwhile) {
      PinOnce(0);
      if (items > 0) Call(f, 0, items, 0);
      return;
    }
    const size_t runs = stealing ? std::min(threads, kMaxRuns) : threads;
    ClaimedShares claimed[stealing ? kMaxRuns : 1];
    for (size_t run = 0; stealing && run < runs; ++run) claimed[run].shares = 0;
    auto first = [&](size_t run) { return grains * run / runs; };  // first grain of a range
    // Computes the next share of a range; returns false if all are claimed.
    auto share = [&](size_t run, size_t thread) {
      const size_t begin = first(run), length = first(run + 1) - begin,
                   each = stealing ? std::max<size_t>(1, length / kMinShares) : length;
      size_t at = 0;
      if constexpr (stealing) {
        const std::atomic_ref shares(claimed[run].shares);
        if (shares.load(std::memory_order_relaxed) * each >= length) return false;
        at = shares.fetch_add(1, std::memory_order_relaxed) * each;
        if (at >= length) return false;
      }
      Call(f, (begin + at) * grain, std::min(items, (begin + std::min(at + each, length)) * grain), thread);
      return stealing;
    };
    // All threads take part, even those without work: libgomp ends threads that a region leaves out and starts new ones
    // for the next region.
    const int startable = Startable();
#pragma omp parallel for num_threads(startable) schedule(static, 1)
    for (int t = 0; t < threads_; ++t) {
      const auto i = static_cast<size_t>(t);
      PinOnce(i);
      if constexpr (stealing) {
        const size_t own = threads > runs ? i * runs / static_cast<size_t>(threads_) : i;
        for (size_t k = 0; k < runs; ++k) {
          while (share((own + k) % runs, i)) {
          }
        }
      } else if (i < runs) {
        share(i, i);
      }
    }
  }

  // The threads of a parallel region: libgomp ends the process where it gets none. With fewer threads than the team's,
  // each has several ranges.
  int Startable() const {
    TeamThreads& mine = ThreadsOfCaller();
    if (mine.wanted < threads_) {
      mine.wanted = threads_;
      mine.startable = 1 + static_cast<int>(StartableThreads(static_cast<size_t>(threads_ - 1)));
    }
    return std::min(threads_, mine.startable);
  }

  template <typename Fn>
  static void Call(const Fn& f, size_t begin, size_t end, size_t thread) {
    if constexpr (std::is_invocable_v<const Fn&, size_t, size_t, size_t>)
      f(begin, end, thread);
    else
      f(begin, end);
  }

  // Pins the calling thread, number i of the team, to its processors the first time.
  void PinOnce(size_t i) const {
    if (cpus_.empty()) return;
    thread_local uint64_t pinned = 0;
    const uint64_t place = id_ << 16 | i;
    if (pinned == place) return;
    pinned = place;
    PinThread(i == 0 ? std::span(cpus_) : std::span(cpus_).subspan(i % cpus_.size(), 1));
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
