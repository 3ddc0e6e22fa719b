#include "model/layer_tensors.h"

#include <utility>

namespace gyre {
namespace {

class Table {
 public:
  Table(const LayerSpec& layer, int dim) : l_(layer), dim_(Unsigned(dim)) {}

  std::vector<TensorRow> Rows() {
    const bool mixes = !std::holds_alternative<NoMixer>(l_.mixer),
               feeds = !std::holds_alternative<NoFeedForward>(l_.feed_forward);
    if (mixes && l_.pre_norms) Vector("attn_norm.weight", Slot::kMixerNorm, dim_);
    if (mixes && l_.post_norms) Vector("post_attention_norm.weight", Slot::kMixerPostNorm, dim_);
    if (feeds && l_.pre_norms) Vector(std::string(l_.ffn_norm_name), Slot::kFfnNorm, dim_);
    if (feeds && l_.post_norms) Vector("post_ffw_norm.weight", Slot::kFfnPostNorm, dim_);
    std::visit([this](const auto& part) { Add(part); }, l_.mixer);
    std::visit([this](const auto& part) { Add(part); }, l_.feed_forward);
    return std::move(rows_);
  }

 private:
  void Vector(std::string name, Slot slot, uint64_t n, CutAxis cut = CutAxis::kWhole) {
    rows_.push_back({.name = std::move(name), .slot = slot, .form = TensorForm::kVector, .dims = {n}, .cut = cut});
  }
  void Matrix(std::string name, Slot slot, uint64_t n, uint64_t k, CutAxis cut, std::string fused = {},
              TensorForm form = TensorForm::kMatrix) {
    rows_.push_back(
        {.name = std::move(name), .slot = slot, .form = form, .dims = {k, n}, .cut = cut, .fused = std::move(fused)});
  }

  void Add(const AttentionSpec& a) {
    const uint64_t head = Unsigned(a.head_dim), q = Unsigned(a.heads) * head, kv = Unsigned(a.kv_heads) * head;
    Matrix("attn_q.weight", Slot::kQ, q, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    Matrix("attn_k.weight", Slot::kK, kv, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    Matrix("attn_v.weight", Slot::kV, kv, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    Matrix("attn_output.weight", Slot::kO, dim_, q, CutAxis::kInputs);
    if (a.qkv_bias) {
      Vector("attn_q.bias", Slot::kQBias, q, CutAxis::kOutputs);
      Vector("attn_k.bias", Slot::kKBias, kv, CutAxis::kOutputs);
      Vector("attn_v.bias", Slot::kVBias, kv, CutAxis::kOutputs);
    }
    if (a.output_bias) Vector("attn_output.bias", Slot::kOBias, dim_);
    if (a.qk_norm != QkNorm::kNone) {
      const bool row = a.qk_norm == QkNorm::kRow;
      const CutAxis cut = row ? CutAxis::kOutputs : CutAxis::kWhole;
      Vector("attn_q_norm.weight", Slot::kQNorm, row ? q : head, cut);
      Vector("attn_k_norm.weight", Slot::kKNorm, row ? kv : head, cut);
    }
  }
  // Parts whose forward pass does not exist yet have no tensors; LoadLayer refuses them.
  void Add(const LatentAttentionSpec&) {}
  void Add(const DeltaNetSpec&) {}
  void Add(const Mamba2Spec&) {}
  void Add(const ShortConvolutionSpec&) {}
  void Add(const NoMixer&) {}

  void Add(const DenseSpec& f) {
    const uint64_t width = Unsigned(f.width);
    // Where both are in one tensor, its name is that of the second.
    if (f.gated) Matrix("ffn_gate.weight", Slot::kGate, width, dim_, CutAxis::kOutputs, "ffn_up.weight");
    Matrix("ffn_up.weight", Slot::kUp, width, dim_, CutAxis::kOutputs, f.gated ? "ffn_up.weight" : "");
    Matrix("ffn_down.weight", Slot::kDown, dim_, width, CutAxis::kInputs);
  }

  void Add(const ExpertSpec& e) {
    const uint64_t width = Unsigned(e.width), shared = Unsigned(e.shared_width);
    Matrix("ffn_gate_inp.weight", Slot::kRouter, Unsigned(e.count), dim_, CutAxis::kWhole, {}, TensorForm::kRouter);
    if (e.choice_bias) Vector("exp_probs_b.bias", Slot::kChoiceBias, Unsigned(e.count));
    auto experts = [&](const char* name, Slot slot, uint64_t n, uint64_t k, const char* fused) {
      Matrix(name, slot, n, k, CutAxis::kExperts, fused, TensorForm::kExperts);
    };
    const char* fused = e.gated ? "ffn_gate_up_exps.weight" : "";
    if (e.gated) experts("ffn_gate_exps.weight", Slot::kExpertGate, width, dim_, fused);
    experts("ffn_up_exps.weight", Slot::kExpertUp, width, dim_, fused);
    experts("ffn_down_exps.weight", Slot::kExpertDown, dim_, width, "");
    if (e.shared_width == 0) return;
    if (e.shared_gate) Vector("ffn_gate_inp_shexp.weight", Slot::kSharedGate, dim_);
    if (e.gated) Matrix("ffn_gate_shexp.weight", Slot::kGate, shared, dim_, CutAxis::kOutputs);
    Matrix("ffn_up_shexp.weight", Slot::kUp, shared, dim_, CutAxis::kOutputs);
    Matrix("ffn_down_shexp.weight", Slot::kDown, dim_, shared, CutAxis::kInputs);
  }
  void Add(const NoFeedForward&) {}

  const LayerSpec& l_;
  const uint64_t dim_;
  std::vector<TensorRow> rows_;
};

}  // namespace

std::vector<TensorRow> LayerTensors(const LayerSpec& layer, int dim) { return Table(layer, dim).Rows(); }

}  // namespace gyre
