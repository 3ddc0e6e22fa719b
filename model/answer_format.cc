#include "model/answer_format.h"

#include <algorithm>
#include <initializer_list>

namespace gyre {
namespace {

// The strings of a channel's header, as gpt-oss ("harmony") writes them.
constexpr const char* kChannelMarkers[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                           "<|end|>",   "<|call|>",    "<|return|>"};

struct KnownReasoning {
  const char *open, *close;
};
constexpr KnownReasoning kReasoning[] = {
    {"<|channel>thought", "<channel|>"},  // Gemma 4
    {"<think>", "</think>"},  // Qwen 3 and 3.5, DeepSeek, Kimi, GLM, MiniMax, SmolLM3, OLMo 3, Nemotron, Granite 3, ...
    {"[THINK]", "[/THINK]"},  // Magistral, Ministral 3
    {"<seed:think>", "</seed:think>"},               // Seed-OSS
    {"<|START_THINKING|>", "<|END_THINKING|>"},      // Command A
    {"<|begin_of_thought|>", "<|end_of_thought|>"},  // Sky-T1, OpenThinker
};

// A format is one of these in docs/api.md.
struct KnownCall {
  const char *open, *close;  // close "": a call goes to the end of the answer
  std::initializer_list<const char*> inner;
};
const KnownCall kCalls[] = {
    // DeepSeek V3 and R1
    {"<｜tool▁calls▁begin｜>",
     "<｜tool▁calls▁end｜>",
     {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}},
    {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", {"｜DSML｜"}},  // DeepSeek V3.2
    // Kimi K2
    {"<|tool_calls_section_begin|>",
     "<|tool_calls_section_end|>",
     {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"}},
    {"<|tool_call>", "<tool_call|>", {"<|\"|>"}},         // Gemma 4
    {"<minimax:tool_call>", "</minimax:tool_call>", {}},  // MiniMax M2
    {"<seed:tool_call>", "</seed:tool_call>", {}},        // Seed-OSS
    {"<|tool_call_start|>", "<|tool_call_end|>", {}},     // LFM2
    {"[TOOL_CALLS]", "", {"[ARGS]", "[CALL_ID]"}},        // Mistral
    {"<TOOLCALL>", "</TOOLCALL>", {}},                    // Nemotron Nano 2
    {"<function_calls>", "</function_calls>", {}},        // OLMo 3
    {"<tool_call>",                                       // Qwen 3 and 3.5, Hermes, GLM, SmolLM3, Granite 4, Nemotron 3
     "</tool_call>",
     {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
    {"<|tool_call|>", "", {}},   // Granite 3
    {"<|python_tag|>", "", {}},  // Llama 3.1
};

void AddControl(const Tokenizer& tokenizer, const char* text, std::vector<AnswerFormat::Control>* controls) {
  const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = true});
  if (ids.size() != 1 || tokenizer.type(ids[0]) != TokenType::kControl || tokenizer.Text(ids[0]) != text) return;
  controls->push_back({ids[0], text});
}

// At least `bytes` of the prompt's end, or all of it.
std::string Tail(const Tokenizer& tokenizer, std::span<const TokenId> prompt, size_t bytes) {
  std::string text;
  for (size_t n = prompt.size(); n > 0 && text.size() < bytes; --n) {
    const TokenId id = prompt[n - 1];
    text.insert(0, tokenizer.type(id) == TokenType::kControl ? tokenizer.Text(id) : tokenizer.Piece(id));
  }
  return text;
}

AnswerFormat::Begins ChannelOf(std::string_view tail) {
  const size_t message = tail.rfind("<|message|>");
  const size_t start = tail.rfind("<|start|>");
  if (message == std::string_view::npos || (start != std::string_view::npos && message < start)) {
    return AnswerFormat::Begins::kBefore;
  }
  const std::string_view header = tail.substr(0, message);
  return header.ends_with("<|channel|>analysis") ? AnswerFormat::Begins::kInReasoning
                                                 : AnswerFormat::Begins::kInContent;
}

}  // namespace

AnswerFormat FindAnswerFormat(std::string_view chat_template, const Tokenizer& tokenizer,
                              std::span<const TokenId> prompt) {
  const auto written = [&](const char* marker) { return chat_template.find(marker) != std::string_view::npos; };
  AnswerFormat format;
  if (written("<|channel|>") && written("<|message|>")) {
    format.channels = true;
    for (const char* marker : kChannelMarkers) AddControl(tokenizer, marker, &format.controls);
    format.begins = ChannelOf(Tail(tokenizer, prompt, 64));
    return format;
  }
  for (const KnownReasoning& known : kReasoning) {
    // The closing one is enough: some templates only cut old reasoning out of the conversation.
    if (!written(known.close)) continue;
    format.open = known.open;
    format.close = known.close;
    std::string tail = Tail(tokenizer, prompt, format.open.size() + 8);
    tail.resize(tail.find_last_not_of(" \t\r\n") + 1);
    if (tail.ends_with(format.open)) format.begins = AnswerFormat::Begins::kInReasoning;
    AddControl(tokenizer, known.open, &format.controls);
    AddControl(tokenizer, known.close, &format.controls);
    break;
  }
  if (format.open.starts_with("<|channel>")) AddControl(tokenizer, "<|channel>", &format.controls);
  for (const KnownCall& known : kCalls) {
    if (!written(known.open)) continue;
    const size_t before = format.controls.size();
    AddControl(tokenizer, known.open, &format.controls);
    if (known.close[0] != '\0') AddControl(tokenizer, known.close, &format.controls);
    for (const char* inner : known.inner) AddControl(tokenizer, inner, &format.controls);
    if (format.controls.size() == before) break;  // it is text, and stays in the content as such
    format.call_open = known.open;
    format.call_close = known.close;
    break;
  }
  return format;
}

}  // namespace gyre
