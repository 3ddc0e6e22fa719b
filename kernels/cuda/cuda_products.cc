// Ops that multiply with weights: products, feed-forward blocks, experts and embeddings.
#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/codebooks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/weights/pack.h"
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

// Applies the limits of a gated block to its products, n each.
void ApplyLimits(Stream stream, float* gate, float* up, size_t n, const Backend::Ffn& w) {
  if (w.gate_limit != 0) Limit(stream, gate, n, -std::numeric_limits<float>::infinity(), w.gate_limit);
  if (w.up_limit != 0) Limit(stream, up, n, -w.up_limit, w.up_limit);
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
  static std::atomic<uint64_t> last_id{0};
  auto packed = std::make_shared<CudaWeight>();
  packed->id = ++last_id;
  packed->n = w.n;
  packed->k = w.k;
  packed->type = w.type;
  packed->bytes = w.bytes();
  packed->in_place = false;
  packed->scales = device_->Allocate(ScaleCount(w) * sizeof(float));
  CopyIn(w.scales, packed->scales.data(), packed->scales.bytes());
  Matrix& m = packed->matrix;
  m = {.type = w.type,
       .n = w.n,
       .k = w.k,
       .row_bytes = w.row_bytes(),
       .data = nullptr,
       .scales = reinterpret_cast<const float*>(packed->scales.data()),
       .group = w.group,
       .first_row = w.first_row};
  if (IsLowBit(w.type)) m.books = Books();
  const TileSizes sizes = SizesOfTiles(w.type, w.n, w.k, w.group);
  if (sizes.bytes() == 0) {
    packed->data = device_->Allocate(w.bytes());
    m.data = reinterpret_cast<const uint8_t*>(packed->data.data());
    CopyIn(w.data, packed->data.data(), w.bytes());
    Finish();
    if (progress) progress(packed->bytes);
    return packed;
  }
  packed->data = device_->Allocate(sizes.bytes());
  DescribeTiles(w.type, w.k, sizes, reinterpret_cast<const uint8_t*>(packed->data.data()), &m.tiles);
  m.tiles.by *= WholeScale(w);
  // Whole tiles are packed at a time, so that the file's bytes take little memory beside the packed ones.
  constexpr size_t kPiece = size_t{32} << 20, kOutputs = 16;
  const size_t row = w.row_bytes(), each = std::max<size_t>(kPiece / row / kOutputs, 1) * kOutputs;
  const DeviceMemory piece = device_->Allocate(std::min(each, w.n) * row);
  for (size_t first = 0; first < w.n; first += each) {
    const size_t n = std::min(each, w.n - first);
    CopyIn(w.data + first * row, piece.data(), n * row);
    PackRows(stream_, m, first, n, reinterpret_cast<const uint8_t*>(piece.data()));
    Launched("Pack");
    Finish();
    if (progress) progress(n * row);
  }
  return packed;
}

Operand CudaBackend::Prepare(Pieces pieces, const OperandSource& from) {
  const OperandSizes sizes = SizesOfOperand(pieces, from.rows, from.k, from.heads);
  uint8_t* memory = operands_[static_cast<size_t>(pieces)].EnsureCapacity(*device_, sizes.codes + sizes.scales);
  return MakeOperand(stream_, pieces, from, memory);
}

void CudaBackend::MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) {
  std::optional<Operand> made[kPiecesKinds];  // x, rounded once for all products that take it so
  for (const Product& p : products) {
    const Matrix& w = MatrixOf(p.w);
    const RowsOut out{p.out, w.n, p.add};
    if (arithmetic == Arithmetic::kExact || w.tiles.low == nullptr) {
      ProductExact(stream_, w, {x, rows, w.k}, out);
      continue;
    }
    const Pieces pieces = arithmetic == Arithmetic::kPrefill ? Pieces::kBf16 : PiecesFor(w.type);
    std::optional<Operand>& operand = made[static_cast<size_t>(pieces)];
    if (!operand) operand = Prepare(pieces, {x, rows, w.k, w.k});
    if (arithmetic == Arithmetic::kPrefill)
      ProductOfPrompt(stream_, {&w}, *operand, rows, out);
    else
      ProductOfRows(stream_, {&w}, *operand, rows, nullptr, out);
  }
  Launched("MatMul");
}

