// Attention's inner loops in terms of a vector class V. V::kPageStreams is the
// number of pages whose keys, or of registers of values, that are processed together for four queries: their
// accumulators form enough independent FMA chains to hide the latency, and must fit the registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/kv_type.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/attention/kv_loads-inl.h"
#include "kernels/cpu/attention/kv_span.h"

namespace gyre::cpu {
namespace {

// Calls f(i, j) for all i < A, j < B with compile-time constants: otherwise gcc keeps arrays of accumulators in memory
// around the loops.
template <size_t A, size_t B, typename Fn>
[[gnu::always_inline]] inline void Unrolled(const Fn& f) {
  Each<0>(std::make_index_sequence<A * B>(),
          [&](auto i) { f(std::integral_constant<size_t, i() / B>(), std::integral_constant<size_t, i() % B>()); });
}

// Where to prefetch from: the next span, at the same offset that the current one is read at. Pages are short, so the
// hardware prefetcher restarts too often to run far enough ahead. Without a next span, and in kernels that pass over
// the pages several times, 512 bytes further in the same span.
inline const std::byte* PrefetchFrom(const KvSpan& span, const KvSpan* next) {
  return next != nullptr ? next->values : span.values + 512;
}

// Prefetches the scales of the spans that are read next: `elements` of each.
inline void PrefetchScales(const KvSpans& spans, size_t elements) {
  if (spans.next == nullptr) return;
  for (size_t p = 0; p < spans.pages; ++p) {
    for (size_t byte = 0; byte < elements / kKvBlock * sizeof(uint16_t); byte += 64)
      __builtin_prefetch(spans.next[p].scales + byte);
  }
}

// Scores of R queries against positions [j, j + n) of each of P pages; n is at most one register.
template <typename V, KvType type, size_t R, size_t P, bool whole>
void ScoresTile(const float* q, const KvSpan* spans, size_t stride, size_t j, size_t n, size_t head_dim, float* scores,
                size_t lds, size_t page, const KvSpan* next) {
  typename V::T sum[P][R];
  Unrolled<P, R>([&](auto p, auto r) { sum[p][r] = V::Zero(); });
  const std::byte* ahead[P];
  for (size_t p = 0; p < P; ++p) ahead[p] = PrefetchFrom(spans[p], next != nullptr ? next + p : nullptr);
  for (size_t d = 0; d < head_dim; ++d) {
    typename V::T k[P];
    for (size_t p = 0; p < P; ++p) {
      k[p] = LoadElements<V, type, whole>(spans[p], d * stride + j, n);
      if constexpr (P > 1) __builtin_prefetch(ahead[p] + KvCodeBytes(type, d * stride + j));
    }
    for (size_t r = 0; r < R; ++r) {
      const typename V::T x = V::Broadcast(q[r * head_dim + d]);
      for (size_t p = 0; p < P; ++p) sum[p][r] = V::Fma(x, k[p], sum[p][r]);
    }
  }
  Unrolled<P, R>([&](auto p, auto r) {
    float* to = scores + r * lds + p * page + j;
    if constexpr (whole)
      V::Store(to, sum[p][r]);
    else
      V::StoreTail(to, sum[p][r], n);
  });
}

// The same for types with scales: codes are summed block by block, and these sums times their scales are added in
// order. `scores` holds what is summed so far, because the codes' sums take the registers.
template <typename V, KvType type, size_t R, size_t P, bool whole>
void ScaledScoresTile(const float* q, const KvSpan* spans, size_t stride, size_t j, size_t n, size_t head_dim,
                      float* scores, size_t lds, size_t page, const KvSpan* next) {
  // A line has one code, or two in q4_0, of each position of a page.
  constexpr size_t kLines = KvCodeBytes(type, kKvBlock), kLinesAtOnce = 4;
  const std::byte* ahead[P];
  for (size_t p = 0; p < P; ++p) ahead[p] = PrefetchFrom(spans[p], next != nullptr ? next + p : nullptr);
  for (size_t b = 0; b < head_dim / kKvBlock; ++b) {
    typename V::T sum[P][R];
    Unrolled<P, R>([&](auto p, auto r) { sum[p][r] = V::Zero(); });
    [[maybe_unused]] const typename NibblesFor<V>::Type nibbles(1);
    for (size_t first = 0; first < kLines; first += kLinesAtOnce) {
      const size_t at = (b * kLines + first) * stride;
      if (P > 1 && j == 0) {
        for (size_t byte = 0; byte < kLinesAtOnce * stride; byte += 64) {
          for (size_t p = 0; p < P; ++p) __builtin_prefetch(ahead[p] + at + byte);
        }
      }
      Each<0>(std::make_index_sequence<kLinesAtOnce>(), [&](auto line) {
        const float* x = q + b * kKvBlock + first + line;
        typename V::T low[P];
        [[maybe_unused]] typename V::T high[P];
        for (size_t p = 0; p < P; ++p) {
          const std::byte* from = spans[p].values + at + line * stride + j;
          if constexpr (type == KvType::kQ8_0) {
            low[p] = LoadElements<V, type, whole>({type, from, nullptr}, 0, n);
          } else if constexpr (whole) {
            nibbles.Load(from, low[p], high[p]);
          } else {
            std::byte padded[V::kLanes] = {};
            __builtin_memcpy(padded, from, n);
            nibbles.Load(padded, low[p], high[p]);
          }
        }
        for (size_t r = 0; r < R; ++r) {
          const typename V::T by = V::Broadcast(x[r * head_dim]);
          for (size_t p = 0; p < P; ++p) sum[p][r] = V::Fma(by, low[p], sum[p][r]);
        }
        for (size_t r = 0; type == KvType::kQ4_0Plain && r < R; ++r) {
          const typename V::T by = V::Broadcast(x[r * head_dim + kKvBlock / 2]);
          for (size_t p = 0; p < P; ++p) sum[p][r] = V::Fma(by, high[p], sum[p][r]);
        }
      });
    }
    typename V::T scale[P];
    for (size_t p = 0; p < P; ++p) scale[p] = LoadKeyScales<V, whole>(spans[p], b, stride, j, n);
    Unrolled<P, R>([&](auto p, auto r) {
      float* to = scores + r * lds + p * page + j;
      if constexpr (whole)
        V::Store(to, b == 0 ? V::Mul(sum[p][r], scale[p]) : V::Fma(sum[p][r], scale[p], V::Load(to)));
      else
        V::StoreTail(to, b == 0 ? V::Mul(sum[p][r], scale[p]) : V::Fma(sum[p][r], scale[p], V::LoadTail(to, n)), n);
    });
  }
}

template <typename V, KvType type>
void ExpandKeysTyped(const KvSpan& keys, size_t stride, size_t n, size_t dims, float* out) {
  // Four elements of four keys at a time are turned in registers.
  typedef float Four __attribute__((vector_size(16)));
  float some[4][V::kLanes];
  for (size_t j = 0; j < n; j += V::kLanes) {
    const size_t count = n - j < V::kLanes ? n - j : V::kLanes;
    typename V::T scale = V::Zero();
    for (size_t d = 0; d < dims; ++d) {
      typename V::T key = LoadKeys<V, type>(keys, d, stride, j, count);
      if constexpr (KvHasScales(type)) {
        if (d % kKvBlock == 0) scale = LoadKeyScales<V, false>(keys, d / kKvBlock, stride, j, count);
        key = V::Mul(key, scale);
      }
      V::Store(some[d % 4], key);
      if (d + 1 == dims && dims % 4 != 0) {
        for (size_t e = d / 4 * 4; e < dims; ++e) {
          for (size_t i = 0; i < count; ++i) out[(j + i) * dims + e] = some[e % 4][i];
        }
      } else if (d % 4 == 3) {
        for (size_t i = 0; i < count; i += 4) {
          Four row[4];
          for (size_t e = 0; e < 4; ++e) __builtin_memcpy(&row[e], &some[e][i], sizeof row[e]);
          const Four a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5),
                     b = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5),
                     c = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7),
                     e = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
          const Four turned[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                                  __builtin_shufflevector(c, e, 0, 1, 4, 5), __builtin_shufflevector(c, e, 2, 3, 6, 7)};
          for (size_t k = 0; k < 4 && i + k < count; ++k)
            __builtin_memcpy(out + (j + i + k) * dims + d - 3, &turned[k], sizeof turned[k]);
        }
      }
    }
  }
}

