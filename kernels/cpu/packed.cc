#include "kernels/cpu/packed.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace gyre::cpu {
namespace {

constexpr size_t kFileBlock = 34;  // Q8_0: f16 scale, 32 int8

// Columns that do not exist weigh nothing: scale 0.
void PackPanel(const WeightView& w, size_t panel, std::byte* out) {
  const size_t blocks = w.k / kBlock;
  for (size_t b = 0; b < blocks; ++b, out += kPanelBlockBytes) {
    for (size_t c = 0; c < kPanel; ++c) {
      const size_t column = panel * kPanel + c;
      std::byte* to = out + kPanel * 2 + c * 4;
      if (column >= w.n) {
        std::memset(out + 2 * c, 0, 2);
        for (size_t g = 0; g < kBlock / 4; ++g) std::memset(to + g * kPanel * 4, 0x80, 4);
        continue;
      }
      const std::byte* from = w.data + (column * blocks + b) * kFileBlock;
      std::memcpy(out + 2 * c, from, 2);
      for (size_t g = 0; g < kBlock / 4; ++g) {
        uint32_t four;
        std::memcpy(&four, from + 2 + 4 * g, 4);
        four ^= 0x80808080u;
        std::memcpy(to + g * kPanel * 4, &four, 4);
      }
    }
  }
}

}  // namespace

std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, const Team& team,
                                            const std::function<void(size_t)>& progress) {
  auto packed = std::make_shared<CpuWeight>();
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->source = w;
  const size_t source = w.bytes();
  packed->bytes = source;
  if (w.type == DType::kQ8_0) {
    const size_t panels = (w.n + kPanel - 1) / kPanel, stride = w.k / kBlock * kPanelBlockBytes;
    packed->bytes = panels * stride;
    packed->panels.reset(static_cast<std::byte*>(std::aligned_alloc(64, (packed->bytes + 63) / 64 * 64)));
    if (packed->panels == nullptr) throw std::bad_alloc();
    // In slices, so that progress is seen within a large matrix.
    const size_t slice = std::max<size_t>(1, (size_t{32} << 20) / std::max<size_t>(stride, 1));
    for (size_t at = 0; at < panels; at += slice) {
      const size_t n = std::min(slice, panels - at);
      team.For(n, 1, static_cast<double>(n * stride), [&](size_t begin, size_t end) {
        for (size_t p = begin; p < end; ++p) PackPanel(w, at + p, packed->panels.get() + (at + p) * stride);
      });
      if (progress) progress(std::min((at + n) * kPanel, w.n) * w.row_bytes() - at * kPanel * w.row_bytes());
    }
  } else if (progress) {
    progress(source);
  }
  return packed;
}

std::optional<FloatType> PlainType(const CpuWeight& w) {
  switch (w.type) {
    case DType::kF32: return FloatType::kF32;
    case DType::kF16: return FloatType::kF16;
    case DType::kBF16: return FloatType::kBf16;
    default: return std::nullopt;
  }
}

void ExpandRow(const CpuWeight& w, size_t n, float* out) {
  if (w.panels == nullptr) return DequantizeRow(w.source, n, out);
  const size_t blocks = w.k / kBlock;
  const std::byte* from = w.panels.get() + n / kPanel * blocks * kPanelBlockBytes;
  const size_t c = n % kPanel;
  for (size_t b = 0; b < blocks; ++b, from += kPanelBlockBytes) {
    uint16_t half;
    std::memcpy(&half, from + 2 * c, 2);
    const float scale = HalfToFloat(half);
    for (size_t i = 0; i < kBlock; ++i) {
      const auto stored = static_cast<int>(from[kPanel * 2 + (i / 4 * kPanel + c) * 4 + i % 4]);
      out[b * kBlock + i] = scale * static_cast<float>(stored - 128);
    }
  }
}

}  // namespace gyre::cpu
