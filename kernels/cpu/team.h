// The threads of one backend.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>

namespace gyre {

class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}
  int threads() const { return threads_; }

  // Calls fn(i, thread) for i in [0, n), 0 <= thread < threads(), in any order. Work under about 20 us a thread is not
  // worth waking another: `ns_each` is an estimate of one call's cost.
  template <typename Fn>
  void For(size_t n, double ns_each, const Fn& fn) const {
    const double worth = static_cast<double>(n) * ns_each / 20000.0;
    const size_t most = std::min(n, static_cast<size_t>(threads_));
    const int use = static_cast<int>(worth < static_cast<double>(most) ? static_cast<size_t>(worth) : most);
    if (use < 2) {
      for (size_t i = 0; i < n; ++i) fn(i, 0);
      return;
    }
    // Handed out one by one: a shared host slows its cores unevenly.
#pragma omp parallel for num_threads(use) schedule(dynamic, 1)
    for (size_t i = 0; i < n; ++i) fn(i, omp_get_thread_num());
  }

 private:
  int threads_;
};

}  // namespace gyre
