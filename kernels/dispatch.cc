// Chooses a backend from what this CPU and this build support.
#include <omp.h>

#include <cstdlib>
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/team.h"
#include "kernels/ref/ref_backend.h"

namespace gyre {
const cpu::IsaOps* cpu::OpsOf(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx2: return cpu::Avx2Ops();
    case Isa::kAvxVnni: return cpu::AvxVnniOps();
    case Isa::kAvx512: return cpu::Avx512Ops();
    case Isa::kAvx512Vnni: return cpu::Avx512VnniOps();
    case Isa::kAmx: return cpu::AmxOps();
    case Isa::kAmxEmulated: return cpu::AmxEmulatedOps();
    default: break;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return cpu::NeonOps();
  if (isa == Isa::kNeonDot) return cpu::NeonDotOps();
#endif
  return nullptr;
}

namespace {

// __builtin_cpu_supports also checks that the operating system saves the registers (XCR0).
bool CpuHas(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::kAvx2: return avx2;  // every CPU with AVX2 also has F16C
    case Isa::kAvxVnni: return avx2 && cpu::HasAvxVnni();
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Vnni: return avx512 && __builtin_cpu_supports("avx512vnni");
    case Isa::kAmx: return avx512 && __builtin_cpu_supports("avx512vnni") && cpu::AmxMissing().empty();
    case Isa::kAmxEmulated: return avx512;
    default: break;
  }
#elif defined(__aarch64__)
  constexpr unsigned long kDotProduct = 1 << 20;  // HWCAP_ASIMDDP
  if (isa == Isa::kNeon) return true;
  if (isa == Isa::kNeonDot) return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#endif
  return isa == Isa::kRef;
}

bool emulation_allowed = false;

}  // namespace

void AllowEmulation() { emulation_allowed = true; }

const char* IsaName(Isa isa) {
  static constexpr const char* kNames[] = {"ref",     "avx2", "avx512",       "avx512vnni", "neon",
                                           "neondot", "amx",  "amx-emulated", "avxvnni"};
  return kNames[static_cast<int>(isa)];
}

std::string IsaMissing(Isa isa) {
  if (CpuHas(isa)) return "";
#if defined(__x86_64__)
  if (isa == Isa::kAmx && !cpu::AmxMissing().empty()) return cpu::AmxMissing();
#endif
  return std::string("this CPU has no ") + IsaName(isa);
}

std::span<const Isa> NamedIsas() {
  // The emulated level is the last one.
#if defined(__x86_64__)
  static constexpr Isa kNamed[] = {Isa::kRef,        Isa::kAvx2, Isa::kAvxVnni,    Isa::kAvx512,
                                   Isa::kAvx512Vnni, Isa::kAmx,  Isa::kAmxEmulated};
#elif defined(__aarch64__)
  static constexpr Isa kNamed[] = {Isa::kRef, Isa::kNeon, Isa::kNeonDot, Isa::kAmxEmulated};
#else
  static constexpr Isa kNamed[] = {Isa::kRef, Isa::kAmxEmulated};
#endif
  return std::span(kNamed).first(std::size(kNamed) - (emulation_allowed ? 0 : 1));
}

std::span<const Isa> BuiltIsas() {
  const std::span<const Isa> named = NamedIsas();
  return named.first(named.size() - (emulation_allowed ? 1 : 0));
}

Isa DetectIsa() {
  const char* cap = std::getenv("GYRE_ISA");
  if (emulation_allowed && cap != nullptr && std::strcmp(cap, IsaName(Isa::kAmxEmulated)) == 0 &&
      CpuHas(Isa::kAmxEmulated))
    return Isa::kAmxEmulated;
  Isa best = Isa::kRef;
  for (Isa isa : BuiltIsas()) {
    if (CpuHas(isa)) best = isa;
    if (cap != nullptr && std::strcmp(cap, IsaName(isa)) == 0) break;
  }
  return best;
}

std::shared_ptr<Device> MakeCpuDevice(Isa isa, int threads, std::vector<int> cpus) {
  const cpu::IsaOps* ops = cpu::OpsOf(isa);
  return std::make_shared<cpu::CpuDevice>(isa, [ops, threads, cpus = std::move(cpus)](std::shared_ptr<Device> device) {
    return ops != nullptr ? cpu::MakeCpuBackend(std::move(device), *ops, threads, cpus)
                          : MakeRefBackend(std::move(device));
  });
}

std::unique_ptr<Backend> MakeBackend(Isa isa, int threads, std::vector<int> cpus) {
  return MakeCpuDevice(isa, threads, std::move(cpus))->NewBackend();
}

void EndTeamThreads() {
  cpu::ThreadsOfCaller() = {};
  // LLVM's OpenMP runtime would stop the threads of all callers, not only of this one.
#ifndef __clang__
  omp_pause_resource_all(omp_pause_soft);
#endif
}

}  // namespace gyre
