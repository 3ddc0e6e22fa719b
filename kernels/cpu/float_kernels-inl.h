// The inner loops in terms of a vector class V, included by one file an ISA inside an anonymous namespace, so that no
// code of one ISA can be linked into another.
//
// V: kLanes, kTileRows and kTileColumns (a tile's sums, its rows of x and one column must fit the registers), T (register), Zero, Load(f32), LoadHalf, LoadBf16, LoadInt8, the same with Tail (n < kLanes elements, zeros behind
// them), Half (one), Broadcast, Fma, Add, Mul, Div, Max and Min (of NaN and b: b), Round, TimesPowerOf2 (whole n in float), Store, StoreTail, Sum.

template <typename V, FloatType type>
typename V::T LoadWeights(const void* w, size_t at) {
  if constexpr (type == FloatType::kF32) return V::Load(static_cast<const float*>(w) + at);
  if constexpr (type == FloatType::kF16) return V::LoadHalf(static_cast<const uint16_t*>(w) + at);
  if constexpr (type == FloatType::kBf16) return V::LoadBf16(static_cast<const uint16_t*>(w) + at);
}

template <typename V, FloatType type>
typename V::T LoadWeightsTail(const void* w, size_t at, size_t n) {
  if constexpr (type == FloatType::kF32) return V::LoadTail(static_cast<const float*>(w) + at, n);
  if constexpr (type == FloatType::kF16) return V::LoadHalfTail(static_cast<const uint16_t*>(w) + at, n);
  if constexpr (type == FloatType::kBf16) return V::LoadBf16Tail(static_cast<const uint16_t*>(w) + at, n);
}

// R rows by C columns, positions [begin, end) of k, on top of the sums that acc[(r * C + c) * lanes] holds.
template <typename V, FloatType type, size_t R, size_t C>
void DotTile(const float* x, const void* w, size_t column, size_t k, size_t begin, size_t end, float* acc) {
  typename V::T sum[R][C];
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) sum[r][c] = begin == 0 ? V::Zero() : V::Load(acc + (r * C + c) * V::kLanes);
  }
  const size_t whole = begin + (end - begin) / V::kLanes * V::kLanes;
  for (size_t i = begin; i < whole; i += V::kLanes) {
    typename V::T xs[R];
    for (size_t r = 0; r < R; ++r) xs[r] = V::Load(x + r * k + i);
    for (size_t c = 0; c < C; ++c) {
      const typename V::T ws = LoadWeights<V, type>(w, (column + c) * k + i);
      for (size_t r = 0; r < R; ++r) sum[r][c] = V::Fma(xs[r], ws, sum[r][c]);
    }
  }
  if (whole < end) {
    typename V::T xs[R];
    for (size_t r = 0; r < R; ++r) xs[r] = V::LoadTail(x + r * k + whole, end - whole);
    for (size_t c = 0; c < C; ++c) {
      const typename V::T ws = LoadWeightsTail<V, type>(w, (column + c) * k + whole, end - whole);
      for (size_t r = 0; r < R; ++r) sum[r][c] = V::Fma(xs[r], ws, sum[r][c]);
    }
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) V::Store(acc + (r * C + c) * V::kLanes, sum[r][c]);
  }
}

// Segments of k in which R rows of x stay in the first-level cache while the columns pass; the sums wait in `acc` between them.
constexpr size_t kSegment = 512, kSliceColumns = 64;

template <typename V, FloatType type, size_t R, size_t C>
void DotRows(const float* x, const void* w, size_t n, size_t k, float* out, size_t ldo) {
  static_assert(kSliceColumns % C == 0);
  alignas(64) float acc[R * kSliceColumns * V::kLanes];
  for (size_t first = 0; first < n; first += kSliceColumns) {
    const size_t last = n - first < kSliceColumns ? n : first + kSliceColumns;
    for (size_t begin = 0; begin < k || begin == 0; begin += kSegment) {
      const size_t end = R == 1 || k - begin < kSegment ? k : begin + kSegment;  // one row is short: it stays there anyway
      size_t column = first;
      float* at = acc;
      for (; column + C <= last; column += C, at += R * C * V::kLanes) DotTile<V, type, R, C>(x, w, column, k, begin, end, at);
      for (; column < last; ++column, at += R * V::kLanes) DotTile<V, type, R, 1>(x, w, column, k, begin, end, at);
      if (end == k) break;
    }
    const float* at = acc;
    for (size_t column = first; column < last;) {
      const size_t width = last - column >= C ? C : 1;
      for (size_t r = 0; r < R; ++r) {
        for (size_t c = 0; c < width; ++c, at += V::kLanes) out[r * ldo + column + c] = V::Sum(V::Load(at));
      }
      column += width;
    }
  }
}

