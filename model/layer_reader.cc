#include "model/layer_reader.h"

#include <initializer_list>
#include <set>
#include <utility>

#include "model/quoted.h"

namespace gyre {
namespace {

uint64_t Unsigned(int v) { return static_cast<uint64_t>(v); }

class LayerReader {
 public:
  LayerReader(const TensorTable& tensors, const ModelSpec& spec, int layer, std::unordered_set<std::string>* used)
      : tensors_(tensors),
        l_(spec.layers[static_cast<size_t>(layer)]),
        layer_(layer),
        used_(used),
        dim_(Unsigned(spec.dim)) {}

  StatusOr<LayerWeights> Read() {
    GYRE_RETURN_IF_ERROR(Norms());
    GYRE_RETURN_IF_ERROR(Attention());
    GYRE_RETURN_IF_ERROR(l_.experts.count == 0 ? FeedForward() : Experts());
    return std::move(w_);
  }

 private:
  std::string Full(const std::string& name) const { return fmt::format("blk.{}.{}", layer_, name); }
  bool Has(const std::string& name) const { return tensors_.Has(Full(name)); }
  std::string Named(const std::string& name) {
    std::string full = Full(name);
    if (used_ != nullptr) used_->insert(full);
    return full;
  }

  Status Vector(bool wanted, const char* name, uint64_t n, std::vector<float>* out) {
    if (!wanted) return absl::OkStatus();
    GYRE_ASSIGN_OR_RETURN(*out, tensors_.Vector(Named(name), n));
    return absl::OkStatus();
  }
  Status Matrix(const std::string& name, uint64_t n, uint64_t k, WeightView* out) {
    GYRE_ASSIGN_OR_RETURN(*out, tensors_.Matrix(Named(name), n, k));
    return absl::OkStatus();
  }
  // Several matrices in one tensor, the rows of one after those of the other.
  Status Fused(const char* name, uint64_t k, std::initializer_list<std::pair<uint64_t, WeightView*>> parts) {
    uint64_t n = 0;
    for (const auto& [rows, out] : parts) n += rows;
    WeightView all;
    GYRE_RETURN_IF_ERROR(Matrix(name, n, k, &all));
    n = 0;
    for (const auto& [rows, out] : parts) {
      *out = RowsOf(all, n, rows);
      n += rows;
    }
    return absl::OkStatus();
  }

  Status Norms() {
    const uint64_t head_dim = Unsigned(l_.head_dim);
    GYRE_RETURN_IF_ERROR(Vector(true, "attn_norm.weight", dim_, &w_.attn_norm));
    GYRE_RETURN_IF_ERROR(Vector(true, "ffn_norm.weight", dim_, &w_.ffn_norm));
    GYRE_RETURN_IF_ERROR(Vector(l_.post_norms, "post_attention_norm.weight", dim_, &w_.attn_post_norm));
    GYRE_RETURN_IF_ERROR(Vector(l_.post_norms, "post_ffw_norm.weight", dim_, &w_.ffn_post_norm));
    GYRE_RETURN_IF_ERROR(Vector(l_.qk_norm, "attn_q_norm.weight", head_dim, &w_.q_norm));
    return Vector(l_.qk_norm, "attn_k_norm.weight", head_dim, &w_.k_norm);
  }

  Status Attention() {
    const uint64_t q = Unsigned(l_.heads) * Unsigned(l_.head_dim), kv = Unsigned(l_.kv_heads) * Unsigned(l_.head_dim);
    GYRE_RETURN_IF_ERROR(Vector(l_.qkv_bias, "attn_q.bias", q, &w_.q_bias));
    GYRE_RETURN_IF_ERROR(Vector(l_.qkv_bias, "attn_k.bias", kv, &w_.k_bias));
    GYRE_RETURN_IF_ERROR(Vector(l_.qkv_bias, "attn_v.bias", kv, &w_.v_bias));
    if (Has("attn_qkv.weight") || !(Has("attn_q.weight") || Has("attn_k.weight") || Has("attn_v.weight"))) {
      GYRE_RETURN_IF_ERROR(Fused("attn_qkv.weight", dim_, {{q, &w_.q}, {kv, &w_.k}, {kv, &w_.v}}));
    } else {
      GYRE_RETURN_IF_ERROR(Matrix("attn_q.weight", q, dim_, &w_.q));
      GYRE_RETURN_IF_ERROR(Matrix("attn_k.weight", kv, dim_, &w_.k));
      GYRE_RETURN_IF_ERROR(Matrix("attn_v.weight", kv, dim_, &w_.v));
    }
    return Matrix("attn_output.weight", dim_, q, &w_.o);
  }

