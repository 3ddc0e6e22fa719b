#include "worker/forward.h"

#include <algorithm>
#include <cmath>

namespace gyre {
namespace {

// The dense block, or the shared expert. A block without gate has its up matrix in that place.
Backend::Ffn DenseWeights(const Layer& layer) {
  Backend::Ffn w{layer.matrix(layer.Has(Slot::kGate) ? Slot::kGate : Slot::kUp), layer.matrix(Slot::kUp),
                 layer.matrix(Slot::kDown)};
  w.up_bias = layer.vector(Slot::kUpBias);
  w.down_bias = layer.vector(Slot::kDownBias);
  const DenseSpec* dense = layer.spec.dense();
  const GateLimits limits = dense != nullptr ? dense->limits : layer.spec.experts()->shared_limits;
  w.gate_limit = limits.gate;
  w.up_limit = limits.up;
  return w;
}

}  // namespace

void RowPlaces::Clear() {
  for (Group& group : groups_) group.tables.clear(), group.host_rows.clear();
  host_numbers_.clear();
  host_lasts_.clear();
  for (auto& r : reaches_) r->fresh = false;
  end_ = 0;
  runs_.clear();
  adapters_.clear();
  sequences_.clear();
  for (auto& table : rotations_) table->fresh = false;
  for (auto& t : temperatures_) t->on_device = {};
}

void RowPlaces::Add(const SeqRows& s, uint32_t first, uint32_t count, size_t sequence, const RowPlaces& all,
                    size_t before) {
  AddRows(s.row_class, count, &runs_);
  if (s.adapter != 0) {
    const size_t at = host_rows().size();
    AdapterRun* last = adapters_.empty() ? nullptr : &adapters_.back();
    const bool goes_on = last != nullptr && last->adapter == s.adapter && last->row_class == s.row_class &&
                         last->first + last->rows == at;
    if (!goes_on) last = &adapters_.emplace_back(AdapterRun{s.adapter, s.row_class, at, 0});
    last->rows += count;
  }
  end_ = std::max(end_, s.first_position + first + count);
  for (int group = 0; group < kKvGroups; ++group) {
    const auto g = static_cast<size_t>(group);
    const BlockId* const table = KindOf(group).paged ? all.groups_[g].tables[sequence] : nullptr;
    if (table == nullptr && group != kPageGroup) continue;
    for (uint32_t i = first; i < first + count; ++i)
      groups_[g].host_rows.push_back({.table = table, .position = s.first_position + i});
  }
  for (uint32_t i = first; i < first + count; ++i) host_numbers_.push_back(static_cast<uint32_t>(before + i));
  host_lasts_.insert(host_lasts_.end(), count, s.first_position + s.row_count - 1);
}

void RowPlaces::Upload(Backend& queue) {
  for (Group& group : groups_) group.rows = queue.Upload(std::span<const KvRow>(group.host_rows));
  numbers_ = queue.Upload(std::span<const uint32_t>(host_numbers_));
}

const BlockId* RowPlaces::UploadTable(const SeqRows& s, int group, std::vector<BlockId>* unfolded, Backend& queue) {
  const auto g = static_cast<size_t>(group);
  if (group == kPageGroup) return queue.Upload(std::span<const BlockId>(s.blocks[g])).data();
  if (!KindOf(group).paged || s.blocks.size() <= g || s.blocks[g].empty()) return nullptr;
  const std::vector<BlockId>& entries = s.blocks[g];
  if (!KindOf(group).moves_on) return queue.Upload(std::span<const BlockId>(entries)).data();
  // On a stage without such layers nothing of the table was checked, and nothing reads it.
  if (entries.size() < 2 || entries[0] > s.first_position) return nullptr;
  // Kernels look a position's block up by its number.
  unfolded->assign(entries[0], kNoBlock);
  unfolded->insert(unfolded->end(), entries.begin() + 1, entries.end());
  return queue.Upload(std::span<const BlockId>(*unfolded)).data();
}

void RowPlaces::Fill(const StepBatch& batch, Backend& queue) {
  Clear();
  size_t before = 0;  // rows of the sequences before this one
  constexpr auto kSlots = static_cast<size_t>(kSlotGroup);
  for (Group& group : groups_) group.unfolded.resize(std::max(group.unfolded.size(), batch.seqs.size()));
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const SeqRows& s = batch.seqs[i];
    for (int group = 0; group < kKvGroups; ++group) {
      Group& of = groups_[static_cast<size_t>(group)];
      of.tables.push_back(UploadTable(s, group, &of.unfolded[i], queue));
    }
    Add(s, 0, s.row_count, i, *this, before);
    sequences_.push_back({.first = before, .count = s.row_count, .slot = kNoBlock, .marks = {}});
    if (s.blocks.size() > kSlots && !s.blocks[kSlots].empty()) {
      SlotTable slots = SlotTable::From(s.blocks[kSlots]);
      sequences_.back().slot = slots.slot;
      sequences_.back().marks = std::move(slots.marks);
    }
    before += s.row_count;
  }
  Upload(queue);
}

