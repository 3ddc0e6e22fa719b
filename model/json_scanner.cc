#include "model/json_scanner.h"

#include <boost/json/parse.hpp>

namespace gyre {
namespace {

using State = JsonScanner::State;

constexpr size_t kDeepest = 200;  // objects and lists in each other

// Whether the text is a number, or begins one.
bool BeginsNumber(std::string_view text, bool* whole) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t first = i;
    while (i < text.size() && IsJsonDigit(text[i])) ++i;
    return i > first;
  };
  *whole = false;
  if (i < text.size() && text[i] == '-') ++i;
  if (i == text.size()) return true;
  if (text[i] == '0') {
    ++i;
  } else if (!digits()) {
    return false;
  }
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (!digits()) return i == text.size();
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (!digits()) return i == text.size();
  }
  *whole = i == text.size();
  return *whole;
}

}  // namespace

State JsonScanner::Feed(char c) {
  switch (expects_) {
    case Expects::kString:
    case Expects::kEscape:
    case Expects::kHex: return InString(c);
    case Expects::kNumber: return InNumber(c);
    case Expects::kWord:
      if (c != word_.front()) return State::kWrong;
      word_.remove_prefix(1);
      return word_.empty() ? EndValue() : State::kMore;
    default: break;
  }
  if (IsJsonSpace(c)) return State::kMore;
  switch (expects_) {
    case Expects::kFirstValue:
      if (c == ']') return Close(c);
      return BeginValue(c);
    case Expects::kFirstName:
    case Expects::kName:
      if (c == '}' && expects_ == Expects::kFirstName) return Close(c);
      if (c != '"') return State::kWrong;
      name_ = true;
      string_.clear();
      expects_ = Expects::kString;
      return State::kMore;
    case Expects::kColon:
      if (c != ':') return State::kWrong;
      name_ = false;
      expects_ = Expects::kValue;
      return State::kMore;
    case Expects::kNext:
      if (c != ',') return Close(c);
      expects_ = open_.back() == '{' ? Expects::kName : Expects::kValue;
      return State::kMore;
    default: return BeginValue(c);
  }
}

State JsonScanner::BeginValue(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() >= kDeepest) return State::kWrong;
    open_ += c;
    if (c == '{') names_.emplace_back();
    expects_ = c == '{' ? Expects::kFirstName : Expects::kFirstValue;
    return State::kMore;
  }
  if (c == '"') {
    name_ = false;
    string_.clear();
    expects_ = Expects::kString;
    return State::kMore;
  }
  if (c == '-' || IsJsonDigit(c)) {
    number_ = c;
    expects_ = Expects::kNumber;
    return State::kMore;
  }
  word_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
  expects_ = Expects::kWord;
  return word_.empty() ? State::kWrong : State::kMore;
}

State JsonScanner::EndValue() {
  expects_ = Expects::kNext;
  return open_.empty() ? State::kDone : State::kMore;
}

State JsonScanner::Close(char c) {
  if (open_.empty() || c != (open_.back() == '{' ? '}' : ']')) return State::kWrong;
  if (c == '}') names_.pop_back();
  open_.pop_back();
  return EndValue();
}

State JsonScanner::InString(char c) {
  if (static_cast<unsigned char>(c) < 0x20 || c == '\xFF' || c == '\xFE') return State::kWrong;
  if (expects_ == Expects::kHex) {
    if (!IsJsonDigit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return State::kWrong;
    if (--hex_ == 0) expects_ = Expects::kString;
  } else if (expects_ == Expects::kEscape) {
    if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) return State::kWrong;
    expects_ = c == 'u' ? Expects::kHex : Expects::kString;
    hex_ = 4;
  } else if (c == '\\') {
    expects_ = Expects::kEscape;
  } else if (c == '"') {
    if (!name_) return EndValue();
    expects_ = Expects::kColon;
    return names_.back().insert(string_).second || names_may_repeat_ ? State::kMore : State::kWrong;
  }
  string_ += c;
  return State::kMore;
}

State JsonScanner::InNumber(char c) {
  bool whole = false;
  if (BeginsNumber(number_ + c, &whole)) {
    number_ += c;
    return State::kMore;
  }
  BeginsNumber(number_, &whole);
  if (!whole || EndValue() == State::kDone) return State::kWrong;
  return Feed(c);
}

bool IsJson(std::string_view text, bool names_may_repeat) {
  JsonScanner scanner(names_may_repeat);
  State state = State::kMore;
  for (const char c : text) {
    if (state == State::kDone) {
      if (!IsJsonSpace(c)) return false;
      continue;
    }
    // A number alone is ended by a space, which is wrong in it.
    state = scanner.Feed(c);
    if (state == State::kWrong) break;
  }
  if (state == State::kDone) return true;
  const size_t first = text.find_first_not_of(kJsonSpace);
  if (first == std::string_view::npos) return false;
  bool whole = false;
  BeginsNumber(text.substr(first, text.find_last_not_of(kJsonSpace) + 1 - first), &whole);
  return whole;
}

std::string JsonText(std::string_view written) {
  boost::system::error_code error;
  std::string quoted = "\"";
  quoted += written;
  quoted += '"';
  const boost::json::value value = boost::json::parse(quoted, error);
  if (error || !value.is_string()) return {};
  return std::string(value.get_string());
}

}  // namespace gyre
