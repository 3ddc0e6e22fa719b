// A model that calls a tool, for tests: one layer of zeros, so each token depends on the one before it alone, and a
// head that knows what comes behind which. Asked anew it writes one text; if a tool's result came since its last
// message, another one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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

// A GGUF file. `calls`: what it writes when it is asked, in tokens of these texts; `answers`: after a result. Its
// template shows the tools, the calls and the results, and its calls are <tool_call>{"name", "arguments"}</tool_call>.
inline std::vector<std::byte> CallingModel(std::initializer_list<std::string_view> calls,
                                           std::initializer_list<std::string_view> answers) {
  constexpr int kNormal = 1, kControl = 3;
  constexpr uint32_t kDim = 288;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto add = [&](const std::string& text, int type) {
    tokens.push_back(text);
    types.push_back(type);
    return static_cast<uint32_t>(tokens.size() - 1);
  };
  for (int byte = 0; byte < 256; ++byte) add(VisibleBytes(std::string(1, static_cast<char>(byte))), kNormal);
  const uint32_t end = add("<|end|>", kControl);
  std::map<uint32_t, uint32_t> next;
  for (const auto& [control, texts] : {std::pair("<|call|>", calls), std::pair("<|answer|>", answers)}) {
    uint32_t last = add(control, kControl);
    for (const std::string_view text : texts) {
      const uint32_t id = add(VisibleBytes(text), kNormal);
      next[std::exchange(last, id)] = id;
    }
    next[last] = end;
  }
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
  w.String(
      "tokenizer.chat_template",
      "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
      "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
      "{% set last = namespace(result=false) %}{% for m in messages %}"
      "{% if m.role == 'assistant' %}{% set last.result = false %}{% endif %}"
      "{% if m.role == 'tool' %}{% set last.result = true %}{% endif %}{% endfor %}"
      "{% if last.result %}<|answer|>{% else %}<|call|>{% endif %}");
  std::vector<float> embedding(tokens.size() * kDim), head(tokens.size() * kDim);
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    const auto found = next.find(id);
    embedding[id * kDim + id] = 1;
    head[(found == next.end() ? end : found->second) * kDim + id] = 10;
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

}  // namespace gyre::testing