void RowPlaces::FillLogitRows(const StepBatch& batch, const RowPlaces& all, Backend& queue) {
  Clear();
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    for (const RowRequest& r : batch.seqs[i].requests)
      Add(batch.seqs[i], r.first, r.count, i, all, all.sequences_[i].first);
  }
  Upload(queue);
}

RowPlaces::Rotation RowPlaces::RotationFor(const RopeSpec& rope, Backend& queue) {
  Table* table = nullptr;
  for (auto& t : rotations_) {
    if (t->rope == rope) table = t.get();
  }
  const auto half = static_cast<size_t>(rope.dims) / 2;
  if (table == nullptr) {
    rotations_.push_back(std::make_unique<Table>());
    table = rotations_.back().get();
    table->rope = rope;
    for (size_t i = 0; i < half; ++i) {
      double f = std::pow(rope.base, -2.0 * static_cast<double>(i) / rope.dims);
      if (!rope.frequency_factors.empty()) f /= static_cast<double>(rope.frequency_factors[i]);
      table->frequencies.push_back(f);
    }
    queue.CopyIn(table->frequencies.data(), table->on_device.EnsureCapacity(queue.device(), half),
                 half * sizeof(double));
  }
  if (!table->fresh) {
    queue.RotaryTable(rows(), table->on_device.data(), half, rope.magnitude,
                      table->cos.EnsureCapacity(queue.device(), count() * half),
                      table->sin.EnsureCapacity(queue.device(), count() * half));
    table->fresh = true;
  }
  return {table->cos.data(), table->sin.data()};
}

const RowPlaces::Sight& RowPlaces::SightOf(int reach, Backend& queue) {
  Reach* found = nullptr;
  for (auto& r : reaches_) {
    if (r->reach == reach) found = r.get();
  }
  if (found == nullptr) {
    found = reaches_.emplace_back(std::make_unique<Reach>()).get();
    found->reach = reach;
  }
  if (found->fresh) return found->sight;
  found->host_rows.clear();
  found->sight.pieces.clear();
  found->sight.end = 0;
  for (size_t i = 0; i < count(); ++i) {
    KvRow row = host_rows()[i];
    const uint32_t last = host_lasts_[i], wide = static_cast<uint32_t>(reach),
                   end = reach == 0 ? last : std::min(last, row.position + wide),
                   begin = reach == 0 || row.position <= wide ? 0 : row.position - wide;
    // All rows that see as far as they may have one window, and so have those that see the sequence's beginning.
    const int window = reach == 0 ? 0 : begin == 0 ? 2 * reach + 1 : static_cast<int>(end - begin + 1);
    row.position = end;
    found->sight.end = std::max(found->sight.end, end + 1);
    found->host_rows.push_back(row);
    if (found->sight.pieces.empty() || found->sight.pieces.back().window != window)
      found->sight.pieces.push_back({0, window});
    ++found->sight.pieces.back().rows;
  }
  found->sight.rows = queue.Upload(std::span<const KvRow>(found->host_rows));
  found->fresh = true;
  return found->sight;
}

const float* RowPlaces::TemperaturesFor(const AttentionSpec& spec, Backend& queue) {
  Temperatures* found = nullptr;
  for (auto& t : temperatures_) {
    if (t->temperature == spec.temperature && t->length == spec.temperature_length &&
        t->offset == spec.temperature_offset)
      found = t.get();
  }
  if (found == nullptr) {
    found =
        temperatures_
            .emplace_back(std::make_unique<Temperatures>(Temperatures{
                .temperature = spec.temperature, .length = spec.temperature_length, .offset = spec.temperature_offset}))
            .get();
  }
  if (found->on_device.size() != count()) {
    found->factors.clear();
    for (const KvRow& row : host_rows()) {
      const double lengths =
          std::floor((static_cast<double>(row.position) + spec.temperature_offset) / spec.temperature_length);
      found->factors.push_back(static_cast<float>(1 + static_cast<double>(spec.temperature) * std::log(1 + lengths)));
    }
    found->on_device = queue.Upload(std::span<const float>(found->factors));
  }
  return found->on_device.data();
}

void Forward::Embed(std::span<const TokenId> ids, const PackedWeight& embedding, float scale, float* out) {
  backend_.Embed(ids.data(), ids.size(), embedding, out);
  if (scale != 1) backend_.Scale(out, ids.size() * dim_, scale);
}

void Forward::AddPositions(std::span<const TokenId> positions, const PackedWeight& table, float* x) {
  float* rows = Room(positions_, positions.size() * dim_);
  backend_.Embed(positions.data(), positions.size(), table, rows);
  backend_.AddInPlace(x, rows, positions.size() * dim_);
}

void Forward::NormEmbeddings(const Ends& ends, const ModelSpec& spec, size_t rows, float* x) {
  if (ends.token_type() != nullptr) backend_.AddBias(x, rows, dim_, ends.token_type());
  if (spec.final_layer_norm) backend_.Center(x, rows, dim_, x);
  backend_.RmsNorm(x, rows, dim_, ends.embedding_norm(), spec.final_norm_eps, x);
  if (ends.embedding_norm_bias() != nullptr) backend_.AddBias(x, rows, dim_, ends.embedding_norm_bias());
}

