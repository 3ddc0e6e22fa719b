// Hugging Face's folders: the same model as GGUF and as safetensors, logits compared; tokenizer.json against GGUF's
// vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "model/hf/folder.h"
#include "model/hf/safetensors.h"
#include "runtime/runtime.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::HasSubstr;
using testing::Shard;

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct Case {
  const char* arch;
  const char* model_type;
};

class HfTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gyre-hf-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // The GGUF model as such a folder, in `shards` files.
  void MakeFolder(const Case& c, const std::vector<std::byte>& gguf_bytes, int shards) const {
    const auto gguf = Gguf::Parse(gguf_bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const auto model = OpenModelFromBytes(gguf_bytes);
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelSpec& s = (*model)->spec();
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
    if (l.attention()->window > 0 || std::string(c.arch).substr(0, 5) == "gemma") config["sliding_window"] = 8;
    if (const ExpertSpec* e = s.layers.back().experts()) {
      config["num_experts"] = e->count;
      config["num_experts_per_tok"] = e->used;
      config["moe_intermediate_size"] = e->width;
      if (e->shared_width > 0) config["shared_expert_intermediate_size"] = e->shared_width;
      config["norm_topk_prob"] = e->normalize;
    }
    const std::string arch = c.arch;
    if (arch == "glm4moe") {
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
    Write(Path("config.json"), json::serialize(config));
    const bool gemma = std::string(c.arch).substr(0, 5) == "gemma";
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
      if (arch == "gpt-oss" && name.find("_exps.") != std::string::npos) continue;  // they come in blocks
      const std::string hf = HfName(name, gemma, c.arch);
      if (gemma && name.find("norm") != std::string::npos) {
        for (float& f : v) f -= 1;
      }
      if (permuted && (name.find("attn_q.") != std::string::npos || name.find("attn_k.") != std::string::npos)) {
        const size_t k = t.dims[0], half = static_cast<size_t>(l.attention()->head_dim) / 2;
        std::vector<float> turned(v.size());
        for (size_t r = 0; r < v.size() / k; ++r) {
          const size_t in_head = r % (2 * half), target = r - in_head + in_head % 2 * half + in_head / 2;
          std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(r * k), k,
                      turned.begin() + static_cast<std::ptrdiff_t>(target * k));
        }
        v = turned;
      }
      if (name.find("_exps.") != std::string::npos) {
        const size_t each = v.size() / shape[0];
        for (size_t e = 0; e < shape[0]; ++e) {
          std::string one = hf;
          one.replace(one.find("EXPERT"), 6, std::to_string(e));
          put(one, {shape[1], shape[2]},
              {v.begin() + static_cast<std::ptrdiff_t>(e * each),
               v.begin() + static_cast<std::ptrdiff_t>((e + 1) * each)});
        }
      } else {
        if (name.find("gate_inp_shexp") != std::string::npos) shape = {1, shape[0]};
        put(hf, shape, v);
      }
    }
    if (shards == 1) return Write(Path("model.safetensors"), out[0].Bytes());
    for (size_t i = 0; i < out.size(); ++i) Write(Path(fmt::format("part{}.safetensors", i)), out[i].Bytes());
    Write(Path("model.safetensors.index.json"), json::serialize(json::object{{"weight_map", map}}));
  }

  static std::string HfName(std::string name, bool gemma, const std::string& arch) {
    auto swap = [&](const std::string& from, const std::string& to) {
      const size_t at = name.find(from);
      if (at != std::string::npos && name.substr(at) == from) name = name.substr(0, at) + to;
    };
    if (name == "token_embd.weight") return "model.embed_tokens.weight";
    if (name == "output_norm.weight") return "model.norm.weight";
    if (name == "output.weight") return "lm_head.weight";
    const bool fused = arch == "phi3";
    swap("attn_norm.weight", "input_layernorm.weight");
    swap("ffn_norm.weight", gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
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

  static std::vector<float> Logits(const std::string& path) {
    RuntimeOptions o;
    o.model = path;
    o.threads = 1;
    o.kv_type = "f32";
    o.quiet = true;
    o.isa = "avx2";
    std::vector<TokenId> ids;
    for (TokenId i = 0; i < 24; ++i) ids.push_back(3 + i * 7 % 90);
    std::vector<float> out;
    for (const auto& row : testing::PromptLogits(o, ids)) out.insert(out.end(), row.begin(), row.end());
    return out;
  }
  static double Difference(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    EXPECT_FALSE(a.empty());
    double max = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      max = std::max(max, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    return max;
  }

  std::string folder_;
};

TEST_F(HfTest, EveryArchitectureGivesTheLogitsOfItsGguf) {
  if (!IsaMissing(Isa::kAvx2).empty()) GTEST_SKIP() << IsaMissing(Isa::kAvx2);
  int shards = 1;
  for (const Case& c : {Case{"llama", "llama"},
                        {"mistral", "mistral"},
                        {"qwen2", "qwen2"},
                        {"qwen2moe", "qwen2_moe"},
                        {"qwen3", "qwen3"},
                        {"qwen3moe", "qwen3_moe"},
                        {"gemma2", "gemma2"},
                        {"gemma3", "gemma3_text"},
                        {"phi3", "phi3"},
                        {"glm4moe", "glm4_moe"},
                        {"minimax-m2", "minimax_m2"},
                        {"mistral3", "ministral3"},
                        {"smollm3", "smollm3"},
                        {"olmo2", "olmo3"},
                        {"granite", "granite"},
                        {"seed_oss", "seed_oss"}}) {
    SCOPED_TRACE(c.arch);
    testing::TinyOptions o;
    o.arch = c.arch;
    o.layers = o.arch == "gemma3" ? 7 : o.arch == "smollm3" || o.arch == "olmo2" ? 5 : 2;
    const auto bytes = testing::BuildTinyModel(o);
    Write(Path("model.gguf"), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    MakeFolder(c, bytes, shards);
    const auto expected = Logits(Path("model.gguf"));
    EXPECT_LT(Difference(Logits(folder_), expected), 2e-5);
    const auto folder = OpenHfFolder(folder_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Status converted = ConvertToGguf(**folder, Path("converted.gguf"), {.overwrite = true}).status();
    ASSERT_TRUE(converted.ok()) << converted;
    EXPECT_LT(Difference(Logits(Path("converted.gguf")), expected), 2e-5);
    shards = shards == 1 ? 3 : 1;
    for (const char* file : {"model.safetensors", "model.safetensors.index.json"}) fs::remove(Path(file));
  }
}

// gpt-oss's experts, from the values as the format defines them.
TEST_F(HfTest, ExpertsInBlocksOfMxfp4AreTheirValues) {
  constexpr double kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  testing::TinyOptions o;
  o.arch = "gpt-oss";
  o.layers = 1;
  MakeFolder({"gpt-oss", "gpt_oss"}, testing::BuildTinyModel(o), 1);
  auto file = MappedFile::Open(Path("model.safetensors"));
  Shard out;
  {
    const auto tensors = *ParseSafetensors((*file)->bytes());
    for (const auto& [name, t] : tensors) {
      out.Add(name, t.dtype, t.shape, std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
    }
  }
  const std::string prefix = "model.layers.0.mlp.experts.";
  std::mt19937 random(1);
  std::map<std::string, std::string> blocks, scales;
  std::map<std::string, std::vector<float>> biases;
  for (const auto& [part, rows] : {std::pair<std::string, uint64_t>{"gate_up_proj", 64}, {"down_proj", 32}}) {
    for (uint64_t i = 0; i < 4 * rows * 16; ++i) blocks[part] += static_cast<char>(random());
    for (uint64_t i = 0; i < 4 * rows; ++i) scales[part] += static_cast<char>(120 + random() % 8);
    for (uint64_t i = 0; i < 4 * rows; ++i) biases[part].push_back(static_cast<float>(i));
    out.Add(prefix + part + "_blocks", "U8", {4, rows, 1, 16}, blocks[part]);
    out.Add(prefix + part + "_scales", "U8", {4, rows, 1}, scales[part]);
    out.AddFloats(prefix + part + "_bias", {4, rows}, biases[part]);
  }
  Write(Path("model.safetensors"), out.Bytes());
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(ConvertToGguf(**folder, Path("converted.gguf"), {}).ok());
  for (const std::string& path : {folder_, Path("converted.gguf")}) {
    const auto model = OpenModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto w = (*model)->Layer(0);
    ASSERT_TRUE(w.ok()) << w.status();
    std::vector<float> row(32);
    for (uint64_t e = 0; e < 4; ++e) {
      for (uint64_t r = 0; r < 32; ++r) {
        auto check = [&](const WeightView& view, const std::string& part, uint64_t at, const std::vector<float>& bias) {
          DequantizeRow(view, r, row.data());
          const double scale = std::exp2(static_cast<uint8_t>(scales[part][at]) - 127);
          for (size_t i = 0; i < 32; ++i) {
            const int code = static_cast<uint8_t>(blocks[part][at * 16 + i / 2]) >> (i % 2 * 4) & 15;
            EXPECT_EQ(row[i], scale * kCodes[code & 7] * (code > 7 ? -1 : 1))
                << part << " " << e << " " << r << " " << i;
          }
          EXPECT_EQ(bias[e * 32 + r], biases[part][at]);
        };
        check(w->experts[e].gate, "gate_up_proj", e * 64 + 2 * r, w->vector(Slot::kExpertGateBias));
        check(w->experts[e].up, "gate_up_proj", e * 64 + 2 * r + 1, w->vector(Slot::kExpertUpBias));
        check(w->experts[e].down, "down_proj", e * 32 + r, w->vector(Slot::kExpertDownBias));
      }
    }
  }
}

TEST_F(HfTest, BlockFp8AndChannelInt8AreTheirProducts) {
  testing::TinyOptions o;
  o.dim = 160;
  o.heads = 5;
  o.kv_heads = 5;
  const auto bytes = testing::BuildTinyModel(o);
  MakeFolder({"llama", "llama"}, bytes, 1);
  auto file = MappedFile::Open(Path("model.safetensors"));
  auto tensors = *ParseSafetensors((*file)->bytes());
  Shard out;
  const uint64_t n = 160, k = 160;
  std::string fp8, int8;
  for (uint64_t i = 0; i < n * k; ++i) {
    uint8_t b = static_cast<uint8_t>(i * 37 % 251);
    if ((b & 0x7F) == 0x7F) b = 0;
    fp8 += static_cast<char>(b);
    int8 += static_cast<char>(static_cast<int>(i * 31 % 255) - 127);
  }
  std::vector<float> block(4), channel(n);
  for (size_t i = 0; i < 4; ++i) block[i] = 0.001f * static_cast<float>(i + 1);
  for (size_t i = 0; i < n; ++i) channel[i] = 0.0001f * static_cast<float>(i + 1);
  for (const auto& [name, t] : tensors) {
    if (name == "model.layers.0.self_attn.o_proj.weight") {
      out.Add(name, "F8_E4M3", t.shape, fp8);
      out.AddFloats(name + "_scale_inv", {2, 2}, block);
    } else if (name == "model.layers.0.self_attn.v_proj.weight") {
      out.Add(name, "I8", t.shape, int8);
      out.AddFloats(name + "_scale", {n, 1}, channel);
    } else {
      out.Add(name, t.dtype, t.shape, std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
    }
  }
  tensors.clear();
  Write(Path("model.safetensors"), out.Bytes());
  const auto model = OpenModel(folder_);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto w = (*model)->Layer(0);
  ASSERT_TRUE(w.ok());
  std::vector<float> row(k);
  for (size_t r : {0u, 127u, 128u, 159u}) {
    DequantizeRow(w->matrix(Slot::kO), r, row.data());
    for (size_t c = 0; c < k; ++c) {
      const auto b = static_cast<uint8_t>(fp8[r * k + c]);
      const int e = b >> 3 & 15, m = b & 7;
      const double value =
          (e == 0 ? m * std::pow(2, -9) : (1 + m / 8.0) * std::pow(2, e - 7)) * ((b & 0x80) != 0 ? -1 : 1);
      const double expected = value * static_cast<double>(block[r / 128 * 2 + c / 128]);
      EXPECT_NEAR(row[c], expected, std::fabs(expected) / 256 + 1e-30) << r << " " << c;
    }
    DequantizeRow(w->matrix(Slot::kV), r, row.data());
    for (size_t c = 0; c < k; ++c)
      EXPECT_FLOAT_EQ(row[c], static_cast<float>(static_cast<int8_t>(int8[r * k + c])) * channel[r]);
  }
  // GGUF keeps the integers, and has no 8-bit floats.
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto report = ConvertToGguf(**folder, Path("converted.gguf"), {});
  ASSERT_TRUE(report.ok()) << report.status();
  const std::map<std::pair<DType, DType>, int> changed = {{{DType::kI8, DType::kQ8_0}, 1},
                                                          {{DType::kF8E4M3, DType::kBF16}, 1}};
  EXPECT_EQ(report->changed, changed);
  const auto converted = OpenModel(Path("converted.gguf"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  const auto stored = (*converted)->Layer(0);
  ASSERT_TRUE(stored.ok());
  std::vector<float> kept(k);
  for (const auto& [slot, error] : {std::pair(Slot::kV, 1.0f / 2048), {Slot::kO, 1.0f / 256}}) {
    for (size_t r = 0; r < n; ++r) {
      DequantizeRow(w->matrix(slot), r, row.data());
      DequantizeRow(stored->matrix(slot), r, kept.data());
      for (size_t c = 0; c < k; ++c) ASSERT_NEAR(kept[c], row[c], std::fabs(row[c]) * error) << r << " " << c;
    }
  }
}

TEST_F(HfTest, AConversionOverwritesNoFileOfTheFolder) {
  MakeFolder({"llama", "llama"}, testing::BuildTinyModel({}), 1);
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  fs::create_hard_link(Path("model.safetensors"), Path("link.gguf"));
  for (const char* own : {"model.safetensors", "link.gguf", "config.json"}) {
    const auto size = fs::file_size(Path(own));
    EXPECT_THAT(Message(ConvertToGguf(**folder, Path(own), {.overwrite = true}).status()),
                HasSubstr("this is the source"));
    EXPECT_EQ(fs::file_size(Path(own)), size);
  }
  ASSERT_TRUE(ConvertToGguf(**folder, Path("new.gguf"), {}).ok());
  EXPECT_THAT(Message(ConvertToGguf(**folder, Path("new.gguf"), {}).status()), HasSubstr("--force overwrites it"));
}

TEST_F(HfTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("the folder has no config.json"));
  const auto bytes = testing::BuildTinyModel({});
  MakeFolder({"llama", "llama"}, bytes, 2);
  fs::remove(Path("part1.safetensors"));
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("missing: part1.safetensors"));
  Write(Path("config.json"), R"({"model_type": "mamba"})");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("\"mamba\" is not known; known are llama"));
  Write(Path("config.json"), R"({"model_type": "llama", "num_hidden_layers": "two"})");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("num_hidden_layers is \\x22two\\x22"));
  Write(Path("config.json"), "[");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("no JSON object"));
}

// A vocabulary of the shared data written as tokenizer.json gives the same ids.
TEST_F(HfTest, TokenizerJsonGivesTheIdsOfTheVocabulary) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the vocabularies are not there";
  for (const char* name : {"gpt-2", "qwen2", "llama3", "gemma3"}) {
    if (testing::kSanitized && name != std::string("gpt-2")) continue;  // JSON of megabytes, slowly
    SCOPED_TRACE(name);
    const std::string path = testing::SharedData(std::string("tokenizers/") + name);
    const auto file = MappedFile::Open(path + ".vocab.gguf");
    const auto gguf = Gguf::Parse((*file)->bytes());
    const auto reference = OpenTokenizer(path + ".vocab.gguf");
    ASSERT_TRUE(reference.ok()) << reference.status();
    const bool spm = std::string(name) == "gemma3";
    json::object vocab;
    json::array added, merges;
    std::vector<std::pair<float, std::string>> ranked;
    const GgufValue* tokens = *gguf->Array("tokenizer.ggml.tokens", GgufType::kString);
    const GgufValue* scores = spm ? *gguf->Array("tokenizer.ggml.scores", GgufType::kF32) : nullptr;
    std::set<std::string> pieces;
    ForEachString(*tokens, [&](uint64_t i, std::string_view piece) {
      const auto id = static_cast<TokenId>(i);
      const TokenType type = (*reference)->type(id);
      if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown) {
        // Runs of white space are added tokens of Gemma that merges go through.
        std::string spelled(piece);
        for (size_t at = 0; (at = spelled.find(' ', at)) != std::string::npos;) spelled.replace(at, 1, "\xE2\x96\x81");
        if (type == TokenType::kUserDefined) pieces.insert(spelled);
        added.push_back({{"id", static_cast<int64_t>(i)},
                         {"content", std::string(piece)},
                         {"special", type == TokenType::kControl}});
      } else if (type != TokenType::kUnused) {
        vocab[std::string(piece)] = static_cast<int64_t>(i);
        if (type == TokenType::kNormal) pieces.insert(std::string(piece));
        float score = 0;
        if (spm && type == TokenType::kNormal) std::memcpy(&score, scores->bytes.data() + 4 * i, 4);
        if (spm && type == TokenType::kNormal) ranked.emplace_back(score, std::string(piece));
      }
    });
    json::object root{{"added_tokens", added}};
    if (spm) {
      // Any cut of a piece into two pieces will do: its rank is what counts.
      std::sort(ranked.begin(), ranked.end(), std::greater<>());
      for (const auto& [score, piece] : ranked) {
        for (size_t cut = 1; cut < piece.size(); ++cut) {
          if (pieces.count(piece.substr(0, cut)) == 0 || pieces.count(piece.substr(cut)) == 0) continue;
          merges.push_back(json::array{json::string(piece.substr(0, cut)), json::string(piece.substr(cut))});
          break;
        }
      }
      root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
      root["model"] = {
          {"type", "BPE"}, {"byte_fallback", true}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", merges}};
    } else {
      ForEachString(**gguf->Array("tokenizer.ggml.merges", GgufType::kString),
                    [&](uint64_t, std::string_view m) { merges.push_back(json::string(m)); });
      const auto pre = *PreTokenizerByName(*gguf->String("tokenizer.ggml.pre").value());
      json::array steps;
      for (const std::string& p : pre.patterns)
        steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", p}}}, {"behavior", "Isolated"}, {"invert", false}});
      steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
      root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
      if (pre.nfc) root["normalizer"] = {{"type", "NFC"}};
      root["model"] = {{"type", "BPE"}, {"ignore_merges", pre.ignore_merges}, {"vocab", vocab}, {"merges", merges}};
    }
    const auto read = ReadTokenizerJson(root, {}, 0);
    ASSERT_TRUE(read.ok()) << read.status();
    if (!spm)
      EXPECT_EQ(read->pre_name, *gguf->String("tokenizer.ggml.pre").value() == std::string("llama-bpe")
                                    ? "llama-bpe"
                                    : *gguf->String("tokenizer.ggml.pre").value());
    const auto tokenizer = MakeTokenizer(*read);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::ifstream in(path + ".cases.jsonl");
    int wrong = 0, cases = 0;
    for (std::string line; std::getline(in, line) && cases < 400; ++cases) {
      const auto object = json::parse(line).as_object();
      const std::string text(object.at("text").as_string().data(), object.at("text").as_string().size());
      const EncodeOptions options{.parse_special = object.at("parse_special").as_bool()};
      const auto got = (*tokenizer)->Encode(text, options), expected = (*reference)->Encode(text, options);
      if (got != expected && ++wrong <= 3) {
        ADD_FAILURE() << line.substr(0, 300) << "\n got " << ::testing::PrintToString(got) << "\n expected "
                      << ::testing::PrintToString(expected);
      }
    }
    EXPECT_GT(cases, 20);
    EXPECT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace gyre
