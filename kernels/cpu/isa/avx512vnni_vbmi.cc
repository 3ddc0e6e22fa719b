// Codebook types and ternary digits unpacked where the processor has AVX-512 VBMI: byte permutations look up 64 at
// once.
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/avx512_unpack-inl.h"

namespace gyre::cpu {

UnpackUnits UnpackUnitsVbmi(PanelType type) {
  return WithPanelType(type, []<PanelType t>() -> UnpackUnits {
    using L = PanelLayout<t>;
    if constexpr (L::kUnpackedFirst)
      return Unpack<L>;
    else
      return nullptr;
  });
}

}  // namespace gyre::cpu