template <typename Part>
void Forward::AddPart(const Layer& layer, Slot post_norm, Slot post_bias, size_t rows, float* x, const Part& part) {
  const LayerSpec& spec = layer.spec;
  if (spec.residual_norms) {
    part(Result{x, true});
    return Norm(layer, post_norm, post_bias, x, rows, x);
  }
  if (!spec.post_norms && spec.residual_scale == 1) return part(Result{x, true});
  float* made = Room(result_, rows * dim_);
  part(Result{made, false});
  if (spec.post_norms) backend_.RmsNorm(made, rows, dim_, layer.vector(post_norm), spec.norm_eps, made);
  if (spec.residual_scale != 1) backend_.Scale(made, rows * dim_, spec.residual_scale);
  backend_.AddInPlace(x, made, rows * dim_);
}

void Forward::RunLayer(const Layer& layer, const PagePool* kv, RowPlaces& places, RowPlaces& logit_rows, float* x) {
  if (layer.spec.carries_values) return RunCarrying(layer, places, logit_rows, x);
  if (layer.spec.streams == 0) return RunRows(layer, kv, places, logit_rows, x);
  const size_t rows = places.count(), kept = logit_rows.count();
  float* first = Room(first_, rows * dim_);
  streams_.Predict(layer, x, rows, first);
  RunRows(layer, kv, places, logit_rows, first);
  if (kept == 0) return;
  if (kept < rows) streams_.Compact(logit_rows.numbers());
  streams_.Correct(layer, first, kept, x);
  if (layer.spec.side.width == 0) return;
  streams_.ScaleFirst(layer, x, kept, first);
  streams_.AddToOthers(layer, MakeSide(layer, logit_rows, first), kept, x);
}

void Forward::RunCarrying(const Layer& layer, RowPlaces& places, RowPlaces& logit_rows, float* x) {
  const size_t rows = places.count(), kept = logit_rows.count();
  float *row = Room(first_, rows * dim_), *values = Room(carried_, rows * dim_);
  backend_.CopyColumns(x, rows, 2 * dim_, dim_, row, dim_);
  backend_.CopyColumns(x + dim_, rows, 2 * dim_, dim_, values, dim_);
  RunRows(layer, nullptr, places, logit_rows, row);
  if (kept == 0) return;
  if (kept < rows) Compact(logit_rows, dim_, values);
  backend_.CopyColumns(row, kept, dim_, dim_, x, 2 * dim_);
  backend_.CopyColumns(values, kept, dim_, dim_, x + dim_, 2 * dim_);
}

void Forward::RunRows(const Layer& layer, const PagePool* kv, RowPlaces& places, RowPlaces& logit_rows, float* x) {
  const LayerSpec& spec = layer.spec;
  // The output matrix of a mixer, on the logit rows.
  auto project = [&](const float* mixed) {
    if (logit_rows.count() == 0) return;
    AddPart(layer, Slot::kMixerPostNorm, Slot::kMixerPostNormBias, logit_rows.count(), x, [&](const Result& result) {
      Multiply(mixed, logit_rows.runs(), {{layer.matrix(Slot::kO), result.rows, result.add}});
      Adapt(layer, logit_rows, mixed, {{Slot::kO, result.rows}});
    });
  };
  if (const AttentionSpec* attention = spec.attention()) {
    MixerNorm(layer, x, places.count());
    Project(layer, *attention, kv->view(), places, logit_rows, x);
    if (logit_rows.count() == 0) return;
    KeepInput(layer, x, logit_rows.count());
    AddPart(layer, Slot::kMixerPostNorm, Slot::kMixerPostNormBias, logit_rows.count(), x,
            [&](const Result& result) { Attend(layer, *attention, kv->view(), logit_rows, result); });
    if (spec.laurel_rank > 0) AddLaurel(layer, logit_rows, x);
  } else if (const auto* latent = std::get_if<LatentAttentionSpec>(&spec.mixer)) {
    MixerNorm(layer, x, places.count());
    const float* mixed = AttendLatent(layer, *latent, places, logit_rows, x);
    project(mixed);
  } else if (spec.kv_group == kSlotGroup) {
    if (!spec.same_input) MixerNorm(layer, x, places.count());  // otherwise the layer before has left its own
    const float* mixed = ApplyState(layer, places, logit_rows, x);
    project(mixed);
  } else if (&logit_rows != &places) {
    Compact(logit_rows, dim_, x);
  }
  const size_t rows = logit_rows.count();
  if (rows == 0) return;
  if (!std::holds_alternative<NoFeedForward>(spec.feed_forward)) {
    AddPart(layer, Slot::kFfnPostNorm, Slot::kFfnPostNormBias, rows, x,
            [&](const Result& result) { FeedForward(layer, logit_rows, x, result); });
  }
  if (spec.side.width > 0 && spec.streams == 0) backend_.AddInPlace(x, MakeSide(layer, logit_rows, x), rows * dim_);
  if (spec.output_scale) backend_.Scale(x, rows * dim_, layer.weights.vector(Slot::kOutputScale)[0]);
}

