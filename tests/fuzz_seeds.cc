// Writes what the fuzzers of structured formats start from: small valid inputs, as random bytes hardly ever become one.
//
//   fuzz_seeds FOLDER     FOLDER/<fuzzer>/<seed>; fails if Gyre itself refuses one
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/hf/config.h"
#include "model/hf/safetensors.h"
#include "model/hf/tokenizer_json.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/tiny_model.h"
#include "weights/manifest.h"

namespace gyre {
namespace {

namespace json = boost::json;

// fuzz_hf's first byte says which reader gets the rest.
enum HfKind : char { kSafetensors = 0, kConfig = 1, kTokenizer = 2 };

class Seeds {
 public:
  explicit Seeds(std::string folder) : folder_(std::move(folder)) {}
  int refused() const { return refused_; }

  // Without the magic, which the fuzzer puts before it.
  void Gguf(const std::string& name, const std::vector<std::byte>& bytes, const Status& status) {
    Write("fuzz_gguf", name, std::string(reinterpret_cast<const char*>(bytes.data()) + 4, bytes.size() - 4), status);
  }
  void Hf(HfKind kind, const std::string& name, const std::string& text, const Status& status) {
    Write("fuzz_hf", name, static_cast<char>(kind) + text, status);
  }
  // As fuzz_adapter takes them.
  void Adapter(const std::vector<std::byte>& gguf) {
    Write("fuzz_adapter", "gguf", '\0' + std::string(reinterpret_cast<const char*>(gguf.data()) + 4, gguf.size() - 4),
          absl::OkStatus());
  }
  void Adapter(const std::string& config, const std::string& tensors) {
    const size_t n = config.size();
    Write("fuzz_adapter", "peft",
          std::string{'\1', static_cast<char>(n % 256), static_cast<char>(n / 256)} + config + tensors,
          absl::OkStatus());
  }
  void Manifest(const std::string& name, const std::vector<std::byte>& bytes, const Status& status) {
    Write("fuzz_manifest", name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), status);
  }
  void Http(const std::string& name, const std::string& bytes) { Write("fuzz_http", name, bytes, absl::OkStatus()); }

 private:
  void Write(const std::string& fuzzer, const std::string& name, const std::string& bytes, const Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "fuzz_seeds: %s/%s: %s\n", fuzzer.c_str(), name.c_str(), Message(status).c_str());
      ++refused_;
    }
    std::filesystem::create_directories(folder_ + "/" + fuzzer);
    std::ofstream out(folder_ + "/" + fuzzer + "/" + name, std::ios::binary);
    if (!(out << bytes).flush()) {
      std::fprintf(stderr, "fuzz_seeds: %s/%s/%s can't be written\n", folder_.c_str(), fuzzer.c_str(), name.c_str());
      ++refused_;
    }
  }

  const std::string folder_;
  int refused_ = 0;
};

void Models(Seeds* seeds) {
  for (const char* arch : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen2moe", "qwen3moe"}) {
    const auto bytes = testing::BuildTinyModel({.arch = arch,
                                                .dim = 8,
                                                .layers = 1,
                                                .heads = 2,
                                                .kv_heads = 1,
                                                .ffn = 8,
                                                .vocab = 4,
                                                .context = 16,
                                                .experts = 2,
                                                .used = 1});
    seeds->Gguf(arch, bytes, OpenModelFromBytes(bytes).status());
  }
}

