// Products of many rows with panels by 256-bit vectors, included by avx2_products-inl.h: what weights are is unpacked, a segment of 512
// positions of four panels at a time, and all rows pass over it, a few together.
//
// Bound by the number of vector operations: so codes are unpacked and scales become f32 once for all rows.

// Signed numbers have 16 bits: two products of bytes would not fit a sum of 16 bits, and splitting signs off costs more for each row.
template <typename L>
using Unpacked = UnpackedOf<L, kSigned<L> ? 2 : 1>;

// Even and odd bytes, as 16-bit numbers.
struct Widened {
  explicit Widened(__m256i bytes) : even(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8)), odd(_mm256_srai_epi16(bytes, 8)) {}
  __m256i even, odd;
};
void Store256(std::byte* to, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }

// Units [begin, end) of a panel: for each group of four positions 16 columns' bytes, or their even and then their odd ones. What is unpacked `next`,
// as many units, is asked for: it comes from memory while the rows pass over these.
template <typename L>
void Unpack(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  using U = Unpacked<L>;
  auto put = [](std::byte* at, __m256 v) { _mm256_store_ps(reinterpret_cast<float*>(at), v); };
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, to += U::kUnitBytes) {
      const size_t at = L::kHeader + b * L::kBlockBytes;
      for (size_t line = b == 0 ? 0 : at; line < at + L::kBlockBytes; line += 64) __builtin_prefetch(next + (u - begin) * L::kUnitBytes + line, 0, 2);
      for (size_t first = 0; first < kPanel; first += 8) {
        for (size_t s = 0; s < L::kScalesPerBlock; ++s) put(to + (s * kPanel + first) * 4, Scales<L>(unit, first, b, s));
        if constexpr (L::kMin) put(to + U::kMins + first * 4, Mins<L>(unit, first, b));
        for (size_t s = 0; L::kHalfMin && s < 2; ++s) put(to + U::kMins + (s * kPanel + first) * 4, HalfMins<L>(unit, first, b, s));
      }
      Each<0>(std::make_index_sequence<kBlock / 4>(), [&](auto g) {
        const __m256i low = Codes<L>(unit + at, g()), high = Codes<L>(unit + at + 32, g());
        std::byte* codes = to + U::kHeader + g() * U::kBlockBytes / 8;
        if constexpr (kSigned<L>) {
          const Widened first(low), second(high);
          Store256(codes, first.even);
          Store256(codes + 32, second.even);
          Store256(codes + 64, first.odd);
          Store256(codes + 96, second.odd);
        } else {
          Store256(codes, low);
          Store256(codes + 32, high);
        }
      });
    }
  }
}

// The rows of x that many rows are taken in: twice four sums leave registers enough for codes and activations.
constexpr size_t kRows = 4;
// Of these rows, of both halves of a panel. Each by its name: gcc keeps arrays that live through a loop in memory.
struct Sums {
  __m256i low0, low1, low2, low3, high0, high1, high2, high3;

  template <typename Fn>
  [[gnu::always_inline]] void Rows(const Fn& f) {
    f(low0, high0, std::integral_constant<size_t, 0>());
    f(low1, high1, std::integral_constant<size_t, 1>());
    f(low2, high2, std::integral_constant<size_t, 2>());
    f(low3, high3, std::integral_constant<size_t, 3>());
  }
  // In registers, here: keeps the compiler from computing products far ahead, for whose sums no register is left.
  [[gnu::always_inline]] void Pin() { asm("" : "+x"(low0), "+x"(low1), "+x"(low2), "+x"(low3), "+x"(high0), "+x"(high1), "+x"(high2), "+x"(high3)); }
};

// Activations of the rows of one group as 16-bit numbers, n of them, a multiple of 32: of each four the even ones, then the odd ones. As many from `next` on
// are asked for.
[[maybe_unused]] void Widen(const int8_t* q, size_t n, const int8_t* next, int16_t* to) {
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  for (size_t i = 0; i < n; i += 16) {
    if (i % 64 == 0) __builtin_prefetch(next + i);
    const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i)), order);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), _mm256_cvtepi8_epi16(bytes));
  }
}