void Forward::Norm(const Layer& layer, Slot slot, Slot bias, const float* x, size_t rows, float* out) {
  if (layer.vector(slot) == nullptr) return backend_.Copy(x, out, rows * dim_ * sizeof(float));
  if (layer.spec.layer_norms) {
    backend_.Center(x, rows, dim_, out);
    x = out;
  }
  backend_.RmsNorm(x, rows, dim_, layer.vector(slot), layer.spec.norm_eps, out);
  if (layer.spec.norm_biases) backend_.AddBias(out, rows, dim_, layer.vector(bias));
}

void Forward::KeepInput(const Layer& layer, const float* x, size_t rows) {
  const LayerSpec& spec = layer.spec;
  const bool routes = spec.experts() != nullptr && spec.experts()->router_sees_input;
  if (routes) backend_.Copy(x, Room(kept_, rows * dim_), rows * dim_ * sizeof(float));
  if (spec.parallel && !spec.shared_norm)
    Norm(layer, Slot::kFfnNorm, Slot::kFfnNormBias, x, rows, Room(kept_, rows * dim_));
}

void Forward::NormHeads(const Layer& layer, const AttentionSpec& spec, Slot weights, size_t rows, int heads, float* x) {
  const size_t head_dim = static_cast<size_t>(spec.head_dim), count = static_cast<size_t>(heads),
               part = spec.qk_norm == QkNorm::kRow ? count * head_dim : head_dim, parts = count * head_dim / part;
  if (spec.qk_norm == QkNorm::kNone) return;
  if (spec.qk_centered) backend_.Center(x, rows * parts, part, x);
  if (spec.qk_norm == QkNorm::kHeads)
    backend_.GroupRmsNorm(x, rows, parts, part, layer.vector(weights), layer.spec.norm_eps, x);
  else
    backend_.RmsNorm(x, rows * parts, part, layer.vector(weights), layer.spec.norm_eps, x);
}

void Forward::Project(const Layer& layer, const AttentionSpec& spec, const KvView& kv, RowPlaces& places,
                      RowPlaces& logit_rows, float* x) {
  const size_t rows = places.count(), kept = logit_rows.count(), head_dim = static_cast<size_t>(spec.head_dim);
  const size_t q_dim = static_cast<size_t>(spec.heads) * head_dim,
               kv_dim = static_cast<size_t>(spec.kv_heads) * head_dim, value_dim = static_cast<size_t>(spec.ValueDim()),
               values_dim = static_cast<size_t>(spec.kv_heads) * value_dim;
  const bool gate_in_q = spec.output_gate == OutputGate::kInQuery;
  float* q = Room(q_, kept * q_dim);
  float* k = Room(k_, rows * kv_dim);
  float* v = Room(v_, rows * values_dim);
  float* queries = gate_in_q ? Room(in_, 2 * kept * q_dim) : q;
  const bool own = spec.kv_layer < 0, has_v = own && !spec.value_is_key;
  products_.clear();
  if (kept == rows) products_.push_back({layer.matrix(Slot::kQ), queries});
  if (own) products_.push_back({layer.matrix(Slot::kK), k});
  if (has_v) products_.push_back({layer.matrix(Slot::kV), v});
  if (!products_.empty()) Multiply(normed_.data(), places.runs());
  Adapt(layer, places, normed_.data(),
        {{Slot::kQ, kept == rows ? queries : nullptr}, {Slot::kK, own ? k : nullptr}, {Slot::kV, has_v ? v : nullptr}});
  if (kept < rows) {
    for (float* all : {normed_.data(), x}) Compact(logit_rows, dim_, all);
    if (kept > 0) Multiply(normed_.data(), logit_rows.runs(), {{layer.matrix(Slot::kQ), queries}});
    if (kept > 0) Adapt(layer, logit_rows, normed_.data(), {{Slot::kQ, queries}});
  }
  if (gate_in_q && kept > 0) {
    const size_t heads = kept * static_cast<size_t>(spec.heads);
    backend_.CopyColumns(queries, heads, 2 * head_dim, head_dim, q, head_dim);
    backend_.CopyColumns(queries + head_dim, heads, 2 * head_dim, head_dim, Room(gate_, kept * q_dim), head_dim);
  }
  if (!gate_in_q && spec.output_gate != OutputGate::kNone && kept > 0) {
    const PackedWeight& gate = layer.matrix(Slot::kOutGate);
    Multiply(normed_.data(), logit_rows.runs(), {{gate, Room(gate_, kept * gate.n)}});
  }
  if (own && spec.value_is_key) backend_.Copy(k, v, rows * kv_dim * sizeof(float));
  auto finish = [&](float* to, RowPlaces& of, int heads, Slot bias, Slot norm) {
    const size_t count = of.count(), width = static_cast<size_t>(heads) * head_dim;
    if (count == 0) return;
    if (spec.qkv_bias) backend_.AddBias(to, count, width, layer.vector(bias));
    if (!spec.norm_after_rope) NormHeads(layer, spec, norm, count, heads, to);
    if (spec.rope.dims > 0) {
      const RowPlaces::Rotation rotation = of.RotationFor(spec.rope, backend_);
      backend_.Rope(to, count, heads, spec.head_dim, rotation.cos, rotation.sin, spec.rope.dims / 2, spec.rope.pairing);
    }
    if (spec.norm_after_rope) NormHeads(layer, spec, norm, count, heads, to);
  };
  finish(q, logit_rows, spec.heads, Slot::kQBias, Slot::kQNorm);
  if (spec.temperature != 0 && kept > 0) backend_.ScaleRows(q, kept, q_dim, logit_rows.TemperaturesFor(spec, backend_));
  if (!own) return;
  finish(k, places, spec.kv_heads, Slot::kKBias, Slot::kKNorm);
  if (spec.qkv_bias) backend_.AddBias(v, rows, values_dim, layer.vector(Slot::kVBias));
  if (spec.value_norm)
    backend_.RmsNorm(v, rows * static_cast<size_t>(spec.kv_heads), value_dim, nullptr, layer.spec.norm_eps, v);
  if (spec.value_scale != 1) backend_.Scale(v, rows * values_dim, spec.value_scale);
  backend_.StoreKv(k, v, places.rows(layer.spec), kv);
}

