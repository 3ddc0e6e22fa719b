// Which backend: what this CPU and this build have.
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref_backend.h"

namespace gyre {
namespace {

const cpu::IsaOps* OpsOf(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx2: return cpu::Avx2Ops();
    case Isa::kAvx512: return cpu::Avx512Ops();
    case Isa::kAvx512Vnni: return cpu::Avx512VnniOps();
    default: break;
  }
#endif
  return nullptr;
}

// The builtin asks the operating system too (XCR0).
bool CpuHas(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kAvx2: return avx2;  // every CPU with AVX2 has F16C
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Vnni: return avx512 && __builtin_cpu_supports("avx512vnni");
    default: break;
  }
#endif
  return isa == Isa::kRef;
}

}  // namespace

const char* IsaName(Isa isa) {
  static constexpr const char* kNames[] = {"ref", "avx2", "avx512", "avx512vnni"};
  return kNames[static_cast<int>(isa)];
}

std::string IsaMissing(Isa isa) {
  if (CpuHas(isa)) return "";
  return std::string("this CPU has no ") + IsaName(isa);
}

Isa DetectIsa() {
  int best = static_cast<int>(Isa::kAvx512Vnni);
  if (const char* cap = std::getenv("GYRE_ISA")) {
    for (int i = 0; i <= best; ++i) {
      if (std::strcmp(cap, IsaName(static_cast<Isa>(i))) == 0) best = i;
    }
  }
  while (!CpuHas(static_cast<Isa>(best))) --best;
  return static_cast<Isa>(best);
}

std::unique_ptr<Backend> MakeBackend(Isa isa, int threads) {
  const cpu::IsaOps* ops = OpsOf(isa);
  return ops != nullptr ? cpu::MakeCpuBackend(isa, *ops, threads) : MakeRefBackend();
}

}  // namespace gyre
