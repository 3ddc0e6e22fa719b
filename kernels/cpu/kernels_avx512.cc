// Kernels for AVX-512 F, BW, DQ and VL.
#include "kernels/cpu/simd_avx512.h"
// After the vectors that they are written in.
#include "kernels/cpu/vec_math.h"
// After the vector math.
#include "kernels/cpu/dot_impl.h"
#include "kernels/cpu/ops_impl.h"
#include "kernels/cpu/panel_impl.h"

namespace gyre {

const KernelTable& Avx512Kernels() {
  static constexpr KernelTable kTable = {
      .dot_f32 = Dot<ElementF32>,
      .dot_f16 = Dot<ElementF16>,
      .dot_bf16 = Dot<ElementBf16>,
      .dequantize = DequantizeRun,
      .quantized_bytes = kQuantizedBytes,
      .quantize = QuantizeRow,
      .dot_q8 = PanelDot<PanelQ8>,
      .dot_q4 = PanelDot<PanelQ4>,
      .dot_q4k = PanelDot<PanelQ4K>,
      .dot_q6k = PanelDot<PanelQ6K>,
      .rms_norm = RmsNormRow,
      .rope = RopeRow,
      .gated = Gated,
      .softcap = Softcap,
      .to_half = ToHalf,
      .softmax_part = SoftmaxPart,
      .weighted_sum_f32 = WeightedSum<ElementF32>,
      .weighted_sum_f16 = WeightedSum<ElementF16>,
      .find_above = FindAbove,
      .max_of = MaxOf,
      .sum_exp = SumExp,
  };
  return kTable;
}

}  // namespace gyre
