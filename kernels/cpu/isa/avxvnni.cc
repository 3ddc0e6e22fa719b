// The ISA level AVX-VNNI: dpbusd on 256 bits, for processors without AVX-512 (Intel's since Alder Lake, 2021).
// Everything else is as for AVX2.
#include "kernels/cpu/products/avx2_products-inl.h"
#include "kernels/cpu/isa/isa_ops.h"

namespace gyre::cpu {

const IsaOps* AvxVnniOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx2Ops();
    ops.dot_panels = DotPanels;
    ops.wide_rows_from = SIZE_MAX;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
