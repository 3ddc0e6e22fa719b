#include "worker/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gyre {
namespace {

// Rows that go through a layer at once. It bounds the scratch; a row's result does not depend on it, because a row
// reads only keys of its own and earlier positions, which an earlier slice has written.
constexpr size_t kSliceRows = 512;

size_t Size(int v) {
  return static_cast<size_t>(v);
}

}  // namespace

Forward::Forward(const StageParts& parts, Backend& backend, bool exact)
    : parts_(parts), backend_(backend), exact_(exact), dim_(Size(parts.model->spec().dim)) {
  for (const auto& layer : parts.layers) rotation_of_layer_.push_back(FindRotation(layer->spec.rope));
  kv_rows_.resize(Size(parts.model->spec().kv_groups));
}

size_t Forward::FindRotation(const RopeSpec& spec) {
  for (size_t i = 0; i < rotations_.size(); ++i) {
    if (rotations_[i].spec == spec) return i;
  }
  Rotation& rotation = rotations_.emplace_back();
  rotation.spec = spec;
  for (int i = 0; i < spec.dims / 2; ++i) {
    double frequency = std::pow(spec.base, -2.0 * i / spec.dims);
    if (!spec.frequency_factors.empty()) frequency /= static_cast<double>(spec.frequency_factors[Size(i)]);
    rotation.frequencies.push_back(frequency);
  }
  return rotations_.size() - 1;
}

float* Forward::Begin(const StepBatch& batch) {
  rows_ = batch.TotalRows();
  for (size_t group = 0; group < kv_rows_.size(); ++group) {
    kv_rows_[group].clear();
    for (const SeqRows& s : batch.seqs) {
      for (uint32_t i = 0; i < s.row_count; ++i) {
        kv_rows_[group].push_back({.table = s.blocks[group].data(), .position = s.first_position + i});
      }
    }
  }
  FillRotations();
  return x_.Room(rows_ * dim_);
}

void Forward::FillRotations() {
  for (Rotation& rotation : rotations_) {
    const size_t half = rotation.frequencies.size();
    float* cos = rotation.cos.Room(rows_ * half);
    float* sin = rotation.sin.Room(rows_ * half);
    for (const KvRow& row : kv_rows_[0]) {
      for (const double frequency : rotation.frequencies) {
        const double angle = static_cast<double>(row.position) * frequency;
        *cos++ = static_cast<float>(std::cos(angle));
        *sin++ = static_cast<float>(std::sin(angle));
      }
    }
  }
}

void Forward::Embed(std::span<const TokenId> ids) {
  const float scale = parts_.model->spec().embedding_scale;
  backend_.Embed(ids.data(), ids.size(), *parts_.ends.embedding, x_.data());
  if (scale != 1) backend_.Scale(x_.data(), ids.size() * dim_, scale);
}

void Forward::RunLayers() {
  for (size_t i = 0; i < parts_.layers.size(); ++i) RunLayer(i);
}

void Forward::RunLayers(std::span<const uint32_t> wanted) {
  const size_t last = parts_.layers.size() - 1;
  for (size_t i = 0; i < last; ++i) RunLayer(i);
  rows_ = RunLastLayer(last, wanted);
}

Forward::Slice Forward::MakeSlice(size_t index, size_t first, size_t rows) {
  const Layer& layer = *parts_.layers[index];
  const Rotation& rotation = rotations_[rotation_of_layer_[index]];
  const size_t half = rotation.frequencies.size();
  return {.x = x_.data() + first * dim_,
          .normed = normed_.Room(rows * dim_),
          .kv = std::span<const KvRow>(kv_rows_[Size(layer.spec.kv_group)]).subspan(first, rows),
          .cos = rotation.cos.data() + first * half,
          .sin = rotation.sin.data() + first * half};
}

void Forward::RunLayer(size_t index) {
  const Layer& layer = *parts_.layers[index];
  for (size_t first = 0; first < rows_; first += kSliceRows) {
    const Slice s = MakeSlice(index, first, std::min(kSliceRows, rows_ - first));
    StoreKeysAndValues(layer, s);
    Attend(layer, s);
    FeedForward(layer, s);
  }
}

size_t Forward::RunLastLayer(size_t index, std::span<const uint32_t> wanted) {
  const Layer& layer = *parts_.layers[index];
  size_t done = 0;  // wanted rows; their states move to the front of x
  for (size_t first = 0; first < rows_; first += kSliceRows) {
    Slice s = MakeSlice(index, first, std::min(kSliceRows, rows_ - first));
    StoreKeysAndValues(layer, s);
    size_t end = done;
    while (end < wanted.size() && wanted[end] < first + s.rows()) ++end;
    if (end == done) continue;
    picked_rows_.clear();
    for (size_t i = done; i < end; ++i) picked_rows_.push_back(s.kv[wanted[i] - first]);
    const size_t half = Size(layer.spec.rope.dims / 2);
    float* cos = picked_cos_.Room(picked_rows_.size() * half);
    float* sin = picked_sin_.Room(picked_rows_.size() * half);
    float* x = x_.data() + done * dim_;
    for (size_t i = 0; i < end - done; ++i) {
      const size_t from = wanted[done + i] - first;
      std::copy_n(s.cos + from * half, half, cos + i * half);
      std::copy_n(s.sin + from * half, half, sin + i * half);
      std::memmove(x + i * dim_, s.x + from * dim_, dim_ * sizeof(float));
      std::memmove(s.normed + i * dim_, s.normed + from * dim_, dim_ * sizeof(float));
    }
    s = {.x = x, .normed = s.normed, .kv = picked_rows_, .cos = cos, .sin = sin};
    Attend(layer, s);
    FeedForward(layer, s);
    done = end;
  }
  return done;
}