// Of fuzz_adapter's model.
void Adapters(Seeds* seeds) {
  const testing::TinyModelFile file(
      testing::TinyOptions{.dim = 8, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 8, .vocab = 4, .context = 16});
  const auto model = *OpenModel(file.path());
  const testing::LoraOptions options{.rank = 2};
  seeds->Adapter(testing::LoraGguf(*model, options));
  const std::string folder = std::filesystem::temp_directory_path() / fmt::format("gyre-seeds-{}", getpid());
  std::filesystem::create_directories(folder);
  testing::WritePeft(*model, options, folder, {2, 1});
  const auto read = [&](const char* name) {
    std::ifstream in(folder + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  seeds->Adapter(read("adapter_config.json"), read("adapter_model.safetensors"));
  std::filesystem::remove_all(folder);
}

void Manifests(Seeds* seeds) {
  gyre::Manifest m;
  m.files = {{"model.gguf", 100}};
  m.open = "model.gguf";
  m.tensors = {{.name = "blk.0.attn_q.weight", .type = 0, .dims = {2, 2}, .extents = {{0, 32, 16}}}};
  m.pieces.resize(2);
  const auto bytes = EncodeManifest(m);
  seeds->Manifest("one", bytes, DecodeManifest(bytes).status());
}

void Tokenizers(Seeds* seeds) {
  for (const std::string kind : {"llama", "gpt2", "t5"}) {
    testing::GgufWriter w;
    w.String("general.architecture", "llama");
    w.String("tokenizer.ggml.model", kind);
    std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types{2, 3, 3};
    if (kind != "gpt2") {
      for (int b = 0; b < 256; ++b) tokens.push_back(fmt::format("<0x{:02X}>", b)), types.push_back(6);
    } else {
      for (char c = '!'; c <= '~'; ++c) tokens.push_back(std::string(1, c)), types.push_back(1);
      w.String("tokenizer.ggml.pre", "llama-bpe");
      w.Strings("tokenizer.ggml.merges", {"a b", "ab c"});
    }
    for (const char* piece : {"ab", "abc", "\xE2\x96\x81", "\xE2\x96\x81hello"})
      tokens.push_back(piece), types.push_back(1);
    std::vector<float> scores;
    for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
    w.Strings("tokenizer.ggml.tokens", tokens);
    w.Numbers("tokenizer.ggml.token_type", 5, types);
    if (kind != "gpt2") w.Numbers("tokenizer.ggml.scores", 6, scores);
    w.Uint("tokenizer.ggml.bos_token_id", 1);
    w.Uint("tokenizer.ggml.eos_token_id", 2);
    w.Uint("tokenizer.ggml.unknown_token_id", 0);
    w.Bool("tokenizer.ggml.add_bos_token", true);
    w.String("tokenizer.chat_template", "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}");
    const auto bytes = w.Finish();
    seeds->Gguf("tokenizer-" + kind, bytes, TokenizerFromBytes(bytes).status());
  }
}

void Configs(Seeds* seeds) {
  const std::string common =
      R"("num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 100)";
  const std::pair<const char*, std::string> configs[] = {
      {"llama3",
       R"("model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 1024})"},
      {"yarn",
       R"("model_type": "qwen2", "use_sliding_window": false, "sliding_window": 512, "rope_scaling": {"type": "yarn", "factor": 4.0,
                  "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.1})"},
      {"linear",
       R"("model_type": "mistral", "sliding_window": 256, "rope_scaling": {"type": "linear", "factor": 2.0})"},
      {"dynamic",
       R"("model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500000})"},
      {"qwen3", R"("model_type": "qwen3")"},
      {"gemma2",
       R"("model_type": "gemma2", "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                    "sliding_window": 256)"},
      {"gemma3",
       R"("model_type": "gemma3_text", "query_pre_attn_scalar": 16, "sliding_window": 256, "sliding_window_pattern": 6,
                    "rope_local_base_freq": 10000, "layer_types": ["sliding_attention", "full_attention"])"},
      {"gemma3-ropes",
       R"("model_type": "gemma3_text", "sliding_window": 256, "rope_parameters": {"full_attention": {"rope_type": "linear",
          "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})"},
      {"qwen-window",
       R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 256, "max_window_layers": 1, "layer_types":
          ["full_attention", "sliding_attention"])"},
      {"longrope",
       R"("model_type": "phi3", "partial_rotary_factor": 0.5, "original_max_position_embeddings": 1024, "rope_scaling":
          {"type": "longrope", "long_factor": [1, 1.1, 1.2, 1.3], "short_factor": [1, 1, 1, 1]})"},
      {"quantized",
       R"("model_type": "llama", "quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel",
          "symmetric": true}}}, "ignore": ["lm_head"]})"},
      {"modelopt",
       R"("model_type": "llama", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups":
          {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": false}}},
          "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "ignore": ["lm_head"]})"},
      {"fp8",
       R"("model_type": "smollm3", "no_rope_layers": [1, 1], "quantization_config": {"quant_method": "fp8",
          "weight_block_size": [128, 128], "fmt": "e4m3"})"},
      {"mixtral", R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2)"},
      {"qwen2moe",
       R"("model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                      "shared_expert_intermediate_size": 64, "norm_topk_prob": false)"},
  };
  for (const auto& [name, special] : configs) {
    const std::string text = "{" + special + ", " + common + "}";
    Metadata metadata;
    seeds->Hf(kConfig, std::string("config-") + name, text,
              ReadHfConfig(json::parse(text).as_object(), &metadata).status());
  }
}