template <typename V>
void ExpandKeys(const KvSpan& keys, size_t stride, size_t n, size_t dims, float* out) {
  WithUnrotatedKvType(keys.type, [&]<KvType type>() { ExpandKeysTyped<V, type>(keys, stride, n, dims, out); });
}

template <typename V, KvType type, size_t R, size_t P>
void ScoresRows(const float* q, const KvSpan* spans, size_t stride, size_t n, size_t head_dim, float* scores,
                size_t lds, const KvSpan* next) {
  auto tile = [&]<bool whole>(size_t j, size_t count) {
    if constexpr (KvHasScales(type))
      ScaledScoresTile<V, type, R, P, whole>(q, spans, stride, j, count, head_dim, scores, lds, n, next);
    else
      ScoresTile<V, type, R, P, whole>(q, spans, stride, j, count, head_dim, scores, lds, n, next);
  };
  size_t j = 0;
  for (; j + V::kLanes <= n; j += V::kLanes) tile.template operator()<true>(j, V::kLanes);
  if (j < n) tile.template operator()<false>(j, n - j);
}

// From this number of queries on six at a time: fewer elements are converted and loaded for each FMA. Fewer queries
// would pass over the same keys or values more often.
constexpr size_t kManyQueries = 12;

// Scores of all rows against P pages.
template <typename V, KvType type, size_t P>
void ScoresPages(const float* q, size_t rows, const KvSpan* spans, size_t stride, size_t n, size_t head_dim,
                 float* scores, size_t lds, const KvSpan* next) {
  size_t r = 0;
  auto take = [&]<size_t R>() {
    for (; r + R <= rows; r += R)
      ScoresRows<V, type, R, P>(q + r * head_dim, spans, stride, n, head_dim, scores + r * lds, lds, next);
  };
  if constexpr (P == 1) take.template operator()<8>();
  if constexpr (P > 1 && type != KvType::kQ4_0Plain) {  // whose two registers of codes leave too few for six
    if (rows >= kManyQueries) take.template operator()<6>();
  }
  take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

template <typename V, KvType type>
void ScoresTyped(const float* q, size_t rows, const KvSpans& spans, size_t stride, size_t head_dim, float* scores,
                 size_t lds) {
  constexpr size_t P = V::kPageStreams;
  if constexpr (KvHasScales(type)) PrefetchScales(spans, stride * head_dim);
  size_t p = 0;
  for (; p + P <= spans.pages; p += P) {
    const KvSpan* next = P == kPagesPerBatch && spans.next != nullptr ? spans.next + p : nullptr;
    ScoresPages<V, type, P>(q, rows, spans.at + p, stride, spans.n, head_dim, scores + p * spans.n, lds, next);
  }
  for (; p < spans.pages; ++p)
    ScoresPages<V, type, 1>(q, rows, spans.at + p, stride, spans.n, head_dim, scores + p * spans.n, lds, nullptr);
}

template <typename V>
void Scores(const float* q, size_t rows, const KvSpans& spans, size_t stride, size_t head_dim, float* scores,
            size_t lds) {
  WithUnrotatedKvType(spans.at->type,
                      [&]<KvType type>() { ScoresTyped<V, type>(q, rows, spans, stride, head_dim, scores, lds); });
}

// acc += weights * values for R queries and C registers of elements. `scales` (types with scales only): the f32 scales
// of the blocks of each position. interleaved: successive positions prefetch from the next pages alternately, because
// memory serves several streams faster than one.
template <typename V, KvType type, size_t R, size_t C, bool interleaved>
void WeightedTile(const float* weights, size_t ldw, const KvSpans& spans, const float* scales, size_t head_dim,
                  size_t at, float* acc) {
  constexpr size_t kStreams = interleaved ? kPagesPerBatch : 1;
  const size_t n = spans.n;
  typename V::T sum[R][C];
  Unrolled<R, C>([&](auto r, auto c) { sum[r][c] = V::Load(acc + r * head_dim + RegisterAt<V, type>(at, c)); });
  const std::byte* ahead[kStreams];
  for (size_t i = 0; interleaved && i < kStreams; ++i) ahead[i] = spans.next[i].values + KvCodeBytes(type, at);
  for (size_t p = 0; p < spans.pages; ++p, weights += n) {
    if constexpr (!interleaved) ahead[0] = PrefetchFrom(spans.at[p], nullptr) + KvCodeBytes(type, at);
    for (size_t first = 0; first < n; first += kStreams) {
      Each<0>(std::make_index_sequence<kStreams>(), [&](auto i) {
        const size_t j = first + i;
        for (size_t line = 0; line < KvCodeBytes(type, C * V::kLanes); line += 64) __builtin_prefetch(ahead[i] + line);
        ahead[i] += KvCodeBytes(type, head_dim);
        typename V::T v[C];
        LoadValue<V, type, C>(spans.at[p], j * head_dim, at,
                              KvHasScales(type) ? scales + p * n * (head_dim / kKvBlock) : nullptr, v);
        for (size_t r = 0; r < R; ++r) {
          const typename V::T w = V::Broadcast(weights[r * ldw + j]);
          for (size_t c = 0; c < C; ++c) sum[r][c] = V::Fma(w, v[c], sum[r][c]);
        }
      });
    }
  }
  Unrolled<R, C>([&](auto r, auto c) { V::Store(acc + r * head_dim + RegisterAt<V, type>(at, c), sum[r][c]); });
}

template <typename V, KvType type, size_t R>
void WeightedRows(const float* weights, size_t ldw, const KvSpans& spans, const float* scales, size_t head_dim,
                  float* acc) {
  constexpr size_t P = V::kPageStreams, kLeast = type == KvType::kQ4_0Plain ? 2 : 1;
  size_t i = 0;
  auto take = [&]<size_t C, bool interleaved>() {
    for (; i + C * V::kLanes <= head_dim; i += C * V::kLanes)
      WeightedTile<V, type, R, C, interleaved>(weights, ldw, spans, scales, head_dim, i, acc);
  };
  if constexpr (P == kPagesPerBatch) {
    if (spans.next != nullptr && spans.pages == P && spans.n % P == 0) {
      take.template operator()<P, true>();
      take.template operator()<kLeast, true>();
    }
  }
  take.template operator()<P, false>();
  take.template operator()<kLeast, false>();
  if constexpr (!KvHasScales(type)) {  // blocks with a scale fill whole registers
    const size_t tail = head_dim - i;
    if (tail == 0) return;
    for (size_t r = 0; r < R; ++r) {
      typename V::T sum = V::LoadTail(acc + r * head_dim + i, tail);
      for (size_t p = 0; p < spans.pages; ++p) {
        for (size_t j = 0; j < spans.n; ++j) {
          sum = V::Fma(V::Broadcast(weights[r * ldw + p * spans.n + j]),
                       LoadElements<V, type, false>(spans.at[p], j * head_dim + i, tail), sum);
        }
      }
      V::StoreTail(acc + r * head_dim + i, sum, tail);
    }
  }
}

template <typename V, KvType type>
void WeightedTyped(const float* weights, size_t ldw, size_t rows, const KvSpans& spans, const float* scales,
                   size_t head_dim, float* acc) {
  size_t r = 0;
  for (; rows >= kManyQueries && r + 6 <= rows; r += 6)
    WeightedRows<V, type, 6>(weights + r * ldw, ldw, spans, scales, head_dim, acc + r * head_dim);
  for (; r + 4 <= rows; r += 4)
    WeightedRows<V, type, 4>(weights + r * ldw, ldw, spans, scales, head_dim, acc + r * head_dim);
  for (; r < rows; ++r) WeightedRows<V, type, 1>(weights + r * ldw, ldw, spans, scales, head_dim, acc + r * head_dim);
}

template <typename V, KvType type>
void WeightedSumScaled(const float* weights, size_t ldw, size_t rows, const KvSpans& spans, size_t head_dim,
                       float* acc) {
  // Scales are converted to f32 for as many positions as fit the array: several whole pages, or a part of one.
  constexpr size_t kScales = 256;
  static_assert(kScales % V::kLanes == 0 && kScales >= size_t{kMaxHeadDim} / kKvBlock);
  float scales[kScales];
  const size_t n = spans.n, pages = spans.pages, blocks = head_dim / kKvBlock, room = kScales / blocks,
               several = room / n;
  PrefetchScales(spans, n * head_dim);
  auto put = [&](const KvSpan& span, size_t position, size_t count, float* to) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(span.scales) + position * blocks;
    size_t i = 0;
    for (; i + V::kLanes <= count * blocks; i += V::kLanes) V::Store(to + i, V::LoadHalf(from + i));
    for (; i < count * blocks; i += V::kLanes)
      V::StoreTail(to + i, V::LoadHalfTail(from + i, count * blocks - i), count * blocks - i);
  };
  for (size_t p = 0; several > 0 && p < pages; p += several) {
    const size_t now = pages - p < several ? pages - p : several;
    for (size_t i = 0; i < now; ++i) put(spans.at[p + i], 0, n, scales + i * n * blocks);
    WeightedTyped<V, type>(weights + p * n, ldw, rows,
                           {spans.at + p, now, n, spans.next != nullptr ? spans.next + p : nullptr}, scales, head_dim,
                           acc);
  }
  for (size_t i = 0; several == 0 && i < pages * n;) {
    const size_t j = i % n, count = n - j < room ? n - j : room;
    put(spans.at[i / n], j, count, scales);
    const KvSpan partial{type, spans.at[i / n].values + KvCodeBytes(type, j * head_dim), nullptr};
    WeightedTyped<V, type>(weights + i, ldw, rows, {&partial, 1, count}, scales, head_dim, acc);
    i += count;
  }
}

template <typename V>
void WeightedSum(const float* weights, size_t ldw, size_t rows, const KvSpans& spans, size_t head_dim, float* acc) {
  WithUnrotatedKvType(spans.at->type, [&]<KvType type>() {
    if constexpr (KvHasScales(type))
      WeightedSumScaled<V, type>(weights, ldw, rows, spans, head_dim, acc);
    else
      WeightedTyped<V, type>(weights, ldw, rows, spans, nullptr, head_dim, acc);
  });
}

}  // namespace
}  // namespace gyre::cpu
