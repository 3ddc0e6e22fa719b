#include "kernels/cpu/products/packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/codes.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/quant_lowbit.h"

namespace gyre::cpu {
namespace {

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
    case DType::kMXFP4: return PanelType::kMxFp4;
    case DType::kNVFP4: return PanelType::kNvFp4;
    case DType::kQ1_0: return PanelType::kQ1;
    case DType::kQ2_0: return PanelType::kQ2;
    case DType::kTQ1_0: return PanelType::kTernary1;
    case DType::kTQ2_0: return PanelType::kTernary2;
    case DType::kIQ1_S: return PanelType::kIq1S;
    case DType::kIQ1_M: return PanelType::kIq1M;
    case DType::kIQ2_XXS: return PanelType::kIq2Xxs;
    case DType::kIQ2_XS: return PanelType::kIq2Xs;
    case DType::kIQ2_S: return PanelType::kIq2S;
    case DType::kIQ3_XXS: return PanelType::kIq3Xxs;
    case DType::kIQ3_S: return PanelType::kIq3S;
    case DType::kI8:  // a block of a panel has one scale, so a group has to be a multiple of blocks
      if (w.scales == nullptr || w.group % kBlock != 0 || w.k % kBlock != 0) return std::nullopt;
      return ScalesFitHalf(w) ? PanelType::kQ8 : PanelType::kI8;
    default: return std::nullopt;
  }
}

void Store16(std::byte* to, uint16_t v) { std::memcpy(to, &v, 2); }

