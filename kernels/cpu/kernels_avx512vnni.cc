// Kernels for AVX-512 with VNNI: only the integer dots differ from those of AVX-512.
#define GYRE_VNNI
#include "kernels/cpu/simd_avx512.h"
// After the vectors that they are written in.
#include "kernels/cpu/vec_math.h"
// After the vector math.
#include "kernels/cpu/panel_impl.h"

namespace gyre {

const KernelTable& Avx512VnniKernels() {
  static const KernelTable kTable = [] {
    KernelTable t = Avx512Kernels();
    t.quantized_bytes = kQuantizedBytes;
    t.quantize = QuantizeRow;
    t.dot_q8 = PanelDot<PanelQ8>;
    t.dot_q4 = PanelDot<PanelQ4>;
    t.dot_q4k = PanelDot<PanelQ4K>;
    t.dot_q6k = PanelDot<PanelQ6K>;
    return t;
  }();
  return kTable;
}

}  // namespace gyre
