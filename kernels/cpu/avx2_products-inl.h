// Products with panels by 256-bit vectors, included inside an anonymous namespace by avx2.cc and, with dpbusd (kVnni), by avxvnni.cc.

// How many products of a code and an activation, twice, a 16-bit sum holds.
template <typename L>
constexpr size_t kSafe = kSigned<L> ? 1 : L::kBits == 6 ? 2 : L::kBits == 5 ? 4 : 8;

// Four activations for every column.
__m256i Four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

// sum[r] += part s of block b, for eight columns: the exact dots, converted, times the weights' scale, times the activations'.
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddPart(const Quantized& x, size_t at, const std::byte* unit, size_t first, size_t b, size_t s,
                                           const __m256i (&dots)[R], __m256 (&sum)[R]) {
  const __m256 scales = Scales<L>(unit, first, b, s);
  const float* scale = x.scale + at;
  Each<0>(std::make_index_sequence<R>(), [&](auto r) {
    sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots[r]), scales), _mm256_set1_ps(scale[r]), sum[r]);
  });
  if constexpr (L::kHalfMin) {
    const __m256 mins = HalfMins<L>(unit, first, b, s);
    const int32_t* half = x.offset + s * x.parts + at;
    Each<0>(std::make_index_sequence<R>(), [&](auto r) { sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(scale[r] * static_cast<float>(half[r])), sum[r]); });
  }
}
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddMins(const Quantized& x, size_t at, const std::byte* unit, size_t first, size_t b, __m256 (&sum)[R]) {
  if constexpr (L::kMin) {
    const __m256 mins = Mins<L>(unit, first, b);
    Each<0>(std::make_index_sequence<R>(), [&](auto r) { sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(x.sum[at + r]), sum[r]); });
  }
}
// What an integer sum begins with: the codes' zero, taken off.
template <typename L>
__m256i Offset(const Quantized& x, size_t at, size_t s) {
  return kSigned<L> || L::kHalfMin ? _mm256_setzero_si256() : _mm256_set1_epi32(x.offset[s * x.parts + at]);
}

// Eight columns of R rows of the output, of which n exist.
template <size_t R>
void LoadSums(const float* out, size_t ldo, size_t n, bool first, __m256 (&sum)[R]) {
  for (size_t r = 0; r < R; ++r) sum[r] = first ? V8::Zero() : n == 8 ? V8::Load(out + r * ldo) : V8::LoadTail(out + r * ldo, n);
}
template <size_t R>
void StoreSums(const __m256 (&sum)[R], size_t n, float* out, size_t ldo) {
  for (size_t r = 0; r < R; ++r) {
    if (n == 8) V8::Store(out + r * ldo, sum[r]);
    else V8::StoreTail(out + r * ldo, sum[r], n);
  }
}
// Of eight columns, how many exist.
size_t Columns(size_t column, size_t columns) { return columns < column ? 0 : columns - column < 8 ? columns - column : 8; }

// Sanitized, what is unrolled takes a compiler minutes.
#ifdef GYRE_FEW_TILES
constexpr bool kEveryShape = false;
constexpr int kHalves = 1, kUnrolled = 1;
#else
constexpr bool kEveryShape = true;
constexpr int kHalves = 2, kUnrolled = 16;
#endif

