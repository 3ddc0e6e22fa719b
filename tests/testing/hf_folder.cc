#include "tests/testing/hf_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "model/gguf.h"
#include "model/weights.h"
#include "tests/testing/safetensors_writer.h"

namespace gyre::testing {
namespace {

namespace json = boost::json;

bool IsGemma(const std::string& arch) { return arch.substr(0, 5) == "gemma"; }

json::object Config(const HfCase& c, const ModelSpec& s) {
  const LayerSpec& l = s.layers[0];
  json::object config{{"model_type", c.model_type},
                      {"num_hidden_layers", s.layers.size()},
                      {"hidden_size", s.dim},
                      {"num_attention_heads", l.attention()->heads},
                      {"num_key_value_heads", l.attention()->kv_heads},
                      {"head_dim", l.attention()->head_dim},
                      {"intermediate_size", 64},
                      {"max_position_embeddings", s.context},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 10000.0},
                      {"vocab_size", s.vocab},
                      {"tie_word_embeddings", false}};
  const std::string arch = c.arch;
  if (l.attention()->window > 0 || IsGemma(arch)) config["sliding_window"] = 8;
  if (const ExpertSpec* e = s.layers.back().experts()) {
    config["num_experts"] = e->count;
    config["num_experts_per_tok"] = e->used;
    config["moe_intermediate_size"] = e->width;
    if (e->shared_width > 0 && arch == "qwen2moe") config["shared_expert_intermediate_size"] = e->shared_width;
    config["norm_topk_prob"] = e->normalize;
  }
  if (IsGemma(arch)) config["query_pre_attn_scalar"] = l.attention()->head_dim;
  if (arch == "glm4moe") {
    config["partial_rotary_factor"] = 1.0;
    config["first_k_dense_replace"] = 1;
    config["n_shared_experts"] = 1;
    config["routed_scaling_factor"] = 1.5;
  } else if (arch == "mistral3") {
    config["rope_parameters"] = {
        {"rope_type", "yarn"}, {"factor", 4.0},         {"original_max_position_embeddings", 16},
        {"mscale", 1.0},       {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.5}};
  } else if (arch == "gpt-oss") {
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
    config["swiglu_limit"] = 7.0;
  } else if (arch == "granite") {
    config["embedding_multiplier"] = 2.0;
    config["residual_multiplier"] = 0.5;
    config["attention_multiplier"] = 0.25;
    config["logits_scaling"] = 3.0;
  } else if (arch == "smollm3") {
    config["no_rope_layers"] = {1, 1, 1, 0, 1};
  } else if (arch == "olmo2") {
    json::array types;
    for (const LayerSpec& layer : s.layers)
      types.push_back(layer.attention()->window > 0 ? "sliding_attention" : "full_attention");
    config["layer_types"] = types;
  }
  return config;
}

std::string HfName(std::string name, const std::string& arch) {
  auto swap = [&](const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    if (at != std::string::npos && name.substr(at) == from) name = name.substr(0, at) + to;
  };
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  const bool fused = arch == "phi3";
  swap("attn_norm.weight", "input_layernorm.weight");
  swap("ffn_norm.weight", IsGemma(arch) ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
  swap("post_attention_norm.weight", "post_attention_layernorm.weight");
  swap("post_ffw_norm.weight", "post_feedforward_layernorm.weight");
  for (const char* x : {"q", "k", "v"}) {
    swap(std::string("attn_") + x + ".weight", std::string("self_attn.") + x + "_proj.weight");
    swap(std::string("attn_") + x + ".bias", std::string("self_attn.") + x + "_proj.bias");
    swap(std::string("attn_") + x + "_norm.weight", std::string("self_attn.") + x + "_norm.weight");
  }
  swap("attn_qkv.weight", "self_attn.qkv_proj.weight");
  swap("attn_output.weight", "self_attn.o_proj.weight");
  const std::string mixture = arch == "minimax-m2" ? "block_sparse_moe." : "mlp.";
  swap("exp_probs_b.bias", mixture + (arch == "minimax-m2" ? "" : "gate.") + "e_score_correction_bias");
  if (arch == "gpt-oss") swap("ffn_gate_inp.weight", "mlp.router.weight");
  swap("ffn_gate_inp.bias", "mlp.router.bias");
  swap("ffn_gate_inp.weight", mixture + "gate.weight");
  swap("attn_output.bias", "self_attn.o_proj.bias");
  swap("attn_sinks.weight", "self_attn.sinks");
  swap("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight");
  for (const char* x : {"gate", "up", "down"}) {
    swap(std::string("ffn_") + x + "_exps.weight", mixture + "experts.EXPERT." +
                                                       (arch != "minimax-m2"     ? std::string(x) + "_proj"
                                                        : x == std::string("up") ? "w3"
                                                        : x[0] == 'g'            ? "w1"
                                                                                 : "w2") +
                                                       ".weight");
    swap(std::string("ffn_") + x + "_shexp.weight",
         std::string(arch == "glm4moe" ? "mlp.shared_experts." : "mlp.shared_expert.") + x + "_proj.weight");
    swap(std::string("ffn_") + x + ".weight",
         std::string("mlp.") + (fused && x == std::string("up") ? "gate_up" : x) + "_proj.weight");
  }
  return "model.layers." + name.substr(4);
}

// The rows of queries and keys in the order of Hugging Face: the halves of each head one after the other, not by turns.
std::vector<float> HalvesInARow(const std::vector<float>& v, size_t row_size, size_t half) {
  std::vector<float> turned(v.size());
  for (size_t r = 0; r < v.size() / row_size; ++r) {
    const size_t in_head = r % (2 * half), target = r - in_head + in_head % 2 * half + in_head / 2;
    std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(r * row_size), row_size,
                turned.begin() + static_cast<std::ptrdiff_t>(target * row_size));
  }
  return turned;
}

}  // namespace

