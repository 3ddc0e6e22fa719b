#include "bench/machine.h"

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

#include "fmt/core.h"
#include "kernels/ops.h"

namespace gyre::bench {

std::string DescribeMachine() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, model = "unknown";
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  return fmt::format(R"({{"cpu": "{}", "cores": {}, "isa": "{}", "compiler": "{}"}})", model,
                     std::thread::hardware_concurrency(), IsaName(DetectIsa()), __VERSION__);
}

namespace {

// Sums four streams that lie in different pages, as the decode kernels read.
__attribute__((target("avx2"))) uint64_t ReadStreams(const uint64_t* data, size_t words) {
  constexpr size_t kStreams = 4, kLine = 8;
  const size_t part = words / kStreams / kLine * kLine;
  __m256i sums[kStreams][2] = {};
  for (size_t i = 0; i < part; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const auto* p = reinterpret_cast<const __m256i*>(data + s * part + i);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 1024, _MM_HINT_T0);
      sums[s][0] = _mm256_add_epi64(sums[s][0], _mm256_loadu_si256(p));
      sums[s][1] = _mm256_add_epi64(sums[s][1], _mm256_loadu_si256(p + 1));
    }
  }
  uint64_t sum = 0;
  for (auto& pair : sums) {
    for (const __m256i& v : pair) {
      uint64_t lanes[4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), v);
      sum += lanes[0] + lanes[1] + lanes[2] + lanes[3];
    }
  }
  return sum;
}

}  // namespace

double ReadBandwidth(int threads) {
  static std::vector<uint64_t> buffer(size_t{1} << 26, 1);  // 512 MiB
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t sum = 0;
    const size_t part = buffer.size() / static_cast<size_t>(threads);
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int t = 0; t < threads; ++t) sum += ReadStreams(buffer.data() + static_cast<size_t>(t) * part, part);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // The sum keeps the reads alive.
    if (sum > 0) best = std::max(best, static_cast<double>(part) * static_cast<double>(threads) * 8 / seconds);
  }
  return best;
}

}  // namespace gyre::bench
