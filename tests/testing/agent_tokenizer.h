// A tokenizer for made models: bytes, some words, and the control tokens of ChatML, with a chat template in the shape
// of Qwen's, whose answers begin with thoughts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

// Tools stand before the system prompt's text, and results of tools in turns of the user. What an answer begins with
// ("<think>") is in none of the earlier answers.
inline constexpr char kAgentTemplate[] =
    "{% if tools or messages[0].role == 'system' %}<|im_start|>system\n{% if tools %}# Tools\n{% for t in tools %}"
    "{{ t | tojson }}\n{% endfor %}{% endif %}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m.content }}\n</tool_response><|im_end|>\n{% elif m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content "
    "}}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

inline constexpr std::string_view kAgentWords[] = {
    "read",  "the",    "file",      "before", "you",   "edit",     "a",         "test",   "fails",
    "when",  "its",    "path",      "is",     "wrong", "never",    "commit",    "unless", "asked",
    "to",    "name",   "arguments", "tool",   "call",  "response", "assistant", "user",   "system",
    "total", "tokens", "left",      "think",  "limit", "Tool",     "part"};

struct AgentTokenizer {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;

  static const AgentTokenizer& Get() {
    static const AgentTokenizer tokenizer;
    return tokenizer;
  }
  static uint32_t vocab() { return static_cast<uint32_t>(Get().tokens.size()); }
  static void Write(GgufWriter& w) {
    w.String("tokenizer.ggml.model", "gpt2");
    w.String("tokenizer.ggml.pre", "gpt-2");
    w.Strings("tokenizer.ggml.tokens", Get().tokens);
    w.Numbers("tokenizer.ggml.token_type", 5, Get().types);
    w.Strings("tokenizer.ggml.merges", Get().merges);
    w.Uint("tokenizer.ggml.eos_token_id", vocab() - 2);
    w.Bool("tokenizer.ggml.add_bos_token", false);
    w.String("tokenizer.chat_template", kAgentTemplate);
  }

 private:
  AgentTokenizer() {
    std::map<std::string, bool> known;
    const auto add = [&](const std::string& token) {
      if (known.emplace(token, true).second) tokens.push_back(token);
    };
    const auto utf8 = [](uint32_t c) {
      if (c < 0x80) return std::string(1, static_cast<char>(c));
      return std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    };
    uint32_t other = 256;  // bytes that are no visible characters have others, as in GPT-2
    std::string space;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 33 && byte <= 126) || (byte >= 0xA1 && byte != 0xAD);
      add(utf8(visible ? byte : other++));
      if (byte == ' ') space = tokens.back();
    }
    // Words, alone and behind a space, grow letter by letter.
    for (const std::string& first : {std::string(), space}) {
      for (const std::string_view word : kAgentWords) {
        std::string begun = first;
        for (const char letter : word) {
          const std::string grown = begun + letter;
          if (!begun.empty() && known.count(grown) == 0) merges.push_back(begun + " " + letter);
          add(grown);
          begun = grown;
        }
      }
    }
    types.assign(tokens.size(), 1);
    for (const char* control : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) {
      tokens.emplace_back(control);
      types.push_back(3);
    }
  }
};

}  // namespace gyre::testing
