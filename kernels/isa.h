// Instruction set levels of the CPU's kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace gyre {

// kAmxEmulated computes the same as kAmx on any processor with AVX-512, slowly. It is for tests: it is never chosen
// automatically, and has no name in a program that does not call AllowEmulation.
enum class Isa : uint8_t {
  kRef = 0,
  kAvx2 = 1,
  kAvx512 = 2,
  kAvx512Vnni = 3,
  kNeon = 4,
  kNeonDot = 5,
  kAmx = 6,
  kAmxEmulated = 7,
  kAvxVnni = 8
};
const char* IsaName(Isa isa);
// Whether Arithmetic::kPrefill and kDecode give the same bits.
constexpr bool PrefillMatchesDecode(Isa isa) { return isa != Isa::kAmx && isa != Isa::kAmxEmulated; }
// The levels in this build: kRef first, each better than the one before it.
std::span<const Isa> BuiltIsas();
// The best built level that this CPU supports. The environment variable GYRE_ISA (a name) limits it.
Isa DetectIsa();
// From here on GYRE_ISA and --isa may name kAmxEmulated. Call it before other threads start.
void AllowEmulation();
// The levels that have a name here: those of this build, and with AllowEmulation the emulated one.
std::span<const Isa> NamedIsas();
// "" if this CPU can run `isa`, otherwise the reason why it can't.
std::string IsaMissing(Isa isa);

}  // namespace gyre