// Few rows, as codes come from memory. R rows of one group, from `row` on, against up to kSlice panels, which are several streams, in different pages.
constexpr size_t kSlice = 4;
template <typename L, size_t R>
void StreamTile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t panels, size_t columns, float* out, size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sum[2 * kSlice][R];
  for (auto& half : sum) LoadSums(out, ldo, 0, true, half);
  size_t at = x.At(row, 0);
  for (size_t u = 0; u < x.blocks / L::kBlocks; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, at += x.group) {
      const int8_t* q = x.q + at * kBlock;
      for (size_t p = 0; p < panels; ++p) {
        const std::byte* unit = w + p * stride + u * L::kUnitBytes;
        for (size_t line = 0; line < L::kBlockBytes; line += 64) __builtin_prefetch(unit + L::kHeader + b * L::kBlockBytes + line + 2048);
#pragma GCC unroll kHalves
        for (size_t half = 0; half < 2; ++half) {
          const size_t first = 8 * half;
          const std::byte* block = unit + L::kHeader + b * L::kBlockBytes + first * 4;
          Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
            __m256i dots[R], words[R];
            for (size_t r = 0; r < R; ++r) dots[r] = Offset<L>(x, at + r, s());
            Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
              const __m256i codes = Codes<L>(block, g());
              if constexpr (kVnni) {
                for (size_t r = 0; r < R; ++r) dots[r] = AddDots(dots[r], codes, Four(q + r * kBlock + 4 * g()));
                return;
              }
              const __m256i magnitude = kSigned<L> ? _mm256_abs_epi8(codes) : codes;
              for (size_t r = 0; r < R; ++r) {
                const __m256i fours = Four(q + r * kBlock + 4 * g());
                const __m256i product = _mm256_maddubs_epi16(magnitude, kSigned<L> ? _mm256_sign_epi8(fours, codes) : fours);
                words[r] = g() % kSafe<L> == 0 || g() == s() * kGroups ? product : _mm256_add_epi16(words[r], product);
                if (g() % kSafe<L> == kSafe<L> - 1 || g() == (s() + 1) * kGroups - 1)
                  dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(words[r], ones));
              }
            });
            AddPart<L>(x, at, unit, first, b, s(), dots, sum[2 * p + half]);
          });
          AddMins<L>(x, at, unit, first, b, sum[2 * p + half]);
        }
      }
    }
  }
  for (size_t half = 0; half < 2 * panels; ++half) StoreSums(sum[half], Columns(8 * half, columns), out + 8 * half, ldo);
}

// Many rows: codes are unpacked, a segment of 512 positions of four panels at a time, and all rows pass over them. Numbers of 16 bits where
// they are signed: two products of bytes would not fit a sum of 16 bits, and splitting signs off costs more for each row.
constexpr size_t kCodesSegment = 512;
template <typename L>
constexpr size_t kCodesBytes = kPanel * kBlock * (kSigned<L> ? 2 : 1);  // a block

// Even and odd bytes, as 16-bit numbers.
struct Widened {
  explicit Widened(__m256i bytes) : even(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8)), odd(_mm256_srai_epi16(bytes, 8)) {}
  __m256i even, odd;
};
void Store256(std::byte* to, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }

// Units [begin, end) of a panel: for each group of four positions 16 columns' bytes, or their even and then their odd ones. What is unpacked
// `next`, as many units, is asked for: it comes from memory while the rows pass over these.
template <typename L>
void Unpack(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  for (size_t u = begin; u < end; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, to += kCodesBytes<L>) {
      const size_t at = L::kHeader + b * L::kBlockBytes;
      const std::byte* block = panel + u * L::kUnitBytes + at;
      for (size_t line = 0; line < L::kBlockBytes; line += 64) __builtin_prefetch(next + (u - begin) * L::kUnitBytes + at + line, 0, 2);
      Each<0>(std::make_index_sequence<kBlock / 4>(), [&](auto g) {
        const __m256i low = Codes<L>(block, g()), high = Codes<L>(block + 32, g());
        std::byte* codes = to + g() * kCodesBytes<L> / 8;
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

// The same for n activations, a multiple of 32: of each four the even ones, then the odd ones.
[[maybe_unused]] void Widen(const int8_t* q, size_t n, int16_t* to) {
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  for (size_t i = 0; i < n; i += 16) {
    const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i)), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_cvtepi8_epi16(bytes));
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

// dots += what groups [begin, end) of a block give, unpacked.
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void AddGroups(const int16_t* q, const std::byte* codes, Sums& dots) {
#pragma GCC unroll kUnrolled
  for (size_t two = 2 * begin; two < 2 * end; ++two) {
    const __m256i low = Load256(codes + 64 * two), high = Load256(codes + 64 * two + 32);
    dots.Rows([&](__m256i& a, __m256i& b, auto r) {
      int32_t pair;
      __builtin_memcpy(&pair, q + r() * kBlock + 2 * two, 4);
      const __m256i pairs = _mm256_set1_epi32(pair);
      a = _mm256_add_epi32(a, _mm256_madd_epi16(low, pairs));
      b = _mm256_add_epi32(b, _mm256_madd_epi16(high, pairs));
    });
    dots.Pin();
  }
}
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

// The rows of one group, the first of which is `row`, against units [begin, end) of one panel, whose codes are unpacked, on top of what `out` holds. q: of the
// first row and unit.
template <typename L, typename Q>
void AddUnits(const Quantized& x, size_t row, const Q* q, const std::byte* panel, const std::byte* codes, size_t begin, size_t end, size_t columns,
              float* out, size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t n[2] = {Columns(0, columns), Columns(8, columns)};
  __m256 sum[2][kRows];
  for (size_t h = 0; h < 2; ++h) LoadSums(out + 8 * h, ldo, n[h], begin == 0, sum[h]);
  size_t at = x.At(row, begin * L::kBlocks);
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, at += kRows, q += kRows * kBlock, codes += kCodesBytes<L>) {
      Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
        Sums dots;
        dots.Rows([&](__m256i& low, __m256i& high, auto r) { low = high = Offset<L>(x, at + r(), s()); });
        AddGroups<L, s() * kGroups, (s() + 1) * kGroups>(q, codes, dots);
        AddPart<L>(x, at, unit, 0, b, s(), {dots.low0, dots.low1, dots.low2, dots.low3}, sum[0]);
        AddPart<L>(x, at, unit, 8, b, s(), {dots.high0, dots.high1, dots.high2, dots.high3}, sum[1]);
      });
      AddMins<L>(x, at, unit, 0, b, sum[0]);
      AddMins<L>(x, at, unit, 8, b, sum[1]);
    }
  }
  for (size_t h = 0; h < 2; ++h) StoreSums(sum[h], n[h], out + 8 * h, ldo);
}

