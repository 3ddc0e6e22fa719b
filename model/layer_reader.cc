#include "model/layer_reader.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "model/classifier.h"
#include "model/layer_tensors.h"
#include "model/quoted.h"

namespace gyre {
namespace {

class LayerReader {
 public:
  LayerReader(const TensorTable& tensors, const ModelSpec& spec, int layer, std::unordered_set<std::string>* used)
      : tensors_(tensors),
        l_(spec.LayerOf(layer)),
        block_(spec.BlockOf(layer)),
        used_(used),
        rows_(LayerTensors(l_, spec.dim)) {}

  StatusOr<LayerWeights> Read() {
    if (const ExpertSpec* e = l_.experts()) w_.experts.resize(Unsigned(e->count));
    for (size_t i = 0; i < rows_.size();) {
      // Neighbouring rows that one tensor may hold are read together.
      size_t end = i + 1;
      while (end < rows_.size() && !rows_[i].fused.empty() && rows_[end].fused == rows_[i].fused) ++end;
      GYRE_RETURN_IF_ERROR(Group({rows_.data() + i, end - i}));
      i = end;
    }
    return std::move(w_);
  }

 private:
  std::string Full(const std::string& name) const { return fmt::format("blk.{}.{}", block_, name); }
  bool Has(const std::string& name) const { return tensors_.Has(Full(name)); }
  std::string Named(const std::string& name) {
    std::string full = Full(name);
    if (used_ != nullptr) used_->insert(full);
    return full;
  }

  std::string NameOf(const TensorRow& row) {
    if (row.parts == 0) return Named(row.name);
    if (used_ != nullptr) used_->insert(row.name);
    return row.name;
  }

  Status Group(std::span<const TensorRow> rows) {
    if (rows.size() > 1 && IsFused(rows)) return Fused(rows);
    if (rows.size() > 1 && rows[0].form == TensorForm::kExperts && !HasOwn(rows[0]) && !HasOwn(rows[1])) {
      return DataLoss("tensors {} and {} are missing, and {}, which may hold both", Full(rows[0].name),
                      Full(rows[1].name), Full(rows[0].fused));
    }
    for (const TensorRow& row : rows) GYRE_RETURN_IF_ERROR(One(row));
    return absl::OkStatus();
  }
  // As those of TensorTable, with their data unless the tensors are only checked.
  StatusOr<WeightView> Matrix(const std::string& name, uint64_t n, uint64_t k) {
    return Filled(name, tensors_.Matrix(name, n, k));
  }
  StatusOr<WeightView> Matrices(const std::string& name, uint64_t count, uint64_t n, uint64_t k) {
    return Filled(name, tensors_.Matrices(name, count, n, k));
  }
  StatusOr<WeightView> Filled(const std::string& name, StatusOr<WeightView> view) {
    if (!view.ok() || used_ != nullptr || view->data != nullptr) return view;
    MadeTensor::Bytes held;
    view->data = tensors_.Find(name)->WithData(&held).data;
    if (held != nullptr) w_.made.push_back(std::move(held));
    return view;
  }

  // If neither all parts nor the whole tensor exist, a group counts as fused if no part exists.
  bool IsFused(std::span<const TensorRow> rows) const {
    uint64_t n = 0;
    bool some = false;
    if (rows[0].form == TensorForm::kVector) return !HasOwn(rows[0]) && Has(rows[0].fused);
    for (const TensorRow& row : rows) {
      n += row.dims[1];
      some = some || HasOwn(row);
    }
    if (HasOwn(rows[0])) return false;
    const TensorView* whole = tensors_.Find(Full(rows[0].fused));
    return !some ? whole != nullptr || rows[0].form != TensorForm::kExperts
                 : whole != nullptr && whole->dims.size() > 1 && whole->dims[1] == n;
  }
  bool HasOwn(const TensorRow& row) const {
    return Has(row.name) || (row.form == TensorForm::kExperts && Has(OfExpert(row.name, 0)));
  }
  // Older files, and safetensors, have a tensor for each expert: "ffn_up.7.weight" for "ffn_up_exps.weight".
  static std::string OfExpert(const std::string& name, uint64_t expert) {
    return fmt::format("{}.{}.weight", name.substr(0, name.find("_exps.")), expert);
  }

