#include "worker/forward.h"

#include <algorithm>
#include <cmath>

#include "worker/forward_scratch.h"

namespace gyre {
namespace {

// The dense block, or the shared expert. A block without gate has its up matrix in that place.
Backend::Ffn DenseWeights(const Layer& layer) {
  return {layer.matrix(layer.Has(Slot::kGate) ? Slot::kGate : Slot::kUp), layer.matrix(Slot::kUp),
          layer.matrix(Slot::kDown)};
}

}  // namespace

void RowPlaces::Fill(const StepBatch& batch, bool logit_rows_only) {
  rows_.clear();
  windowed_.clear();
  numbers_.clear();
  classes_.clear();
  runs_.clear();
  sequences_.clear();
  size_t before = 0;  // rows of the sequences before this one
  constexpr auto kSlots = static_cast<size_t>(kSlotGroup), kWindows = static_cast<size_t>(kWindowGroup);
  if (tables_of_windows_.size() < batch.seqs.size()) tables_of_windows_.resize(batch.seqs.size());
  auto table_of_window = tables_of_windows_.begin();
  for (const SeqRows& s : batch.seqs) {
    // Kernels look a position's block up by its number.
    const BlockId* windowed = nullptr;
    const bool has_window = s.blocks.size() > kWindows && s.blocks[kWindows].size() > 1;
    // On a stage without such layers nothing of the table was checked, and nothing reads it.
    if (has_window && s.blocks[kWindows][0] <= s.first_position) {
      const std::vector<BlockId>& entries = s.blocks[kWindows];
      table_of_window->assign(entries[0], kNoBlock);
      table_of_window->insert(table_of_window->end(), entries.begin() + 1, entries.end());
      windowed = table_of_window->data();
      ++table_of_window;
    }
    auto add = [&](uint32_t first, uint32_t count) {
      AddRows(s.row_class, count, &runs_);
      classes_.insert(classes_.end(), count, s.row_class);
      for (uint32_t i = first; i < first + count; ++i) {
        rows_.push_back({.table = s.blocks[0].data(), .position = s.first_position + i});
        if (windowed != nullptr) windowed_.push_back({.table = windowed, .position = s.first_position + i});
        numbers_.push_back(before + i);
      }
    };
    if (!logit_rows_only)
      add(0, s.row_count);
    else
      for (const RowRequest& r : s.requests) add(r.first, r.count);
    sequences_.push_back(
        {before, s.row_count, s.blocks.size() > kSlots && !s.blocks[kSlots].empty() ? s.blocks[kSlots][0] : kNoBlock});
    before += s.row_count;
  }
  for (auto& table : tables_) table->fresh = false;
}

RowPlaces::Rotation RowPlaces::RotationFor(const RopeSpec& rope) {
  Table* table = nullptr;
  for (auto& t : tables_) {
    if (t->rope == rope) table = t.get();
  }
  const auto half = static_cast<size_t>(rope.dims) / 2;
  if (table == nullptr) {
    tables_.push_back(std::make_unique<Table>());
    table = tables_.back().get();
    table->rope = rope;
    for (size_t i = 0; i < half; ++i) {
      double f = std::pow(rope.base, -2.0 * static_cast<double>(i) / rope.dims);
      if (!rope.frequency_factors.empty()) f /= static_cast<double>(rope.frequency_factors[i]);
      table->frequencies.push_back(f);
    }
  }
  if (!table->fresh) {
    EnsureCapacity(table->cos, rows_.size() * half);
    EnsureCapacity(table->sin, rows_.size() * half);
    for (size_t r = 0; r < rows_.size(); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(rows_[r].position) * table->frequencies[i];
        table->cos[r * half + i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
        table->sin[r * half + i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
      }
    }
    table->fresh = true;
  }
  return {table->cos.data(), table->sin.data()};
}

void Forward::Embed(std::span<const TokenId> ids, const PackedWeight& embedding, float scale, float* out) {
  backend_.Embed(ids.data(), ids.size(), embedding, out);
  if (scale != 1) backend_.Scale(out, ids.size() * dim_, scale);
}

template <typename Part>
void Forward::AddPart(const Layer& layer, Slot post_norm, size_t rows, float* x, const Part& part) {
  const LayerSpec& spec = layer.spec;
  if (!spec.post_norms && spec.residual_scale == 1) return part(Result{x, true});
  float* made = EnsureCapacity(result_, rows * dim_);
  part(Result{made, false});
  if (spec.post_norms) backend_.RmsNorm(made, rows, dim_, Data(layer.vector(post_norm)), spec.norm_eps, made);
  if (spec.residual_scale != 1) backend_.Scale(made, rows * dim_, spec.residual_scale);
  backend_.AddInPlace(x, made, rows * dim_);
}

void Forward::RunLayer(const Layer& layer, const PagePool* kv, RowPlaces& places, RowPlaces& logit_rows, float* x) {
  const LayerSpec& spec = layer.spec;
  // The output matrix of a mixer, on the logit rows.
  auto project = [&](const float* mixed) {
    if (logit_rows.rows().empty()) return;
    AddPart(layer, Slot::kMixerPostNorm, logit_rows.rows().size(), x, [&](const Result& result) {
      Multiply(mixed, logit_rows.runs(), {{layer.matrix(Slot::kO), result.rows, result.add}});
    });
  };
  if (const AttentionSpec* attention = spec.attention()) {
    Norm(layer, Slot::kMixerNorm, x, places.rows().size());
    Project(layer, *attention, kv->view(), places, logit_rows, x);
    if (logit_rows.rows().empty()) return;
    AddPart(layer, Slot::kMixerPostNorm, logit_rows.rows().size(), x,
            [&](const Result& result) { Attend(layer, *attention, kv->view(), logit_rows, result); });
  } else if (const auto* latent = std::get_if<LatentAttentionSpec>(&spec.mixer)) {
    Norm(layer, Slot::kMixerNorm, x, places.rows().size());
    const float* mixed = AttendLatent(layer, *latent, places, logit_rows, x);
    project(mixed);
  } else if (spec.kv_group == kSlotGroup) {
    Norm(layer, Slot::kMixerNorm, x, places.rows().size());
    const float* mixed = ApplyState(layer, places, logit_rows, x);
    project(mixed);
  } else if (&logit_rows != &places) {
    Gather(logit_rows.numbers(), dim_, x);
  }
  const size_t rows = logit_rows.rows().size();
  if (rows == 0) return;
  if (!std::holds_alternative<NoFeedForward>(spec.feed_forward)) {
    AddPart(layer, Slot::kFfnPostNorm, rows, x,
            [&](const Result& result) { FeedForward(layer, logit_rows, x, result); });
  }
  if (spec.side.width > 0) AddSide(layer, logit_rows, x);
  if (spec.output_scale) backend_.Scale(x, rows * dim_, layer.vector(Slot::kOutputScale)[0]);
}

void Forward::Norm(const Layer& layer, Slot slot, const float* x, size_t rows) {
  float* out = EnsureCapacity(normed_, rows * dim_);
  if (layer.spec.pre_norms)
    backend_.RmsNorm(x, rows, dim_, Data(layer.vector(slot)), layer.spec.norm_eps, out);
  else
    std::copy_n(x, rows * dim_, out);
}

void Forward::Project(const Layer& layer, const AttentionSpec& spec, const KvView& kv, RowPlaces& places,
                      RowPlaces& logit_rows, float* x) {
  const size_t rows = places.rows().size(), kept = logit_rows.rows().size(),
               head_dim = static_cast<size_t>(spec.head_dim);
  const size_t q_dim = static_cast<size_t>(spec.heads) * head_dim,
               kv_dim = static_cast<size_t>(spec.kv_heads) * head_dim;
  float* q = EnsureCapacity(q_, kept * q_dim);
  float* k = EnsureCapacity(k_, rows * kv_dim);
  float* v = EnsureCapacity(v_, rows * kv_dim);
  float* queries = spec.output_gate ? EnsureCapacity(in_, 2 * kept * q_dim) : q;
  const bool own = spec.kv_layer < 0, has_v = own && !spec.value_is_key;
  products_.clear();
  if (kept == rows) products_.push_back({layer.matrix(Slot::kQ), queries});
  if (own) products_.push_back({layer.matrix(Slot::kK), k});
  if (has_v) products_.push_back({layer.matrix(Slot::kV), v});
  if (!products_.empty()) Multiply(normed_.data(), places.runs());
  if (kept < rows) {
    for (float* all : {normed_.data(), x}) Gather(logit_rows.numbers(), dim_, all);
    if (kept > 0) Multiply(normed_.data(), logit_rows.runs(), {{layer.matrix(Slot::kQ), queries}});
  }
  if (spec.output_gate) {
    const size_t heads = kept * static_cast<size_t>(spec.heads);
    CopyColumns(queries, heads, 2 * head_dim, head_dim, q, head_dim);
    CopyColumns(queries + head_dim, heads, 2 * head_dim, head_dim, EnsureCapacity(gate_, kept * q_dim), head_dim);
  }
  if (own && spec.value_is_key) std::copy_n(k, rows * kv_dim, v);
  auto finish = [&](float* to, RowPlaces& of, int heads, Slot bias, Slot norm) {
    const size_t count = of.rows().size(), width = static_cast<size_t>(heads) * head_dim;
    if (count == 0) return;
    if (spec.qkv_bias) backend_.AddBias(to, count, width, Data(layer.vector(bias)));
    if (spec.qk_norm != QkNorm::kNone) {
      const size_t part = spec.qk_norm == QkNorm::kRow ? width : head_dim;
      backend_.RmsNorm(to, count * width / part, part, Data(layer.vector(norm)), layer.spec.norm_eps, to);
    }
    if (spec.rope.dims == 0) return;
    const RowPlaces::Rotation rotation = of.RotationFor(spec.rope);
    backend_.Rope(to, count, heads, spec.head_dim, rotation.cos, rotation.sin, spec.rope.dims / 2, spec.rope.pairing);
  };
  finish(q, logit_rows, spec.heads, Slot::kQBias, Slot::kQNorm);
  if (spec.temperature != 0) {
    for (size_t r = 0; r < kept; ++r) {
      const double lengths = std::floor(static_cast<double>(logit_rows.rows()[r].position) / spec.temperature_length);
      const double by = 1 + static_cast<double>(spec.temperature) * std::log(1 + lengths);
      if (by != 1) backend_.Scale(q + r * q_dim, q_dim, static_cast<float>(by));
    }
  }
  if (!own) return;
  finish(k, places, spec.kv_heads, Slot::kKBias, Slot::kKNorm);
  if (spec.qkv_bias) backend_.AddBias(v, rows, kv_dim, Data(layer.vector(Slot::kVBias)));
  if (spec.value_norm)
    backend_.RmsNorm(v, rows * static_cast<size_t>(spec.kv_heads), head_dim, nullptr, layer.spec.norm_eps, v);
  backend_.StoreKv(k, v, places.rows(layer.spec), kv);
}

void Forward::Attend(const Layer& layer, const AttentionSpec& spec, const KvView& kv, const RowPlaces& places,
                     const Result& result) {
  const size_t q_dim = static_cast<size_t>(spec.heads) * static_cast<size_t>(spec.head_dim);
  float* attended = EnsureCapacity(attended_, places.rows().size() * q_dim);
  AttentionParams params{.heads = spec.heads, .scale = spec.scale, .softcap = spec.softcap, .window = spec.window};
  if (spec.sinks) params.sinks = Data(layer.vector(Slot::kSinks));
  size_t row = 0;
  ForEachClass(places.runs(), [&](size_t count, Arithmetic arithmetic) {
    params.arithmetic = arithmetic;
    backend_.Attention(q_.data() + row * q_dim, places.rows(layer.spec).subspan(row, count), kv, params,
                       attended + row * q_dim);
    row += count;
  });
  if (spec.output_gate) {
    const size_t n = places.rows().size() * q_dim;
    backend_.Activate(gate_.data(), n, Activation::kSigmoid, gate_.data());
    backend_.MultiplyInPlace(attended, gate_.data(), n);
  }
  Multiply(attended, places.runs(), {{layer.matrix(Slot::kO), result.rows, result.add}});
  if (spec.output_bias) backend_.AddBias(result.rows, places.rows().size(), dim_, Data(layer.vector(Slot::kOBias)));
}

void Forward::Multiply(const float* x, std::span<const ClassRun> runs,
                       std::initializer_list<Backend::Product> products) {
  products_.clear();
  for (const Backend::Product& p : products) products_.push_back(p);
  Multiply(x, runs);
}

void Forward::Multiply(const float* x, std::span<const ClassRun> runs) {
  ForEachClass(runs, [&](size_t rows, Arithmetic arithmetic) {
    backend_.MatMul(x, rows, products_, arithmetic);
    x += rows * products_[0].w.k;
    for (Backend::Product& p : products_) p.out += rows * p.w.n;
  });
}

void Forward::Ffn(const Block& block, const float* x, std::span<const ClassRun> runs, Activation activation,
                  Result result) {
  const Backend::Ffn& w = block.w;
  if (&w.gate == &w.up) {  // not gated
    size_t rows = 0;
    for (const ClassRun& run : runs) rows += run.rows;
    float* up = EnsureCapacity(in_, rows * w.up.n);
    Multiply(x, runs, {{w.up, up}});
    backend_.Activate(up, rows * w.up.n, activation, up);
    return Multiply(up, runs, {{w.down, result.rows, result.add}});
  }
  if (block.down_bias == nullptr) {
    return ForEachClass(runs, [&](size_t rows, Arithmetic arithmetic) {
      backend_.FeedForward(x, rows, w, activation, arithmetic, result.rows, result.add);
      x += rows * w.up.k;
      result.rows += rows * w.down.n;
    });
  }
  size_t rows = 0;
  for (const ClassRun& run : runs) rows += run.rows;
  float* gate = EnsureCapacity(gates_, 2 * rows * w.up.n);
  float* up = gate + rows * w.up.n;
  Multiply(x, runs, {{w.gate, gate}, {w.up, up}});
  backend_.AddBias(gate, rows, w.up.n, block.gate_bias);
  backend_.AddBias(up, rows, w.up.n, block.up_bias);
  backend_.GatedActivation(gate, up, rows * w.up.n, activation, gate);
  Multiply(gate, runs, {{w.down, result.rows, result.add}});
  backend_.AddBias(result.rows, rows, w.down.n, block.down_bias);
}

void Forward::FeedForward(const Layer& layer, const RowPlaces& places, const float* x, const Result& result) {
  const size_t rows = places.rows().size();
  Norm(layer, Slot::kFfnNorm, x, rows);
  if (const DenseSpec* dense = layer.spec.dense())
    return Ffn({DenseWeights(layer)}, normed_.data(), places.runs(), dense->activation, result);
  const ExpertSpec& spec = *layer.spec.experts();
  float* mixed = result.add ? EnsureCapacity(mixed_, rows * dim_) : result.rows;
  if (spec.beside_dense) {
    DenseBesideExperts(layer, spec, places, x, mixed);
  } else {
    Route(layer, spec, normed_.data(), rows);
    MixExperts(layer, spec, places, mixed);
    if (spec.shared_width > 0) AddShared(layer, spec, places, mixed);
  }
  if (result.add) backend_.AddInPlace(result.rows, mixed, rows * dim_);
}

void Forward::DenseBesideExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, const float* x,
                                 float* out) {
  const size_t rows = places.rows().size();
  const float eps = layer.spec.norm_eps;
  float* dense = EnsureCapacity(dense_, rows * dim_);
  Ffn({DenseWeights(layer)}, normed_.data(), places.runs(), spec.activation, {dense, false});
  backend_.RmsNorm(dense, rows, dim_, Data(layer.vector(Slot::kSharedPostNorm)), eps, dense);
  float* routed = EnsureCapacity(routed_, rows * dim_);
  backend_.RmsNorm(x, rows, dim_, Data(layer.vector(Slot::kRouterScale)), eps, routed);
  backend_.Scale(routed, rows * dim_, static_cast<float>(1 / std::sqrt(static_cast<double>(dim_))));
  Route(layer, spec, routed, rows);
  backend_.RmsNorm(x, rows, dim_, Data(layer.vector(Slot::kExpertsNorm)), eps, normed_.data());
  MixExperts(layer, spec, places, out);
  backend_.RmsNorm(out, rows, dim_, Data(layer.vector(Slot::kExpertsPostNorm)), eps, out);
  backend_.AddInPlace(out, dense, rows * dim_);
}

void Forward::Route(const Layer& layer, const ExpertSpec& spec, const float* x, size_t rows) {
  // The router chooses the experts, so its products are exact: rounding would change the choice.
  const auto count = static_cast<size_t>(spec.count);
  float* scores = EnsureCapacity(scores_, rows * count);
  backend_.MatMul(x, rows, layer.matrix(Slot::kRouter), scores, Arithmetic::kExact);
  if (spec.router_bias) backend_.AddBias(scores, rows, count, Data(layer.vector(Slot::kRouterBias)));
  ChooseExperts(scores, rows, spec, layer.vector(Slot::kChoiceBias), &routes_);
}

void Forward::MixExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.rows().size(), width = static_cast<size_t>(spec.width);
  std::fill_n(out, rows * dim_, 0.0f);
  float* gathered = EnsureCapacity(gathered_, rows * dim_);
  float* done = EnsureCapacity(expert_out_, rows * dim_);
  const std::vector<float>& scales = layer.vector(Slot::kExpertScales);
  // A row's experts are added in the order of their numbers, whatever the other rows are.
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    const auto& chosen = routes_[e];
    if (chosen.empty()) continue;
    expert_runs_.clear();
    for (size_t i = 0; i < chosen.size(); ++i) {
      std::copy_n(&normed_[chosen[i].row * dim_], dim_, gathered + i * dim_);
      AddRows(places.classes()[chosen[i].row], 1, &expert_runs_);
    }
    const PackedFfn& w = layer.experts[e];
    Block block{{w.gate != nullptr ? *w.gate : *w.up, *w.up, *w.down}};
    if (spec.biases) {
      block.gate_bias = Data(layer.vector(Slot::kExpertGateBias)) + e * width;
      block.up_bias = Data(layer.vector(Slot::kExpertUpBias)) + e * width;
      block.down_bias = Data(layer.vector(Slot::kExpertDownBias)) + e * dim_;
    }
    Ffn(block, gathered, expert_runs_, spec.activation, {done, false});
    const float scale = scales.empty() ? 1 : scales[e];
    for (size_t i = 0; i < chosen.size(); ++i) {
      AddScaled(done + i * dim_, chosen[i].weight * scale, out + chosen[i].row * dim_);
    }
  }
}

