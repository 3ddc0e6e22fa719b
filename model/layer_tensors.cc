#include "model/layer_tensors.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

namespace gyre {
namespace {

class Table {
 public:
  Table(const LayerSpec& layer, int dim) : l_(layer), dim_(Unsigned(dim)) {}

  std::vector<TensorRow> Rows() {
    const bool mixes = !std::holds_alternative<NoMixer>(l_.mixer),
               feeds = !std::holds_alternative<NoFeedForward>(l_.feed_forward);
    if (mixes && l_.pre_norms && l_.mixer_norm && !l_.same_input)
      Norm(l_.mixer_norm_name, Slot::kMixerNorm, Slot::kMixerNormBias);
    if (mixes && l_.post_norms) Vector(std::string(l_.mixer_post_norm_name), Slot::kMixerPostNorm, dim_);
    if (mixes && l_.residual_norms) Norm(l_.mixer_post_norm_name, Slot::kMixerPostNorm, Slot::kMixerPostNormBias);
    if (feeds && l_.pre_norms && !l_.shared_norm) Norm(l_.ffn_norm_name, Slot::kFfnNorm, Slot::kFfnNormBias);
    if (feeds && l_.post_norms) Vector(std::string(l_.ffn_post_norm_name), Slot::kFfnPostNorm, dim_);
    if (feeds && l_.residual_norms) Norm(l_.ffn_post_norm_name, Slot::kFfnPostNorm, Slot::kFfnPostNormBias);
    std::visit([this](const auto& part) { Add(part); }, l_.mixer);
    std::visit([this](const auto& part) { Add(part); }, l_.feed_forward);
    Add(l_.side);
    if (l_.laurel_rank > 0) {
      const uint64_t rank = Unsigned(l_.laurel_rank);
      Matrix("laurel_l.weight", Slot::kLaurelDown, rank, dim_, CutAxis::kWhole);
      Matrix("laurel_r.weight", Slot::kLaurelUp, dim_, rank, CutAxis::kWhole);
      Vector("laurel_post_norm.weight", Slot::kLaurelNorm, dim_);
    }
    if (l_.streams > 0) AddStreams(Unsigned(l_.streams));
    if (l_.output_scale) Vector("layer_output_scale.weight", Slot::kOutputScale, 1);
    return std::move(rows_);
  }

 private:
  void Vector(std::string name, Slot slot, uint64_t n, CutAxis cut = CutAxis::kWhole) {
    rows_.push_back({.name = std::move(name), .slot = slot, .form = TensorForm::kVector, .dims = {n}, .cut = cut});
  }
  void Norm(std::string_view name, Slot slot, Slot bias) {
    Vector(std::string(name), slot, dim_);
    if (l_.norm_biases) Vector(std::string(name.substr(0, name.rfind('.'))) + ".bias", bias, dim_);
  }
  void Matrix(std::string name, Slot slot, uint64_t n, uint64_t k, CutAxis cut, std::string fused = {},
              TensorForm form = TensorForm::kMatrix) {
    rows_.push_back(
        {.name = std::move(name), .slot = slot, .form = form, .dims = {k, n}, .cut = cut, .fused = std::move(fused)});
  }