void Forward::Attend(const Layer& layer, const AttentionSpec& spec, const KvView& kv, RowPlaces& places,
                     const Result& result) {
  const auto heads = static_cast<size_t>(spec.heads), value_dim = static_cast<size_t>(spec.ValueDim());
  const size_t q_dim = heads * static_cast<size_t>(spec.head_dim), out_dim = heads * value_dim;
  float* attended = Room(attended_, places.count() * out_dim);
  AttentionParams params{.heads = spec.heads,
                         .scale = spec.scale,
                         .softcap = spec.softcap,
                         .window = spec.window,
                         .chunk = spec.chunk,
                         .end = places.end()};
  if (spec.sinks) params.sinks = layer.vector(Slot::kSinks);
  std::span<const KvRow> rows = places.rows(layer.spec);
  const RowPlaces::Sight::Piece causal{places.count(), spec.window};
  std::span<const RowPlaces::Sight::Piece> pieces(&causal, 1);
  if (!spec.causal) {
    const RowPlaces::Sight& sight = places.SightOf(spec.window / 2, backend_);
    rows = sight.rows;
    pieces = sight.pieces;
    params.end = sight.end;
  }
  size_t row = 0, end = 0, piece = 0, piece_end = pieces[0].rows;
  ForEachClass(places.runs(), [&](size_t count, Arithmetic arithmetic) {
    params.arithmetic = arithmetic;
    end += count;
    while (row < end) {
      if (row == piece_end) piece_end += pieces[++piece].rows;
      const size_t n = std::min(end, piece_end) - row;
      params.window = pieces[piece].window;
      backend_.Attention(q_.data() + row * q_dim, rows.subspan(row, n), kv, params, attended + row * out_dim);
      row += n;
    }
  });
  if (spec.output_gate != OutputGate::kNone) {
    const bool of_heads = spec.output_gate == OutputGate::kHeads;
    const size_t n = places.count() * (of_heads ? heads : out_dim);
    backend_.Activate(gate_.data(), n, Activation::kSigmoid, gate_.data());
    if (of_heads)
      backend_.ScaleRows(attended, n, value_dim, gate_.data());
    else
      backend_.MultiplyInPlace(attended, gate_.data(), n);
  }
  Multiply(attended, places.runs(), {{layer.matrix(Slot::kO), result.rows, result.add}});
  Adapt(layer, places, attended, {{Slot::kO, result.rows}});
  if (spec.output_bias) backend_.AddBias(result.rows, places.count(), dim_, layer.vector(Slot::kOBias));
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

void Forward::Ffn(const Backend::Ffn& w, const float* x, std::span<const ClassRun> runs, Activation activation,
                  Result result) {
  ForEachClass(runs, [&](size_t rows, Arithmetic arithmetic) {
    backend_.FeedForward(x, rows, w, activation, arithmetic, result.rows, result.add);
    x += rows * w.up.k;
    result.rows += rows * w.down.n;
  });
}

void Forward::FeedForward(const Layer& layer, const RowPlaces& places, const float* x, const Result& result) {
  const size_t rows = places.count();
  if (!layer.spec.parallel)
    Norm(layer, Slot::kFfnNorm, Slot::kFfnNormBias, x, rows, Room(normed_, rows * dim_));
  else if (!layer.spec.shared_norm)
    backend_.Copy(kept_.data(), normed_.data(), rows * dim_ * sizeof(float));
  if (const DenseSpec* dense = layer.spec.dense()) {
    if (dense->xielu) return Xielu(layer, *dense, places, result);
    const auto changes = [&](const AdapterRun& run) {
      return layer.FindAdapter(run.adapter, Slot::kGate) != nullptr ||
             layer.FindAdapter(run.adapter, Slot::kUp) != nullptr ||
             layer.FindAdapter(run.adapter, Slot::kDown) != nullptr;
    };
    if (dense->sparsity != 0 || std::ranges::any_of(places.adapters(), changes))
      return StepwiseFfn(layer, *dense, places, result);
    return Ffn(DenseWeights(layer), normed_.data(), places.runs(), dense->activation, result);
  }
  const ExpertSpec& spec = *layer.spec.experts();
  float* mixed = result.add ? Room(mixed_, rows * dim_) : result.rows;
  if (spec.beside_dense) {
    DenseBesideExperts(layer, spec, places, x, mixed);
  } else {
    Route(layer, spec, spec.router_sees_input ? kept_.data() : normed_.data(), rows);
    MixExperts(layer, spec, places, mixed);
    if (spec.shared_width > 0) AddShared(layer, spec, places, mixed);
    if (spec.sum_scale != 1) backend_.Scale(mixed, rows * dim_, spec.sum_scale);
  }
  if (result.add) backend_.AddInPlace(result.rows, mixed, rows * dim_);
}

void Forward::Xielu(const Layer& layer, const DenseSpec& spec, const RowPlaces& places, const Result& result) {
  const size_t n = places.count() * static_cast<size_t>(spec.width);
  float* up = Room(mixed_, n);
  Multiply(normed_.data(), places.runs(), {{layer.matrix(Slot::kUp), up}});
  Adapt(layer, places, normed_.data(), {{Slot::kUp, up}});
  backend_.Xielu(up, n, *spec.xielu);
  Multiply(up, places.runs(), {{layer.matrix(Slot::kDown), result.rows, result.add}});
  Adapt(layer, places, up, {{Slot::kDown, result.rows}});
}

// Backend::FeedForward has the bits of these products, so that rows without an adapter do not notice those beside them.
void Forward::StepwiseFfn(const Layer& layer, const DenseSpec& spec, const RowPlaces& places, const Result& result) {
  const size_t rows = places.count(), width = static_cast<size_t>(spec.width), n = rows * width;
  float* up = Room(mixed_, 2 * n);
  float* gate = spec.gated ? up + n : nullptr;
  products_.clear();
  if (spec.gated) products_.push_back({layer.matrix(Slot::kGate), gate});
  products_.push_back({layer.matrix(Slot::kUp), up});
  Multiply(normed_.data(), places.runs());
  Adapt(layer, places, normed_.data(), {{Slot::kGate, gate}, {Slot::kUp, up}});
  if (spec.biases) backend_.AddBias(up, rows, width, layer.vector(Slot::kUpBias));
  if (spec.sparsity != 0) Sparsify(layer, rows, width, gate);
  if (spec.gated)
    backend_.GatedActivation(gate, up, n, spec.activation, up);
  else
    backend_.Activate(up, n, spec.activation, up);
  Multiply(up, places.runs(), {{layer.matrix(Slot::kDown), result.rows, result.add}});
  Adapt(layer, places, up, {{Slot::kDown, result.rows}});
  if (spec.biases) backend_.AddBias(result.rows, rows, dim_, layer.vector(Slot::kDownBias));
}

void Forward::Adapt(const Layer& layer, const RowPlaces& places, const float* x,
                    std::initializer_list<Adapted> products) {
  for (const AdapterRun& run : places.adapters()) {
    const Arithmetic arithmetic = ArithmeticOf(run.row_class);
    // The first factors read x together.
    products_.clear();
    adapted_.clear();
    size_t width = 0, k = 0;
    for (const Adapted& p : products) {
      const PackedLowRank* w = p.out == nullptr ? nullptr : layer.FindAdapter(run.adapter, p.slot);
      if (w == nullptr) continue;
      adapted_.emplace_back(w, p.out);
      width += w->a->n;
      k = w->a->k;
    }
    if (adapted_.empty()) continue;
    float* low = Room(low_rank_, run.rows * width);
    for (const auto& [w, out] : adapted_) {
      products_.push_back({*w->a, low});
      low += run.rows * w->a->n;
    }
    backend_.MatMul(x + run.first * k, run.rows, products_, arithmetic);
    low = low_rank_.data();
    for (const auto& [w, out] : adapted_) {
      const size_t n = run.rows * w->a->n;
      if (w->scale != 1) backend_.Scale(low, n, w->scale);
      const Backend::Product added[] = {{*w->b, out + run.first * w->b->n, true}};
      backend_.MatMul(low, run.rows, added, arithmetic);
      low += n;
    }
  }
}

void Forward::DenseBesideExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, const float* x,
                                 float* out) {
  const size_t rows = places.count();
  const float eps = layer.spec.norm_eps;
  float* dense = Room(dense_, rows * dim_);
  Ffn(DenseWeights(layer), normed_.data(), places.runs(), spec.activation, {dense, false});
  backend_.RmsNorm(dense, rows, dim_, layer.vector(Slot::kSharedPostNorm), eps, dense);
  float* routed = Room(routed_, rows * dim_);
  backend_.RmsNorm(x, rows, dim_, layer.vector(Slot::kRouterScale), eps, routed);
  backend_.Scale(routed, rows * dim_, static_cast<float>(1 / std::sqrt(static_cast<double>(dim_))));
  Route(layer, spec, routed, rows);
  backend_.RmsNorm(x, rows, dim_, layer.vector(Slot::kExpertsNorm), eps, normed_.data());
  MixExperts(layer, spec, places, out);
  backend_.RmsNorm(out, rows, dim_, layer.vector(Slot::kExpertsPostNorm), eps, out);
  backend_.AddInPlace(out, dense, rows * dim_);
}

