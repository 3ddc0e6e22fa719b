// Ops that multiply with weights: products, feed-forward blocks, experts and embeddings.
#include <cstring>
#include <iterator>

#include "kernels/codebooks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/quant_lowbit.h"

namespace gyre::cuda {
namespace {

const Matrix& MatrixOf(const PackedWeight& w) { return static_cast<const CudaWeight&>(w).matrix; }

// The number of scales that a view's rows use.
size_t ScaleCount(const WeightView& w) {
  if (w.scales == nullptr) return 0;
  if (w.type != DType::kF8E4M3) return w.n * w.k / w.group;
  return (w.first_row + w.n + w.group - 1) / w.group * ((w.k + w.group - 1) / w.group);
}

}  // namespace

const Codebooks& CudaBackend::Books() {
  if (books_memory_.data() != nullptr) return books_;
  struct Table {
    std::span<const uint16_t> points;
    const uint16_t* Codebooks::*address;
  };
  using namespace codebooks;
  const Table tables[] = {{kIq2Xxs, &Codebooks::iq2_xxs}, {kIq2Xs, &Codebooks::iq2_xs}, {kIq2S, &Codebooks::iq2_s},
                          {kIq3Xxs, &Codebooks::iq3_xxs}, {kIq3S, &Codebooks::iq3_s},   {kIq1S, &Codebooks::iq1}};
  size_t all = 0;
  for (const Table& t : tables) all += t.points.size();
  DeviceMemory memory = device_->Allocate(all * sizeof(uint16_t));
  auto* at = reinterpret_cast<uint16_t*>(memory.data());
  for (const Table& t : tables) {
    CopyIn(t.points.data(), at, t.points.size_bytes());
    books_.*t.address = at;
    at += t.points.size();
  }
  Finish();
  books_memory_ = std::move(memory);
  return books_;
}

std::shared_ptr<const PackedWeight> CudaBackend::Pack(const WeightView& w,
                                                      const std::function<void(size_t)>& progress) {
  auto packed = std::make_shared<CudaWeight>();
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->bytes = w.bytes();
  packed->in_place = false;
  packed->data = device_->Allocate(w.bytes());
  packed->scales = device_->Allocate(ScaleCount(w) * sizeof(float));
  CopyIn(w.data, packed->data.data(), w.bytes());
  CopyIn(w.scales, packed->scales.data(), packed->scales.bytes());
  Finish();
  packed->matrix = {.type = w.type,
                    .n = w.n,
                    .k = w.k,
                    .row_bytes = w.row_bytes(),
                    .data = reinterpret_cast<const uint8_t*>(packed->data.data()),
                    .scales = reinterpret_cast<const float*>(packed->scales.data()),
                    .group = w.group,
                    .first_row = w.first_row};
  if (IsLowBit(w.type)) packed->matrix.books = Books();
  if (progress) progress(packed->bytes);
  return packed;
}

void CudaBackend::MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic) {
  for (const Product& p : products) ProductExact(stream_, MatrixOf(p.w), {x, rows, p.w.k}, {p.out, p.w.n, p.add});
  Launched("MatMul");
}

void CudaBackend::MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x,
                              size_t x_stride, size_t rows, Arithmetic, float* out, size_t out_stride) {
  const size_t count = heads.size();
  for (size_t h = 0; h < count; ++h) {
    ProductExact(stream_, MatrixOf(*heads[h]), {x + h * x_stride, rows, count * x_stride},
                 {out + h * out_stride, count * out_stride});
  }
  Launched("MatMulHeads");
}

void CudaBackend::FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic, float* out,
                              bool add) {
  FeedForwardOfPlaces({x, rows, w.up.k}, w, act, out, add);
  Launched("FeedForward");
}

void CudaBackend::FeedForwardOfPlaces(const RowsIn& in, const Ffn& w, Activation act, float* out, bool add) {
  // The rows lie between the bounds in all of these.
  const size_t n = in.rows * w.up.n;
  float *up = up_.EnsureCapacity(*device_, n), *gate = w.gated() ? gate_.EnsureCapacity(*device_, n) : up;
  ProductExact(stream_, MatrixOf(w.up), in, {up, w.up.n});
  if (w.gated()) ProductExact(stream_, MatrixOf(w.gate), in, {gate, w.gate.n});
  if (w.gated() && w.gate_bias != nullptr) AddBiasToPlaces(stream_, gate, in.rows, in.bounds, w.gate.n, w.gate_bias);
  if (w.up_bias != nullptr) AddBiasToPlaces(stream_, up, in.rows, in.bounds, w.up.n, w.up_bias);
  ActivatePlaces(stream_, gate, up, in.rows, in.bounds, w.up.n, act, w.gated());
  ProductExact(stream_, MatrixOf(w.down), {gate, in.rows, w.down.k, in.bounds}, {out, w.down.n, add});
  if (w.down_bias != nullptr) AddBiasToPlaces(stream_, out, in.rows, in.bounds, w.down.n, w.down_bias);
}

void CudaBackend::ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                                uint32_t* experts, float* weights) {
  if (params.count > kMostExperts) throw DeviceFailed("ChooseExperts could not be launched: too many experts");
  cuda::ChooseExperts(stream_, scores, rows, params, choice_bias, experts, weights);
  Launched("ChooseExperts");
}

void CudaBackend::MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) {
  size_t rows = 0;
  for (const RowRun& run : runs) rows += run.rows;
  const size_t used = mixture.used, entries = rows * used, dim = mixture.experts[0].up.k;
  if (entries == 0) return;
  const size_t count = mixture.experts.size();
  if (count > kMostExperts) throw DeviceFailed("MixExperts could not be launched: too many experts");
  uint32_t* placed = placed_.EnsureCapacity(*device_, 2 * entries + count + 1);
  const Places places{placed, placed + entries, placed + 2 * entries};
  float *gathered = gathered_.EnsureCapacity(*device_, entries * dim),
        *made = made_.EnsureCapacity(*device_, entries * dim);
  PlaceRows(stream_, mixture.chosen, rows, used, count, places);
  cuda::GatherRows(stream_, x, dim, places.rows_of, entries, dim, gathered);
  for (size_t e = 0; e < count; ++e)
    FeedForwardOfPlaces({gathered, entries, dim, places.bounds + e}, mixture.experts[e], mixture.activation, made,
                        false);
  SumExperts(stream_, made, rows, used, dim, mixture.chosen, mixture.weights, mixture.scales, places.places, out);
  Launched("MixExperts");
}

void CudaBackend::Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) {
  cuda::Embed(stream_, ids, rows, MatrixOf(w), out);
  Launched("Embed");
}

}  // namespace gyre::cuda
