// The ISA level NEON: the baseline of 64-bit ARM.
#include <arm_neon.h>

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

int32x4_t DotFour(int32x4_t acc, int8x16_t a, int8x16_t b) {
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), high = vpaddlq_s16(vmull_high_s8(a, b));
  return vaddq_s32(acc, vpaddq_s32(low, high));
}

#include "kernels/cpu/neon-inl.h"

}  // namespace

const IsaOps* NeonOps() { return &kOps; }

}  // namespace gyre::cpu
