// Splits a model's answer into reasoning and content. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/answer_format.h"

namespace gyre {

// One for each answer. Reasoning is recognised at the answer's beginning, or in its channel; space around it is
// dropped. A call of a tool is content, with its markers. Other control tokens have no text.
class AnswerSplitter {
 public:
  explicit AnswerSplitter(AnswerFormat format);
  AnswerSplitter(AnswerSplitter&&) noexcept;
  AnswerSplitter& operator=(AnswerSplitter&&) noexcept;
  ~AnswerSplitter();

  struct Piece {
    bool reasoning = false;
    std::string text;  // not empty
    bool operator==(const Piece&) const = default;
  };
  // One token and its text, as a TokenEvent has them. The text of a control token's event comes before the token.
  std::vector<Piece> Push(TokenId token, std::string_view text);
  // The end of the answer, with the last of its text.
  std::vector<Piece> Finish(std::string_view text);

  class Reader;

 private:
  std::vector<AnswerFormat::Control> controls_;
  std::unique_ptr<Reader> reader_;
};

}  // namespace gyre