void Forward::AddShared(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.rows().size();
  float* done = EnsureCapacity(expert_out_, rows * dim_);
  Ffn({DenseWeights(layer)}, normed_.data(), places.runs(), spec.activation, {done, false});
  if (!spec.shared_gate) return backend_.AddInPlace(out, done, rows * dim_);
  for (size_t r = 0; r < rows; ++r) {
    AddScaled(done + r * dim_, SharedWeight(&normed_[r * dim_], layer.vector(Slot::kSharedGate)), out + r * dim_);
  }
}

void Forward::SetTokens(std::span<const TokenId> ids, const WeightView& embedding, float scale,
                        const WeightView& side_tokens) {
  side_width_ = side_tokens.k;
  float* embedded = EnsureCapacity(embedded_, ids.size() * dim_);
  float* tokens = EnsureCapacity(side_tokens_, ids.size() * side_width_);
  for (size_t r = 0; r < ids.size(); ++r) {
    DequantizeRow(embedding, static_cast<size_t>(ids[r]), embedded + r * dim_);
    DequantizeRow(side_tokens, static_cast<size_t>(ids[r]), tokens + r * side_width_);
  }
  if (scale != 1) backend_.Scale(embedded, ids.size() * dim_, scale);
}

// side = (norm(W embedding / sqrt(dim)) + sqrt(width) * token's part) / sqrt(2); x += norm(W'' (gelu(W' x) * side))
void Forward::AddSide(const Layer& layer, const RowPlaces& places, float* x) {
  const size_t rows = places.rows().size(), width = static_cast<size_t>(layer.spec.side.width),
               first = static_cast<size_t>(layer.spec.side.number) * width;
  float* gathered = EnsureCapacity(gathered_, rows * dim_);
  float* side = EnsureCapacity(side_, rows * width);
  for (size_t r = 0; r < rows; ++r) std::copy_n(&embedded_[places.numbers()[r] * dim_], dim_, gathered + r * dim_);
  Multiply(gathered, places.runs(), {{layer.matrix(Slot::kSideModel), side}});
  backend_.Scale(side, rows * width, static_cast<float>(1 / std::sqrt(static_cast<double>(dim_))));
  backend_.RmsNorm(side, rows, width, Data(layer.vector(Slot::kSideModelNorm)), layer.spec.norm_eps, side);
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(width)));
  for (size_t r = 0; r < rows; ++r) {
    const float* token = &side_tokens_[places.numbers()[r] * side_width_ + first];
    for (size_t i = 0; i < width; ++i) side[r * width + i] += root * token[i];
  }
  backend_.Scale(side, rows * width, static_cast<float>(std::sqrt(0.5)));
  float* gate = EnsureCapacity(side_gate_, rows * width);
  float* made = EnsureCapacity(result_, rows * dim_);
  Multiply(x, places.runs(), {{layer.matrix(Slot::kSideGate), gate}});
  backend_.GatedActivation(gate, side, rows * width, Activation::kGeluTanh, gate);
  Multiply(gate, places.runs(), {{layer.matrix(Slot::kSideOut), made}});
  backend_.RmsNorm(made, rows, dim_, Data(layer.vector(Slot::kSidePostNorm)), layer.spec.norm_eps, made);
  backend_.AddInPlace(x, made, rows * dim_);
}

void Forward::AddScaled(float* x, float by, float* sum) {
  backend_.Scale(x, dim_, by);
  backend_.AddInPlace(sum, x, dim_);
}

void Forward::FinalNorm(const float* x, size_t rows, const Ends& ends, float eps, float* out) {
  backend_.RmsNorm(x, rows, dim_, Data(ends.final_norm), eps, out);
}

void Forward::Head(const float* hidden, size_t rows, const Ends& ends, float scale, float softcap, float* logits) {
  backend_.MatMul(hidden, rows, *ends.output, logits, exact_ ? Arithmetic::kExact : Arithmetic::kDecode);
  if (scale != 1) backend_.Scale(logits, rows * ends.output->n, scale);
  if (softcap > 0) backend_.SoftcapInPlace(logits, rows * ends.output->n, softcap);
}

}  // namespace gyre