  Status FeedForward() {
    const uint64_t ffn = Unsigned(l_.ffn);
    const TensorView* up = tensors_.Find(Full("ffn_up.weight"));
    const bool both = up == nullptr || (up->dims.size() == 2 && up->dims[1] == 2 * ffn);
    if (!Has("ffn_gate.weight") && both) {
      GYRE_RETURN_IF_ERROR(Fused("ffn_up.weight", dim_, {{ffn, &w_.ffn.gate}, {ffn, &w_.ffn.up}}));
    } else {
      GYRE_RETURN_IF_ERROR(Matrix("ffn_gate.weight", ffn, dim_, &w_.ffn.gate));
      GYRE_RETURN_IF_ERROR(Matrix("ffn_up.weight", ffn, dim_, &w_.ffn.up));
    }
    return Matrix("ffn_down.weight", dim_, ffn, &w_.ffn.down);
  }

  Status Experts() {
    const uint64_t experts = Unsigned(l_.experts.count), ffn = Unsigned(l_.experts.ffn);
    GYRE_RETURN_IF_ERROR(Matrix("ffn_gate_inp.weight", experts, dim_, &w_.router));
    w_.experts.resize(experts);
    GYRE_RETURN_IF_ERROR(EachExpert("ffn_gate", ffn, dim_, &FfnWeights::gate));
    GYRE_RETURN_IF_ERROR(EachExpert("ffn_up", ffn, dim_, &FfnWeights::up));
    GYRE_RETURN_IF_ERROR(EachExpert("ffn_down", dim_, ffn, &FfnWeights::down));
    if (l_.ffn == 0) return absl::OkStatus();
    const uint64_t shared = Unsigned(l_.ffn);
    GYRE_RETURN_IF_ERROR(Vector(true, "ffn_gate_inp_shexp.weight", dim_, &w_.shared_gate));
    GYRE_RETURN_IF_ERROR(Matrix("ffn_gate_shexp.weight", shared, dim_, &w_.ffn.gate));
    GYRE_RETURN_IF_ERROR(Matrix("ffn_up_shexp.weight", shared, dim_, &w_.ffn.up));
    return Matrix("ffn_down_shexp.weight", dim_, shared, &w_.ffn.down);
  }

  // All in one tensor, or one by one, as older files and safetensors have them.
  Status EachExpert(const std::string& name, uint64_t n, uint64_t k, WeightView FfnWeights::*part) {
    const uint64_t experts = w_.experts.size();
    if (Has(name + ".0.weight")) {
      for (uint64_t e = 0; e < experts; ++e) {
        GYRE_RETURN_IF_ERROR(Matrix(fmt::format("{}.{}.weight", name, e), n, k, &(w_.experts[e].*part)));
      }
      return absl::OkStatus();
    }
    GYRE_ASSIGN_OR_RETURN(const WeightView all, tensors_.Matrices(Named(name + "_exps.weight"), experts, n, k));
    for (uint64_t e = 0; e < experts; ++e) w_.experts[e].*part = RowsOf(all, e * n, n);
    return absl::OkStatus();
  }

  const TensorTable& tensors_;
  const LayerSpec& l_;
  const int layer_;
  std::unordered_set<std::string>* const used_;
  const uint64_t dim_;
  LayerWeights w_;
};

// Rotary tables that old converters left in files.
bool MayBeLeftOut(std::string_view name) { return name.ends_with(".attn_rot_embd.weight"); }

}  // namespace

StatusOr<LayerWeights> ReadLayer(const TensorTable& tensors, const ModelSpec& spec, int layer,
                                 std::unordered_set<std::string>* used) {
  if (layer < 0 || static_cast<size_t>(layer) >= spec.layers.size()) {
    return InvalidArgument("layer {}, expected 0 to {}", layer, spec.layers.size() - 1);
  }
  return LayerReader(tensors, spec, layer, used).Read();
}

StatusOr<WeightView> ReadEmbedding(const TensorTable& tensors, const ModelSpec& spec) {
  return tensors.Matrix("token_embd.weight", Unsigned(spec.vocab), Unsigned(spec.dim));
}

StatusOr<HeadWeights> ReadHead(const TensorTable& tensors, const ModelSpec& spec) {
  HeadWeights head;
  GYRE_ASSIGN_OR_RETURN(head.final_norm, tensors.Vector("output_norm.weight", Unsigned(spec.dim)));
  const char* name = spec.tied_head ? "token_embd.weight" : "output.weight";
  GYRE_ASSIGN_OR_RETURN(head.output, tensors.Matrix(name, Unsigned(spec.vocab), Unsigned(spec.dim)));
  return head;
}

Status CheckTensors(const TensorTable& tensors, const ModelSpec& spec) {
  std::unordered_set<std::string> used = {"token_embd.weight", "output_norm.weight", "rope_freqs.weight",
                                          "rope_factors_long.weight", "rope_factors_short.weight"};
  if (!spec.tied_head) used.insert("output.weight");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    GYRE_RETURN_IF_ERROR(ReadLayer(tensors, spec, static_cast<int>(i), &used).status());
  }
  GYRE_RETURN_IF_ERROR(ReadEmbedding(tensors, spec).status());
  GYRE_RETURN_IF_ERROR(ReadHead(tensors, spec).status());
  std::set<std::string_view> unread;
  for (const auto& [name, t] : tensors.all()) {
    if (used.count(name) == 0 && !MayBeLeftOut(name)) unread.insert(name);
  }
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
