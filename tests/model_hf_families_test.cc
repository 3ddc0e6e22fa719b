// Folders of families whose files differ from GGUF in more than names: a GGUF model written as such a folder, by the
// definitions of transformers, gives the logits of the GGUF, and so does what `convert` makes of the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "model/gguf.h"
#include "model/hf/folder.h"
#include "model/mapped_file.h"
#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::HasSubstr;

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// Rows of a matrix, as bytes of one element type.
struct MatrixRows {
  std::string dtype;
  std::vector<uint64_t> shape;  // [rows][...]
  std::vector<std::string> rows;
  std::string Bytes() const {
    std::string all;
    for (const std::string& r : rows) all += r;
    return all;
  }
};

class FolderWriter {
 public:
  FolderWriter(std::span<const std::byte> bytes, std::string path) : path_(std::move(path)) {
    gguf_ = *Gguf::Parse(bytes);
    arch_ = *gguf_.String("general.architecture").value();
  }

  // `change`: changes the config before it is written.
  void Write(const std::function<void(json::object&)>& change = {}) {
    json::object config = Config();
    if (change) change(config);
    WriteText(path_ + "/config.json", json::serialize(config));
    for (const auto& [name, t] : gguf_.tensors().all()) Put(name, t);
    for (auto& [name, parts] : joined_) Join(name, parts);
    WriteText(path_ + "/model.safetensors", shard_.Bytes());
  }

 private:
  bool delta() const { return arch_.substr(0, 5) == "qwen3"; }
  bool next() const { return arch_ == "qwen3next"; }
  bool latent() const { return arch_ == "deepseek2"; }
  bool gemma() const { return arch_ == "gemma4"; }
  uint64_t N(const char* key, uint64_t fallback = 0) const {
    return static_cast<uint64_t>(gguf_.Int(arch_ + "." + key, 0, 1 << 30)->value_or(static_cast<int64_t>(fallback)));
  }
  double F(const char* key, double fallback = 0) const { return gguf_.Float(arch_ + "." + key)->value_or(fallback); }
  std::vector<int64_t> Each(const char* key) const {
    return gguf_.Ints(arch_ + "." + key, N("block_count"), 0, 1 << 30)->value_or(std::vector<int64_t>());
  }