const Matrix* CudaBackend::Together(const std::vector<const CudaWeight*>& weights) {
  const Matrix& first = weights[0]->matrix;
  if (first.tiles.low == nullptr) return nullptr;
  std::vector<uint64_t> ids;
  for (const CudaWeight* w : weights) {
    const Matrix& m = w->matrix;
    if (m.type != first.type || m.n != first.n || m.k != first.k || m.group != first.group ||
        m.first_row != first.first_row || m.tiles.low == nullptr)
      return nullptr;
    ids.push_back(w->id);
  }
  DeviceMemory& memory = together_[ids];
  if (memory.data() == nullptr) {
    std::vector<Matrix> all;
    for (const CudaWeight* w : weights) all.push_back(w->matrix);
    memory = device_->Allocate(all.size() * sizeof(Matrix));
    CopyIn(all.data(), memory.data(), memory.bytes());
    Finish();
  }
  return reinterpret_cast<const Matrix*>(memory.data());
}

void CudaBackend::MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x,
                              size_t x_stride, size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) {
  const size_t count = heads.size();
  if (count == 0) return;
  std::vector<const CudaWeight*> weights;
  for (const auto& w : heads) weights.push_back(static_cast<const CudaWeight*>(w.get()));
  const Matrix& w = weights[0]->matrix;
  const Matrix* many = arithmetic == Arithmetic::kExact ? nullptr : Together(weights);
  if (many == nullptr) {
    for (size_t h = 0; h < count; ++h) {
      ProductExact(stream_, weights[h]->matrix, {x + h * x_stride, rows, count * x_stride},
                   {out + h * out_stride, count * out_stride});
    }
    return Launched("MatMulHeads");
  }
  const Matrices all{&w, many, count, out_stride};
  const OperandSource from{x, rows, w.k, count * x_stride, count, x_stride};
  const RowsOut to{out, count * out_stride};
  if (arithmetic == Arithmetic::kPrefill)
    ProductOfPrompt(stream_, all, Prepare(Pieces::kBf16, from), rows, to);
  else
    ProductOfRows(stream_, all, Prepare(PiecesFor(w.type), from), rows, nullptr, to);
  Launched("MatMulHeads");
}

void CudaBackend::FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic,
                              float* out, bool add) {
  const size_t n = rows * w.up.n;
  float *up = up_.EnsureCapacity(*device_, n), *gate = w.gated() ? gate_.EnsureCapacity(*device_, n) : up;
  const Product both[] = {{w.up, up}, {w.gate, gate}};
  MatMul(x, rows, std::span(both).first(w.gated() ? 2 : 1), arithmetic);
  if (w.gated() && w.gate_bias != nullptr) AddBiasToPlaces(stream_, gate, rows, nullptr, w.gate.n, w.gate_bias);
  if (w.up_bias != nullptr) AddBiasToPlaces(stream_, up, rows, nullptr, w.up.n, w.up_bias);
  if (w.gated()) ApplyLimits(stream_, gate, up, n, w);
  ActivatePlaces(stream_, gate, up, rows, nullptr, w.up.n, act, w.gated());
  const Product down[] = {{w.down, out, add}};
  MatMul(gate, rows, down, arithmetic);
  if (w.down_bias != nullptr) AddBiasToPlaces(stream_, out, rows, nullptr, w.down.n, w.down_bias);
  Launched("FeedForward");
}

void CudaBackend::ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                                uint32_t* experts, float* weights) {
  if (params.count > kMostExperts) throw DeviceFailed("ChooseExperts could not be launched: too many experts");
  cuda::ChooseExperts(stream_, scores, rows, params, choice_bias, experts, weights);
  Launched("ChooseExperts");
}

