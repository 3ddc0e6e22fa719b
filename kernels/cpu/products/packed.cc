#include "kernels/cpu/products/packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/codes.h"
#include "kernels/quant_lowbit.h"

namespace gyre::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

float ScaleOf(const WeightView& w, size_t group) {
  float scale = 0;
  std::memcpy(&scale, w.scales + group * sizeof scale, sizeof scale);
  return scale;
}

// Whether the scales of kI8 are the same in f16, as those of bf16 mostly are: then half the bytes hold them.
bool ScalesFitHalf(const WeightView& w) {
  for (size_t g = 0; g < w.n * w.k / w.group; ++g) {
    if (!(HalfToFloat(FloatToHalf(ScaleOf(w, g))) == ScaleOf(w, g))) return false;
  }
  return true;
}

std::optional<PanelType> PanelTypeOf(const WeightView& w) {
  switch (w.type) {
    case DType::kQ8_0: return PanelType::kQ8;
    case DType::kQ4_0: return PanelType::kQ4;
    case DType::kQ4_1: return PanelType::kQ4Min;
    case DType::kQ5_0: return PanelType::kQ5;
    case DType::kQ5_1: return PanelType::kQ5Min;
    case DType::kQ2_K: return PanelType::kQ2K;
    case DType::kQ3_K: return PanelType::kQ3K;
    case DType::kQ4_K: return PanelType::kQ4K;
    case DType::kQ5_K: return PanelType::kQ5K;
    case DType::kQ6_K: return PanelType::kQ6K;
    case DType::kIQ4_NL: return PanelType::kIq4Nl;
    case DType::kIQ4_XS: return PanelType::kIq4Xs;
    case DType::kMXFP4: return PanelType::kFp4;
    case DType::kI8:  // a block of a panel has one scale, so a group has to be a multiple of blocks
      if (w.scales == nullptr || w.group % kBlock != 0 || w.k % kBlock != 0) return std::nullopt;
      return ScalesFitHalf(w) ? PanelType::kQ8 : PanelType::kI8;
    default: return std::nullopt;
  }
}

void Store16(std::byte* to, uint16_t v) { std::memcpy(to, &v, 2); }

// Writes one column's 32 codes into a block of the panel.
template <typename L>
void PutCodes(const uint8_t* q, size_t column, std::byte* block) {
  for (size_t g = 0; g < kBlock / 4; ++g) {
    for (size_t i = 0; i < 4; ++i) {
      const auto code = static_cast<unsigned>(q[4 * g + i]);
      const size_t at = column * 4 + i;
      if constexpr (L::kBits == 8) {
        block[g * kGroup + at] = static_cast<std::byte>(code);
      } else if constexpr (L::kBits <= 3) {
        block[g / 4 * kGroup + at] |= static_cast<std::byte>((code & 3) << (2 * (g % 4)));
        if constexpr (L::kBits == 3) block[L::kPlanes + at] |= static_cast<std::byte>((code >> 2) << g);
      } else {
        block[g % 4 * kGroup + at] |= static_cast<std::byte>((code & 15) << (g < 4 ? 0 : 4));
        if constexpr (L::kBits == 5) block[L::kPlanes + at] |= static_cast<std::byte>((code >> 4) << g);
        if constexpr (L::kBits == 6)
          block[L::kPlanes + g / 4 * kGroup + at] |= static_cast<std::byte>((code >> 4) << (2 * (g % 4)));
      }
    }
  }
}

// Reads elements [at, at + 32) of a row of kI8 as one block.
void UnpackInt8(const WeightView& w, size_t row, size_t at, CodeBlock* c) {
  for (size_t i = 0; i < kBlock; ++i)
    c->q[i] = static_cast<uint8_t>(static_cast<uint8_t>(w.data[row * w.k + at + i]) ^ 0x80);
  c->wide_d = ScaleOf(w, (row * w.k + at) / w.group);
  c->d = FloatToHalf(c->wide_d);
}

