#include "kernels/host_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/experts.h"
#include "kernels/wire_rows.h"

namespace gyre {

void HostBackend::Copy(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void HostBackend::Zero(void* device, size_t bytes) {
  if (bytes > 0) std::memset(device, 0, bytes);
}

// NaN passes.
void Limit(float* gate, float* up, size_t n, const Backend::Ffn& w) {
  for (size_t i = 0; w.gate_limit != 0 && i < n; ++i) gate[i] = gate[i] > w.gate_limit ? w.gate_limit : gate[i];
  for (size_t i = 0; w.up_limit != 0 && i < n; ++i)
    up[i] = up[i] > w.up_limit ? w.up_limit : up[i] < -w.up_limit ? -w.up_limit : up[i];
}

void HostBackend::LimitProducts(float* gate, float* up, size_t n, const Ffn& w) { Limit(gate, up, n, w); }

void HostBackend::FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic,
                              float* out, bool add) {
  if (w.gated() && w.plain()) return GatedFeedForward(x, rows, w, act, arithmetic, out, add);
  const size_t n = rows * w.up.n;
  float* gate = inner_.EnsureCapacity(*device_, w.gated() ? 2 * n : n);
  float* up = w.gated() ? gate + n : gate;
  if (w.gated()) {
    const Product both[] = {{w.gate, gate}, {w.up, up}};
    MatMul(x, rows, both, arithmetic);
  } else {
    MatMul(x, rows, w.up, up, arithmetic);
  }
  if (w.gated() && w.gate_bias != nullptr) AddBias(gate, rows, w.up.n, w.gate_bias);
  if (w.up_bias != nullptr) AddBias(up, rows, w.up.n, w.up_bias);
  if (w.gated()) LimitProducts(gate, up, n, w);
  w.gated() ? GatedActivation(gate, up, n, act, gate) : Activate(up, n, act, up);
  const Product last[] = {{w.down, out, add}};
  MatMul(gate, rows, last, arithmetic);
  if (w.down_bias != nullptr) AddBias(out, rows, w.down.n, w.down_bias);
}

void HostBackend::MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x,
                              size_t x_stride, size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) {
  const size_t count = heads.size(), k = heads[0]->k, n = heads[0]->n;
  float *in = gathered_.EnsureCapacity(*device_, rows * k), *made = made_.EnsureCapacity(*device_, rows * n);
  for (size_t h = 0; h < count; ++h) {
    CopyColumns(x + h * x_stride, rows, count * x_stride, k, in, k);
    MatMul(in, rows, *heads[h], made, arithmetic);
    CopyColumns(made, rows, n, n, out + h * out_stride, count * out_stride);
  }
}

void HostBackend::ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                                uint32_t* experts, float* weights) {
  ChooseExpertsOfRows(scores, rows, params, choice_bias, experts, weights);
}

void HostBackend::MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) {
  arithmetics_.clear();
  for (const RowRun& run : runs) arithmetics_.insert(arithmetics_.end(), run.rows, run.arithmetic);
  const size_t rows = arithmetics_.size(), dim = mixture.experts[0].up.k;
  std::fill_n(out, rows * dim, 0.0f);
  chosen_by_.resize(mixture.experts.size());
  for (auto& chosen : chosen_by_) chosen.clear();
  for (size_t i = 0; i < rows * mixture.used; ++i) chosen_by_[mixture.chosen[i]].push_back(i);
  float *gathered = gathered_.EnsureCapacity(*device_, rows * dim), *made = made_.EnsureCapacity(*device_, rows * dim);
  for (size_t e = 0; e < mixture.experts.size(); ++e) {
    const auto& chosen = chosen_by_[e];
    const auto row = [&](size_t i) { return chosen[i] / mixture.used; };
    for (size_t i = 0; i < chosen.size(); ++i) std::copy_n(x + row(i) * dim, dim, gathered + i * dim);
    for (size_t first = 0, end = 0; first < chosen.size(); first = end) {
      const Arithmetic arithmetic = arithmetics_[row(first)];
      while (end < chosen.size() && arithmetics_[row(end)] == arithmetic) ++end;
      FeedForward(gathered + first * dim, end - first, mixture.experts[e], mixture.activation, arithmetic,
                  made + first * dim, false);
    }
    const float scale = mixture.scales == nullptr ? 1 : mixture.scales[e];
    for (size_t i = 0; i < chosen.size(); ++i) {
      Scale(made + i * dim, dim, mixture.weights[chosen[i]] * scale);
      AddInPlace(out + row(i) * dim, made + i * dim, dim);
    }
  }
}

void HostBackend::RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude,
                              float* cos, float* sin) {
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(rows[r].position) * frequencies[i];
      cos[r * half + i] = static_cast<float>(std::cos(angle)) * magnitude;
      sin[r * half + i] = static_cast<float>(std::sin(angle)) * magnitude;
    }
  }
}

void HostBackend::Center(const float* x, size_t rows, size_t dim, float* out) {
  constexpr size_t kSums = 8;
  for (size_t r = 0; r < rows; ++r, x += dim, out += dim) {
    double sums[kSums] = {};
    for (size_t i = 0; i < dim; ++i) sums[i % kSums] += static_cast<double>(x[i]);
    double sum = 0;
    for (const double s : sums) sum += s;
    const double mean = sum / static_cast<double>(dim);
    for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(static_cast<double>(x[i]) - mean);
  }
}

void HostBackend::Xielu(float* x, size_t n, const XieluParams& params) {
  const auto positive = static_cast<double>(params.positive), negative = static_cast<double>(params.negative),
             beta = static_cast<double>(params.beta), eps = static_cast<double>(params.eps);
  for (size_t i = 0; i < n; ++i) {
    const auto v = static_cast<double>(x[i]);
    const double bent = v > 0 ? positive * v * v : negative * (std::expm1(std::min(v, eps)) - v);
    x[i] = static_cast<float>(bent + beta * v);
  }
}

void HostBackend::AddScaled(float* x, const float* y, size_t n, float by) {
  for (size_t i = 0; i < n; ++i) x[i] += by * y[i];
}
void HostBackend::ScaleRows(float* x, size_t rows, size_t dim, const float* by) {
  for (size_t r = 0; r < rows; ++r) Scale(x + r * dim, dim, by[r]);
}

void HostBackend::SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) {
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(x[r * dim + i]) * static_cast<double>(w[i]);
    out[r] = static_cast<float>(1 / (1 + std::exp(-sum)));
  }
}

void HostBackend::GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width,
                             float* out) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float* from = x + numbers[i] * stride;
    if (from != out + i * width) std::copy_n(from, width, out + i * width);
  }
}

void HostBackend::CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                              size_t to_stride) {
  for (size_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, width, to + r * to_stride);
}

void HostBackend::EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) {
  *saturated += EncodeWireRows(type, x, rows, dim, out);
}
void HostBackend::DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) {
  DecodeWireRows(type, in, rows, dim, x);
}

void SaveTop(const TopKRow& row, std::span<const TokenId> ids) {
  for (size_t i = 0; i < row.k; ++i) {
    row.ids[i] = i < ids.size() ? ids[i] : -1;
    row.best[i] = i < ids.size() ? row.logits[static_cast<size_t>(ids[i])] : 0;
  }
}

void HostBackend::Pick(std::span<const PickRow> rows) {
  for (const PickRow& row : rows) {
    for (size_t i = 0; i < row.ids.size(); ++i) row.out[i] = row.logits[static_cast<size_t>(row.ids[i])];
  }
}

}  // namespace gyre
