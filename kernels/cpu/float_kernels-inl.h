// The inner loops in terms of a vector class V, included by one file an ISA inside an anonymous namespace, so that no
// code of one ISA can be linked into another.
//
// V: kLanes, T (register), Zero, Load(f32), LoadHalf, LoadBf16, the same with Tail (n < kLanes elements, zeros behind
// them), Broadcast, Fma, Store, StoreTail, Sum.

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

// R rows by C columns.
template <typename V, FloatType type, size_t R, size_t C>
void DotTile(const float* x, const void* w, size_t column, size_t k, float* out, size_t ldo) {
  typename V::T acc[R][C];
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) acc[r][c] = V::Zero();
  }
  const size_t whole = k / V::kLanes * V::kLanes;
  for (size_t i = 0; i < whole; i += V::kLanes) {
    typename V::T xs[R];
    for (size_t r = 0; r < R; ++r) xs[r] = V::Load(x + r * k + i);
    for (size_t c = 0; c < C; ++c) {
      const typename V::T ws = LoadWeights<V, type>(w, (column + c) * k + i);
      for (size_t r = 0; r < R; ++r) acc[r][c] = V::Fma(xs[r], ws, acc[r][c]);
    }
  }
  if (whole < k) {
    typename V::T xs[R];
    for (size_t r = 0; r < R; ++r) xs[r] = V::LoadTail(x + r * k + whole, k - whole);
    for (size_t c = 0; c < C; ++c) {
      const typename V::T ws = LoadWeightsTail<V, type>(w, (column + c) * k + whole, k - whole);
      for (size_t r = 0; r < R; ++r) acc[r][c] = V::Fma(xs[r], ws, acc[r][c]);
    }
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) out[r * ldo + column + c] = V::Sum(acc[r][c]);
  }
}

template <typename V, FloatType type, size_t R, size_t C>
void DotRows(const float* x, const void* w, size_t n, size_t k, float* out, size_t ldo) {
  size_t column = 0;
  for (; column + C <= n; column += C) DotTile<V, type, R, C>(x, w, column, k, out, ldo);
  for (; column < n; ++column) DotTile<V, type, R, 1>(x, w, column, k, out, ldo);
}

template <typename V, FloatType type>
void DotTyped(const float* x, size_t rows, const void* w, size_t n, size_t k, float* out, size_t ldo) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) DotRows<V, type, 4, 2>(x + r * k, w, n, k, out + r * ldo, ldo);
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

template <typename V>
void Scores(const float* q, const void* keys, bool half, size_t n, size_t head_dim, float* scores) {
  if (half) {
    DotRows<V, FloatType::kF16, 1, 4>(q, keys, n, head_dim, scores, n);
  } else {
    DotRows<V, FloatType::kF32, 1, 4>(q, keys, n, head_dim, scores, n);
  }
}

template <typename V, FloatType type>
void WeightedSumTyped(const float* weights, const void* values, size_t n, size_t head_dim, float* acc) {
  size_t i = 0;
  for (; i + V::kLanes <= head_dim; i += V::kLanes) {
    typename V::T sum = V::Load(acc + i);
    for (size_t j = 0; j < n; ++j) {
      sum = V::Fma(V::Broadcast(weights[j]), LoadWeights<V, type>(values, j * head_dim + i), sum);
    }
    V::Store(acc + i, sum);
  }
  if (i == head_dim) return;
  const size_t tail = head_dim - i;
  typename V::T sum = V::LoadTail(acc + i, tail);
  for (size_t j = 0; j < n; ++j) {
    sum = V::Fma(V::Broadcast(weights[j]), LoadWeightsTail<V, type>(values, j * head_dim + i, tail), sum);
  }
  V::StoreTail(acc + i, sum, tail);
}

template <typename V>
void WeightedSum(const float* weights, const void* values, bool half, size_t n, size_t head_dim, float* acc) {
  if (half) {
    WeightedSumTyped<V, FloatType::kF16>(weights, values, n, head_dim, acc);
  } else {
    WeightedSumTyped<V, FloatType::kF32>(weights, values, n, head_dim, acc);
  }
}