  json::object Config() const {
    const uint64_t drafts = N("nextn_predict_layers"), layers = N("block_count") - drafts;
    json::object c{{"num_hidden_layers", layers},
                   {"hidden_size", N("embedding_length")},
                   {"num_attention_heads", N("attention.head_count")},
                   {"max_position_embeddings", N("context_length")},
                   {"rms_norm_eps", F("attention.layer_norm_rms_epsilon")},
                   {"vocab_size", gguf_.tensors().Find("token_embd.weight")->dims[1]},
                   {"tie_word_embeddings", !gguf_.tensors().Has("output.weight")}};
    const auto widths = Each("feed_forward_length"), kv = Each("attention.head_count_kv");
    json::object rope{{"rope_theta", F("rope.freq_base", 10000)}, {"rope_type", "default"}};
    if (N("expert_count") > 0) {
      c["moe_intermediate_size"] = N("expert_feed_forward_length");
      c[gemma() ? "top_k_experts" : "num_experts_per_tok"] = N("expert_used_count");
    }
    if (!widths.empty() && !(delta() && N("expert_count") > 0)) c["intermediate_size"] = widths[0];
    if (delta()) {
      const uint64_t head = N("attention.key_length", N("embedding_length") / N("attention.head_count"));
      c["model_type"] = next() ? "qwen3_next" : arch_ == "qwen35" ? "qwen3_5_text" : "qwen3_5_moe_text";
      c["num_key_value_heads"] = kv[0];
      c["head_dim"] = head;
      c["linear_conv_kernel_dim"] = N("ssm.conv_kernel");
      c["linear_key_head_dim"] = c["linear_value_head_dim"] = N("ssm.state_size");
      c["linear_num_key_heads"] = N("ssm.group_count");
      c["linear_num_value_heads"] = N("ssm.time_step_rank");
      if (N("expert_count") > 0) {
        c["num_experts"] = N("expert_count");
        c["shared_expert_intermediate_size"] = N("expert_shared_feed_forward_length");
      }
      json::array types;
      for (uint64_t i = 0; i < layers; ++i)
        types.push_back((i + 1) % N("full_attention_interval", 4) == 0 ? "full_attention" : "linear_attention");
      c["layer_types"] = types;
      rope["partial_rotary_factor"] = static_cast<double>(N("rope.dimension_count", head)) / static_cast<double>(head);
      rope["mrope_section"] = {2, 1, 1};
    } else if (latent()) {
      c["model_type"] = "deepseek_v3";
      const uint64_t turned = N("rope.dimension_count");
      c["num_key_value_heads"] = N("attention.head_count");
      c["kv_lora_rank"] = N("attention.kv_lora_rank");
      if (N("attention.q_lora_rank") > 0) c["q_lora_rank"] = N("attention.q_lora_rank");
      c["qk_rope_head_dim"] = turned;
      c["qk_nope_head_dim"] = N("attention.key_length_mla") - turned;
      c["v_head_dim"] = N("attention.value_length_mla");
      c["first_k_dense_replace"] = N("leading_dense_block_count");
      c["n_routed_experts"] = N("expert_count");
      c["n_shared_experts"] = N("expert_shared_count");
      c["n_group"] = N("expert_group_count", 1);
      c["topk_group"] = N("expert_group_used_count", 1);
      c["routed_scaling_factor"] = F("expert_weights_scale", 1);
      c["norm_topk_prob"] = gguf_.Bool(arch_ + ".expert_weights_norm")->value_or(false);
      c["scoring_func"] = N("expert_gating_func") == 2 ? "sigmoid" : "softmax";
      c["num_nextn_predict_layers"] = drafts;
      if (const double factor = F("rope.scaling.factor", 0); factor > 0) {
        const double all = 10 * F("rope.scaling.yarn_log_multiplier");
        c["rope_scaling"] = {{"type", "yarn"},
                             {"factor", factor},
                             {"original_max_position_embeddings", N("rope.scaling.original_context_length")},
                             {"mscale", all},
                             {"mscale_all_dim", all}};
      }
    } else if (gemma()) {
      c["model_type"] = "gemma4_text";
      const auto local = Each("attention.sliding_window_pattern");
      json::array types;
      for (int64_t l : local) types.push_back(l != 0 ? "sliding_attention" : "full_attention");
      c["layer_types"] = types;
      c["head_dim"] = N("attention.key_length_swa");
      c["global_head_dim"] = N("attention.key_length");
      c["num_key_value_heads"] = kv[0];
      c["num_global_key_value_heads"] = kv.back();
      c["attention_k_eq_v"] = kv[0] != kv.back();
      c["use_double_wide_mlp"] = widths.back() != widths[0];
      c["num_kv_shared_layers"] = N("attention.shared_kv_layers");
      c["hidden_size_per_layer_input"] = N("embedding_length_per_layer_input");
      c["final_logit_softcapping"] = F("final_logit_softcapping");
      c["sliding_window"] = N("attention.sliding_window");
      c["enable_moe_block"] = N("expert_count") > 0;
      if (N("expert_count") > 0) c["num_experts"] = N("expert_count");
      const auto factors = *gguf_.tensors().Vector("rope_freqs.weight", {N("attention.key_length") / 2});
      double turned = 0;
      for (float f : factors) turned += f < 2 ? 1 : 0;
      rope["rope_type"] = "proportional";
      rope["partial_rotary_factor"] = turned / static_cast<double>(factors.size());
      const json::object window{{"rope_theta", F("rope.freq_base_swa", 10000)}, {"rope_type", "default"}};
      rope = {{"full_attention", rope}, {"sliding_attention", window}};
    }
    c["rope_parameters"] = rope;
    if (delta() && !next()) return {{"model_type", "qwen3_5"}, {"text_config", c}};
    return c;
  }

  static MatrixRows RowsOf(const TensorView& t) {
    MatrixRows out{.dtype = std::string(Info(t.type).name), .shape = {t.dims.rbegin(), t.dims.rend()}, .rows = {}};
    const size_t n = out.shape[0], each = t.bytes / n;
    for (size_t r = 0; r < n; ++r) out.rows.emplace_back(reinterpret_cast<const char*>(t.data) + r * each, each);
    return out;
  }
  template <typename Fn>
  static void Map(MatrixRows* rows, Fn fn) {
    for (std::string& row : rows->rows) {
      for (size_t i = 0; i + 4 <= row.size(); i += 4) {
        float f = 0;
        std::memcpy(&f, row.data() + i, 4);
        f = static_cast<float>(fn(static_cast<double>(f)));
        std::memcpy(row.data() + i, &f, 4);
      }
    }
  }
  void Out(const std::string& name, const MatrixRows& rows) { shard_.Add(name, rows.dtype, rows.shape, rows.Bytes()); }

