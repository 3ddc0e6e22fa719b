#include "kernels/cpu/products/product_kernel.h"

#include "kernels/cpu/products/tile_product.h"

namespace gyre::cpu {

WeightForm FormOf(const CpuWeight& w) {
  if (w.has_panels()) return WeightForm::kPanels;
  if (FloatTypeOf(w)) return WeightForm::kFloats;
  if (w.type == DType::kF8E4M3) return WeightForm::kFp8;
  return WeightForm::kOther;
}

ProductKernel ChooseProduct(const IsaOps& ops, const CpuWeight& w, size_t rows, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kPrefill && ops.tiles != nullptr && TileProduct::Supports(w))
    return ProductKernel::kTiles;
  const WeightForm form = FormOf(w);
  for (const ProductRule& rule : kProductRules) {
    if (rule.form != form || (rule.rounds && arithmetic == Arithmetic::kExact)) continue;
    if (rule.rows == ProductRule::Rows::kAny || rows >= ops.float_gemm.min_rows) return rule.kernel;
  }
  return ProductKernel::kExpandedRows;
}

}  // namespace gyre::cpu