// dots = what groups [begin, end) of a block give, unpacked.
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void SumGroups(const int16_t* q, const std::byte* codes, Sums& dots) {
  auto each = [&](size_t two, const auto& f) {
    const __m256i low = Load256(codes + 64 * two), high = Load256(codes + 64 * two + 32);
    dots.Rows([&](__m256i& a, __m256i& b, auto r) {
      int32_t pair;
      __builtin_memcpy(&pair, q + r() * kBlock + 2 * two, 4);
      const __m256i pairs = _mm256_set1_epi32(pair);
      f(a, _mm256_madd_epi16(low, pairs));
      f(b, _mm256_madd_epi16(high, pairs));
    });
    dots.Pin();
  };
  each(2 * begin, [](__m256i& to, __m256i v) { to = v; });
#pragma GCC unroll kUnrolled
  for (size_t two = 2 * begin + 1; two < 2 * end; ++two) each(two, [](__m256i& to, __m256i v) { to = _mm256_add_epi32(to, v); });
}
// dots += the same.
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void AddGroups(const int8_t* q, const std::byte* codes, Sums& dots) {
  if constexpr (kVnni) {
#pragma GCC unroll kUnrolled
    for (size_t g = begin; g < end; ++g) {
      const __m256i low = Load256(codes + 64 * g), high = Load256(codes + 64 * g + 32);
      dots.Rows([&](__m256i& a, __m256i& b, auto r) {
        const __m256i fours = Four(q + r() * kBlock + 4 * g);
        a = AddDots(a, low, fours);
        b = AddDots(b, high, fours);
      });
      dots.Pin();
    }
    return;
  }
  constexpr size_t kRun = kSafe<L> < end - begin ? kSafe<L> : end - begin;
  const __m256i ones = _mm256_set1_epi16(1);
  for (size_t run = begin; run < end; run += kRun) {
    Sums words;
    auto each = [&](size_t g, const auto& f) {
      const __m256i low = Load256(codes + 64 * g), high = Load256(codes + 64 * g + 32);
      words.Rows([&](__m256i& a, __m256i& b, auto r) {
        const __m256i fours = Four(q + r() * kBlock + 4 * g);
        f(a, _mm256_maddubs_epi16(low, fours));
        f(b, _mm256_maddubs_epi16(high, fours));
      });
      words.Pin();
    };
    each(run, [](__m256i& to, __m256i v) { to = v; });
#pragma GCC unroll kUnrolled
    for (size_t g = run + 1; g < run + kRun; ++g) each(g, [](__m256i& to, __m256i v) { to = _mm256_add_epi16(to, v); });
    words.Rows([&](__m256i& a, __m256i& b, auto) { a = _mm256_madd_epi16(a, ones), b = _mm256_madd_epi16(b, ones); });
    auto add = [](__m256i& to, __m256i v) { to = _mm256_add_epi32(to, v); };
    add(dots.low0, words.low0), add(dots.low1, words.low1), add(dots.low2, words.low2), add(dots.low3, words.low3);
    add(dots.high0, words.high0), add(dots.high1, words.high1), add(dots.high2, words.high2), add(dots.high3, words.high3);
  }
}

// The rows of one group, the first of which is `row`, against blocks [begin, end) of one panel, unpacked, on top of what `out` holds where begin > 0. q: of the
// first row and block, bytes or widened.
template <typename L, typename Q>
void AddBlocks(const Quantized& x, size_t row, const Q* q, const std::byte* unpacked, size_t begin, size_t end, size_t columns, float* out, size_t ldo) {
  using U = Unpacked<L>;
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t n[2] = {Columns(0, columns), Columns(8, columns)};
  __m256 sum[2][kRows];
  for (size_t h = 0; h < 2; ++h) LoadSums(out + 8 * h, ldo, n[h], begin == 0, sum[h]);
  size_t at = x.At(row, begin);
  for (size_t b = begin; b < end; ++b, at += kRows, q += kRows * kBlock, unpacked += U::kUnitBytes) {
    auto load = [&](size_t first) { return V8::Load(reinterpret_cast<const float*>(unpacked) + first); };
    constexpr size_t kMins = U::kMins / 4;
    Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
      Sums dots;
      if constexpr (kSigned<L>) {
        SumGroups<L, s() * kGroups, (s() + 1) * kGroups>(q, unpacked + U::kHeader, dots);
      } else {
        dots.Rows([&](__m256i& low, __m256i& high, auto r) { low = high = Offset<L>(x, at + r(), s()); });
        AddGroups<L, s() * kGroups, (s() + 1) * kGroups>(q, unpacked + U::kHeader, dots);
      }
      constexpr size_t low = s() * kPanel, high = low + 8;
      AddPart<L>(x, at, s(), load(low), [&] { return load(kMins + low); }, {dots.low0, dots.low1, dots.low2, dots.low3}, sum[0]);
      AddPart<L>(x, at, s(), load(high), [&] { return load(kMins + high); }, {dots.high0, dots.high1, dots.high2, dots.high3}, sum[1]);
    });
    AddMins<L>(x, at, [&] { return load(kMins); }, sum[0]);
    AddMins<L>(x, at, [&] { return load(kMins + 8); }, sum[1]);
  }
  for (size_t h = 0; h < 2; ++h) StoreSums(sum[h], n[h], out + 8 * h, ldo);
}

// REQUIRES: rows a multiple of kRows, x.group == kRows.
template <typename L>
void ManyRows(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit, stride = units * L::kUnitBytes;
  constexpr size_t kUnpacked = kCodesSegment / kBlock * Unpacked<L>::kUnitBytes;  // of a panel
  alignas(64) std::byte unpacked[kSlice * kUnpacked];
  alignas(64) int16_t wide[kSigned<L> ? kRows * kCodesSegment : 1];
  for (size_t slice = 0; slice < panels; slice += kSlice) {
    const size_t count = panels - slice < kSlice ? panels - slice : kSlice;
    for (size_t begin = 0; begin < units; begin += segment) {
      const size_t end = begin + segment < units ? begin + segment : units;
      for (size_t p = 0; p < count; ++p) {
        const std::byte* panel = w + (slice + p) * stride;
        Unpack<L>(panel, begin, end, end < units ? panel + end * L::kUnitBytes : panel + kSlice * stride, unpacked + p * kUnpacked);
      }
      for (size_t row = 0; row < rows; row += kRows) {
        const int8_t* narrow = x.q + x.At(row, begin * L::kBlocks) * kBlock;
        if constexpr (kSigned<L>)
          Widen(narrow, (end - begin) * L::kBlocks * kRows * kBlock, x.q + x.At(row + kRows, begin * L::kBlocks) * kBlock, wide);
        for (size_t p = 0; p < count; ++p) {
          const size_t column = (slice + p) * kPanel;
          auto add = [&](const auto* q) {
            AddBlocks<L>(x, row, q, unpacked + p * kUnpacked, begin * L::kBlocks, end * L::kBlocks, columns < column ? 0 : columns - column,
                         out + row * ldo + column, ldo);
          };
          if constexpr (kSigned<L>) add(wide);
          else add(narrow);
        }
      }
    }
  }
}
