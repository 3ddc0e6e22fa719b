// Models that write what a test wants: one layer of zeros, so each token depends on the one before it alone, and a head
// that knows what comes behind which. One of them calls a tool: asked anew it writes one text; if a tool's result came
// since its last message, another one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model/utf8.h"
#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

// The bytes as a vocabulary of GPT-2's kind writes them: those that are no visible characters have others.
inline std::string VisibleBytes(std::string_view bytes) {
  const auto visible = [](int b) { return (b >= 33 && b <= 126) || (b >= 0xa1 && b != 0xad); };
  std::string out;
  for (const char c : bytes) {
    const int byte = static_cast<unsigned char>(c);
    int hidden = 0;
    for (int b = 0; b < byte; ++b) hidden += visible(b) ? 0 : 1;
    AppendUtf8(static_cast<char32_t>(visible(byte) ? byte : 256 + hidden), &out);
  }
  return out;
}

struct ScriptedModelOptions {
  std::string chat_template;
  std::vector<std::string> controls;  // control tokens, beside "<|end|>"
  // What comes behind the first token of each: further control tokens or tokens of these texts, none of them twice, and
  // then the end. Where several have a token, what the first has behind it comes, or if that may not come, the next.
  std::vector<std::vector<std::string>> texts;
};

// A GGUF file. Its other tokens are single bytes, behind which the text ends.
inline std::vector<std::byte> ScriptedModel(const ScriptedModelOptions& options) {
  constexpr int kNormal = 1, kControl = 3;
  constexpr uint32_t kDim = 288;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto add = [&](const std::string& text, int type) {
    const auto known = std::find(tokens.begin(), tokens.end(), text);
    if (known != tokens.end()) return static_cast<uint32_t>(known - tokens.begin());
    tokens.push_back(text);
    types.push_back(type);
    return static_cast<uint32_t>(tokens.size() - 1);
  };
  for (int byte = 0; byte < 256; ++byte) add(VisibleBytes(std::string(1, static_cast<char>(byte))), kNormal);
  const uint32_t end = add("<|end|>", kControl);
  for (const std::string& control : options.controls) add(control, kControl);
  std::map<uint32_t, std::vector<uint32_t>> next;
  for (const std::vector<std::string>& text : options.texts) {
    uint32_t last = end;
    for (const std::string& piece : text) {
      const uint32_t id = add(VisibleBytes(piece), kNormal);
      if (last != end) next[last].push_back(id);
      last = id;
    }
    next[last].push_back(end);
  }
  if (tokens.size() > kDim) throw std::length_error("a scripted model has at most 288 tokens");
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.Uint("llama.context_length", 4096);
  w.Uint("llama.embedding_length", kDim);
  w.Uint("llama.block_count", 1);
  w.Uint("llama.feed_forward_length", kDim);
  w.Uint("llama.attention.head_count", 9);
  w.Uint("llama.attention.head_count_kv", 9);
  w.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", tokens);
  w.Numbers("tokenizer.ggml.token_type", 5, types);
  w.Strings("tokenizer.ggml.merges", {});
  w.Uint("tokenizer.ggml.eos_token_id", end);
  w.String("tokenizer.chat_template", options.chat_template);
  std::vector<float> embedding(tokens.size() * kDim), head(tokens.size() * kDim);
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    embedding[id * kDim + id] = 1;
    const std::vector<uint32_t>& after = next[id];
    if (after.empty()) head[end * kDim + id] = 10;
    for (size_t n = 0; n < after.size(); ++n) head[after[n] * kDim + id] = 10 / static_cast<float>(n + 1);
  }
  const std::vector<float> ones(kDim, 1.0f), zeros(size_t{kDim} * kDim);
  w.Tensor("token_embd.weight", DType::kF32, {kDim, tokens.size()}, embedding);
  w.Tensor("output.weight", DType::kF32, {kDim, tokens.size()}, head);
  w.Tensor("output_norm.weight", DType::kF32, {kDim}, ones);
  for (const char* name : {"attn_norm", "ffn_norm"}) {
    w.Tensor(std::string("blk.0.") + name + ".weight", DType::kF32, {kDim}, ones);
  }
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    w.Tensor(std::string("blk.0.") + name + ".weight", DType::kF32, {kDim, kDim}, zeros);
  }
  return w.Finish();
}

// `calls`: what it writes when it is asked, in tokens of these texts; `answers`: after a result. Its template shows the
// tools, the calls and the results, and its calls are <tool_call>{"name", "arguments"}</tool_call>.
inline std::vector<std::byte> CallingModel(std::initializer_list<std::string_view> calls,
                                           std::initializer_list<std::string_view> answers) {
  ScriptedModelOptions options{
      .chat_template =
          "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
          "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
          "{% set last = namespace(result=false) %}{% for m in messages %}"
          "{% if m.role == 'assistant' %}{% set last.result = false %}{% endif %}"
          "{% if m.role == 'tool' %}{% set last.result = true %}{% endif %}{% endfor %}"
          "{% if last.result %}<|answer|>{% else %}<|call|>{% endif %}",
      .controls = {"<|call|>", "<|answer|>"},
      .texts = {{"<|call|>"}, {"<|answer|>"}}};
  options.texts[0].insert(options.texts[0].end(), calls.begin(), calls.end());
  options.texts[1].insert(options.texts[1].end(), answers.begin(), answers.end());
  return ScriptedModel(options);
}

}  // namespace gyre::testing
