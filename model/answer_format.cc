#include "model/answer_format.h"

#include <functional>

namespace gyre {
namespace {

// The strings of a channel's header, as gpt-oss ("harmony") writes them.
constexpr const char* kChannelMarkers[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                           "<|end|>",   "<|call|>",    "<|return|>"};

struct KnownReasoning {
  const char *open, *close;
  bool tokens;  // whether the markers are control tokens in the family's vocabulary
};
constexpr KnownReasoning kReasoning[] = {
    {"<|channel>thought", "<channel|>", true},  // Gemma 4
    // Qwen 3 and 3.5, DeepSeek, Kimi, GLM, MiniMax, SmolLM3, OLMo 3, Nemotron, Granite 3, ...
    {"<think>", "</think>", false},
    {"[THINK]", "[/THINK]", true},                          // Magistral, Ministral 3
    {"<seed:think>", "</seed:think>", false},               // Seed-OSS
    {"<|START_THINKING|>", "<|END_THINKING|>", true},       // Command A
    {"<|begin_of_thought|>", "<|end_of_thought|>", false},  // Sky-T1, OpenThinker
};

// Adds a marker to the control tokens of a format if it is one. `token`: whether it is in the family's vocabulary.
using AddControl = std::function<void(const char* text, bool token)>;

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

void FindReasoning(const KnownReasoning& known, std::string tail, const AddControl& add, AnswerFormat* format) {
  format->open = known.open;
  format->close = known.close;
  tail.resize(tail.find_last_not_of(" \t\r\n") + 1);
  if (tail.ends_with(format->open)) format->begins = AnswerFormat::Begins::kInReasoning;
  if (tail.ends_with(format->close)) format->begins = AnswerFormat::Begins::kInContent;
  // Gemma's channel has a name behind its token.
  add(format->open.starts_with("<|channel>") ? "<|channel>" : known.open, known.tokens);
  add(known.close, known.tokens);
}

void FindCalls(const ToolFormat& tools, const AddControl& add, AnswerFormat* format) {
  format->tools = &tools;
  const size_t before = format->controls.size();
  add(tools.open, tools.tokens);
  if (tools.close[0] != '\0') add(tools.close, tools.tokens);
  for (const char* inner : tools.inner) add(inner, tools.tokens);
  if (format->controls.size() == before) return;  // it is text, and stays in the content as such
  format->call_open = tools.open;
  format->call_close = tools.close;
}

void FindChannels(std::string_view tail, const AddControl& add, AnswerFormat* format) {
  format->channels = true;
  for (const char* marker : kChannelMarkers) add(marker, true);
  format->begins = ChannelOf(tail);
}

constexpr size_t kTail = 64;  // bytes of a prompt that say where an answer begins

AnswerFormat Find(std::string_view chat_template, std::string_view tail,
                  const std::function<AddControl(AnswerFormat*)>& adds) {
  AnswerFormat format;
  const AddControl add = adds(&format);
  const ToolFormat* tools = ToolFormatOf(chat_template);
  if (tools != nullptr && tools->form == ToolForm::kHarmony) {
    format.tools = tools;
    FindChannels(tail, add, &format);
    return format;
  }
  for (const KnownReasoning& known : kReasoning) {
    // The closing one is enough: some templates only cut old reasoning out of the conversation.
    if (chat_template.find(known.close) == std::string_view::npos) continue;
    FindReasoning(known, std::string(tail), add, &format);
    break;
  }
  if (tools != nullptr) FindCalls(*tools, add, &format);
  return format;
}

// Markers of the families' vocabularies are numbered in turn.
AddControl AddNumbered(AnswerFormat* format) {
  return [format](const char* text, bool token) {
    if (token) format->controls.push_back({static_cast<TokenId>(format->controls.size()), text});
  };
}

}  // namespace

AnswerFormat FindAnswerFormat(std::string_view chat_template, const Tokenizer& tokenizer,
                              std::span<const TokenId> prompt) {
  return Find(chat_template, Tail(tokenizer, prompt, kTail), [&tokenizer](AnswerFormat* format) -> AddControl {
    return [&tokenizer, format](const char* text, bool) {
      const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = true});
      if (ids.size() != 1 || tokenizer.type(ids[0]) != TokenType::kControl || tokenizer.Text(ids[0]) != text) return;
      format->controls.push_back({ids[0], text});
    };
  });
}

AnswerFormat FindAnswerFormat(std::string_view chat_template, std::string_view prompt) {
  return Find(chat_template, prompt, AddNumbered);
}

AnswerFormat AnswerFormatOf(const ToolFormat& tools, std::string_view prompt) {
  AnswerFormat format;
  const AddControl add = AddNumbered(&format);
  if (tools.form == ToolForm::kHarmony) {
    format.tools = &tools;
    FindChannels(prompt, add, &format);
    return format;
  }
  for (const KnownReasoning& known : kReasoning) {
    if (std::string_view(known.close) == tools.thinks) FindReasoning(known, std::string(prompt), add, &format);
  }
  FindCalls(tools, add, &format);
  return format;
}

}  // namespace gyre
