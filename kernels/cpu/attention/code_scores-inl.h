// Scores of rounded queries against keys of 8 or 4 bits by integer dot products, in terms of a vector class V of floats
// (float_kernels-inl.h) and a class I of as many integers of 32 bits.
//
// I has: Int (a register); Splat; SplatFour (four bytes in each lane); Lines (four lines of up to kLanes bytes,
// `stride` bytes apart: byte 4 i + l of the result is byte i of line l); UsualLines (the same of whole lines side by
// side); Dot (each lane adds its four unsigned bytes times four signed ones, without saturation); Flip (of each byte
// the highest bit), Low and High (of each byte the four bits); Floats (256 times the first, plus the second, as
// floats); RoundBlock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/attention_kernels-inl.h"
#include "kernels/cpu/isa/isa_ops.h"

namespace gyre::cpu {
namespace {

// Codes are read as unsigned bytes, this much larger.
constexpr int32_t CodeZero(KvType type) { return type == KvType::kQ8_0 ? 128 : 8; }

// The largest number of 16 bits whose upper byte, rounded to nearest, is at most 127.
constexpr float kMostRounded = 127 * 256 + 127;

// IsaOps::round_queries. A block with a number that is not finite gets the scale NaN.
template <typename V, typename I>
void RoundQueries(const float* q, size_t blocks, KvType type, const RoundedQueries& to) {
  for (size_t b = 0; b < blocks; ++b, q += kKvBlock) {
    typename V::T largest = V::Zero(), zero = V::Zero();
    for (size_t i = 0; i < kKvBlock; i += V::kLanes) {
      const typename V::T x = V::Load(q + i);
      largest = V::Max(largest, V::Max(x, V::Mul(x, V::Broadcast(-1))));
      zero = V::Fma(x, V::Zero(), zero);
    }
    const float most = V::Largest(largest);
    int32_t sums[2];
    I::RoundBlock(q, most > 0 ? kMostRounded / most : 0, to.high + b * kKvBlock, to.low + b * kKvBlock, sums);
    to.scale[b] = most / kMostRounded + V::Sum(zero);
    for (size_t half = 0; half < 2; ++half) to.offset[2 * b + half] = -CodeZero(type) * sums[half];
  }
}

// Scores of R queries against positions [j, j + n) of each of P pages; n is at most one register. usual: each page has
// one register of positions, all of which are read. Every sum of integers is exact, so no bit depends on their order.
template <typename V, typename I, KvType type, size_t R, size_t P, bool usual>
void CodeScoresTile(const RoundedQueries& q, const KvSpan* spans, size_t stride, size_t j, size_t n, size_t head_dim,
                    float* scores, size_t lds, size_t page, const KvSpan* next) {
  using Int = typename I::Int;
  // A line has one code, or two of nibbles, of each position of a page.
  constexpr size_t kLines = KvCodeBytes(type, kKvBlock), kLinesAtOnce = 4, kHalves = KvHasNibbles(type) ? 2 : 1;
  const size_t blocks = head_dim / kKvBlock;
  for (size_t b = 0; b < blocks; ++b) {
    Int high[P][R], low[P][R];
    Unrolled<P, R>([&](auto p, auto r) {
      high[p][r] = I::Splat(q.offset[2 * (r * blocks + b)]);
      low[p][r] = I::Splat(q.offset[2 * (r * blocks + b) + 1]);
    });
    // Unrolled, as gcc copies all sums between registers in a loop.
    Each<0>(std::make_index_sequence<kLines / kLinesAtOnce>(), [&](auto group) {
      const size_t first = group * kLinesAtOnce, at = (b * kLines + first) * (usual ? V::kLanes : stride);
      if constexpr (usual) {
        for (size_t p = 0; p < P; ++p) __builtin_prefetch(next[p].values + at);
      }
      Int codes[P][kHalves];
      for (size_t p = 0; p < P; ++p) {
        const Int bytes = usual ? I::UsualLines(spans[p].values + at) : I::Lines(spans[p].values + at + j, stride, n);
        codes[p][0] = type == KvType::kQ8_0 ? I::Flip(bytes) : I::Low(bytes);
        if constexpr (kHalves == 2) codes[p][1] = I::High(bytes);
      }
      Unrolled<kHalves, R>([&](auto half, auto r) {
        const size_t d = b * kKvBlock + first + half * (kKvBlock / 2);
        const Int upper = I::SplatFour(q.high + r * head_dim + d), lower = I::SplatFour(q.low + r * head_dim + d);
        for (size_t p = 0; p < P; ++p) {
          high[p][r] = I::Dot(high[p][r], codes[p][half], upper);
          low[p][r] = I::Dot(low[p][r], codes[p][half], lower);
        }
      });
    });
    typename V::T scale[P];
    for (size_t p = 0; p < P; ++p) scale[p] = LoadKeyScales<V, usual>(spans[p], b, stride, j, n);
    Unrolled<P, R>([&](auto p, auto r) {
      float* to = scores + r * lds + p * page + j;
      const typename V::T sum = V::Mul(I::Floats(high[p][r], low[p][r]), V::Broadcast(q.scale[r * blocks + b]));
      if constexpr (usual)
        V::Store(to, b == 0 ? V::Mul(sum, scale[p]) : V::Fma(sum, scale[p], V::Load(to)));
      else
        V::StoreTail(to, b == 0 ? V::Mul(sum, scale[p]) : V::Fma(sum, scale[p], V::LoadTail(to, n)), n);
    });
  }
}

// IsaOps::code_scores.
template <typename V, typename I>
void CodeScores(const RoundedQueries& queries, size_t rows, const KvSpans& spans, size_t stride, size_t head_dim,
                float* scores, size_t lds) {
  PrefetchScales(spans, stride * head_dim);
  auto typed = [&]<KvType type>() {
    size_t r = 0;
    auto take = [&]<size_t R>() {
      for (; r + R <= rows; r += R) {
        const RoundedQueries q = queries.From(r, head_dim);
        const KvSpan* next = spans.next != nullptr ? spans.next : spans.at;
        float* to = scores + r * lds;
        size_t p = 0;
        for (; stride == V::kLanes && spans.n == V::kLanes && p + 2 <= spans.pages; p += 2)
          CodeScoresTile<V, I, type, R, 2, true>(q, spans.at + p, stride, 0, spans.n, head_dim, to + p * spans.n, lds,
                                                 spans.n, next + p);
        for (; p < spans.pages; ++p) {
          for (size_t j = 0; j < spans.n; j += V::kLanes)
            CodeScoresTile<V, I, type, R, 1, false>(q, spans.at + p, stride, j,
                                                    spans.n - j < V::kLanes ? spans.n - j : V::kLanes, head_dim,
                                                    to + p * spans.n, lds, spans.n, nullptr);
        }
      }
    };
    take.template operator()<4>();
    take.template operator()<2>();
    take.template operator()<1>();
  };
  if (spans.at->type == KvType::kQ8_0)
    typed.template operator()<KvType::kQ8_0>();
  else
    typed.template operator()<KvType::kQ4_0Plain>();
}

}  // namespace
}  // namespace gyre::cpu