void Forward::Route(const Layer& layer, const ExpertSpec& spec, const float* x, size_t rows) {
  // The router chooses the experts, so its products are exact: rounding would change the choice.
  const auto count = static_cast<size_t>(spec.count);
  float* scores = Room(scores_, rows * count);
  backend_.MatMul(x, rows, layer.matrix(Slot::kRouter), scores, Arithmetic::kExact);
  if (spec.router_bias) backend_.AddBias(scores, rows, count, layer.vector(Slot::kRouterBias));
  const auto used = static_cast<size_t>(spec.used);
  backend_.ChooseExperts(scores, rows,
                         {.count = count,
                          .used = used,
                          .near = spec.near,
                          .sigmoid = spec.score == RouterScore::kSigmoid,
                          .normalize = spec.normalize,
                          .scale = spec.scale,
                          .groups = static_cast<size_t>(spec.groups),
                          .used_groups = static_cast<size_t>(spec.used_groups)},
                         layer.vector(Slot::kChoiceBias), experts_.EnsureCapacity(backend_.device(), rows * used),
                         Room(expert_weights_, rows * used));
}

void Forward::MixExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out) {
  const auto width = static_cast<size_t>(spec.width);
  mixture_.clear();
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    const PackedFfn& w = layer.experts[e];
    Backend::Ffn ffn{w.gate != nullptr ? *w.gate : *w.up, *w.up, *w.down};
    if (spec.biases) {
      ffn.gate_bias = layer.vector(Slot::kExpertGateBias) + e * width;
      ffn.up_bias = layer.vector(Slot::kExpertUpBias) + e * width;
      ffn.down_bias = layer.vector(Slot::kExpertDownBias) + e * dim_;
    }
    ffn.gate_limit = spec.limits.gate;
    ffn.up_limit = spec.limits.up;
    mixture_.push_back(ffn);
  }
  mixture_runs_.clear();
  ForEachClass(places.runs(), [&](size_t rows, Arithmetic arithmetic) { mixture_runs_.push_back({rows, arithmetic}); });
  const float* in = normed_.data();
  if (spec.weight_on_input) {
    // The weight of the one expert goes into it, and what comes out has weight 1: a softmax of one.
    const size_t rows = places.count();
    float* weighted = Room(weighted_, rows * dim_);
    backend_.Copy(in, weighted, rows * dim_ * sizeof(float));
    backend_.ScaleRows(weighted, rows, dim_, expert_weights_.data());
    backend_.ChooseExperts(scores_.data(), rows,
                           {.count = static_cast<size_t>(spec.count), .used = 1, .normalize = true}, nullptr,
                           experts_.data(), expert_weights_.data());
    in = weighted;
  }
  backend_.MixExperts(in, mixture_runs_,
                      {.experts = mixture_,
                       .scales = layer.vector(Slot::kExpertScales),
                       .activation = spec.activation,
                       .chosen = experts_.data(),
                       .weights = expert_weights_.data(),
                       .used = static_cast<size_t>(spec.used)},
                      out);
}