void HfFolderTest::SetUp() {
  char folder[] = "/tmp/gyre-hf-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  folder_ = folder;
}

void HfFolderTest::TearDown() { std::filesystem::remove_all(folder_); }

void HfFolderTest::Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void HfFolderTest::MakeFolder(const HfCase& c, const std::vector<std::byte>& gguf_bytes, int shards) const {
  const auto gguf = Gguf::Parse(gguf_bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto model = OpenModelFromBytes(gguf_bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelSpec& s = (*model)->spec();
  Write(Path("config.json"), json::serialize(Config(c, s)));
  const std::string arch = c.arch;
  const bool permuted = std::set<std::string>{"llama", "mistral", "mistral3", "smollm3", "granite"}.count(arch) > 0;
  std::vector<Shard> out(static_cast<size_t>(shards));
  json::object map;
  size_t next = 0;
  auto put = [&](const std::string& name, const std::vector<uint64_t>& shape, const std::vector<float>& v) {
    const size_t shard = next++ % out.size();
    out[shard].AddFloats(name, shape, v);
    map[name] = fmt::format("part{}.safetensors", shard);
  };
  for (const auto& [name, t] : gguf->tensors().all()) {
    std::vector<float> v(t.bytes / 4);
    std::memcpy(v.data(), t.data, t.bytes);
    std::vector<uint64_t> shape(t.dims.rbegin(), t.dims.rend());
    const auto has = [&name = name](const char* part) { return name.find(part) != std::string::npos; };
    if (arch == "gpt-oss" && has("_exps.")) continue;  // they come in blocks
    const std::string hf = HfName(name, arch);
    if (IsGemma(arch) && has("norm")) {
      for (float& f : v) f -= 1;
    }
    if (permuted && (has("attn_q.") || has("attn_k.")))
      v = HalvesInARow(v, t.dims[0], static_cast<size_t>(s.layers[0].attention()->head_dim) / 2);
    if (has("_exps.")) {
      const size_t each = v.size() / shape[0];
      for (size_t e = 0; e < shape[0]; ++e) {
        std::string one = hf;
        one.replace(one.find("EXPERT"), 6, std::to_string(e));
        put(one, {shape[1], shape[2]},
            {v.begin() + static_cast<std::ptrdiff_t>(e * each),
             v.begin() + static_cast<std::ptrdiff_t>((e + 1) * each)});
      }
    } else {
      if (has("gate_inp_shexp")) shape = {1, shape[0]};
      put(hf, shape, v);
    }
  }
  if (shards == 1) return Write(Path("model.safetensors"), out[0].Bytes());
  for (size_t i = 0; i < out.size(); ++i) Write(Path(fmt::format("part{}.safetensors", i)), out[i].Bytes());
  Write(Path("model.safetensors.index.json"), json::serialize(json::object{{"weight_map", map}}));
}

}  // namespace gyre::testing
