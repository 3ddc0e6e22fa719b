// The markers of reasoning and of tool calls in a model's answers, as its own chat template has them.
// Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "model/tokenizer.h"
#include "model/tool_format.h"

namespace gyre {

struct AnswerFormat {
  // Each part of an answer has a header that names its channel (gpt-oss). There are no other markers then.
  bool channels = false;
  std::string open, close;            // around reasoning; "": none
  std::string call_open, call_close;  // around calls of tools; "": none; only call_close: to the end of the answer
  // The part of the answer in which the prompt ends: before the first one, in reasoning, or in content.
  enum class Begins { kBefore, kInReasoning, kInContent };
  Begins begins = Begins::kBefore;
  // Markers that are control tokens, whose pieces have no text.
  struct Control {
    TokenId id = -1;
    std::string text;
    bool operator==(const Control&) const = default;
  };
  std::vector<Control> controls;
  const ToolFormat* tools = nullptr;  // how calls are written; null: the template says nothing that we know

  // Otherwise all of an answer is content.
  bool marked() const { return channels || !close.empty() || !call_open.empty(); }
  bool operator==(const AnswerFormat&) const = default;
};

// By the table of the families' markers; those that the template does not write are not known.
AnswerFormat FindAnswerFormat(std::string_view chat_template, const Tokenizer& tokenizer,
                              std::span<const TokenId> prompt);
// The same without a vocabulary: control tokens are those of the families, with made-up ids. `prompt`: its end.
AnswerFormat FindAnswerFormat(std::string_view chat_template, std::string_view prompt);
// That of a family's calls, whatever the template. REQUIRES: a row of ToolFormats().
AnswerFormat AnswerFormatOf(const ToolFormat& tools, std::string_view prompt);

}  // namespace gyre