void Forward::AddShared(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count();
  float* done = Room(expert_out_, rows * dim_);
  Ffn(DenseWeights(layer), normed_.data(), places.runs(), spec.activation, {done, false});
  if (!spec.shared_gate) return backend_.AddInPlace(out, done, rows * dim_);
  float* by = Room(shared_weights_, rows);
  backend_.SigmoidDot(normed_.data(), rows, dim_, layer.vector(Slot::kSharedGate), by);
  backend_.ScaleRows(done, rows, dim_, by);
  backend_.AddInPlace(out, done, rows * dim_);
}

void Forward::SetTokens(std::span<const TokenId> ids, const WeightView& embedding, float scale,
                        const WeightView& per_layer_tokens) {
  per_layer_width_ = per_layer_tokens.k;
  host_embedded_.resize(ids.size() * dim_);
  host_per_layer_tokens_.resize(ids.size() * per_layer_width_);
  for (size_t r = 0; r < ids.size(); ++r) {
    DequantizeRow(embedding, static_cast<size_t>(ids[r]), &host_embedded_[r * dim_]);
    DequantizeRow(per_layer_tokens, static_cast<size_t>(ids[r]), &host_per_layer_tokens_[r * per_layer_width_]);
  }
  for (float& v : host_embedded_) v *= scale;
  embedded_ = backend_.Upload(std::span<const float>(host_embedded_));
  per_layer_tokens_ = backend_.Upload(std::span<const float>(host_per_layer_tokens_));
}

// x = (x + a + norm(W' W a)) / sqrt(2) with a = normed_, which attention leaves as it is.
void Forward::AddLaurel(const Layer& layer, const RowPlaces& places, float* x) {
  const size_t rows = places.count(), rank = static_cast<size_t>(layer.spec.laurel_rank);
  float *low = Room(low_rank_, rows * rank), *made = Room(laurel_, rows * dim_);
  Multiply(normed_.data(), places.runs(), {{layer.matrix(Slot::kLaurelDown), low}});
  Multiply(low, places.runs(), {{layer.matrix(Slot::kLaurelUp), made}});
  backend_.RmsNorm(made, rows, dim_, layer.vector(Slot::kLaurelNorm), layer.spec.norm_eps, made);
  backend_.AddInPlace(x, normed_.data(), rows * dim_);
  backend_.AddInPlace(x, made, rows * dim_);
  backend_.Scale(x, rows * dim_, static_cast<float>(std::sqrt(0.5)));
}

