// The choice of the kernel that multiplies rows by a weight matrix, and the form in which it reads them: one table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/ops.h"

namespace gyre::cpu {

enum class ProductKernel : uint8_t {
  kTiles,           // TileProduct
  kPanels,          // IsaOps::dot_panels
  kFloatPanels,     // FloatGemm
  kFloatRows,       // IsaOps::dot
  kFp8Rows,         // IsaOps::dot_fp8
  kExpandedPanels,  // FloatGemm, for weights that become f32 some columns at a time
  kExpandedRows,    // IsaOps::dot, for the same
};

// The form of weights in memory.
enum class WeightForm : uint8_t { kFloats, kFp8, kPanels, kOther };
WeightForm FormOf(const CpuWeight& w);

// The first rule that fits decides.
struct ProductRule {
  WeightForm form;
  enum class Rows : uint8_t { kAny, kMany } rows;  // many: FloatGemm::min_rows and more
  bool rounds;                                     // only where x may be rounded: not in Arithmetic::kExact
  ProductKernel kernel;
  const char* x;  // the layout of x, for people
};
inline constexpr ProductRule kProductRules[] = {
    {WeightForm::kPanels, ProductRule::Rows::kAny, true, ProductKernel::kPanels, "int8 blocks, groups of rows"},
    {WeightForm::kFloats, ProductRule::Rows::kMany, false, ProductKernel::kFloatPanels, "f32 row panels"},
    {WeightForm::kFloats, ProductRule::Rows::kAny, false, ProductKernel::kFloatRows, "f32 rows"},
    {WeightForm::kFp8, ProductRule::Rows::kMany, false, ProductKernel::kExpandedPanels, "f32 row panels"},
    {WeightForm::kFp8, ProductRule::Rows::kAny, false, ProductKernel::kFp8Rows, "f32 rows"},
    {WeightForm::kPanels, ProductRule::Rows::kMany, false, ProductKernel::kExpandedPanels, "f32 row panels"},
    {WeightForm::kPanels, ProductRule::Rows::kAny, false, ProductKernel::kExpandedRows, "f32 rows"},
    {WeightForm::kOther, ProductRule::Rows::kMany, false, ProductKernel::kExpandedPanels, "f32 row panels"},
    {WeightForm::kOther, ProductRule::Rows::kAny, false, ProductKernel::kExpandedRows, "f32 rows"},
};

// Before these rules, prompt rows go to tiles (bf16, x in tiles of 16 rows) where the instruction set has them and they
// take weights of this form.
ProductKernel ChooseProduct(const IsaOps& ops, const CpuWeight& w, size_t rows, Arithmetic arithmetic);

}  // namespace gyre::cpu