template <typename V, FloatType type>
void DotTyped(const float* x, size_t rows, const void* w, size_t n, size_t k, float* out, size_t ldo) {
  constexpr size_t R = V::kTileRows, C = V::kTileColumns;
  size_t r = 0;
  for (; r + R <= rows; r += R) DotRows<V, type, R, C>(x + r * k, w, n, k, out + r * ldo, ldo);
  for (; r + 2 <= rows; r += 2) DotRows<V, type, 2, 4>(x + r * k, w, n, k, out + r * ldo, ldo);
  for (; r < rows; ++r) DotRows<V, type, 1, 8>(x + r * k, w, n, k, out + r * ldo, ldo);
}

template <typename V>
void Dot(const float* x, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* out, size_t ldo) {
  switch (type) {
    case FloatType::kF32: return DotTyped<V, FloatType::kF32>(x, rows, w, n, k, out, ldo);
    case FloatType::kF16: return DotTyped<V, FloatType::kF16>(x, rows, w, n, k, out, ldo);
    case FloatType::kBf16: return DotTyped<V, FloatType::kBf16>(x, rows, w, n, k, out, ldo);
  }
}

// e to the x for x <= 88; what is under the smallest normal number becomes 0 or nearly. Relative error about 1e-7: x = n ln 2 + r,
// |r| <= ln(2) / 2, Taylor's polynomial of degree 7 for e^r.
template <typename V>
typename V::T Exp(typename V::T x) {
  x = V::Max(x, V::Broadcast(-87.3f));
  const typename V::T n = V::Round(V::Mul(x, V::Broadcast(1.44269504f)));
  typename V::T r = V::Fma(n, V::Broadcast(-0.693359375f), x);  // ln 2 in two parts, the first exact in few bits
  r = V::Fma(n, V::Broadcast(2.12194440e-4f), r);
  typename V::T p = V::Broadcast(1.0f / 5040);
  constexpr float kRest[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (const float c : kRest) p = V::Fma(p, r, V::Broadcast(c));
  return V::TimesPowerOf2(p, n);
}

template <typename V, FloatType type, size_t R>
void ScoresTile(const float* q, const void* keys, size_t stride, size_t n, size_t head_dim, float* scores, size_t lds) {
  for (size_t j = 0; j < n; j += V::kLanes) {
    const size_t left = n - j;
    typename V::T acc[R];
    for (size_t r = 0; r < R; ++r) acc[r] = V::Zero();
    for (size_t d = 0; d < head_dim; ++d) {
      const typename V::T k = left >= V::kLanes ? LoadWeights<V, type>(keys, d * stride + j) : LoadWeightsTail<V, type>(keys, d * stride + j, left);
      for (size_t r = 0; r < R; ++r) acc[r] = V::Fma(V::Broadcast(q[r * head_dim + d]), k, acc[r]);
    }
    for (size_t r = 0; r < R; ++r) {
      if (left >= V::kLanes) V::Store(scores + r * lds + j, acc[r]);
      else V::StoreTail(scores + r * lds + j, acc[r], left);
    }
  }
}

template <typename V, FloatType type>
void ScoresTyped(const float* q, size_t rows, const void* keys, size_t stride, size_t n, size_t head_dim, float* scores, size_t lds) {
  size_t r = 0;
  for (; r + 8 <= rows; r += 8) ScoresTile<V, type, 8>(q + r * head_dim, keys, stride, n, head_dim, scores + r * lds, lds);
  for (; r + 4 <= rows; r += 4) ScoresTile<V, type, 4>(q + r * head_dim, keys, stride, n, head_dim, scores + r * lds, lds);
  for (; r < rows; ++r) ScoresTile<V, type, 1>(q + r * head_dim, keys, stride, n, head_dim, scores + r * lds, lds);
}

template <typename V, size_t R>
void ScoresQ8Tile(const float* q, const KvRun& keys, size_t stride, size_t n, size_t head_dim, float* scores, size_t lds) {
  const auto* values = reinterpret_cast<const int8_t*>(keys.values);
  const auto* scales = reinterpret_cast<const uint16_t*>(keys.scales);
  for (size_t j = 0; j < n; j += V::kLanes) {
    const size_t left = n - j;
    const bool whole = left >= V::kLanes;
    typename V::T sum[R];
    for (size_t r = 0; r < R; ++r) sum[r] = V::Zero();
    for (size_t b = 0; b < head_dim; b += kKvBlock) {
      typename V::T acc[R];
      for (size_t r = 0; r < R; ++r) acc[r] = V::Zero();
      for (size_t d = b; d < b + kKvBlock; ++d) {
        const int8_t* at = values + d * stride + j;
        const typename V::T k = whole ? V::LoadInt8(at) : V::LoadInt8Tail(at, left);
        for (size_t r = 0; r < R; ++r) acc[r] = V::Fma(V::Broadcast(q[r * head_dim + d]), k, acc[r]);
      }
      const uint16_t* at = scales + b / kKvBlock * stride + j;
      const typename V::T scale = whole ? V::LoadHalf(at) : V::LoadHalfTail(at, left);
      for (size_t r = 0; r < R; ++r) sum[r] = V::Fma(acc[r], scale, sum[r]);
    }
    for (size_t r = 0; r < R; ++r) {
      if (whole) V::Store(scores + r * lds + j, sum[r]);
      else V::StoreTail(scores + r * lds + j, sum[r], left);
    }
  }
}

template <typename V>
void Scores(const float* q, size_t rows, const KvRun& keys, size_t stride, size_t n, size_t head_dim, float* scores, size_t lds) {
  switch (keys.type) {
    case KvType::kF32: return ScoresTyped<V, FloatType::kF32>(q, rows, keys.values, stride, n, head_dim, scores, lds);
    case KvType::kF16: return ScoresTyped<V, FloatType::kF16>(q, rows, keys.values, stride, n, head_dim, scores, lds);
    case KvType::kBf16: return ScoresTyped<V, FloatType::kBf16>(q, rows, keys.values, stride, n, head_dim, scores, lds);
    case KvType::kQ8_0: break;
  }
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) ScoresQ8Tile<V, 4>(q + r * head_dim, keys, stride, n, head_dim, scores + r * lds, lds);
  for (; r < rows; ++r) ScoresQ8Tile<V, 1>(q + r * head_dim, keys, stride, n, head_dim, scores + r * lds, lds);
}

