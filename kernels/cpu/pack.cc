#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "kernels/dequant_blocks.h"

namespace gyre {
namespace {

// Writes column `c` of a panel (already zeroed) from its source blocks.
using PackColumn = void (*)(const std::byte* src, size_t k, size_t c, std::byte* panel);

// Copies `groups` times 4 bytes, each to its group of 16 columns.
void Spread(const std::byte* src, size_t groups, size_t c, std::byte* to) {
  for (size_t g = 0; g < groups; ++g) std::memcpy(to + g * 64 + c * 4, src + g * 4, 4);
}

void PackQ8(const std::byte* src, size_t k, size_t c, std::byte* panel) {
  for (size_t b = 0; b < k / 32; ++b, src += 34) {
    std::byte* s = panel + b / 2 * PanelQ8::kBytes;
    std::memcpy(s + b % 2 * 32 + c * 2, src, 2);
    std::byte shifted[32];
    for (size_t i = 0; i < 32; ++i) shifted[i] = src[2 + i] ^ std::byte{0x80};
    Spread(shifted, 8, c, s + PanelQ8::kWeights + b % 2 * 512);
  }
}

void PackQ4(const std::byte* src, size_t k, size_t c, std::byte* panel) {
  for (size_t b = 0; b < k / 32; ++b, src += 18) {
    std::byte* s = panel + b / 2 * PanelQ4::kBytes;
    std::memcpy(s + b % 2 * 32 + c * 2, src, 2);
    Spread(src + 2, 4, c, s + PanelQ4::kWeights + b % 2 * 256);
  }
}

void PackQ4K(const std::byte* src, size_t k, size_t c, std::byte* panel) {
  for (size_t super = 0; super < k / 256; ++super, src += 144, panel += PanelQ4K::kBytes) {
    std::memcpy(panel + c * 2, src, 2);
    std::memcpy(panel + PanelQ4K::kMin + c * 2, src + 2, 2);
    for (size_t b = 0; b < 8; ++b) {
      int scale = 0, min = 0;
      ScaleMin(src + 4, b, &scale, &min);
      panel[PanelQ4K::kScales + b * 16 + c] = static_cast<std::byte>(scale);
      panel[PanelQ4K::kMins + b * 16 + c] = static_cast<std::byte>(min);
    }
    Spread(src + 16, 32, c, panel + PanelQ4K::kWeights);
  }
}

void PackQ6K(const std::byte* src, size_t k, size_t c, std::byte* panel) {
  for (size_t super = 0; super < k / 256; ++super, src += 210, panel += PanelQ6K::kBytes) {
    std::memcpy(panel + c * 2, src + 208, 2);
    for (size_t part = 0; part < 16; ++part) panel[PanelQ6K::kScales + part * 16 + c] = src[192 + part];
    uint8_t q[256];
    for (size_t i = 0; i < 256; ++i) q[i] = static_cast<uint8_t>(Q6At(src, i));
    std::byte low[128] = {}, high[64] = {};
    for (size_t pair = 0; pair < 4; ++pair) {
      const uint8_t* first = q + pair * 64;
      const uint8_t* second = first + 32;
      for (size_t i = 0; i < 32; ++i) {
        low[pair * 32 + i] = static_cast<std::byte>((first[i] & 15) | (second[i] & 15) << 4);
        const size_t group = i / 4;
        const int bits = first[i] >> 4 | (second[i] >> 4) << 4;
        high[pair * 16 + group / 2 * 4 + i % 4] |= static_cast<std::byte>(bits << (2 * (group % 2)));
      }
    }
    Spread(low, 32, c, panel + PanelQ6K::kWeights);
    Spread(high, 16, c, panel + PanelQ6K::kHigh);
  }
}

struct Packing {
  PanelDotFn dot;
  PackColumn column;
  size_t super_elems;
  size_t super_bytes;
};

Packing PackingOf(DType type, const KernelTable& kernels) {
  switch (type) {
    case DType::kQ8_0:
      return {kernels.dot_q8, PackQ8, 64, PanelQ8::kBytes};
    case DType::kQ4_0:
      return {kernels.dot_q4, PackQ4, 64, PanelQ4::kBytes};
    case DType::kQ4_K:
      return {kernels.dot_q4k, PackQ4K, 256, PanelQ4K::kBytes};
    case DType::kQ6_K:
      return {kernels.dot_q6k, PackQ6K, 256, PanelQ6K::kBytes};
    default:
      return {nullptr, nullptr, 0, 0};
  }
}

}  // namespace

std::shared_ptr<CpuWeight> PackWeight(const WeightView& w, const KernelTable& kernels, const Team& team,
                                      const std::function<void(size_t)>& progress) {
  auto packed = std::make_shared<CpuWeight>();
  const DTypeInfo& info = Info(w.type);
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->source = w.data;
  packed->row_bytes = w.k / info.block_elems * info.block_bytes;
  packed->bytes = w.n * packed->row_bytes;
  const Packing packing = PackingOf(w.type, kernels);
  if (packing.dot == nullptr) {
    if (progress) progress(packed->bytes);
    return packed;
  }
  const size_t supers = (w.k + packing.super_elems - 1) / packing.super_elems;
  packed->dot = packing.dot;
  packed->panel_bytes = supers * packing.super_bytes;
  packed->blocks = supers * packing.super_elems / kQuantBlock;
  packed->bytes = packed->Panels() * packed->panel_bytes;
  std::byte* panels = packed->panels.Reserve(packed->bytes);
  std::mutex progress_mutex;
  team.For(packed->Panels(), static_cast<double>(kPanelColumns * w.k), [&](size_t p, int) {
    std::byte* panel = panels + p * packed->panel_bytes;
    // Columns that are not there, and blocks past k, have scale zero.
    std::memset(panel, 0, packed->panel_bytes);
    const size_t columns = std::min(kPanelColumns, w.n - p * kPanelColumns);
    for (size_t c = 0; c < columns; ++c) {
      packing.column(w.data + (p * kPanelColumns + c) * packed->row_bytes, w.k, c, panel);
    }
    if (progress) {
      const std::lock_guard<std::mutex> lock(progress_mutex);
      progress(columns * packed->row_bytes);
    }
  });
  return packed;
}

}  // namespace gyre