// Columns and blocks that do not exist contribute nothing: all their bytes are 0, including the scales.
template <PanelType type>
void PackPanel(const WeightView& w, size_t panel, std::byte* out) {
  using L = PanelLayout<type>;
  const DTypeInfo& info = Info(w.type);
  const size_t units = (w.k + L::kUnit - 1) / L::kUnit, step = w.type == DType::kI8 ? kBlock : info.block_elems;
  std::memset(out, 0, units * L::kUnitBytes);
  CodeBlock c;
  for (size_t column = 0; column < kPanel && panel * kPanel + column < w.n; ++column) {
    const size_t row = panel * kPanel + column;
    for (size_t at = 0; at < w.k; at += step) {
      if (w.type == DType::kI8) {
        UnpackInt8(w, row, at, &c);
      } else {
        UnpackCodes(w.type, w.data + row * w.row_bytes() + at / info.block_elems * info.block_bytes, &c);
      }
      std::byte* unit = out + at / L::kUnit * L::kUnitBytes;
      if constexpr (L::kSuper) {
        Store16(unit + 2 * column, c.d);
        if constexpr (L::kMin || L::kHalfMin) Store16(unit + kPanel * 2 + 2 * column, c.m ^ 0x8000);
        for (size_t s = 0; s < L::kBlocks * L::kScalesPerBlock; ++s) {
          int byte = c.scale[s];
          if constexpr (L::kHalfMin) byte |= c.min[s] << 4;
          unit[L::kMins + s * kPanel + column] = static_cast<std::byte>(byte);
        }
        if constexpr (L::kMin) {
          for (size_t b = 0; b < L::kBlocks; ++b)
            unit[L::kByteMins + b * kPanel + column] = static_cast<std::byte>(c.min[b]);
        }
        for (size_t b = 0; b < L::kBlocks; ++b)
          PutCodes<L>(c.q + b * kBlock, column, unit + L::kHeader + b * L::kBlockBytes);
      } else {
        const size_t b = at / kBlock % L::kBlocks, place = b * kPanel + column;
        if constexpr (L::kWide) {
          std::memcpy(unit + place * 4, &c.wide_d, 4);
        } else {
          Store16(unit + place * 2, c.d);
        }
        if constexpr (L::kMin) Store16(unit + L::kMins + place * 2, c.m);
        PutCodes<L>(c.q, column, unit + L::kHeader + b * L::kBlockBytes);
      }
    }
  }
}

template <PanelType type>
void SetShape(CpuWeight* packed) {
  using L = PanelLayout<type>;
  const size_t units = (packed->k + L::kUnit - 1) / L::kUnit;
  packed->panel_type = type;
  packed->blocks = units * L::kBlocks;
  packed->panel_bytes = units * L::kUnitBytes;
}

template <PanelType type>
void PackPanels(CpuWeight* packed, Device& device, const Team& team, const std::function<void(size_t)>& progress) {
  const WeightView& w = packed->source;
  const size_t panels = PanelCount(w.n);
  SetShape<type>(packed);
  packed->bytes = panels * packed->panel_bytes;
  packed->panels = device.Allocate(packed->bytes);
  std::byte* const memory = packed->panels.data();
  if (packed->bytes >= kHugePage) madvise(memory, packed->bytes, MADV_HUGEPAGE);
  // First touch: on a machine with several NUMA nodes the panels are placed in the memory of the thread that will read
  // them.
  team.ForStatic(panels, kPanelGrain, static_cast<double>(packed->bytes), [&](size_t begin, size_t end) {
    constexpr size_t kPage = 4096;
    for (size_t at = begin * packed->panel_bytes; at < end * packed->panel_bytes; at += kPage)
      memory[at] = std::byte{0};
  });
  // In slices, so that `progress` is called several times for a large matrix.
  const size_t slice = std::max<size_t>(1, (size_t{32} << 20) / std::max<size_t>(packed->panel_bytes, 1));
  for (size_t at = 0; at < panels; at += slice) {
    const size_t n = std::min(slice, panels - at);
    team.For(n, 1, static_cast<double>(n * packed->panel_bytes), [&](size_t begin, size_t end) {
      for (size_t p = begin; p < end; ++p) PackPanel<type>(w, at + p, memory + (at + p) * packed->panel_bytes);
    });
    if (progress) progress((std::min((at + n) * kPanel, w.n) - std::min(at * kPanel, w.n)) * w.row_bytes());
  }
}

