// The ISA level NEON with the dot product extension (ARMv8.2).
#include <arm_neon.h>

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

int32x4_t DotFour(int32x4_t acc, int8x16_t a, int8x16_t b) { return vdotq_s32(acc, a, b); }

#include "kernels/cpu/neon-inl.h"

}  // namespace

const IsaOps* NeonDotOps() { return &kOps; }

}  // namespace gyre::cpu