  WeightView& Expert(Slot slot, uint64_t e) {
    FfnWeights& w = w_.experts[e];
    return slot == Slot::kExpertGate ? w.gate : slot == Slot::kExpertUp ? w.up : w.down;
  }

  // Reads several matrices from one tensor, with the rows in succession; of experts, one expert after the other.
  Status Fused(std::span<const TensorRow> rows) {
    if (rows[0].form == TensorForm::kVector) return FusedVectors(rows);
    uint64_t n = 0;
    for (const TensorRow& row : rows) n += row.dims[1];
    const uint64_t k = rows[0].dims[0];
    WeightView all;
    const bool experts = rows[0].form == TensorForm::kExperts;
    const uint64_t count = experts ? w_.experts.size() : 1;
    if (experts) {
      GYRE_ASSIGN_OR_RETURN(all, Matrices(Named(rows[0].fused), count, n, k));
    } else {
      GYRE_ASSIGN_OR_RETURN(all, Matrix(Named(rows[0].fused), n, k));
    }
    uint64_t at = 0;
    for (uint64_t e = 0; e < count; ++e) {
      for (const TensorRow& row : rows) {
        (experts ? Expert(row.slot, e) : w_.matrices[Index(row.slot)]) = RowsOf(all, at, row.dims[1]);
        at += row.dims[1];
      }
    }
    return absl::OkStatus();
  }

  Status FusedVectors(std::span<const TensorRow> rows) {
    uint64_t n = 0;
    for (const TensorRow& row : rows) n += row.dims[0];
    if (used_ != nullptr) return tensors_.CheckVector(Named(rows[0].fused), {n});
    GYRE_ASSIGN_OR_RETURN(const std::vector<float> all, tensors_.Vector(Named(rows[0].fused), {n}));
    auto at = all.begin();
    for (const TensorRow& row : rows) {
      const auto end = at + static_cast<ptrdiff_t>(row.dims[0]);
      w_.vectors[Index(row.slot)].assign(at, end);
      at = end;
    }
    return absl::OkStatus();
  }

  Status One(const TensorRow& row) {
    switch (row.form) {
      case TensorForm::kVector: {
        const std::string name = NameOf(row);
        std::vector<uint64_t> dims = row.dims;
        if (const TensorView* t = tensors_.Find(name); t != nullptr && row.any_shape) {
          uint64_t n = 1;
          for (const uint64_t d : t->dims) n = d == 0 || n > row.dims[0] / d ? 0 : n * d;
          if (n == row.dims[0]) dims = t->dims;
        }
        if (used_ != nullptr) return tensors_.CheckVector(name, dims);
        GYRE_ASSIGN_OR_RETURN(w_.vectors[Index(row.slot)], tensors_.Vector(name, dims));
        return absl::OkStatus();
      }
      case TensorForm::kMatrix:
      case TensorForm::kRouter: {
        const auto parts = static_cast<uint64_t>(std::max(1, row.parts)), n = row.dims[1];
        GYRE_ASSIGN_OR_RETURN(const WeightView all, Matrix(NameOf(row), n * parts, row.dims[0]));
        w_.matrices[Index(row.slot)] = parts == 1 ? all : RowsOf(all, static_cast<uint64_t>(row.part) * n, n);
        return absl::OkStatus();
      }
      case TensorForm::kHeads: {
        GYRE_ASSIGN_OR_RETURN(w_.matrices[Index(row.slot)],
                              Matrices(Named(row.name), row.heads, row.dims[1], row.dims[0]));
        return absl::OkStatus();
      }
      case TensorForm::kExperts: break;
    }
    const uint64_t experts = w_.experts.size(), n = row.dims[1], k = row.dims[0];
    if (Has(OfExpert(row.name, 0))) {
      for (uint64_t e = 0; e < experts; ++e) {
        GYRE_ASSIGN_OR_RETURN(Expert(row.slot, e), Matrix(Named(OfExpert(row.name, e)), n, k));
      }
      return absl::OkStatus();
    }
    GYRE_ASSIGN_OR_RETURN(const WeightView all, Matrices(Named(row.name), experts, n, k));
    for (uint64_t e = 0; e < experts; ++e) Expert(row.slot, e) = RowsOf(all, e * n, n);
    return absl::OkStatus();
  }

