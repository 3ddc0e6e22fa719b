#include "limits/machine_limits.h"

#include <omp.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/counted.h"
#include "base/describe_bytes.h"
#include "base/startable_threads.h"
#include "fmt/core.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/ops.h"

namespace gyre::bench {

namespace {

struct Machine {
  std::string cpu, system, kernel;
  uint64_t memory = 0;  // bytes
};

// Text that stands in JSON as it is.
std::string Plain(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}

// What follows `key` in the first line of a file that begins with it; "unknown" if there is none.
std::string ValueIn(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t:=\"", key.size());
    const size_t end = line.find_last_not_of(" \"");
    if (begin != std::string::npos && end >= begin) return Plain(line.substr(begin, end + 1 - begin));
  }
  return "unknown";
}

Machine ThisMachine() {
  Machine m{
      .cpu = ValueIn("/proc/cpuinfo", "model name"), .system = ValueIn("/etc/os-release", "PRETTY_NAME"), .kernel = {}};
  utsname name{};
  if (uname(&name) == 0) m.kernel = Plain(fmt::format("{} {}", name.sysname, name.release));
  m.memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return m;
}

}  // namespace

std::string DescribeMachine() {
  const Machine m = ThisMachine();
  return fmt::format(
      R"({{"cpu": "{}", "cores": {}, "isa": "{}", "memory_bytes": {}, "system": "{}", "kernel": "{}", "compiler": "{}"}})",
      m.cpu, std::thread::hardware_concurrency(), IsaName(DetectIsa()), m.memory, m.system, m.kernel, __VERSION__);
}

std::string MachineText() {
  const Machine m = ThisMachine();
  return fmt::format("{}, {} ({}), {} of memory, {}, {}", m.cpu, Counted(std::thread::hardware_concurrency(), "core"),
                     IsaName(DetectIsa()), DescribeBytes(m.memory), m.system, m.kernel);
}

namespace {

// Both functions sum four streams in different pages, as the kernels for decode do.
#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t ReadStreamsAvx2(const uint64_t* data, size_t words) {
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
#endif

uint64_t ReadStreams(const uint64_t* data, size_t words) {
#if defined(__x86_64__)
  if (IsaMissing(Isa::kAvx2).empty()) return ReadStreamsAvx2(data, words);
#endif
  constexpr size_t kStreams = 4, kLine = 8;
  const size_t part = words / kStreams / kLine * kLine;
  uint64_t sums[kLine] = {};
  for (size_t i = 0; i < part; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      for (size_t w = 0; w < kLine; ++w) sums[w] += data[s * part + i + w];
    }
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

double ReadBandwidth(int threads, size_t bytes, int passes) {
  threads = 1 + static_cast<int>(StartableThreads(static_cast<size_t>(threads - 1)));
  const std::vector<uint64_t> buffer(bytes / sizeof(uint64_t), 1);
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t sum = 0;
    const size_t part = buffer.size() / static_cast<size_t>(threads);
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int t = 0; t < threads; ++t) sum += ReadStreams(buffer.data() + static_cast<size_t>(t) * part, part);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // The sum is used so that the compiler can't remove the reads.
    if (sum > 0) best = std::max(best, static_cast<double>(part) * static_cast<double>(threads) * 8 / seconds);
  }
  EndTeamThreads();
  return best;
}

#if defined(__x86_64__)
namespace {

// These loops use only registers, with ten accumulators. The empty asm hides from the compiler that sums are not used.
#define GYRE_STEP(V, STEP)      \
  {                             \
    auto& v = V;                \
    v = STEP;                   \
    asm volatile("" : "+v"(v)); \
  }
#define GYRE_REGISTER_LOOP(TARGET, NAME, ZERO, STEP)                                     \
  __attribute__((target(TARGET))) void NAME(size_t steps) {                              \
    auto a = ZERO;                                                                       \
    asm volatile("" : "+v"(a));                                                          \
    auto s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a; \
    for (size_t i = 0; i < steps; ++i) {                                                 \
      GYRE_STEP(s0, STEP)                                                                \
      GYRE_STEP(s1, STEP)                                                                \
      GYRE_STEP(s2, STEP)                                                                \
      GYRE_STEP(s3, STEP)                                                                \
      GYRE_STEP(s4, STEP)                                                                \
      GYRE_STEP(s5, STEP)                                                                \
      GYRE_STEP(s6, STEP)                                                                \
      GYRE_STEP(s7, STEP)                                                                \
      GYRE_STEP(s8, STEP)                                                                \
      GYRE_STEP(s9, STEP)                                                                \
    }                                                                                    \
  }
GYRE_REGISTER_LOOP("avx2,fma", FloatAvx2, _mm256_setzero_ps(), _mm256_fmadd_ps(a, a, v))
GYRE_REGISTER_LOOP("avx2", IntegerAvx2, _mm256_setzero_si256(),
                   _mm256_add_epi32(v, _mm256_madd_epi16(_mm256_maddubs_epi16(a, v), a)))
GYRE_REGISTER_LOOP("avxvnni", IntegerAvxVnni, _mm256_setzero_si256(), _mm256_dpbusd_avx_epi32(v, a, a))
GYRE_REGISTER_LOOP("avx512f", FloatAvx512, _mm512_setzero_ps(), _mm512_fmadd_ps(a, a, v))
GYRE_REGISTER_LOOP("avx512f,avx512vnni", IntegerVnni, _mm512_setzero_si512(), _mm512_dpbusd_epi32(v, a, a))
#undef GYRE_REGISTER_LOOP
#undef GYRE_STEP

// Four accumulators, as in the kernels. All tiles are zeros, 16 rows of 64 bytes.
void BfloatTiles(size_t steps) {
  const cpu::TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (size_t i = 0; i < steps; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

}  // namespace

double PeakOps(Isa isa, Unit unit, int threads) {
  // Products in one pass of the loop: accumulators x lanes, with one addition each.
  if (isa == Isa::kRef || isa == Isa::kAmxEmulated) return 0;
  void (*loop)(size_t) = FloatAvx2;
  double products = 10 * 8;
  const bool integer = unit == Unit::kInteger;
  size_t steps = 2'000'000;
  if (unit == Unit::kTiles) {
    loop = BfloatTiles;
    products = 4 * 16 * 16 * 32;
    steps /= 8;
  } else if (integer && (isa == Isa::kAvx512Vnni || isa == Isa::kAmx)) {
    loop = IntegerVnni;
    products = 10 * 64;
  } else if (integer && isa == Isa::kAvxVnni) {
    loop = IntegerAvxVnni;
    products = 10 * 32;
  } else if (integer) {
    loop = IntegerAvx2;
    products = 10 * 32;
  } else if (isa != Isa::kAvx2 && isa != Isa::kAvxVnni) {
    loop = FloatAvx512;
    products = 10 * 16;
  }
  threads = 1 + static_cast<int>(StartableThreads(static_cast<size_t>(threads - 1)));
  // There are several passes: the first one starts the threads while those of earlier work may still spin.
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; ++t) loop(steps);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2 * products * static_cast<double>(steps) * threads / seconds);
  }
  EndTeamThreads();
  return best;
}
#else
double PeakOps(Isa, Unit, int) { return 0; }
#endif

Unit UnitOf(Isa isa, Arithmetic arithmetic, bool float_weights) {
  if (arithmetic == Arithmetic::kPrefill && !PrefillMatchesDecode(isa)) return Unit::kTiles;
  return float_weights || arithmetic == Arithmetic::kExact ? Unit::kFloat : Unit::kInteger;
}

}  // namespace gyre::bench