// Writes word i of every column: two groups.
void PutWords(const LowBitBlock (&blocks)[kPanel], size_t i, std::byte* to) {
  using Four = uint32_t __attribute__((vector_size(16)));
  using Two = uint64_t __attribute__((vector_size(16)));
  for (size_t column = 0; column < kPanel; column += 4) {
    const auto first = reinterpret_cast<Four>(Two{blocks[column].q[i], blocks[column + 1].q[i]});
    const auto second = reinterpret_cast<Four>(Two{blocks[column + 2].q[i], blocks[column + 3].q[i]});
    const Four low = __builtin_shufflevector(first, second, 0, 2, 4, 6),
               high = __builtin_shufflevector(first, second, 1, 3, 5, 7);
    std::memcpy(to + 4 * column, &low, sizeof low);
    std::memcpy(to + kGroup + 4 * column, &high, sizeof high);
  }
}

}  // namespace

std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, Device& device, const Team& team,
                                            const std::function<void(size_t)>& progress) {
  auto packed = std::make_shared<CpuWeight>();
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->source = w;
  packed->bytes = w.bytes();
  const std::optional<PanelType> type = PanelTypeOf(w);
  if (!type) {
    if (IsLowBit(w.type)) SetShape<PanelType::kExpanded>(packed.get());
    if (progress) progress(packed->bytes);
    return packed;
  }
  packed->in_place = false;
  WithPanelType(*type, [&]<PanelType t>() { PackPanels<t>(packed.get(), device, team, progress); });
  return packed;
}

void ExpandPanels(const CpuWeight& weight, size_t first, std::byte* out) {
  using L = PanelLayout<PanelType::kExpanded>;
  constexpr size_t kWords = L::kUnit / 8;
  LowBitBlock blocks[kPanel];
  const WeightView& w = weight.source;
  const size_t block_bytes = Info(w.type).block_bytes, elems = Info(w.type).block_elems, row_bytes = w.row_bytes();
  // Block by block, so that what the columns write stays in the first-level cache.
  for (size_t panel = 0; panel < 2; ++panel, out += weight.panel_bytes) {
    const size_t row = (first + panel) * kPanel, columns = row < w.n ? std::min(kPanel, w.n - row) : 0;
    for (size_t column = columns; column < kPanel; ++column) blocks[column] = {};
    for (size_t at = 0; at < w.k; at += elems) {
      for (size_t column = 0; column < columns; ++column)
        ExpandLowBit(w.type, w.data + (row + column) * row_bytes + at / elems * block_bytes, &blocks[column]);
      std::byte* unit = out + at / L::kUnit * L::kUnitBytes;
      for (size_t u = 0; u < elems / L::kUnit; ++u, unit += L::kUnitBytes) {
        for (size_t s = 0; s < 4; ++s) {
          for (size_t column = 0; column < kPanel; ++column)
            std::memcpy(unit + (s * kPanel + column) * 4, &blocks[column].scale[4 * u + s], 4);
        }
        for (size_t i = 0; i < kWords; ++i) PutWords(blocks, u * kWords + i, unit + L::kHeader + i * 2 * kGroup);
      }
    }
  }
}

std::unique_ptr<std::byte[], FreeDelete> AlignedBytes(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : 64;
  std::unique_ptr<std::byte[], FreeDelete> out(
      static_cast<std::byte*>(std::aligned_alloc(align, std::max<size_t>((bytes + align - 1) / align, 1) * align)));
  if (out == nullptr) throw std::bad_alloc();
  if (align == kHugePage) madvise(out.get(), bytes, MADV_HUGEPAGE);
  return out;
}

std::byte* Buffer::EnsureCapacity(size_t bytes) {
  if (bytes > capacity_) {
    capacity_ = 0;
    bytes_.reset();
    // Rounds up to whole huge pages unless that wastes much.
    if (bytes > kHugePage / 4) bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    bytes_ = AlignedBytes(bytes);
    capacity_ = bytes;
  }
  return bytes_.get();
}

void ExpandFp8Rows(const IsaOps& ops, const WeightView& w, size_t row, size_t count, size_t begin, size_t end,
                   float* out) {
  for (size_t r = row; r < row + count; ++r) {
    for (size_t at = begin; at < end;) {
      const size_t n = std::min(end, (at / w.group + 1) * w.group) - at;
      ops.expand_fp8(w.data + r * w.k + at, n, BlockScale(w, r, at), out);
      out += n;
      at += n;
    }
  }
}

std::optional<FloatType> FloatTypeOf(const CpuWeight& w) {
  switch (w.type) {
    case DType::kF32: return FloatType::kF32;
    case DType::kF16: return FloatType::kF16;
    case DType::kBF16: return FloatType::kBf16;
    default: return std::nullopt;
  }
}

}  // namespace gyre::cpu
