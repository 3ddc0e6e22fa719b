#include "coordinator/engine/text_stream.h"

#include <algorithm>
#include <cstdint>

namespace gyre {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The number of bytes of a character that begins with this byte; 0 if none does (Unicode 15, table 3-7).
size_t CharacterLength(uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// The second byte is held closer: no overlong forms, surrogates, or anything above U+10FFFF.
bool Continues(std::string_view begun, uint8_t next) {
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (begun.size() == 1) {
    switch (static_cast<uint8_t>(begun[0])) {
      case 0xE0: low = 0xA0; break;
      case 0xED: high = 0x9F; break;
      case 0xF0: low = 0x90; break;
      case 0xF4: high = 0x8F; break;
      default: break;
    }
  }
  return next >= low && next <= high;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    Pattern pattern{.text = std::move(stops[i]), .border = {0, 0}, .stop = static_cast<int>(i)};
    size_t border = 0;
    for (size_t n = 1; n < pattern.text.size(); ++n) {
      while (border > 0 && pattern.text[border] != pattern.text[n]) border = pattern.border[border];
      if (pattern.text[border] == pattern.text[n]) ++border;
      pattern.border.push_back(border);
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::Advance(Pattern* pattern, char byte) {
  size_t& matched = pattern->matched;
  while (matched > 0 && pattern->text[matched] != byte) matched = pattern->border[matched];
  if (pattern->text[matched] == byte) ++matched;
  return matched == pattern->text.size();
}

StopMatcher::Result StopMatcher::Push(std::string_view bytes) {
  if (stopped_) return {};
  for (char byte : bytes) {
    held_.push_back(byte);
    const Pattern* found = nullptr;
    for (Pattern& pattern : patterns_) {
      if (!Advance(&pattern, byte)) continue;
      if (found == nullptr || pattern.text.size() > found->text.size()) found = &pattern;
    }
    if (found == nullptr) continue;
    stopped_ = true;
    held_.resize(held_.size() - found->text.size());
    return {.text = std::exchange(held_, {}), .stopped = true, .stop = found->stop};
  }
  size_t begun = 0;
  for (const Pattern& pattern : patterns_) begun = std::max(begun, pattern.matched);
  Result result{.text = held_.substr(0, held_.size() - begun)};
  held_.erase(0, held_.size() - begun);
  return result;
}

std::string StopMatcher::Flush() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

std::string Utf8Assembler::Push(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) {
    const auto value = static_cast<uint8_t>(byte);
    if (!held_.empty()) {
      if (Continues(held_, value)) {
        held_.push_back(byte);
        if (held_.size() == CharacterLength(static_cast<uint8_t>(held_[0]))) text += std::exchange(held_, {});
        continue;
      }
      text += kReplacement;
      held_.clear();
    }
    switch (CharacterLength(value)) {
      case 0: text += kReplacement; break;
      case 1: text += byte; break;
      default: held_ = byte; break;
    }
  }
  return text;
}

std::string Utf8Assembler::Flush() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacement);
}

TextStream::TextStream(std::vector<std::string> stops) : byte_stops_({}), text_stops_({}) {
  const bool on_text = std::any_of(
      stops.begin(), stops.end(), [](const std::string& stop) { return stop.find(kReplacement) != std::string::npos; });
  if (!on_text) {
    byte_stops_ = StopMatcher(std::move(stops));
    return;
  }
  std::vector<std::string> in_bytes(stops.size());
  for (size_t i = 0; i < stops.size(); ++i) {
    Utf8Assembler utf8;
    const std::string text = utf8.Push(stops[i]) + utf8.Flush();
    if (text != stops[i]) stops[i].swap(in_bytes[i]);
  }
  byte_stops_ = StopMatcher(std::move(in_bytes));
  text_stops_ = StopMatcher(std::move(stops));
}

TextStream::Result TextStream::Assemble(std::string_view bytes, bool ends) {
  std::string text = utf8_.Push(bytes);
  if (ends) text += utf8_.Flush();
  StopMatcher::Result result = text_stops_.Push(text);
  if (ends) result.text += text_stops_.Flush();
  return {.text = std::move(result.text), .stopped = result.stopped, .stop = result.stop};
}

TextStream::Result TextStream::Push(std::string_view piece) {
  const StopMatcher::Result found = byte_stops_.Push(piece);
  Result result = Assemble(found.text, found.stopped);
  // What ends in the text before the stop string ended first.
  if (!found.stopped || result.stopped) return result;
  return {.text = std::move(result.text), .stopped = true, .stop = found.stop};
}

TextStream::Result TextStream::Flush() { return Assemble(byte_stops_.Flush(), true); }

}  // namespace gyre