// Two pages at once are twice as many chains: one row's heads alone leave the FMAs waiting for each other.
template <typename V, FloatType type, size_t R>
void ScoresPairTile(const float* q, const void* first, const void* second, size_t n, size_t head_dim, float* scores, size_t lds) {
  for (size_t j = 0; j < n; j += V::kLanes) {
    typename V::T acc[2][R];
    for (size_t r = 0; r < R; ++r) acc[0][r] = acc[1][r] = V::Zero();
    for (size_t d = 0; d < head_dim; ++d) {
      const typename V::T k0 = LoadWeights<V, type>(first, d * n + j), k1 = LoadWeights<V, type>(second, d * n + j);
      for (size_t r = 0; r < R; ++r) {
        const typename V::T x = V::Broadcast(q[r * head_dim + d]);
        acc[0][r] = V::Fma(x, k0, acc[0][r]);
        acc[1][r] = V::Fma(x, k1, acc[1][r]);
      }
    }
    for (size_t r = 0; r < R; ++r) {
      V::Store(scores + r * lds + j, acc[0][r]);
      V::Store(scores + r * lds + n + j, acc[1][r]);
    }
  }
}

template <typename V, FloatType type>
void ScoresPairTyped(const float* q, size_t rows, const void* first, const void* second, size_t n, size_t head_dim, float* scores, size_t lds) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) ScoresPairTile<V, type, 4>(q + r * head_dim, first, second, n, head_dim, scores + r * lds, lds);
  for (; r + 2 <= rows; r += 2) ScoresPairTile<V, type, 2>(q + r * head_dim, first, second, n, head_dim, scores + r * lds, lds);
  for (; r < rows; ++r) ScoresPairTile<V, type, 1>(q + r * head_dim, first, second, n, head_dim, scores + r * lds, lds);
}

