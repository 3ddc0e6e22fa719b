// Splits a model's answer into reasoning and content. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/answer_format.h"

namespace gyre {

// One for each answer. Reasoning is recognised at the answer's beginning, or in its channel; space around it is
// dropped. A call of a tool is content, with its markers; ToolReader takes calls apart. Other control tokens have no
// text, and text that spells a control token is text.
class AnswerSplitter {
 public:
  // `marked`: every control token of the format has a text, its name with the marks of marked_text.h around it.
  explicit AnswerSplitter(AnswerFormat format, bool marked = false);
  AnswerSplitter(AnswerSplitter&&) noexcept;
  AnswerSplitter& operator=(AnswerSplitter&&) noexcept;
  ~AnswerSplitter();

  struct Piece {
    bool reasoning = false;
    std::string text;  // not empty
    // A message to a tool, with its header up to "<|message|>": how many there were with it. 0: none, or the family
    // has other markers of calls.
    int call = 0;
    bool operator==(const Piece&) const = default;
  };
  // One token and its text, as a TokenEvent has them. The text of a control token's event comes before the token.
  std::vector<Piece> Push(TokenId token, std::string_view text);
  // Where the answer is. Before it is clear whether it begins with reasoning, it is before both.
  enum class Part { kBefore, kReasoning, kContent };
  Part part() const;
  // The part that is still to come of the text that ends the reasoning: all of it, or less where what came last may be
  // its beginning. White space (kSpace) behind it is dropped. "": no text ends it, it is no reasoning, or a control
  // token does.
  std::string_view to_end() const;
  static constexpr std::string_view kSpace = " \t\r\n";
  // The end of the answer, with the last of its text.
  std::vector<Piece> Finish(std::string_view text);

  class Reader;

 private:
  std::vector<Piece> Shown(std::vector<Piece> pieces) const;

  std::vector<AnswerFormat::Control> controls_;
  bool marked_;
  std::unique_ptr<Reader> reader_;
};

}  // namespace gyre