// Leaves the normed rows for Attend.
void Forward::StoreKeysAndValues(const Layer& layer, const Slice& s) {
  const LayerSpec& spec = layer.spec;
  const LayerWeights& w = layer.params->vectors;
  const size_t rows = s.rows(), heads = Size(spec.kv_heads), head_dim = Size(spec.head_dim);
  float* k = k_.Room(rows * heads * head_dim);
  float* v = v_.Room(rows * heads * head_dim);
  backend_.RmsNorm(s.x, rows, dim_, w.attn_norm.data(), spec.norm_eps, s.normed);
  backend_.MatMul(s.normed, rows, *layer.params->k, k, exact_);
  backend_.MatMul(s.normed, rows, *layer.params->v, v, exact_);
  if (spec.qkv_bias) {
    backend_.AddBias(k, rows, heads * head_dim, w.k_bias.data());
    backend_.AddBias(v, rows, heads * head_dim, w.v_bias.data());
  }
  if (spec.qk_norm) backend_.RmsNorm(k, rows * heads, head_dim, w.k_norm.data(), spec.norm_eps, k);
  backend_.Rope(k, rows, spec.kv_heads, spec.head_dim, s.cos, s.sin, spec.rope.dims / 2, spec.rope.pairing);
  backend_.StoreKv(k, v, s.kv, layer.pages->view());
}

void Forward::Attend(const Layer& layer, const Slice& s) {
  const LayerSpec& spec = layer.spec;
  const LayerWeights& w = layer.params->vectors;
  const size_t rows = s.rows(), heads = Size(spec.heads), head_dim = Size(spec.head_dim);
  float* q = q_.Room(rows * heads * head_dim);
  float* attended = attended_.Room(rows * heads * head_dim);
  backend_.MatMul(s.normed, rows, *layer.params->q, q, exact_);
  if (spec.qkv_bias) backend_.AddBias(q, rows, heads * head_dim, w.q_bias.data());
  if (spec.qk_norm) backend_.RmsNorm(q, rows * heads, head_dim, w.q_norm.data(), spec.norm_eps, q);
  backend_.Rope(q, rows, spec.heads, spec.head_dim, s.cos, s.sin, spec.rope.dims / 2, spec.rope.pairing);
  const AttentionParams params{
      .heads = spec.heads, .scale = spec.attention_scale, .softcap = spec.attention_softcap, .window = spec.window};
  backend_.Attention(q, s.kv, layer.pages->view(), params, attended);
  backend_.MatMul(attended, rows, *layer.params->o, result_.Room(rows * dim_), exact_);
  AddResult(layer, w.attn_post_norm, s);
}

void Forward::FeedForward(const Layer& layer, const Slice& s) {
  const LayerSpec& spec = layer.spec;
  const LayerWeights& w = layer.params->vectors;
  const size_t rows = s.rows(), n = rows * Size(spec.ffn);
  float* gate = gate_.Room(n);
  float* up = up_.Room(n);
  backend_.RmsNorm(s.x, rows, dim_, w.ffn_norm.data(), spec.norm_eps, s.normed);
  backend_.MatMul(s.normed, rows, *layer.params->gate, gate, exact_);
  backend_.MatMul(s.normed, rows, *layer.params->up, up, exact_);
  backend_.GatedActivation(gate, up, n, spec.activation, gate);
  backend_.MatMul(gate, rows, *layer.params->down, result_.Room(rows * dim_), exact_);
  AddResult(layer, w.ffn_post_norm, s);
}

void Forward::AddResult(const Layer& layer, const std::vector<float>& post_norm, const Slice& s) {
  float* result = result_.data();
  if (layer.spec.post_norms) {
    backend_.RmsNorm(result, s.rows(), dim_, post_norm.data(), layer.spec.norm_eps, result);
  }
  backend_.AddInPlace(s.x, result, s.rows() * dim_);
}

const float* Forward::FinalNorm() {
  float* out = normed_.Room(rows_ * dim_);
  backend_.RmsNorm(x_.data(), rows_, dim_, parts_.ends.final_norm.data(), parts_.model->spec().final_norm_eps, out);
  return out;
}

void Forward::Head(const float* normed, size_t rows, float* logits) {
  const float cap = parts_.model->spec().final_softcap;
  backend_.MatMul(normed, rows, *parts_.ends.output, logits, exact_);
  if (cap > 0) backend_.SoftcapInPlace(logits, rows * parts_.ends.output->n, cap);
}

}  // namespace gyre