void CudaBackend::MultiplyByExperts(std::span<const Ffn> experts, const PackedWeight& (*which)(const Ffn&),
                                    const float* x, size_t rows, const uint32_t* bounds, bool exact, float* out) {
  std::vector<const CudaWeight*> weights;
  for (const Ffn& e : experts) weights.push_back(static_cast<const CudaWeight*>(&which(e)));
  const Matrix& w = weights[0]->matrix;
  const Matrix* many = exact ? nullptr : Together(weights);
  if (many == nullptr) {
    for (size_t e = 0; e < weights.size(); ++e)
      ProductExact(stream_, weights[e]->matrix, {x, rows, w.k, bounds + e}, {out, w.n});
    return;
  }
  const Operand operand = Prepare(PiecesFor(w.type), {x, rows, w.k, w.k});
  // A grid has at most 65,535 matrices along z; kMostExperts are fewer.
  ProductOfRows(stream_, {&w, many, weights.size()}, operand, rows, bounds, {out, w.n});
}

void CudaBackend::MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) {
  size_t rows = 0;
  bool exact = false;
  for (const RowRun& run : runs) {
    rows += run.rows;
    exact = exact || run.arithmetic == Arithmetic::kExact;
  }
  const std::span<const Ffn> experts = mixture.experts;
  const size_t used = mixture.used, entries = rows * used, dim = experts[0].up.k, width = experts[0].up.n;
  if (entries == 0) return;
  const size_t count = experts.size();
  if (count > kMostExperts) throw DeviceFailed("MixExperts could not be launched: too many experts");
  uint32_t* placed = placed_.EnsureCapacity(*device_, 2 * entries + count + 1);
  const Places places{placed, placed + entries, placed + 2 * entries};
  float *gathered = gathered_.EnsureCapacity(*device_, entries * dim),
        *made = made_.EnsureCapacity(*device_, entries * dim);
  PlaceRows(stream_, mixture.chosen, rows, used, count, places);
  cuda::GatherRows(stream_, x, dim, places.rows_of, entries, dim, gathered);
  // Rows lie by expert in all of these; each expert's rows are between its bounds. Rows of prompts are rounded like
  // generated ones: few of them meet one expert.
  const bool gated = experts[0].gated();
  float *up = up_.EnsureCapacity(*device_, entries * width),
        *gate = gated ? gate_.EnsureCapacity(*device_, entries * width) : up;
  const auto multiply = [&](const PackedWeight& (*which)(const Ffn&), const float* from, float* to) {
    MultiplyByExperts(experts, which, from, entries, places.bounds, exact, to);
  };
  const auto add_bias = [&](const float* Ffn::*bias, size_t n, float* to) {
    for (size_t e = 0; e < count; ++e) {
      if (experts[e].*bias != nullptr) AddBiasToPlaces(stream_, to, entries, places.bounds + e, n, experts[e].*bias);
    }
  };
  multiply([](const Ffn& f) -> const PackedWeight& { return f.up; }, gathered, up);
  add_bias(&Ffn::up_bias, width, up);
  if (gated) {
    multiply([](const Ffn& f) -> const PackedWeight& { return f.gate; }, gathered, gate);
    add_bias(&Ffn::gate_bias, width, gate);
    ApplyLimits(stream_, gate, up, entries * width, experts[0]);
  }
  ActivatePlaces(stream_, gate, up, entries, nullptr, width, mixture.activation, gated);
  multiply([](const Ffn& f) -> const PackedWeight& { return f.down; }, gate, made);
  add_bias(&Ffn::down_bias, dim, made);
  SumExperts(stream_, made, rows, used, dim, mixture.chosen, mixture.weights, mixture.scales, places.places, out);
  Launched("MixExperts");
}

void CudaBackend::Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) {
  cuda::Embed(stream_, ids, rows, MatrixOf(w), out);
  Launched("Embed");
}

}  // namespace gyre::cuda
