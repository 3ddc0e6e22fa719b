// Splits a model's output into reasoning and answer, by the markers of its own chat template. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "model/tokenizer.h"

namespace gyre::http {

struct ReasoningMarkers {
  std::string open, close;
  TokenId open_id = -1, close_id = -1;  // of control tokens, whose pieces have no text; -1: the marker is text
};

// nullopt: the template has no known markers.
std::optional<ReasoningMarkers> FindReasoningMarkers(std::string_view chat_template, const Tokenizer& tokenizer);

// Whether the prompt ends with the opening marker, so that the answer begins with reasoning.
bool EndsInReasoning(const ReasoningMarkers& markers, const Tokenizer& tokenizer, std::span<const TokenId> prompt);

// One object for each answer. Reasoning is recognised only at the answer's beginning; space around it is dropped.
class ReasoningSplitter {
 public:
  ReasoningSplitter(ReasoningMarkers markers, bool starts_inside);

  struct Piece {
    bool reasoning = false;
    std::string text;  // not empty
    bool operator==(const Piece&) const = default;
  };
  // One token and its text, as in a TokenEvent.
  std::vector<Piece> Push(TokenId token, std::string_view text);
  // Ends the answer, with the last of its text.
  std::vector<Piece> Finish(std::string_view text);

 private:
  enum class Where { kBefore, kInside, kAfter, kContent };
  void Take(std::string_view text, bool end, std::vector<Piece>* out);

  const ReasoningMarkers markers_;
  Where where_;
  bool begun_ = false;  // the part where_ has text that isn't space
  std::string held_;    // may be a part of a marker, or space at the end of the reasoning
};

}  // namespace gyre::http