  const TensorTable& tensors_;
  const LayerSpec& l_;
  const int block_;
  std::unordered_set<std::string>* const used_;
  const std::vector<TensorRow> rows_;
  LayerWeights w_;
};

constexpr char kFinalNormBias[] = "output_norm.bias", kHeadBias[] = "output.bias",
               kPositions[] = "position_embd.weight", kTokenTypes[] = "token_types.weight",
               kStreamsBegin[] = "altup_proj.weight", kStreamsEnd[] = "altup_unembd_proj.weight",
               kEmbeddingNorm[] = "token_embd_norm.weight", kEmbeddingNormBias[] = "token_embd_norm.bias";
constexpr char kPerLayerTokens[] = "per_layer_token_embd.weight", kEmbedding[] = "token_embd.weight";

// Nothing reads rotary tables that old converters left in files, nor indexers, which leave out nothing within the
// model's context, nor RWKV's matrices for the first layer's values in the first layer itself.
bool IsIgnored(std::string_view name, const ModelSpec& spec) {
  constexpr std::string_view kShares = "blk.0.time_mix_v";
  return name.ends_with(".attn_rot_embd.weight") ||
         (spec.carries_values && name.starts_with(kShares) && name.size() > kShares.size() &&
          std::isdigit(static_cast<unsigned char>(name[kShares.size()])) != 0) ||
         (spec.indexer && name.starts_with("blk.") && name.find(".indexer.") != std::string_view::npos);
}

// Whether a file may have this tensor although no layer asks for it: an ignored one, or one of the layers for drafts,
// which ReadMtp checks where they are used.
bool MayBeLeftOut(std::string_view name, const ModelSpec& spec) {
  if (IsIgnored(name, spec)) return true;
  if (!name.starts_with("blk.")) return false;
  size_t block = 0;
  for (size_t i = 4; i < name.size() && i < 10 && name[i] != '.'; ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
    block = 10 * block + static_cast<size_t>(name[i] - '0');
  }
  const size_t layer = block * Unsigned(spec.layers_per_block);
  if (layer < spec.layers.size()) {  // what a layer could have if it did not read another's keys and values
    const AttentionSpec* a = spec.layers[layer].attention();
    return a != nullptr && a->kv_layer >= 0 &&
           (name.ends_with(".attn_k.weight") || name.ends_with(".attn_v.weight") ||
            name.ends_with(".attn_k_norm.weight"));
  }
  return layer < spec.layers.size() + static_cast<size_t>(spec.draft_layers);
}

}  // namespace

StatusOr<LayerWeights> ReadLayer(const TensorTable& tensors, const ModelSpec& spec, int layer,
                                 std::unordered_set<std::string>* used) {
  const size_t layers = spec.layers.size() + (spec.mtp ? 1 : 0);
  if (layer < 0 || static_cast<size_t>(layer) >= layers) {
    return InvalidArgument("layer {}, expected 0 to {}", layer, layers - 1);
  }
  return LayerReader(tensors, spec, layer, used).Read();
}

StatusOr<MtpWeights> ReadMtp(const TensorTable& tensors, const ModelSpec& spec) {
  if (!spec.mtp) return FailedPrecondition("{}", spec.mtp_note);
  const auto number = static_cast<int>(spec.layers.size());
  const std::string layer = fmt::format("blk.{}.", number), own = layer + "nextn.";
  const uint64_t dim = Unsigned(spec.dim), vocab = Unsigned(spec.vocab);
  const std::string names[] = {own + "enorm.weight",   own + "hnorm.weight",        own + "shared_head_norm.weight",
                               own + "eh_proj.weight", own + "embed_tokens.weight", own + "shared_head_head.weight"};
  // Files that leave them out share the model's.
  const auto or_model = [&tensors](const std::string& name, std::string_view model) {
    return tensors.Has(name) ? name : std::string(model);
  };
  MtpWeights w;
  std::unordered_set<std::string> used(std::begin(names), std::end(names));
  GYRE_ASSIGN_OR_RETURN(w.layer, ReadLayer(tensors, spec, number, &used));
  GYRE_ASSIGN_OR_RETURN(w.embedding_norm, tensors.Vector(names[0], {dim}));
  GYRE_ASSIGN_OR_RETURN(w.hidden_norm, tensors.Vector(names[1], {dim}));
  GYRE_ASSIGN_OR_RETURN(w.head_norm, tensors.Vector(or_model(names[2], spec.final_norm_name), {dim}));
  GYRE_ASSIGN_OR_RETURN(w.join, tensors.Matrix(names[3], dim, 2 * dim));
  GYRE_ASSIGN_OR_RETURN(w.embedding, tensors.Matrix(or_model(names[4], kEmbedding), vocab, dim));
  if (tensors.Has(names[5])) {
    GYRE_ASSIGN_OR_RETURN(w.output, tensors.Matrix(names[5], vocab, dim));
  }
  for (const auto& [name, t] : tensors.all()) {
    if (!name.starts_with(layer) || used.count(name) > 0 || used.count(tensors.ScaledBy(name)) > 0 ||
        IsIgnored(name, spec))
      continue;
    return Unimplemented("tensor {} has no place in the layer for drafts of {}", Printable(name), spec.architecture);
  }
  return w;
}

StatusOr<WeightView> ReadEmbedding(const TensorTable& tensors, const ModelSpec& spec) {
  return tensors.Matrix(kEmbedding, Unsigned(spec.vocab), Unsigned(spec.dim));
}

StatusOr<WeightView> ReadPositions(const TensorTable& tensors, const ModelSpec& spec) {
  return tensors.Matrix(kPositions, Unsigned(spec.positions), Unsigned(spec.dim));
}

StatusOr<WeightView> ReadPerLayerTokens(const TensorTable& tensors, const ModelSpec& spec) {
  return tensors.Matrix(kPerLayerTokens, Unsigned(spec.vocab), Unsigned(spec.per_layer_width));
}

StatusOr<std::vector<WeightView>> ReadStreams(const TensorTable& tensors, const ModelSpec& spec, bool ends) {
  const uint64_t others = Unsigned(spec.streams) - 1, dim = Unsigned(spec.dim);
  GYRE_ASSIGN_OR_RETURN(const WeightView all, tensors.Matrices(ends ? kStreamsEnd : kStreamsBegin, others, dim, dim));
  std::vector<WeightView> out;
  for (uint64_t i = 0; i < others; ++i) out.push_back(RowsOf(all, i * dim, dim));
  return out;
}

StatusOr<EmbeddingVectors> ReadEmbeddingVectors(const TensorTable& tensors, const ModelSpec& spec) {
  EmbeddingVectors out;
  const uint64_t dim = Unsigned(spec.dim);
  GYRE_ASSIGN_OR_RETURN(out.norm, tensors.Vector(kEmbeddingNorm, {dim}));
  if (spec.embedding_norm_bias) {
    GYRE_ASSIGN_OR_RETURN(out.norm_bias, tensors.Vector(kEmbeddingNormBias, {dim}));
  }
  if (!spec.token_types) return out;
  const TensorView* types = tensors.Find(kTokenTypes);
  const uint64_t count = types == nullptr || types->dims.size() < 2 ? 1 : types->dims[1];
  GYRE_ASSIGN_OR_RETURN(const WeightView table, tensors.Matrix(kTokenTypes, count, dim));
  out.token_type.resize(dim);
  if (table.data != nullptr) DequantizeRow(table, 0, out.token_type.data());
  return out;
}

StatusOr<HeadWeights> ReadHead(const TensorTable& tensors, const ModelSpec& spec) {
  HeadWeights head;
  if (spec.final_norm) {
    GYRE_ASSIGN_OR_RETURN(head.final_norm, tensors.Vector(std::string(spec.final_norm_name), {Unsigned(spec.dim)}));
  }
  if (spec.final_norm && spec.final_norm_bias) {
    GYRE_ASSIGN_OR_RETURN(head.final_norm_bias, tensors.Vector(kFinalNormBias, {Unsigned(spec.dim)}));
  }
  if (spec.head_bias) {
    GYRE_ASSIGN_OR_RETURN(head.bias, tensors.Vector(kHeadBias, {Unsigned(spec.vocab)}));
  }
  if (spec.encoder) return head;
  const char* name = spec.tied_head ? kEmbedding : "output.weight";
  GYRE_ASSIGN_OR_RETURN(head.output, tensors.Matrix(name, Unsigned(spec.vocab), Unsigned(spec.dim)));
  return head;
}

StatusOr<std::vector<std::string>> TensorsWithoutPlace(const TensorTable& tensors, const ModelSpec& spec) {
  std::unordered_set<std::string> used = {kEmbedding, "rope_freqs.weight", "rope_factors_long.weight",
                                          "rope_factors_short.weight"};
  if (!spec.tied_head && !spec.encoder) used.insert("output.weight");
  if (spec.final_norm) used.insert(std::string(spec.final_norm_name));
  if (spec.final_norm && spec.final_norm_bias) used.insert(kFinalNormBias);
  if (!spec.labels.empty()) {
    used.insert({"cls.output.weight", "cls.output.bias"});
    GYRE_RETURN_IF_ERROR(Classifier::Read(tensors, spec).status());
  }
  if (spec.streams > 1) {
    for (const bool ends : {false, true}) {
      used.insert(ends ? kStreamsEnd : kStreamsBegin);
      GYRE_RETURN_IF_ERROR(ReadStreams(tensors, spec, ends).status());
    }
  }
  if (spec.embedding_norm) {
    used.insert(kEmbeddingNorm);
    if (spec.embedding_norm_bias) used.insert(kEmbeddingNormBias);
    if (spec.token_types) used.insert(kTokenTypes);
    GYRE_RETURN_IF_ERROR(ReadEmbeddingVectors(tensors, spec).status());
  }
  if (spec.head_bias) used.insert(kHeadBias);
  if (spec.positions > 0) {
    used.insert(kPositions);
    GYRE_RETURN_IF_ERROR(ReadPositions(tensors, spec).status());
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GYRE_RETURN_IF_ERROR(ReadLayer(tensors, spec, static_cast<int>(i), &used).status());
  }
  if (spec.per_layer_width > 0) {
    used.insert(kPerLayerTokens);
    GYRE_RETURN_IF_ERROR(ReadPerLayerTokens(tensors, spec).status());
  }
  GYRE_RETURN_IF_ERROR(ReadEmbedding(tensors, spec).status());
  GYRE_RETURN_IF_ERROR(ReadHead(tensors, spec).status());
  std::vector<std::string> unread;
  for (const auto& [name, t] : tensors.all()) {
    const bool read = used.count(name) > 0 || used.count(tensors.ScaledBy(name)) > 0;
    if (!read && !MayBeLeftOut(name, spec)) unread.push_back(name);
  }
  std::sort(unread.begin(), unread.end());
  return unread;
}

Status CheckTensors(const TensorTable& tensors, const ModelSpec& spec) {
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> unread, TensorsWithoutPlace(tensors, spec));
  if (unread.empty()) return absl::OkStatus();
  std::string names;
  size_t named = 0;
  for (std::string_view name : unread) {
    if (++named > 4) break;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", Printable(name));
  }
  return Unimplemented("{} tensors have no place in the architecture {}: {}{}", unread.size(), spec.architecture, names,
                       unread.size() > 4 ? ", ..." : "");
}

}  // namespace gyre