template <typename V>
void ScoresPair(const float* q, size_t rows, const KvRun& first, const KvRun& second, size_t n, size_t head_dim, float* scores, size_t lds) {
  if (first.type == KvType::kQ8_0 || n % V::kLanes != 0) {
    Scores<V>(q, rows, first, n, n, head_dim, scores, lds);
    return Scores<V>(q, rows, second, n, n, head_dim, scores + n, lds);
  }
  const auto pair = first.type == KvType::kF32   ? ScoresPairTyped<V, FloatType::kF32>
                    : first.type == KvType::kF16 ? ScoresPairTyped<V, FloatType::kF16>
                                                 : ScoresPairTyped<V, FloatType::kBf16>;
  pair(q, rows, first.values, second.values, n, head_dim, scores, lds);
}

// f(at, n) for whole registers, n their lanes, that cover [begin, end) from a multiple of the lanes on; the first and the last in part:
// lanes [skip, skip + n).
template <typename V, typename Fn>
void ForAligned(size_t begin, size_t end, Fn f) {
  for (size_t at = begin; at < end;) {
    const size_t skip = at % V::kLanes, n = end - at < V::kLanes - skip ? end - at : V::kLanes - skip;
    f(at, skip, n);
    at += n;
  }
}

// Lane (position % kMaxLanes) of the sums: the same for every instruction set that has as many, and wherever the run begins.
template <typename V>
float ExpSum(float* s, size_t begin, size_t end, float max) {
  const typename V::T top = V::Broadcast(-max);
  float lanes[V::kLanes] = {};
  typename V::T sum = V::Zero();
  ForAligned<V>(begin, end, [&](size_t at, size_t skip, size_t n) {
    if (n == V::kLanes) {
      const typename V::T e = Exp<V>(V::Add(V::Load(s + at), top));
      V::Store(s + at, e);
      sum = V::Add(sum, e);
      return;
    }
    float part[V::kLanes];
    V::Store(part, Exp<V>(V::Add(V::LoadTail(s + at, n), top)));
    for (size_t i = 0; i < n; ++i) {
      s[at + i] = part[i];
      lanes[skip + i] += part[i];
    }
  });
  return V::Sum(V::Add(sum, V::Load(lanes)));
}

template <typename V>
float ScaleMax(float* s, size_t begin, size_t end, float scale) {
  typename V::T max = V::Broadcast(-__builtin_inff());
  float top = -__builtin_inff();
  size_t i = begin;
  for (; i + V::kLanes <= end; i += V::kLanes) {
    const typename V::T v = V::Mul(V::Load(s + i), V::Broadcast(scale));
    V::Store(s + i, v);
    max = V::Max(max, v);
  }
  float lanes[V::kLanes];
  V::Store(lanes, max);
  for (float lane : lanes) top = lane > top ? lane : top;
  for (; i < end; ++i) {
    s[i] *= scale;
    top = s[i] > top ? s[i] : top;
  }
  return top;
}

template <typename V, FloatType type, size_t R, size_t C>
void WeightedTile(const float* weights, size_t ldw, const void* values, size_t n, size_t head_dim, size_t at, float* acc) {
  typename V::T sum[R][C];
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) sum[r][c] = V::Load(acc + r * head_dim + at + c * V::kLanes);
  }
  for (size_t j = 0; j < n; ++j) {
    typename V::T v[C];
    for (size_t c = 0; c < C; ++c) v[c] = LoadWeights<V, type>(values, j * head_dim + at + c * V::kLanes);
    for (size_t r = 0; r < R; ++r) {
      const typename V::T w = V::Broadcast(weights[r * ldw + j]);
      for (size_t c = 0; c < C; ++c) sum[r][c] = V::Fma(w, v[c], sum[r][c]);
    }
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) V::Store(acc + r * head_dim + at + c * V::kLanes, sum[r][c]);
  }
}

