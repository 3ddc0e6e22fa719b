// Weights as the CPU backend holds them: in panels where the type has codes, everything else as it lies in the file; of
// that, codebook types are made into panels each time, a few at once.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

struct FreeDelete {
  void operator()(std::byte* p) const { std::free(p); }
};

struct CpuWeight : PackedWeight {
  WeightView source;  // in the file
  // Panel after panel, or null. Of codebook types what follows is of panels that ExpandPanels makes.
  std::unique_ptr<std::byte[], FreeDelete> panels;
  PanelType panel_type = PanelType::kQ8;
  size_t blocks = 0;       // of a panel, padded to whole units
  size_t panel_bytes = 0;  // from one panel to the next
};

// Threads share out panels in groups of these, while packing as while multiplying.
inline constexpr size_t kPanelGrain = 4;
// Of n columns: an even number, so that tiles of two need no other.
inline size_t PanelCount(size_t n) { return (n + 2 * kPanel - 1) / (2 * kPanel) * 2; }

std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, const Team& team,
                                            const std::function<void(size_t)>& progress);
// Panels [first, first + 2) of a codebook type into 2 * panel_bytes. REQUIRES: IsLowBit(w.type).
void ExpandPanels(const CpuWeight& w, size_t first, std::byte* out);
// Without a value, at a multiple of 64, in huge pages where they fill some: fewer walks of the page table.
std::unique_ptr<std::byte[], FreeDelete> AlignedBytes(size_t bytes);
// Bytes at a multiple of 64, large ones in huge pages, that grow to the largest that was asked for and stay.
class Buffer {
 public:
  // At least `bytes`, without a value once they grow.
  std::byte* EnsureCapacity(size_t bytes);
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[], FreeDelete> bytes_;
  size_t capacity_ = 0;
};
// The type whose elements the kernels read as they lie, or nullopt.
std::optional<FloatType> FloatTypeOf(const CpuWeight& w);

}  // namespace gyre::cpu
