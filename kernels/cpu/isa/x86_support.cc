#include "kernels/cpu/isa/x86_support.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gyre::cpu {
namespace {

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Leaf CpuId(unsigned leaf, unsigned sub) {
  Leaf l;
  __get_cpuid_count(leaf, sub, &l.a, &l.b, &l.c, &l.d);
  return l;
}
// Register eax of leaf 7, subleaf 1; 0 if there is no such subleaf.
unsigned Extended() { return CpuId(7, 0).a >= 1 ? CpuId(7, 1).a : 0; }
bool Has(unsigned bits, unsigned bit) { return (bits >> bit & 1) != 0; }

// The register sets that the operating system saves (XCR0). REQUIRES: OSXSAVE.
unsigned SavedState() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18; Linux,
// Documentation/arch/x86/xstate.rst.
std::string Missing() {
  const unsigned seven = CpuId(7, 0).d;
  const bool tile = Has(seven, 24), int8 = Has(seven, 25), bf16 = Has(seven, 22), avx512_bf16 = Has(Extended(), 5);
  if (!tile || !int8 || !bf16) return "this CPU has no amx";
  if (!avx512_bf16 || !HasAvx512Vbmi())
    return "this CPU has amx, without avx512_bf16 or avx512_vbmi, which go with it here";
  constexpr unsigned kTileConfig = 17, kTileData = 18;
  if (!Has(CpuId(1, 0).c, 27) || !Has(SavedState(), kTileConfig) || !Has(SavedState(), kTileData)) {
    return "this CPU has amx, the system does not save its registers (Linux does from 5.16 on)";
  }
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return std::string("this CPU has amx, the system does not let this process use it: ") + std::strerror(errno);
  }
  return "";
}

}  // namespace

const std::string& AmxMissing() {
  static const std::string missing = Missing();
  return missing;
}

bool HasAvx512Vbmi() { return Has(CpuId(7, 0).c, 1); }

bool HasAvxVnni() { return Has(Extended(), 4); }

size_t PanelStreams() {
  const Leaf vendor = CpuId(0, 0);
  constexpr unsigned kAuth = 0x68747541, kCamd = 0x444D4163;  // the first and last letters of "AuthenticAMD"
  return vendor.b == kAuth && vendor.c == kCamd ? 1 : 4;
}

}  // namespace gyre::cpu
