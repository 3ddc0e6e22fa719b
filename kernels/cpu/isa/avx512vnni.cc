// The ISA level AVX-512 VNNI.
#include "kernels/cpu/products/avx512_products-inl.h"
#include "kernels/cpu/isa/x86_support.h"

namespace gyre::cpu {

const IsaOps* Avx512VnniOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512Ops();
    ops.dot_panels = DotPanels;
    if (HasAvx512Vbmi()) ops.dot_fp8 = DotFp8Vbmi;
    ops.streams = PanelStreams();
    ops.row_group = kRowGroup;
    ops.wide_rows_from = SIZE_MAX;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
