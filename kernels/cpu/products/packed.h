// Weights as the CPU backend holds them: packed into panels if they are quantized, otherwise as in the file.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/team.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace gyre::cpu {

struct FreeDelete {
  void operator()(std::byte* p) const { std::free(p); }
};

struct CpuWeight : PackedWeight {
  WeightView source;  // in the file
  // Consecutive panels, or none; the fields below describe them.
  DeviceMemory panels;
  bool has_panels() const { return panels.data() != nullptr; }
  PanelType panel_type = PanelType::kQ8;
  size_t blocks = 0;       // per panel, padded to whole units
  size_t panel_bytes = 0;  // distance between panels
  float scale = 1;         // WholeScale of `source`: panels do not have it, products with them are multiplied by it
};

// Multiplies `rows` rows of `columns` products of panels by the matrix's scale.
void ScaleProducts(const CpuWeight& w, size_t rows, size_t columns, float* out, size_t ldo);

// Threads divide panels in groups of this size, in packing as in multiplying.
inline constexpr size_t kPanelGrain = 4;
// Panels for n columns: an even number, so that kernels for two panels need no special case.
inline size_t PanelCount(size_t n) { return (n + 2 * kPanel - 1) / (2 * kPanel) * 2; }

// Throws OutOfDeviceMemory.
std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, Device& device, const Team& team,
                                            const std::function<void(size_t)>& progress);
// Uninitialized bytes, aligned to 64; blocks of a huge page or more are aligned to huge pages and use them, for fewer
// page table walks. Throws std::bad_alloc.
std::unique_ptr<std::byte[], FreeDelete> AlignedBytes(size_t bytes);
// A reusable aligned buffer that only grows. Large ones use huge pages.
class Buffer {
 public:
  // Returns at least `bytes` bytes. Contents are lost when it grows. Throws std::bad_alloc.
  std::byte* EnsureCapacity(size_t bytes);
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[], FreeDelete> bytes_;
  size_t capacity_ = 0;
};
// Expands rows [row, row + count) of kF8E4M3 over positions [begin, end): out [count][end - begin].
void ExpandFp8Rows(const IsaOps& ops, const WeightView& w, size_t row, size_t count, size_t begin, size_t end,
                   float* out);
// The float type of weights that kernels read directly; nullopt for all others.
std::optional<FloatType> FloatTypeOf(const CpuWeight& w);

}  // namespace gyre::cpu
