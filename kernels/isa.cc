// Which instruction sets there are, and the backend of one.
#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <string_view>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops.h"
#include "kernels/ref/ref_backend.h"

namespace gyre {
namespace {

constexpr Isa kAll[] = {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni};

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "?";
}

std::string IsaMissing(Isa isa) {
  std::string missing;
#if defined(GYRE_X86_KERNELS)
  // The builtin looks at cpuid and at what the system saves of the registers (xcr0).
  auto need = [&missing](bool has, const char* name) {
    if (!has) missing += (missing.empty() ? "this CPU or system lacks " : ", ") + std::string(name);
  };
  __builtin_cpu_init();
  if (isa >= Isa::kAvx2) {
    need(__builtin_cpu_supports("avx2"), "AVX2");
    need(__builtin_cpu_supports("fma"), "FMA");
  }
  if (isa >= Isa::kAvx512) {
    need(__builtin_cpu_supports("avx512f"), "AVX-512F");
    need(__builtin_cpu_supports("avx512bw"), "AVX-512BW");
    need(__builtin_cpu_supports("avx512dq"), "AVX-512DQ");
    need(__builtin_cpu_supports("avx512vl"), "AVX-512VL");
  }
  if (isa >= Isa::kAvx512Vnni) need(__builtin_cpu_supports("avx512vnni"), "AVX-512 VNNI");
#else
  if (isa != Isa::kRef) missing = "not in this build";
#endif
  return missing;
}

Isa DetectIsa() {
  Isa cap = Isa::kAvx512Vnni;
  if (const char* name = std::getenv("GYRE_ISA")) {
    for (Isa isa : kAll) {
      if (std::string_view(name) == IsaName(isa)) cap = isa;
    }
  }
  Isa best = Isa::kRef;
  for (Isa isa : kAll) {
    if (isa <= cap && IsaMissing(isa).empty()) best = isa;
  }
  return best;
}

std::unique_ptr<Backend> MakeBackend([[maybe_unused]] Isa isa, [[maybe_unused]] int threads) {
  assert(threads >= 1 && IsaMissing(isa).empty());
#if defined(GYRE_X86_KERNELS)
  if (isa != Isa::kRef) return MakeCpuBackend(isa, std::max(threads, 1));
#endif
  return MakeRefBackend();
}

}  // namespace gyre
