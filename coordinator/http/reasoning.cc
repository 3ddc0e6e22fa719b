#include "coordinator/http/reasoning.h"

#include <algorithm>

namespace gyre::http {
namespace {

struct KnownMarkers {
  const char *open, *close;
};
// The markers are those of the model families' templates.
constexpr KnownMarkers kKnown[] = {
    {"<think>", "</think>"},                         // DeepSeek R1, Qwen3, GLM, MiniMax, SmolLM3, ...
    {"[THINK]", "[/THINK]"},                         // Magistral
    {"<seed:think>", "</seed:think>"},               // Seed-OSS
    {"<|START_THINKING|>", "<|END_THINKING|>"},      // Command A
    {"<|begin_of_thought|>", "<|end_of_thought|>"},  // Sky-T1, OpenThinker
};

constexpr std::string_view kSpace = " \t\r\n";

TokenId ControlToken(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = true});
  const bool control =
      ids.size() == 1 && tokenizer.type(ids[0]) == TokenType::kControl && tokenizer.Text(ids[0]) == text;
  return control ? ids[0] : -1;
}

// The length of the longest end of `text` that is a beginning of `marker`.
size_t BegunAtEnd(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

std::optional<ReasoningMarkers> FindReasoningMarkers(std::string_view chat_template, const Tokenizer& tokenizer) {
  for (const KnownMarkers& known : kKnown) {
    // The closing marker is enough, as some templates only cut old reasoning out of the conversation.
    if (chat_template.find(known.close) == std::string_view::npos) continue;
    return ReasoningMarkers{.open = known.open,
                            .close = known.close,
                            .open_id = ControlToken(tokenizer, known.open),
                            .close_id = ControlToken(tokenizer, known.close)};
  }
  return std::nullopt;
}

bool EndsInReasoning(const ReasoningMarkers& markers, const Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  // Each token of the marker, and of the space after it, has at least one byte.
  const size_t tail = std::min(prompt.size(), markers.open.size() + 8);
  std::string text;
  for (const TokenId id : prompt.last(tail)) {
    text += tokenizer.type(id) == TokenType::kControl ? tokenizer.Text(id) : tokenizer.Piece(id);
  }
  const size_t end = text.find_last_not_of(kSpace);
  if (end == std::string::npos) return false;
  text.resize(end + 1);
  return text.size() >= markers.open.size() && text.ends_with(markers.open);
}

ReasoningSplitter::ReasoningSplitter(ReasoningMarkers markers, bool starts_inside)
    : markers_(std::move(markers)), where_(starts_inside ? Where::kInside : Where::kBefore) {}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::Push(TokenId token, std::string_view text) {
  std::vector<Piece> out;
  Take(text, false, &out);
  // A control token has no text of its own: the text that came with it was before it.
  if (token >= 0 && token == markers_.open_id && where_ == Where::kBefore) {
    held_.clear();
    where_ = Where::kInside;
  } else if (token >= 0 && token == markers_.close_id && where_ == Where::kInside) {
    Take({}, true, &out);  // what looked like the beginning of a marker was none
    held_.clear();
    begun_ = false;
    where_ = Where::kAfter;
  }
  return out;
}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::Finish(std::string_view text) {
  std::vector<Piece> out;
  Take(text, true, &out);
  return out;
}

void ReasoningSplitter::Take(std::string_view text, bool end, std::vector<Piece>* out) {
  held_ += text;
  if (where_ == Where::kBefore) {
    const size_t first = held_.find_first_not_of(kSpace);
    const std::string_view rest =
        first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
    if (rest.starts_with(markers_.open)) {
      held_.erase(0, first + markers_.open.size());
      where_ = Where::kInside;
    } else if (!end && std::string_view(markers_.open).starts_with(rest)) {
      return;
    } else {
      where_ = Where::kContent;
    }
  }
  if (where_ == Where::kInside) {
    if (!begun_) held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
    const size_t close = held_.find(markers_.close);
    size_t shown = close;
    if (close == std::string::npos) shown = held_.size() - (end ? 0 : BegunAtEnd(held_, markers_.close));
    // Space at the end waits, as it is dropped before the closing marker.
    const size_t last = std::string_view(held_).substr(0, shown).find_last_not_of(kSpace);
    const size_t kept = last == std::string::npos ? 0 : last + 1;
    if (kept > 0) {
      out->push_back({true, held_.substr(0, kept)});
      begun_ = true;
    }
    if (close == std::string::npos) {
      held_.erase(0, kept);
      return;
    }
    held_.erase(0, close + markers_.close.size());
    begun_ = false;
    where_ = Where::kAfter;
  }
  if (where_ == Where::kAfter) {
    held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
    if (held_.empty()) return;
    where_ = Where::kContent;
  }
  if (where_ == Where::kContent && !held_.empty()) {
    out->push_back({false, std::move(held_)});
    held_.clear();
  }
}

}  // namespace gyre::http