  void Add(const AttentionSpec& a) {
    const uint64_t head = Unsigned(a.head_dim), q = Unsigned(a.heads) * head, kv = Unsigned(a.kv_heads) * head,
                   value = Unsigned(a.ValueDim()), values = Unsigned(a.kv_heads) * value,
                   attended = Unsigned(a.heads) * value;
    const bool gate_in_q = a.output_gate == OutputGate::kInQuery;
    Matrix("attn_q.weight", Slot::kQ, gate_in_q ? 2 * q : q, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    const bool own = a.kv_layer < 0;
    if (own) Matrix("attn_k.weight", Slot::kK, kv, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    if (own && !a.value_is_key) Matrix("attn_v.weight", Slot::kV, values, dim_, CutAxis::kOutputs, "attn_qkv.weight");
    Matrix("attn_output.weight", Slot::kO, dim_, attended, CutAxis::kInputs);
    if (a.output_gate == OutputGate::kElements || a.output_gate == OutputGate::kHeads) {
      const uint64_t gates = a.output_gate == OutputGate::kHeads ? Unsigned(a.heads) : attended;
      Matrix("attn_gate.weight", Slot::kOutGate, gates, dim_, CutAxis::kOutputs);
    }
    if (a.qkv_bias) {
      for (const auto& [name, slot, n] : {std::tuple("attn_q.bias", Slot::kQBias, q),
                                          {"attn_k.bias", Slot::kKBias, kv},
                                          {"attn_v.bias", Slot::kVBias, values}}) {
        Vector(name, slot, n, CutAxis::kOutputs);
        rows_.back().fused = "attn_qkv.bias";
      }
    }
    if (a.output_bias) Vector("attn_output.bias", Slot::kOBias, dim_);
    if (a.sinks) Vector("attn_sinks.weight", Slot::kSinks, Unsigned(a.heads), CutAxis::kOutputs);
    if (a.qk_norm == QkNorm::kHeads) {
      Shaped("attn_q_norm.weight", Slot::kQNorm, {head, Unsigned(a.heads)}, CutAxis::kOutputs);
      if (own) Shaped("attn_k_norm.weight", Slot::kKNorm, {head, Unsigned(a.kv_heads)}, CutAxis::kOutputs);
    } else if (a.qk_norm != QkNorm::kNone && a.qk_norm != QkNorm::kUnit) {
      const bool row = a.qk_norm == QkNorm::kRow;
      const CutAxis cut = row ? CutAxis::kOutputs : CutAxis::kWhole;
      Vector("attn_q_norm.weight", Slot::kQNorm, row ? q : head, cut);
      if (own) Vector("attn_k_norm.weight", Slot::kKNorm, row ? kv : head, cut);
    }
  }
  void Heads(std::string name, Slot slot, uint64_t heads, uint64_t n, uint64_t k) {
    Matrix(std::move(name), slot, n, k, CutAxis::kOutputs, {}, TensorForm::kHeads);
    rows_.back().heads = heads;
  }
  void Add(const LatentAttentionSpec& a) {
    const uint64_t heads = Unsigned(a.heads), rank = Unsigned(a.kv_rank), shared = Unsigned(a.rope.dims),
                   key = Unsigned(a.key_dim), q = heads * (key + shared);
    if (a.q_rank > 0) {
      Matrix("attn_q_a.weight", Slot::kQueryLatent, Unsigned(a.q_rank), dim_, CutAxis::kWhole);
      Vector("attn_q_a_norm.weight", Slot::kQueryLatentNorm, Unsigned(a.q_rank));
      Matrix("attn_q_b.weight", Slot::kQ, q, Unsigned(a.q_rank), CutAxis::kOutputs);
    } else {
      Matrix("attn_q.weight", Slot::kQ, q, dim_, CutAxis::kOutputs);
    }
    Matrix("attn_kv_a_mqa.latent", Slot::kLatent, rank, dim_, CutAxis::kWhole, "attn_kv_a_mqa.weight");
    Matrix("attn_kv_a_mqa.key", Slot::kSharedKey, shared, dim_, CutAxis::kWhole, "attn_kv_a_mqa.weight");
    Vector("attn_kv_a_norm.weight", Slot::kLatentNorm, rank);
    Heads("attn_k_b.weight", Slot::kKeyHeads, heads, rank, key);
    Heads("attn_v_b.weight", Slot::kValueHeads, heads, Unsigned(a.value_dim), rank);
    Matrix("attn_output.weight", Slot::kO, dim_, heads * Unsigned(a.value_dim), CutAxis::kInputs);
  }
  // A vector of several dimensions, in the file's order: the fastest first.
  void Shaped(std::string name, Slot slot, std::vector<uint64_t> dims, CutAxis cut = CutAxis::kWhole) {
    Vector(std::move(name), slot, 0, cut);
    rows_.back().dims = std::move(dims);
  }
  void Add(const DeltaNetSpec& d) {
    const uint64_t head = Unsigned(d.head_dim), heads = Unsigned(d.value_heads), values = heads * head,
                   channels = 2 * Unsigned(d.key_heads) * head + values;
    Matrix("attn_qkv.weight", Slot::kStateIn, channels, dim_, CutAxis::kWhole);
    Matrix("attn_gate.weight", Slot::kOutGate, values, dim_, CutAxis::kOutputs);
    if (d.joint_gates) {
      Matrix("ssm_ba.weight", Slot::kStepBeta, 2 * heads, dim_, CutAxis::kOutputs);
    } else {
      Matrix("ssm_beta.weight", Slot::kBeta, heads, dim_, CutAxis::kOutputs);
      Matrix("ssm_alpha.weight", Slot::kStep, heads, dim_, CutAxis::kOutputs);
    }
    Shaped("ssm_conv1d.weight", Slot::kConv, {Unsigned(d.kernel), channels});
    Vector("ssm_dt.bias", Slot::kStepBias, heads, CutAxis::kOutputs);
    Vector("ssm_a", Slot::kDecay, heads, CutAxis::kOutputs);
    Vector("ssm_norm.weight", Slot::kStateNorm, head);
    Matrix("ssm_out.weight", Slot::kO, dim_, values, CutAxis::kInputs);
  }
  void Add(const KimiDeltaSpec& k) {
    const uint64_t head = Unsigned(k.head_dim), heads = Unsigned(k.heads), width = heads * head,
                   taps = Unsigned(k.kernel);
    for (const auto& [part, slot, conv] :
         {std::tuple("q", Slot::kQ, Slot::kConv), {"k", Slot::kK, Slot::kKeyConv}, {"v", Slot::kV, Slot::kValueConv}}) {
      Matrix(std::string("attn_") + part + ".weight", slot, width, dim_, CutAxis::kOutputs);
      AnyShape(std::string("ssm_conv1d_") + part + ".weight", conv, taps * width);
    }
    Matrix("ssm_f_a.weight", Slot::kStepLow, head, dim_, CutAxis::kWhole);
    Matrix("ssm_f_b.weight", Slot::kStep, width, head, CutAxis::kOutputs);
    Matrix("ssm_beta.weight", Slot::kBeta, heads, dim_, CutAxis::kOutputs);
    AnyShape("ssm_a", Slot::kDecay, heads);
    Vector("ssm_dt.bias", Slot::kStepBias, width, CutAxis::kOutputs);
    Matrix("ssm_g_a.weight", Slot::kOutGateLow, head, dim_, CutAxis::kWhole);
    Matrix("ssm_g_b.weight", Slot::kOutGate, width, head, CutAxis::kOutputs);
    Vector("ssm_norm.weight", Slot::kStateNorm, head);
    Matrix("attn_output.weight", Slot::kO, dim_, width, CutAxis::kInputs);
  }
  void AnyShape(std::string name, Slot slot, uint64_t n) {
    Vector(std::move(name), slot, n);
    rows_.back().any_shape = true;
  }
  void Add(const MambaSpec& m) {
    const uint64_t inner = Unsigned(m.inner), state = Unsigned(m.state), rank = Unsigned(m.rank),
                   heads = Unsigned(m.heads);
    Matrix("ssm_in.weight", Slot::kStateIn, 2 * inner, dim_, CutAxis::kWhole);
    Shaped("ssm_conv1d.weight", Slot::kConv, {Unsigned(m.kernel), inner});
    if (m.conv_bias) Vector("ssm_conv1d.bias", Slot::kConvBias, inner);
    Matrix("ssm_x.weight", Slot::kStateParams, rank + 2 * state, inner, CutAxis::kWhole);
    if (m.norm_weights) {
      const std::string end = m.plamo ? "" : ".weight";
      Vector("ssm_dt_norm" + end, Slot::kStepNorm, rank);
      Vector("ssm_b_norm" + end, Slot::kWriteNorm, state);
      Vector("ssm_c_norm" + end, Slot::kReadNorm, state);
    }
    Matrix("ssm_dt.weight", Slot::kStep, heads, rank, CutAxis::kWhole);
    Vector("ssm_dt.bias", Slot::kStepBias, heads);
    if (m.own_decays())
      Shaped("ssm_a", Slot::kDecay, {state, inner});
    else
      AnyShape("ssm_a", Slot::kDecay, heads);
    AnyShape("ssm_d", Slot::kSkip, heads);
    Matrix("ssm_out.weight", Slot::kO, dim_, inner, CutAxis::kWhole);
  }
  void Add(const Mamba2Spec& m) {
    const uint64_t inner = Unsigned(m.inner), heads = Unsigned(m.heads), groups = Unsigned(m.groups),
                   channels = inner + 2 * groups * Unsigned(m.state);
    Matrix("ssm_in.gate", Slot::kOutGate, inner, dim_, CutAxis::kWhole, "ssm_in.weight");
    Matrix("ssm_in.state", Slot::kStateIn, channels, dim_, CutAxis::kWhole, "ssm_in.weight");
    Matrix("ssm_in.step", Slot::kStep, heads, dim_, CutAxis::kWhole, "ssm_in.weight");
    Shaped("ssm_conv1d.weight", Slot::kConv, {Unsigned(m.kernel), channels});
    Vector("ssm_conv1d.bias", Slot::kConvBias, channels);
    Vector("ssm_dt.bias", Slot::kStepBias, heads);
    Shaped("ssm_a", Slot::kDecay, {1, heads});
    Shaped("ssm_d", Slot::kSkip, {1, heads});
    if (m.norm) Shaped("ssm_norm.weight", Slot::kStateNorm, {inner / groups, groups});
    Matrix("ssm_out.weight", Slot::kO, dim_, inner, CutAxis::kWhole);
  }
  void Add(const ShortConvolutionSpec& c) {
    const char* fused = "shortconv.in_proj.weight";
    Matrix("shortconv.in_proj.in_gate", Slot::kInGate, dim_, dim_, CutAxis::kWhole, fused);
    Matrix("shortconv.in_proj.out_gate", Slot::kOutGate, dim_, dim_, CutAxis::kWhole, fused);
    Matrix("shortconv.in_proj.state", Slot::kStateIn, dim_, dim_, CutAxis::kWhole, fused);
    Shaped("shortconv.conv.weight", Slot::kConv, {Unsigned(c.kernel), dim_});
    Matrix("shortconv.out_proj.weight", Slot::kO, dim_, dim_, CutAxis::kWhole);
  }
  void Add(const TimeMixSpec& t) {
    const uint64_t width = Unsigned(t.heads) * Unsigned(t.head_dim);
    AnyShape("time_mix_lerp_fused.weight", Slot::kConv, 6 * dim_);
    Matrix("time_mix_receptance.weight", Slot::kQ, width, dim_, CutAxis::kWhole);
    Matrix("time_mix_key.weight", Slot::kK, width, dim_, CutAxis::kWhole);
    Matrix("time_mix_value.weight", Slot::kV, width, dim_, CutAxis::kWhole);
    Matrix("time_mix_output.weight", Slot::kO, dim_, width, CutAxis::kWhole);
    const auto low = [&](const char* part, Slot first, Slot second, int rank) {
      Matrix(fmt::format("time_mix_{}1.weight", part), first, Unsigned(rank), dim_, CutAxis::kWhole, {},
             TensorForm::kRouter);
      Matrix(fmt::format("time_mix_{}2.weight", part), second, width, Unsigned(rank), CutAxis::kWhole, {},
             TensorForm::kRouter);
    };
    low("w", Slot::kStepLow, Slot::kStep, t.decay_rank);
    AnyShape("time_mix_w0.weight", Slot::kStepBias, width);
    low("a", Slot::kRateLow, Slot::kRate, t.rate_rank);
    AnyShape("time_mix_a0.weight", Slot::kRateBias, width);
    low("g", Slot::kOutGateLow, Slot::kOutGate, t.gate_rank);
    if (!t.first) {
      low("v", Slot::kShareLow, Slot::kShare, t.value_rank);
      AnyShape("time_mix_v0.weight", Slot::kShareBias, width);
    }
    AnyShape("time_mix_k_k.weight", Slot::kRemovalScale, width);
    AnyShape("time_mix_k_a.weight", Slot::kRateScale, width);
    AnyShape("time_mix_r_k.weight", Slot::kBonus, width);
    AnyShape("time_mix_ln.weight", Slot::kStateNorm, width);
    AnyShape("time_mix_ln.bias", Slot::kStateNormBias, width);
  }
  void Add(const ChannelMixSpec& c) {
    AnyShape("channel_mix_lerp_k.weight", Slot::kConv, dim_);
    Matrix("channel_mix_key.weight", Slot::kUp, Unsigned(c.width), dim_, CutAxis::kWhole);
    Matrix("channel_mix_value.weight", Slot::kO, dim_, Unsigned(c.width), CutAxis::kWhole);
  }
  void Add(const NoMixer&) {}

  void Add(const DenseSpec& f) {
    const uint64_t width = Unsigned(f.width);
    // If both are in one tensor, it has the name of the second.
    if (f.gated) Matrix("ffn_gate.weight", Slot::kGate, width, dim_, CutAxis::kOutputs, "ffn_up.weight");
    Matrix("ffn_up.weight", Slot::kUp, width, dim_, CutAxis::kOutputs, f.gated ? "ffn_up.weight" : "");
    Matrix("ffn_down.weight", Slot::kDown, dim_, width, CutAxis::kInputs);
    if (!f.biases) return;
    Vector("ffn_up.bias", Slot::kUpBias, width, CutAxis::kOutputs);
    Vector("ffn_down.bias", Slot::kDownBias, dim_);
  }

  void Add(const ExpertSpec& e) {
    const uint64_t width = Unsigned(e.width), count = Unsigned(e.count);
    Matrix("ffn_gate_inp.weight", Slot::kRouter, count, dim_, CutAxis::kWhole, {}, TensorForm::kRouter);
    if (e.router_bias) Vector("ffn_gate_inp.bias", Slot::kRouterBias, count);
    if (e.choice_bias) Vector(std::string(e.choice_bias_name), Slot::kChoiceBias, count);
    auto experts = [&](const char* name, Slot slot, uint64_t n, uint64_t k, const char* fused) {
      Matrix(name, slot, n, k, CutAxis::kExperts, fused, TensorForm::kExperts);
    };
    const char* fused = e.gated ? "ffn_gate_up_exps.weight" : "";
    if (e.gated) experts("ffn_gate_exps.weight", Slot::kExpertGate, width, dim_, fused);
    experts("ffn_up_exps.weight", Slot::kExpertUp, width, dim_, fused);
    experts("ffn_down_exps.weight", Slot::kExpertDown, dim_, width, "");
    if (e.biases) {
      if (e.gated) Biases("ffn_gate_exps.bias", Slot::kExpertGateBias, width, count);
      Biases("ffn_up_exps.bias", Slot::kExpertUpBias, width, count);
      Biases("ffn_down_exps.bias", Slot::kExpertDownBias, dim_, count);
    }
    if (e.beside_dense) {
      Vector("post_ffw_norm_1.weight", Slot::kSharedPostNorm, dim_);
      Vector("pre_ffw_norm_2.weight", Slot::kExpertsNorm, dim_);
      Vector("post_ffw_norm_2.weight", Slot::kExpertsPostNorm, dim_);
      Vector("ffn_gate_inp.scale", Slot::kRouterScale, dim_);
      Vector("ffn_down_exps.scale", Slot::kExpertScales, count, CutAxis::kExperts);
      return Add(DenseSpec{.width = e.shared_width, .activation = e.activation, .gated = e.gated});
    }
    if (e.shared_width == 0) return;
    const uint64_t shared = Unsigned(e.shared_width);
    if (e.shared_gate) Vector("ffn_gate_inp_shexp.weight", Slot::kSharedGate, dim_);
    if (e.gated) Matrix("ffn_gate_shexp.weight", Slot::kGate, shared, dim_, CutAxis::kOutputs);
    Matrix("ffn_up_shexp.weight", Slot::kUp, shared, dim_, CutAxis::kOutputs);
    Matrix("ffn_down_shexp.weight", Slot::kDown, dim_, shared, CutAxis::kInputs);
  }
  void Biases(const char* name, Slot slot, uint64_t n, uint64_t experts) {
    Vector(name, slot, n, CutAxis::kExperts);
    rows_.back().dims.push_back(experts);
  }
  void Add(const NoFeedForward&) {}

  void AddStreams(uint64_t count) {
    const auto decides = [&](const char* name, Slot slot, uint64_t n, uint64_t k) {
      Matrix(name, slot, n, k, CutAxis::kWhole, {}, TensorForm::kRouter);
    };
    decides("altup_router.weight", Slot::kStreamRouter, count, dim_);
    Vector("altup_router_norm.weight", Slot::kStreamRouterNorm, dim_);
    decides("altup_predict_coef.weight", Slot::kStreamPrediction, count * count, count);
    decides("altup_correct_coef.weight", Slot::kStreamCorrection, count, count);
    Vector("altup_correct_scale.weight", Slot::kStreamScale, dim_);
  }

  void Add(const PerLayerEmbeddingSpec& s) {
    if (s.width == 0) return;
    const uint64_t width = Unsigned(s.width);
    Matrix("per_layer_model_proj.weight", Slot::kSideModel, width, dim_, CutAxis::kWhole);
    rows_.back().part = s.number;
    rows_.back().parts = s.pieces;
    Vector("per_layer_proj_norm.weight", Slot::kSideModelNorm, width);
    rows_.back().parts = 1;
    Matrix("inp_gate.weight", Slot::kSideGate, width, dim_, CutAxis::kOutputs);
    Matrix("proj.weight", Slot::kSideOut, dim_, width, CutAxis::kInputs);
    Vector("post_norm.weight", Slot::kSidePostNorm, dim_);
  }

  const LayerSpec& l_;
  const uint64_t dim_;
  std::vector<TensorRow> rows_;
};

}  // namespace

std::vector<TensorRow> LayerTensors(const LayerSpec& layer, int dim) { return Table(layer, dim).Rows(); }

}  // namespace gyre