// REQUIRES: rows a multiple of kRows, x.group == kRows.
template <typename L>
void ManyRows(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit, stride = units * L::kUnitBytes;
  constexpr size_t kPanelCodes = kCodesSegment / kBlock * kCodesBytes<L>;
  alignas(64) std::byte codes[kSlice * kPanelCodes];
  alignas(64) int16_t wide[kSigned<L> ? kRows * kCodesSegment : 1];
  for (size_t slice = 0; slice < panels; slice += kSlice) {
    const size_t count = panels - slice < kSlice ? panels - slice : kSlice;
    for (size_t begin = 0; begin < units; begin += segment) {
      const size_t end = begin + segment < units ? begin + segment : units;
      for (size_t p = 0; p < count; ++p) {
        const std::byte* panel = w + (slice + p) * stride;
        Unpack<L>(panel, begin, end, end < units ? panel + end * L::kUnitBytes : panel + kSlice * stride, codes + p * kPanelCodes);
      }
      for (size_t row = 0; row < rows; row += kRows) {
        const int8_t* narrow = x.q + x.At(row, begin * L::kBlocks) * kBlock;
        if constexpr (kSigned<L>) Widen(narrow, (end - begin) * L::kBlocks * kRows * kBlock, wide);
        for (size_t p = 0; p < count; ++p) {
          const size_t column = (slice + p) * kPanel;
          auto add = [&](const auto* q) {
            AddUnits<L>(x, row, q, w + (slice + p) * stride, codes + p * kPanelCodes, begin, end, columns < column ? 0 : columns - column,
                        out + row * ldo + column, ldo);
          };
          if constexpr (kSigned<L>) add(wide);
          else add(narrow);
        }
      }
    }
  }
}

template <typename L>
void FewRows(const Quantized& x, size_t begin, size_t end, const std::byte* w, size_t stride, size_t panels, size_t columns, float* out, size_t ldo) {
  for (size_t row = begin; row < end;) {
    const size_t rest = x.group - row % x.group, one = end - row < rest ? end - row : rest;  // of one group
    const size_t rows = !kEveryShape ? 1 : one > 3 && !kVnni ? 2 : one;
    auto stream = StreamTile<L, 1>;
    if constexpr (kEveryShape) stream = rows == 1 ? StreamTile<L, 1> : rows == 2 ? StreamTile<L, 2> : StreamTile<L, 3>;
    if constexpr (kEveryShape && kVnni) stream = rows == 4 ? StreamTile<L, 4> : stream;
    stream(x, row, w, stride, panels, columns, out + row * ldo, ldo);
    row += rows;
  }
}

// From how many rows on unpacking pays.
constexpr size_t kMany = 8;

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  using L = PanelLayout<type>;
  const size_t many = rows < kMany ? 0 : rows / kRows * kRows, stride = x.blocks / L::kBlocks * L::kUnitBytes;
  assert(many == 0 || x.group == kRows);
  if (many > 0) ManyRows<L>(x, many, w, panels, columns, out, ldo);
  if (many == rows) return;
  for (size_t p = 0; p < panels; p += kSlice) {
    const size_t column = p * kPanel;
    FewRows<L>(x, many, rows, w + p * stride, stride, panels - p < kSlice ? panels - p : kSlice, columns < column ? 0 : columns - column, out + column, ldo);
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, columns, out, ldo); });
}