template <typename V, FloatType type, size_t R>
void WeightedRows(const float* weights, size_t ldw, const void* values, size_t n, size_t head_dim, float* acc) {
  size_t i = 0;
  for (; i + 2 * V::kLanes <= head_dim; i += 2 * V::kLanes) WeightedTile<V, type, R, 2>(weights, ldw, values, n, head_dim, i, acc);
  for (; i + V::kLanes <= head_dim; i += V::kLanes) WeightedTile<V, type, R, 1>(weights, ldw, values, n, head_dim, i, acc);
  if (i == head_dim) return;
  const size_t tail = head_dim - i;
  for (size_t r = 0; r < R; ++r) {
    typename V::T sum = V::LoadTail(acc + r * head_dim + i, tail);
    for (size_t j = 0; j < n; ++j) {
      sum = V::Fma(V::Broadcast(weights[r * ldw + j]), LoadWeightsTail<V, type>(values, j * head_dim + i, tail), sum);
    }
    V::StoreTail(acc + r * head_dim + i, sum, tail);
  }
}

template <typename V, FloatType type>
void WeightedTyped(const float* weights, size_t ldw, size_t rows, const void* values, size_t n, size_t head_dim, float* acc) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) WeightedRows<V, type, 4>(weights + r * ldw, ldw, values, n, head_dim, acc + r * head_dim);
  for (; r < rows; ++r) WeightedRows<V, type, 1>(weights + r * ldw, ldw, values, n, head_dim, acc + r * head_dim);
}

// Blocks of values have 32 elements, two registers at least: no tails.
template <typename V, size_t R>
void WeightedQ8(const float* weights, size_t ldw, const KvRun& run, size_t n, size_t head_dim, float* acc) {
  constexpr size_t C = 2;
  const auto* values = reinterpret_cast<const int8_t*>(run.values);
  const auto* scales = reinterpret_cast<const uint16_t*>(run.scales);
  for (size_t at = 0; at < head_dim; at += C * V::kLanes) {
    typename V::T sum[R][C];
    for (size_t r = 0; r < R; ++r) {
      for (size_t c = 0; c < C; ++c) sum[r][c] = V::Load(acc + r * head_dim + at + c * V::kLanes);
    }
    for (size_t j = 0; j < n; ++j) {
      typename V::T v[C];
      for (size_t c = 0; c < C; ++c) v[c] = V::LoadInt8(values + j * head_dim + at + c * V::kLanes);
      const float scale = V::Half(scales[j * (head_dim / kKvBlock) + at / kKvBlock]);
      for (size_t r = 0; r < R; ++r) {
        const typename V::T w = V::Broadcast(weights[r * ldw + j] * scale);
        for (size_t c = 0; c < C; ++c) sum[r][c] = V::Fma(w, v[c], sum[r][c]);
      }
    }
    for (size_t r = 0; r < R; ++r) {
      for (size_t c = 0; c < C; ++c) V::Store(acc + r * head_dim + at + c * V::kLanes, sum[r][c]);
    }
  }
}

template <typename V>
void WeightedSum(const float* weights, size_t ldw, size_t rows, const KvRun& values, size_t n, size_t head_dim, float* acc) {
  switch (values.type) {
    case KvType::kF32: return WeightedTyped<V, FloatType::kF32>(weights, ldw, rows, values.values, n, head_dim, acc);
    case KvType::kF16: return WeightedTyped<V, FloatType::kF16>(weights, ldw, rows, values.values, n, head_dim, acc);
    case KvType::kBf16: return WeightedTyped<V, FloatType::kBf16>(weights, ldw, rows, values.values, n, head_dim, acc);
    case KvType::kQ8_0: break;
  }
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) WeightedQ8<V, 4>(weights + r * ldw, ldw, values, n, head_dim, acc + r * head_dim);
  for (; r < rows; ++r) WeightedQ8<V, 1>(weights + r * ldw, ldw, values, n, head_dim, acc + r * head_dim);
}

template <typename V>
void SiluTimes(const float* gate, const float* up, size_t n, float* out) {
  auto one = [](typename V::T g, typename V::T u) {
    const typename V::T e = Exp<V>(V::Min(V::Mul(g, V::Broadcast(-1.0f)), V::Broadcast(88.0f)));
    return V::Mul(V::Div(g, V::Add(e, V::Broadcast(1.0f))), u);
  };
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::Store(out + i, one(V::Load(gate + i), V::Load(up + i)));
  if (i < n) V::StoreTail(out + i, one(V::LoadTail(gate + i, n - i), V::LoadTail(up + i, n - i)), n - i);
}
