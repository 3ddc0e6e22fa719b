// Codebook types and ternary digits unpacked where the processor has AVX-512 VBMI: byte permutations look up 64 at
// once.
#include <type_traits>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/avx512_unpack-inl.h"

namespace gyre::cpu {
namespace {

inline void Prefetch(const std::byte* unit, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(unit + line);
}

// All digits of a vector of bytes at once, by arithmetic: the top of 3 times a fraction is a digit, the rest the next
// fraction.
void UnpackTernary(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  using L = PanelLayout<PanelType::kTernary1>;
  using U = UnpackedOf<L>;
  const __m512i one = _mm512_set1_epi8(1), two = _mm512_set1_epi8(2), least_one = _mm512_set1_epi8(86),
                least_two = _mm512_set1_epi8(static_cast<char>(171));
  for (size_t u = begin; u < end; ++u, next += L::kUnitBytes, to += L::kBlocks * U::kUnitBytes) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    Prefetch(next, L::kUnitBytes);
    const __m512 scale = Scales<L>(unit, 0, 0);
    for (size_t b = 0; b < L::kBlocks; ++b) _mm512_store_ps(to + b * U::kUnitBytes, scale);
    Each<0>(std::make_index_sequence<kTernaryVectors>(), [&](auto v) {
      __m512i rest = _mm512_loadu_si512(unit + L::kHeader + v() * kGroup);
      Each<0>(std::make_index_sequence<5>(), [&](auto n) {
        constexpr size_t slot = n() * kTernaryVectors + v();
        if constexpr (slot < L::kBlocks * 8) {
          const __mmask64 some = _mm512_cmpge_epu8_mask(rest, least_one), all = _mm512_cmpge_epu8_mask(rest, least_two);
          _mm512_store_si512(to + slot / 8 * U::kUnitBytes + U::kHeader + slot % 8 * kGroup,
                             _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(some, one), all, two));
          rest = _mm512_add_epi8(_mm512_add_epi8(rest, rest), rest);
        }
      });
    });
  }
}

// IQ1, whose 2,048 points take 64 registers a block: two blocks share the loads.
template <typename L>
void UnpackShifted(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  using U = UnpackedOf<L>;
  struct Pair {
    __m512i of[2];
  };
  struct Masks {
    __mmask64 upper[2], high[3][2];
  };
  const auto& planes = PlanesOf<L>();
  const auto look_up = [](const uint8_t* table, const Pair& index, const Masks& masks) {
    const auto choose = [](const __mmask64(&which)[2], const Pair& low, const Pair& high) {
      return Pair{{_mm512_mask_blend_epi8(which[0], low.of[0], high.of[0]),
                   _mm512_mask_blend_epi8(which[1], low.of[1], high.of[1])}};
    };
    const auto half = [&](const uint8_t* t) {
      const __m512i first = _mm512_load_si512(t), second = _mm512_load_si512(t + 64);
      return Pair{
          {_mm512_permutex2var_epi8(first, index.of[0], second), _mm512_permutex2var_epi8(first, index.of[1], second)}};
    };
    const auto points256 = [&](const uint8_t* t) { return choose(masks.upper, half(t), half(t + 128)); };
    const auto points512 = [&](const uint8_t* t) { return choose(masks.high[0], points256(t), points256(t + 256)); };
    const auto points1024 = [&](const uint8_t* t) { return choose(masks.high[1], points512(t), points512(t + 512)); };
    return choose(masks.high[2], points1024(table), points1024(table + 1024));
  };
  const __m512i values = _mm512_set1_epi32(0x00888078), up = _mm512_set1_epi8(1), down = _mm512_set1_epi8(-1);
  for (size_t u = begin; u < end; ++u, next += L::kUnitBytes) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    Prefetch(next, L::kUnitBytes);
    for (size_t b = 0; b < L::kBlocks; b += 2) {
      Pair index;
      Masks masks;
      for (size_t i = 0; i < 2; ++i) {
        const std::byte* block = unit + L::kHeader + (b + i) * L::kBlockBytes;
        index.of[i] = _mm512_loadu_si512(block);
        masks.upper[i] = _mm512_movepi8_mask(index.of[i]);
        for (size_t h = 0; h < 3; ++h) masks.high[h][i] = Mask64(block + L::kHighAt + h * L::kIndexBytes / 8);
      }
      const Pair codes[2] = {look_up(planes.byte[0], index, masks), look_up(planes.byte[1], index, masks)};
      for (size_t i = 0; i < 2; ++i, to += U::kUnitBytes) {
        for (size_t s = 0; s < L::kScalesPerBlock; ++s) _mm512_store_ps(to + s * kPanel * 4, Scales<L>(unit, b + i, s));
        const std::byte* shifts = unit + L::kHeader + (b + i) * L::kBlockBytes + L::kSignsAt;
        Each<0>(std::make_index_sequence<4>(), [&](auto m) {
          __mmask16 which;
          if constexpr (L::kSigns == BookSigns::kShift) {
            which = LoadBits<uint16_t>(shifts + 2 * m());
          } else {
            const __m512i nibbles = _mm512_cvtepu8_epi32(Bytes16(unit + L::kNibbles + b / 2 * kPanel));
            which = _mm512_test_epi32_mask(nibbles, _mm512_set1_epi32(i == 0 ? 8 : 128));
          }
          const __m512i shift = _mm512_mask_blend_epi32(which, up, down);
          // The coordinates of two columns' points in each qword (BookCodes::Group).
          const __m512i at =
              _mm512_add_epi8(_mm512_set1_epi64(0x0E0C0A0806040200), _mm512_set1_epi8(static_cast<char>(16 * m())));
          for (size_t plane = 0; plane < 2; ++plane) {
            const __m512i coordinates = _mm512_multishift_epi64_epi8(at, codes[plane].of[i]);
            _mm512_store_si512(to + U::kHeader + (2 * m() + plane) * kGroup,
                               _mm512_add_epi8(_mm512_permutexvar_epi8(coordinates, values), shift));
          }
        });
      }
    }
  }
}

}  // namespace

UnpackUnits UnpackUnitsVbmi(PanelType type) {
  return WithPanelType(type, []<PanelType t>() -> UnpackUnits {
    using L = PanelLayout<t>;
    if constexpr (L::kTernary)
      return UnpackTernary;
    else if constexpr (t == PanelType::kIq1S || t == PanelType::kIq1M)
      return UnpackShifted<L>;
    else if constexpr (L::kUnpackedFirst)
      return Unpack<L>;
    else
      return nullptr;
  });
}

}  // namespace gyre::cpu