// Writes one column's 32 codes into block b of a unit.
template <typename L>
void PutCodes(const uint8_t* q, size_t column, size_t b, std::byte* unit) {
  std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
  for (size_t g = 0; g < kBlock / 4; ++g) {
    for (size_t i = 0; i < 4; ++i) {
      const auto code = static_cast<unsigned>(q[4 * g + i]);
      const size_t at = column * 4 + i;
      if constexpr (L::kBits == 8) {
        block[g * kGroup + at] = static_cast<std::byte>(code);
      } else if constexpr (L::kBinary) {  // a bit says that the weight is not negative
        block[g * kGroup / 8 + at / 8] |= static_cast<std::byte>(code / 2 << at % 8);
      } else if constexpr (L::kTernary) {  // CloseTernary encodes this sum of digits
        const size_t slot = 8 * b + g;
        constexpr unsigned kPlaces[] = {81, 27, 9, 3, 1};
        std::byte& all = unit[L::kHeader + slot % kTernaryVectors * kGroup + at];
        all = static_cast<std::byte>(static_cast<unsigned>(all) + code * kPlaces[slot / kTernaryVectors]);
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

// The numbers of ternary digits become fractions of 3^5 in 1/256, rounded up: then the top of byte * 3^n, times 3, is
// digit n.
template <typename L>
void CloseTernary(std::byte* unit) {
  for (size_t i = L::kHeader; i < L::kUnitBytes; ++i)
    unit[i] = static_cast<std::byte>((static_cast<unsigned>(unit[i]) * 256 + 242) / 243);
}

// Writes one column of a unit of a codebook type: d is there already.
template <typename L>
void PutBook(const BookBlock& c, size_t column, std::byte* unit) {
  constexpr size_t kPoints = kBlock / L::kCoordinates;
  const auto set_bit = [](std::byte* words, size_t bit, unsigned value) {
    words[bit / 8] |= static_cast<std::byte>((value & 1) << bit % 8);
  };
  for (size_t b = 0; b < L::kBlocks; ++b) {
    std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
    for (size_t s = 0; s < L::kScalesPerBlock; ++s) {
      unsigned nibble = c.scale[2 * b + s];
      if constexpr (L::kType == PanelType::kIq1S) nibble |= static_cast<unsigned>(c.sign[4 * b]) << 3;
      const size_t at = L::kScalesPerBlock == 2 ? 2 * b + s : b;
      unit[L::kNibbles + at / 2 * kPanel + column] |= static_cast<std::byte>(nibble << at % 2 * 4);
    }
    for (size_t m = 0; m < kPoints; ++m) {
      const size_t place = BookPlace<L::kCoordinates>(column, m);
      const unsigned index = c.index[kPoints * b + m];
      block[place] = static_cast<std::byte>(index & 255);
      for (size_t h = 0; h < L::kHighBits; ++h)
        set_bit(block + L::kHighAt + h * L::kIndexBytes / 8, place, index >> (8 + h));
    }
    std::byte* signs = block + L::kSignsAt;
    for (size_t m = 0; m < 4; ++m) {  // of each eight positions
      const unsigned eight = c.sign[4 * b + m];
      if constexpr (L::kSigns == BookSigns::kShift) set_bit(signs, 16 * m + column, eight);
      for (size_t i = 0; i < 8; ++i) {
        const size_t g = 2 * m + i / 4, bit = 4 * column + i % 4;
        if constexpr (L::kSigns == BookSigns::kAll) set_bit(signs + 8 * g, bit, eight >> i);
        // Words of 64 bits: those of the even groups, and three for the odd ones, where the bit of each column's fourth
        // position is free and takes the bits of the last group.
        if constexpr (L::kSigns == BookSigns::kEven) {
          if (i < 4)
            set_bit(signs + 8 * m, bit, eight >> i);
          else if (i < 7)
            set_bit(signs + 32 + 8 * (m < 3 ? m : i % 4), m < 3 ? bit : 4 * column + 3, eight >> i);
        }
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
      const std::byte* from = w.data + row * w.row_bytes() + at / info.block_elems * info.block_bytes;
      std::byte* unit = out + at / L::kUnit * L::kUnitBytes;
      if constexpr (L::kBook) {
        BookBlock book;
        UnpackBook(w.type, from, &book);
        Store16(unit + 2 * column, book.d);
        PutBook<L>(book, column, unit);
        continue;
      }
      if (w.type == DType::kI8) {
        UnpackInt8(w, row, at, &c);
      } else {
        UnpackCodes(w.type, from, &c);
      }
      if constexpr (L::kOneScale) {
        static_assert(!L::kBook);
        Store16(unit + 2 * column, c.d);
        for (size_t b = 0; b < L::kBlocks; ++b) PutCodes<L>(c.q + b * kBlock, column, b, unit);
      } else if constexpr (L::kByteScale) {
        for (size_t i = 0; i < step / kBlock; ++i) {
          const size_t b = at / kBlock % L::kBlocks + i;
          for (size_t s = 0; s < L::kScalesPerBlock; ++s)
            unit[(b * L::kScalesPerBlock + s) * kPanel + column] =
                static_cast<std::byte>(c.scale[i * L::kScalesPerBlock + s]);
          PutCodes<L>(c.q + i * kBlock, column, b, unit);
        }
      } else if constexpr (L::kSuper) {
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
        for (size_t b = 0; b < L::kBlocks; ++b) PutCodes<L>(c.q + b * kBlock, column, b, unit);
      } else {
        const size_t b = at / kBlock % L::kBlocks, place = b * kPanel + column;
        if constexpr (L::kWide) {
          std::memcpy(unit + place * 4, &c.wide_d, 4);
        } else {
          Store16(unit + place * 2, c.d);
        }
        if constexpr (L::kMin) Store16(unit + L::kMins + place * 2, c.m);
        PutCodes<L>(c.q, column, b, unit);
      }
    }
  }
  if constexpr (L::kTernary) {
    for (size_t u = 0; u < units; ++u) CloseTernary<L>(out + u * L::kUnitBytes);
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

}  // namespace

std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, Device& device, const Team& team,
                                            const std::function<void(size_t)>& progress) {
  auto packed = std::make_shared<CpuWeight>();
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->source = w;
  packed->scale = WholeScale(w);
  packed->bytes = w.bytes();
  const std::optional<PanelType> type = PanelTypeOf(w);
  if (!type) {
    if (progress) progress(packed->bytes);
    return packed;
  }
  packed->in_place = false;
  WithPanelType(*type, [&]<PanelType t>() { PackPanels<t>(packed.get(), device, team, progress); });
  return packed;
}

void ScaleProducts(const CpuWeight& w, size_t rows, size_t columns, float* out, size_t ldo) {
  if (!w.has_panels() || w.scale == 1) return;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) out[r * ldo + c] *= w.scale;
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