  // The folder's place of each value head that GGUF's qwen35 has at j: those of a key head follow each other.
  uint64_t Place(uint64_t j) const {
    const uint64_t keys = N("ssm.group_count"), each = N("ssm.time_step_rank") / keys;
    return next() ? j : j % keys * each + j / keys;
  }
  // `size` rows for each value head, behind `before` others.
  void Undeal(MatrixRows* rows, uint64_t before, uint64_t size) const {
    const std::vector<std::string> old = rows->rows;
    for (uint64_t j = 0; j < N("ssm.time_step_rank"); ++j) {
      for (uint64_t r = 0; r < size; ++r) rows->rows[before + Place(j) * size + r] = old[before + j * size + r];
    }
  }

  void Put(const std::string& name, const TensorView& t) {
    static const std::map<std::string, std::string> kEnds = {
        {"token_embd.weight", "embed_tokens.weight"},
        {"output_norm.weight", "norm.weight"},
        {"output.weight", "lm_head.weight"},
        {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
        {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
        {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"}};
    const std::string model = gemma() || (delta() && !next()) ? "model.language_model." : "model.";
    MatrixRows rows = RowsOf(t);
    const bool norm = name.ends_with("norm.weight") && !name.ends_with("ssm_norm.weight");
    if (delta() && norm) Map(&rows, [](double w) { return w - 1; });
    if (name == "rope_freqs.weight") return;  // it follows from the config
    if (const auto end = kEnds.find(name); end != kEnds.end())
      return Out((name == "output.weight" ? "" : model) + end->second, rows);
    const size_t dot = name.find('.', 4);
    const std::string number = name.substr(4, dot - 4), part = name.substr(dot + 1);
    std::string layer = model + "layers." + number + ".";
    if (delta() && std::stoul(number) >= N("block_count") - N("nextn_predict_layers")) layer = "mtp.layers.0.";
    const uint64_t head = N("ssm.state_size"), keys = 2 * N("ssm.group_count") * head;
    if (delta() && (part == "attn_qkv.weight" || part == "attn_gate.weight")) {
      if (next()) return void(joined_[layer + "linear_attn.in_proj_qkvz.weight"].emplace(part, rows));
      Undeal(&rows, part == "attn_gate.weight" ? 0 : keys, head);
      return Out(
          layer + (part == "attn_gate.weight" ? "linear_attn.in_proj_z.weight" : "linear_attn.in_proj_qkv.weight"),
          rows);
    }
    if (part == "ssm_conv1d.weight") {
      Undeal(&rows, keys, head);
      rows.shape = {rows.shape[0], 1, rows.shape[1]};
    }
    if (part == "ssm_alpha.weight" || part == "ssm_beta.weight" || part == "ssm_a" || part == "ssm_dt.bias")
      Undeal(&rows, 0, 1);
    if (part == "ssm_a") Map(&rows, [](double a) { return std::log(-a); });
    if (part == "ssm_out.weight") {
      for (std::string& row : rows.rows) {
        const std::string old = row;
        const size_t bytes = head * Info(t.type).block_bytes;
        for (uint64_t j = 0; j < N("ssm.time_step_rank"); ++j)
          row.replace(Place(j) * bytes, bytes, old, j * bytes, bytes);
      }
    }
    if (part == "attn_k_b.weight" || part == "attn_v_b.weight")
      return void(joined_[layer + "self_attn.kv_b_proj.weight"].emplace(part, rows));
    const bool gate = part == "ffn_gate_exps.weight", up = part == "ffn_up_exps.weight",
               down = part == "ffn_down_exps.weight";
    if ((gate || up) && (gemma() || arch_ == "qwen35moe"))
      return void(joined_[layer + (gemma() ? "" : "mlp.") + "experts.gate_up_proj"].emplace(part, rows));
    if ((gate || up || down) && (next() || latent())) {
      for (size_t e = 0; e < rows.rows.size(); ++e) {
        shard_.Add(fmt::format("{}mlp.experts.{}.{}_proj.weight", layer, e,
                               gate ? "gate"
                               : up ? "up"
                                    : "down"),
                   rows.dtype, {rows.shape[1], rows.shape[2]}, rows.rows[e]);
      }
      return;
    }
    static const std::map<std::string, std::string> kParts = {
        {"attn_norm.weight", "input_layernorm.weight"},
        {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"},
        {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"},
        {"attn_q_norm.weight", "self_attn.q_norm.weight"},
        {"attn_k_norm.weight", "self_attn.k_norm.weight"},
        {"post_attention_norm.weight", "post_attention_layernorm.weight"},
        {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
        {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
        {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
        {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
        {"layer_output_scale.weight", "layer_scalar"},
        {"inp_gate.weight", "per_layer_input_gate.weight"},
        {"proj.weight", "per_layer_projection.weight"},
        {"post_norm.weight", "post_per_layer_input_norm.weight"},
        {"ffn_gate_inp.scale", "router.scale"},
        {"ffn_down_exps.scale", "router.per_expert_scale"},
        {"ffn_gate.weight", "mlp.gate_proj.weight"},
        {"ffn_up.weight", "mlp.up_proj.weight"},
        {"ffn_down.weight", "mlp.down_proj.weight"},
        {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
        {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
        {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
        {"ssm_dt.bias", "linear_attn.dt_bias"},
        {"ssm_a", "linear_attn.A_log"},
        {"ssm_norm.weight", "linear_attn.norm.weight"},
        {"ssm_out.weight", "linear_attn.out_proj.weight"},
        {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
        {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
        {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
        {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
        {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
        {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
        {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
        {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
        {"nextn.eh_proj.weight", "eh_proj.weight"},
        {"nextn.enorm.weight", "enorm.weight"},
        {"nextn.hnorm.weight", "hnorm.weight"},
        {"nextn.shared_head_norm.weight", "shared_head.norm.weight"}};
    std::string hf;
    if (const auto at = kParts.find(part); at != kParts.end()) hf = at->second;
    if (part == "ffn_norm.weight")
      hf = gemma() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
    if (part == "ffn_gate_inp.weight") hf = gemma() ? "router.proj.weight" : "mlp.gate.weight";
    if (part == "ffn_gate_up_exps.weight") hf = "experts.gate_up_proj";
    if (down) hf = gemma() ? "experts.down_proj" : "mlp.experts.down_proj";
    for (const char* x : {"gate", "up", "down"}) {
      if (part == std::string("ffn_") + x + "_shexp.weight")
        hf = std::string(latent() ? "mlp.shared_experts." : "mlp.shared_expert.") + x + "_proj.weight";
    }
    ASSERT_FALSE(hf.empty()) << name;
    if (hf == "mlp.shared_expert_gate.weight") rows.shape = {1, rows.shape[0]};
    Out(layer + hf, rows);
  }

  // Tensors that are two in GGUF.
  void Join(const std::string& name, std::map<std::string, MatrixRows>& parts) {
    MatrixRows out{.dtype = parts.begin()->second.dtype, .shape = {}, .rows = {}};
    auto take = [&](const MatrixRows& from, uint64_t first, uint64_t count) {
      out.rows.insert(out.rows.end(), from.rows.begin() + static_cast<std::ptrdiff_t>(first),
                      from.rows.begin() + static_cast<std::ptrdiff_t>(first + count));
    };
    if (name.ends_with("qkvz.weight")) {
      const MatrixRows &qkv = parts["attn_qkv.weight"], &z = parts["attn_gate.weight"];
      const uint64_t keys = N("ssm.group_count"), head = N("ssm.state_size"),
                     each = N("ssm.time_step_rank") / keys * head;
      for (uint64_t k = 0; k < keys; ++k) {
        take(qkv, k * head, head);
        take(qkv, (keys + k) * head, head);
        take(qkv, 2 * keys * head + k * each, each);
        take(z, k * each, each);
      }
      out.shape = {out.rows.size(), qkv.shape[1]};
    } else if (name.ends_with("kv_b_proj.weight")) {
      const MatrixRows &k = parts["attn_k_b.weight"],
                       &v = parts["attn_v_b.weight"];  // [heads][rank][key], [heads][value][rank]
      const uint64_t rank = k.shape[1], key = k.shape[2], value = v.shape[1];
      for (size_t h = 0; h < k.rows.size(); ++h) {
        const size_t size = k.rows[h].size() / rank / key;
        for (uint64_t c = 0; c < key; ++c) {
          std::string row;
          for (uint64_t r = 0; r < rank; ++r) row += k.rows[h].substr((r * key + c) * size, size);
          out.rows.push_back(row);
        }
        for (uint64_t c = 0; c < value; ++c) out.rows.push_back(v.rows[h].substr(c * rank * size, rank * size));
      }
      out.shape = {out.rows.size(), rank};
    } else {  // gate rows first
      const MatrixRows &gate = parts["ffn_gate_exps.weight"], &up = parts["ffn_up_exps.weight"];
      for (size_t e = 0; e < gate.rows.size(); ++e) out.rows.push_back(gate.rows[e] + up.rows[e]);
      out.shape = {gate.shape[0], 2 * gate.shape[1], gate.shape[2]};
    }
    Out(name, out);
  }

  Gguf gguf_;
  std::string arch_, path_;
  testing::Shard shard_;
  std::map<std::string, std::map<std::string, MatrixRows>> joined_;
};

testing::Logits LogitsOf(const std::string& path, const std::vector<TokenId>& ids) {
  RuntimeOptions o;
  o.model = path;
  o.threads = 1;
  o.kv_type = "f32";
  o.ctx = 256;
  o.quiet = true;
  return testing::PromptLogits(o, ids);
}

class HfFamilies : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gyre-hf-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    fs::create_directory(folder_ + "/hf");
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The folder and its conversion compute what the GGUF does, but for rounding.
  void Compare(const std::string& gguf, const std::vector<TokenId>& ids) {
    const auto file = MappedFile::Open(gguf);
    ASSERT_TRUE(file.ok()) << file.status();
    FolderWriter((*file)->bytes(), folder_ + "/hf").Write();
    const testing::Logits expected = LogitsOf(gguf, ids);
    ASSERT_EQ(expected.size(), ids.size());
    const auto folder = OpenHfFolder(folder_ + "/hf");
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto report = ConvertToGguf(**folder, folder_ + "/out.gguf", {.overwrite = true});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->changed.empty());
    for (const std::string& path : {folder_ + "/hf", folder_ + "/out.gguf"}) {
      const testing::Logits got = LogitsOf(path, ids);
      ASSERT_EQ(got.size(), expected.size()) << path;
      EXPECT_LT(testing::Between(expected, got).rms, 1e-5) << path;
    }
  }
  std::string folder_;
};

std::vector<TokenId> SomeIds() {
  std::vector<TokenId> ids;
  for (TokenId i = 0; i < 24; ++i) ids.push_back(3 + i * 7 % 90);
  return ids;
}

TEST_F(HfFamilies, TinyHybridsGiveTheLogitsOfTheirGguf) {
  for (const char* arch : {"qwen35", "qwen35moe", "qwen3next", "deepseek2"}) {
    SCOPED_TRACE(arch);
    const auto bytes = testing::BuildTinyHybrid(arch);
    WriteText(folder_ + "/in.gguf", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    Compare(folder_ + "/in.gguf", SomeIds());
  }
}

TEST_F(HfFamilies, ExactModelsGiveTheLogitsOfTheirGguf) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the models are not there";
  const std::string dir = testing::SharedData("golden2026/");
  const auto ids = testing::ReadNumbers<TokenId>(dir + "ids.txt");
  for (const char* name : {"qwen35", "qwen35moe", "qwen3next", "deepseek2", "deepseek2lite", "glmflash", "gemma4",
                           "gemma4-moe", "gemma4-e"}) {
    SCOPED_TRACE(name);
    Compare(dir + "tiny-" + name + "-s0-f16.gguf", ids);
  }
}

TEST_F(HfFamilies, ValuesThatChangeTheResultAreRefused) {
  struct Refusal {
    const char* arch;
    const char* key;
    json::value value;
    const char* says;
  };
  for (const Refusal& r : {Refusal{"qwen3next", "decoder_sparse_step", 2, "decoder_sparse_step is 2"},
                           {"qwen3next", "mlp_only_layers", json::array{1}, "mlp_only_layers is [1]"},
                           {"qwen3next", "linear_value_head_dim", 16, "linear_value_head_dim is 16"},
                           {"qwen3next", "linear_num_key_heads", 0, "linear_num_key_heads is 0"},
                           {"qwen3next", "layer_types", json::array{"full_attention"}, "layer_types is no list of 6"},
                           {"deepseek2", "moe_layer_freq", 2, "moe_layer_freq is 2"},
                           {"deepseek2", "rope_interleave", false, "rope_interleave is false"},
                           {"deepseek2", "scoring_func", "tanh", "scoring_func is \"tanh\""},
                           {"deepseek2", "kv_lora_rank", 1 << 30, "latent attention with a width of"},
                           {"deepseek2", "qk_nope_head_dim", 16, "kv_b_proj"}}) {
    SCOPED_TRACE(r.key);
    FolderWriter(testing::BuildTinyHybrid(r.arch), folder_ + "/hf").Write([&](json::object& c) { c[r.key] = r.value; });
    EXPECT_THAT(std::string(OpenHfFolder(folder_ + "/hf").status().message()), HasSubstr(r.says));
  }
}

}  // namespace
}  // namespace gyre