// max(0, g - mean - s std) = std max(0, (g - mean) / std - s), as std is the length of g - mean.
void Forward::Sparsify(const Layer& layer, size_t rows, size_t width, float* gate) {
  const size_t n = rows * width;
  backend_.Center(gate, rows, width, gate);
  float* unit = Room(unit_, n);
  const float* deviations = row_length_.Of(gate, rows, width, unit);
  backend_.AddBias(unit, rows, width, layer.vector(Slot::kGateShift));
  backend_.Activate(unit, n, Activation::kRelu, gate);
  backend_.ScaleRows(gate, rows, width, deviations);
}

// side = (norm(W embedding / sqrt(dim)) + sqrt(width) * token's part) / sqrt(2); norm(W'' (gelu(W' x) * side))
const float* Forward::MakeSide(const Layer& layer, const RowPlaces& places, const float* x) {
  const size_t rows = places.count(), width = static_cast<size_t>(layer.spec.side.width),
               first = static_cast<size_t>(layer.spec.side.number) * width;
  float* gathered = Room(gathered_, rows * dim_);
  float* side = Room(per_layer_, rows * width);
  backend_.GatherRows(embedded_.data(), dim_, places.numbers(), dim_, gathered);
  Multiply(gathered, places.runs(), {{layer.matrix(Slot::kSideModel), side}});
  backend_.Scale(side, rows * width, static_cast<float>(1 / std::sqrt(static_cast<double>(dim_))));
  backend_.RmsNorm(side, rows, width, layer.vector(Slot::kSideModelNorm), layer.spec.norm_eps, side);
  float* token = Room(per_layer_token_, rows * width);
  backend_.GatherRows(per_layer_tokens_.data() + first, per_layer_width_, places.numbers(), width, token);
  backend_.AddScaled(side, token, rows * width, static_cast<float>(std::sqrt(static_cast<double>(width))));
  backend_.Scale(side, rows * width, static_cast<float>(std::sqrt(0.5)));
  float* gate = Room(per_layer_gate_, rows * width);
  float* made = Room(result_, rows * dim_);
  Multiply(x, places.runs(), {{layer.matrix(Slot::kSideGate), gate}});
  backend_.GatedActivation(gate, side, rows * width, Activation::kGeluTanh, gate);
  Multiply(gate, places.runs(), {{layer.matrix(Slot::kSideOut), made}});
  backend_.RmsNorm(made, rows, dim_, layer.vector(Slot::kSidePostNorm), layer.spec.norm_eps, made);
  return made;
}

void Forward::FinalNorm(const float* x, size_t rows, const Ends& ends, const ModelSpec& spec, float* out) {
  if (spec.streams > 1) {
    float* merged = Room(merged_, rows * dim_);
    streams_.End(x, rows, ends.streams_end, HeadArithmetic(), merged);
    x = merged;
  }
  if (spec.carries_values) {
    float* row = Room(merged_, rows * dim_);
    backend_.CopyColumns(x, rows, 2 * dim_, dim_, row, dim_);
    x = row;
  }
  if (!spec.final_norm) return backend_.Copy(x, out, rows * dim_ * sizeof(float));
  if (spec.final_layer_norm) {
    backend_.Center(x, rows, dim_, out);
    x = out;
  }
  backend_.RmsNorm(x, rows, dim_, ends.final_norm(), spec.final_norm_eps, out);
  if (spec.final_norm_bias) backend_.AddBias(out, rows, dim_, ends.final_norm_bias());
}

void Forward::JoinForDrafts(const MtpHead& mtp, const float* embedded, const float* hidden, const RowPlaces& places,
                            float* x) {
  const size_t rows = places.count();
  const float eps = mtp.layer->spec.norm_eps;
  float* normed = Room(normed_, rows * dim_);
  float* both = Room(in_, rows * 2 * dim_);
  backend_.RmsNorm(embedded, rows, dim_, mtp.embedding_norm(), eps, normed);
  backend_.CopyColumns(normed, rows, dim_, dim_, both, 2 * dim_);
  backend_.RmsNorm(hidden, rows, dim_, mtp.hidden_norm(), eps, normed);
  backend_.CopyColumns(normed, rows, dim_, dim_, both + dim_, 2 * dim_);
  Multiply(both, places.runs(), {{*mtp.join, x}});
}

void Forward::Head(const float* hidden, size_t rows, const PackedWeight& output, const Ends& ends,
                   const ModelSpec& spec, float* logits) {
  const size_t vocab = output.n;
  backend_.MatMul(hidden, rows, output, logits, HeadArithmetic());
  if (spec.head_bias) backend_.AddBias(logits, rows, vocab, ends.bias());
  if (spec.logit_scale != 1) backend_.Scale(logits, rows * vocab, spec.logit_scale);
  if (spec.final_softcap > 0) backend_.SoftcapInPlace(logits, rows * vocab, spec.final_softcap);
}

}  // namespace gyre
