// The threads of one backend: OpenMP, without a parallel region where the work is too small to pay for one.
#pragma once

#include <algorithm>
#include <cstddef>

namespace gyre::cpu {

class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}
  int threads() const { return threads_; }

  // Calls f(begin, end) over parts of [0, items), one a thread; boundaries are multiples of `grain`. `nanoseconds`: what
  // all of it takes on one thread, roughly; under kWorthwhile it stays on the caller's.
  template <typename Fn>
  void For(size_t items, size_t grain, double nanoseconds, const Fn& f) const {
    const size_t grains = (items + grain - 1) / grain;
    const int n = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads_), grains));
    if (n <= 1 || nanoseconds < kWorthwhile) {
      if (items > 0) f(size_t{0}, items);
      return;
    }
#pragma omp parallel for num_threads(n) schedule(static, 1)
    for (int t = 0; t < n; ++t) {
      const auto i = static_cast<size_t>(t), parts = static_cast<size_t>(n);
      const size_t begin = grains * i / parts * grain, end = std::min(items, grains * (i + 1) / parts * grain);
      if (begin < end) f(begin, end);
    }
  }

 private:
  static constexpr double kWorthwhile = 20000;
  const int threads_;
};

}  // namespace gyre::cpu