void TokenizerFiles(Seeds* seeds) {
  const std::string added =
      R"("added_tokens": [{"id": 6, "content": "<|im_end|>", "special": true}, {"id": 7, "content": "<u>", "special": false}])";
  const std::pair<const char*, std::string> files[] = {
      {"bytelevel",
       R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]}, "model": {"type": "BPE", "ignore_merges": false,
          "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "H": 5}, "merges": ["a b", ["ab", "c"]]})"},
      {"bytefallback",
       R"("normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "model": {"type": "BPE",
          "byte_fallback": true, "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "<0x0A>": 5}, "merges": ["a b"]})"},
      {"unigram",
       R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"},
          {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "\u2581",
          "prepend_scheme": "always", "split": true}]}, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
          "vocab": [["<unk>", 0.0], ["\u2581", -1.5], ["a", -2.0], ["b", -2.5], ["ab", -3.0], ["\u2581a", -3.5]]})"},
  };
  for (const auto& [name, parts] : files) {
    const std::string text =
        "{" + added + ", " + parts + R"(, "post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}})";
    const auto read = ReadTokenizerJson(json::parse(text).as_object(), {}, 0);
    seeds->Hf(kTokenizer, std::string("tokenizer-") + name, text,
              read.ok() ? MakeTokenizer(*read).status() : read.status());
  }
}

void Safetensors(Seeds* seeds) {
  const std::string header =
      R"({"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [16, 20]}, "c": {"dtype": "BF16", "shape": [2], "data_offsets": [20, 24]}})";
  const uint64_t n = header.size();
  const std::string bytes = std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(24, 'x');
  seeds->Hf(kSafetensors, "safetensors", bytes, ParseSafetensors(std::as_bytes(std::span(bytes))).status());
}

void Requests(Seeds* seeds) {
  const std::vector<std::string> bodies{
      R"({"model":"demo","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"temperature":0.5,"top_p":0.9,"seed":1})",
      R"({"model":"demo","max_tokens":3,"stream":true,"system":[{"type":"text","text":"s"}],
          "messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stop_sequences":["x"]})",
      R"({"model":"demo","prompt":["a","b"],"n":2,"logprobs":2,"echo":true,"stop":["x"],"logit_bias":{"5":-100},"stream":true,
          "stream_options":{"include_usage":true}})",
      R"({"prompt":[1,2,3],"n_predict":3,"stream":true,"n_probs":2,"stop":["x"]})",
      R"({"model":"demo","input":"hi","dimensions":4,"encoding_format":"base64","max_output_tokens":3})",
      R"({"content":"hi","add_special":true,"with_pieces":true})",
      R"({"tokens":[1,2,3]})"};
  for (size_t i = 0; i < bodies.size(); ++i) {
    // The byte counts through the routes: each body is tried with several.
    for (char route = 0; route < 16; ++route) {
      seeds->Http("body-" + std::to_string(i) + "-" + std::to_string(route), route + bodies[i]);
    }
  }
  const std::string head = " HTTP/1.1\r\nHost: localhost:8080\r\n";
  seeds->Http("get",
              "GET /v1/models?a=%41+b" + head + "Origin: https://friend.example\r\n\r\nGET /props" + head + "\r\n");
  seeds->Http("length", "POST /tokenize" + head +
                            "Content-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"content\":\"hi\"}");
  seeds->Http("chunks", "POST /tokenize" + head +
                            "Transfer-Encoding: chunked\r\n\r\n8;a=b\r\n{\"conten\r\n8\r\nt\":\"hi\"}\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  gyre::Seeds seeds(argv[1]);
  gyre::Models(&seeds);
  gyre::Adapters(&seeds);
  gyre::Manifests(&seeds);
  gyre::Tokenizers(&seeds);
  gyre::Configs(&seeds);
  gyre::TokenizerFiles(&seeds);
  gyre::Safetensors(&seeds);
  gyre::Requests(&seeds);
  return seeds.refused() == 0 ? 0 : 1;
}
