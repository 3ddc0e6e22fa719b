#include "coordinator/grammar/json_text.h"

#include <memory>

#include "coordinator/grammar/json_formats.h"
#include "coordinator/grammar/regex.h"

namespace gyre::grammar {
namespace {

constexpr uint64_t kMostSpace = 16, kMostLineFeeds = 2;
constexpr uint32_t kMostWhole = 20, kMostFraction = 17;  // digits
constexpr uint32_t kPrecise = 15;                        // digits of a number that a double tells from all others

// White space: so many characters, so many line feeds among them.
class Space : public Lazy {
 public:
  ExprId Expand(Expressions* e, const State& left) const override {
    std::vector<ExprId> all = {kEpsilon};
    if (left[0] > 0) {
      ByteSet inline_space;
      for (const char c : {' ', '\t', '\r'}) inline_space.set(static_cast<size_t>(c));
      all.push_back(e->Concat(e->Bytes(inline_space), e->MakeLazy(this, {left[0] - 1, left[1], 0})));
      if (left[1] > 0) all.push_back(e->Concat(e->Text("\n"), e->MakeLazy(this, {left[0] - 1, left[1] - 1, 0})));
    }
    return e->Alt(std::move(all));
  }
  bool Nullable(const State&) const override { return true; }
  bool Regular() const override { return true; }
};

// The multiples of n / 10^scale: the rest of the digits so far by n.
class Multiple : public Lazy {
 public:
  Multiple(uint64_t n, int scale) : n_(n), scale_(static_cast<uint64_t>(scale)) {}

  enum : uint64_t { kSign, kFirst, kWhole, kZero, kPoint, kFraction };

  // State: place, rest, digits of the fraction.
  ExprId Expand(Expressions* e, const State& state) const override {
    const uint64_t place = state[0], rest = state[1], digits = state[2];
    std::vector<ExprId> all;
    if (Nullable(state)) all.push_back(kEpsilon);
    auto digit = [&](uint64_t d, uint64_t next, uint64_t next_digits) {
      all.push_back(e->Concat(e->Range(static_cast<uint8_t>('0' + d), static_cast<uint8_t>('0' + d)),
                              e->MakeLazy(this, {next, (rest * 10 + d) % n_, next_digits})));
    };
    switch (place) {
      case kSign:
        all.push_back(e->Concat(e->Text("-"), e->MakeLazy(this, {kFirst, 0, 0})));
        all.push_back(e->MakeLazy(this, {kFirst, 0, 0}));
        break;
      case kFirst:
        digit(0, kZero, 0);
        for (uint64_t d = 1; d < 10; ++d) digit(d, kWhole, 0);
        break;
      case kWhole:
        for (uint64_t d = 0; d < 10; ++d) digit(d, kWhole, 0);
        [[fallthrough]];
      case kZero: all.push_back(e->Concat(e->Text("."), e->MakeLazy(this, {kPoint, rest, 0}))); break;
      default:
        if (digits < scale_) {
          for (uint64_t d = 0; d < 10; ++d) digit(d, kFraction, digits + 1);
        } else {
          all.push_back(e->Concat(e->Text("0"), e->MakeLazy(this, {kFraction, rest, digits})));
        }
        break;
    }
    return e->Alt(std::move(all));
  }
  bool Nullable(const State& state) const override {
    if (state[0] == kSign || state[0] == kFirst || state[0] == kPoint) return false;
    uint64_t rest = state[1];
    for (uint64_t d = state[2]; d < scale_; ++d) rest = rest * 10 % n_;
    return rest == 0;
  }
  bool Regular() const override { return true; }

 private:
  const uint64_t n_, scale_;
};

}  // namespace

JsonText::JsonText(Expressions* e, bool compact, JsonStyle style)
    : e_(*e),
      style_(std::move(style)),
      digits_(e->Star(e->Range('0', '9'))),
      fraction_(e->Optional(e->Concat(e->Text("."), e->Repeat(e->Range('0', '9'), 1, kUnbounded)))) {
  if (!compact) space_ = e_.MakeLazy(e_.Own(std::make_unique<Space>()), {kMostSpace, kMostLineFeeds, 0});
}

ExprId JsonText::Without(ExprId texts, const std::string& part) {
  if (part.empty()) return texts;
  ByteSet any;
  any.set();
  const ExprId all = e_.Star(e_.Bytes(any));
  return e_.And(texts, e_.Not(e_.Concat({all, e_.Text(part), all})));
}

ExprId JsonText::Quoted(ExprId inner, const std::string& quote) {
  return e_.Concat({e_.Text(quote), Without(inner, style_.avoid), e_.Text(quote)});
}

ExprId JsonText::Word(JsonKind kind) {
  const bool null = kind == JsonKind::kNull, yes = kind == JsonKind::kTrue;
  const ExprId word = e_.Text(null ? "null" : yes ? "true" : "false");
  if (style_.kind != JsonStyle::Kind::kPython) return word;
  return e_.Alt(word, e_.Text(null ? "None" : yes ? "True" : "False"));
}

StatusOr<ExprId> JsonText::StringValue(const StringLimits& limits, const std::vector<std::string>& except) {
  std::vector<std::pair<std::string, Writing>> quotes = {{"\"", Writing::kJsonString}};
  if (style_.kind == JsonStyle::Kind::kPython) quotes = {{"\"", Writing::kPythonDouble}, {"'", Writing::kPythonSingle}};
  if (style_.kind == JsonStyle::Kind::kBraces) quotes = {{style_.quote, Writing::kPlain}};
  std::vector<ExprId> ways;
  for (const auto& [quote, writing] : quotes) {
    GYRE_ASSIGN_OR_RETURN(const ExprId string, String(limits, writing));
    std::vector<ExprId> parts = {string};
    for (const std::string& text : except) parts.push_back(e_.Not(AnyWriting(&e_, text, writing)));
    ways.push_back(Quoted(parts.size() == 1 ? parts[0] : e_.And(std::move(parts)), quote));
  }
  return e_.Alt(std::move(ways));
}

ExprId JsonText::StringLiteral(const std::string& text) {
  if (style_.kind == JsonStyle::Kind::kBraces) return Quoted(e_.Text(text), style_.quote);
  const std::string quoted = JsonString(text);
  const std::string inner = quoted.substr(1, quoted.size() - 2);
  const ExprId literal = Quoted(e_.Text(inner), "\"");
  const bool plain = inner == text && text.find('\'') == std::string::npos;
  return style_.kind == JsonStyle::Kind::kPython && plain ? e_.Alt(literal, Quoted(e_.Text(text), "'")) : literal;
}

ExprId JsonText::Name(const std::string& name) {
  const bool word = !name.empty() && name.find_first_not_of(
                                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789_-.") == std::string::npos;
  return style_.kind == JsonStyle::Kind::kBraces && word ? e_.Text(name) : StringLiteral(name);
}

Writing JsonText::name_writing() const {
  return style_.kind == JsonStyle::Kind::kBraces ? Writing::kPlain : Writing::kJsonName;
}

std::string JsonText::InnerName(const std::string& name) const {
  if (style_.kind == JsonStyle::Kind::kBraces) return name;
  const std::string quoted = JsonString(name);
  return quoted.substr(1, quoted.size() - 2);
}

ExprId JsonText::NameQuotes(ExprId inner) {
  return Quoted(inner, style_.kind == JsonStyle::Kind::kBraces ? style_.quote : "\"");
}

ExprId JsonText::AnyString(Writing writing) { return e_.Star(OneOf(&e_, CodePoints::All(), writing)); }

ExprId JsonText::Match(const char* pattern) {
  const auto [at, fresh] = matches_.emplace(pattern, kNothing);
  if (fresh) at->second = ReadPattern(&e_, pattern, {}).value_or(kNothing);
  return at->second;
}

StatusOr<ExprId> JsonText::Pattern(const std::string& pattern, Writing writing) {
  const auto at = patterns_.find({pattern, writing});
  if (at != patterns_.end()) return at->second;
  GYRE_ASSIGN_OR_RETURN(const ExprId all,
                        ReadPattern(&e_, pattern, {.search = true, .lenient = true, .writing = writing}));
  return patterns_[{pattern, writing}] = all;
}

StatusOr<bool> JsonText::Matches(const StringLimits::Match& match, std::string_view text) {
  if (!match.format) {
    GYRE_ASSIGN_OR_RETURN(const ExprId all, Pattern(match.text, Writing::kPlain));
    return e_.Takes(all, text);
  }
  const auto at = formats_.find({match.text, Writing::kPlain});
  if (at != formats_.end()) return e_.Takes(at->second, text);
  GYRE_ASSIGN_OR_RETURN(const ExprId all, Format(&e_, match.text, Writing::kPlain));
  formats_[{match.text, Writing::kPlain}] = all;
  return e_.Takes(all, text);
}

StatusOr<ExprId> JsonText::String(const StringLimits& limits, Writing writing) {
  std::vector<ExprId> parts;
  bool positive = false;
  for (const StringLimits::Match& m : limits.matches) {
    ExprId all = kNothing;
    if (m.format) {
      const auto at = formats_.find({m.text, writing});
      if (at != formats_.end()) {
        all = at->second;
      } else {
        GYRE_ASSIGN_OR_RETURN(all, Format(&e_, m.text, writing));
        formats_[{m.text, writing}] = all;
      }
    } else {
      GYRE_ASSIGN_OR_RETURN(all, Pattern(m.text, writing));
    }
    parts.push_back(m.matches ? all : e_.Not(all));
    positive = positive || m.matches;
  }
  if (limits.min > 0 || limits.max != UINT64_MAX) {
    if (limits.min >= kUnbounded) return kNothing;
    const auto max = static_cast<uint32_t>(std::min<uint64_t>(limits.max, kUnbounded));
    const ExprId character = OneOf(&e_, CodePoints::All(), writing);
    e_.MarkCharacter(character);
    parts.push_back(e_.Repeat(character, static_cast<uint32_t>(limits.min), max));
  } else if (!positive) {
    parts.push_back(AnyString(writing));
  }
  return parts.size() == 1 ? parts[0] : e_.And(std::move(parts));
}

ExprId JsonText::Digits(char first, char last) {
  return first > last ? kNothing : e_.Range(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
}

// Numbers without sign and exponent that are at least so large.
ExprId JsonText::AtLeast(const Decimal& size, bool exclusive) {
  const std::string whole = size.Whole(), fraction = size.Fraction();
  const auto n = static_cast<uint32_t>(whole.size());
  const ExprId digit = Digits('0', '9');
  const ExprId above_zero = e_.Concat({e_.Star(e_.Text("0")), Digits('1', '9'), digits_});
  std::vector<ExprId> all = {e_.Concat({Digits('1', '9'), e_.Repeat(digit, n, kUnbounded), fraction_})};
  for (uint32_t i = 0; i < n; ++i) {
    all.push_back(e_.Concat({e_.Text(whole.substr(0, i)), Digits(static_cast<char>(whole[i] + 1), '9'),
                             e_.Repeat(digit, n - i - 1, n - i - 1), fraction_}));
  }
  ExprId behind = kNothing;
  if (fraction.empty()) {
    behind = exclusive ? e_.Concat(e_.Text("."), above_zero) : fraction_;
  } else {
    std::vector<ExprId> ways = {e_.Concat(e_.Text(fraction), exclusive ? above_zero : digits_)};
    for (size_t i = 0; i < fraction.size(); ++i) {
      ways.push_back(
          e_.Concat({e_.Text(fraction.substr(0, i)), Digits(static_cast<char>(fraction[i] + 1), '9'), digits_}));
    }
    behind = e_.Concat(e_.Text("."), e_.Alt(std::move(ways)));
  }
  all.push_back(e_.Concat(e_.Text(whole), behind));
  return e_.Alt(std::move(all));
}

ExprId JsonText::AtMost(const Decimal& size, bool exclusive) {
  const std::string whole = size.Whole(), fraction = size.Fraction();
  const auto n = static_cast<uint32_t>(whole.size());
  const ExprId digit = Digits('0', '9');
  std::vector<ExprId> all;
  if (n > 1) {
    all.push_back(e_.Concat(e_.Alt(e_.Text("0"), e_.Concat(Digits('1', '9'), e_.Repeat(digit, 0, n - 2))), fraction_));
  }
  for (uint32_t i = 0; i < n; ++i) {
    all.push_back(
        e_.Concat({e_.Text(whole.substr(0, i)), Digits(i == 0 && n > 1 ? '1' : '0', static_cast<char>(whole[i] - 1)),
                   e_.Repeat(digit, n - i - 1, n - i - 1), fraction_}));
  }
  ExprId behind = kNothing;
  if (fraction.empty()) {
    if (!exclusive) behind = e_.Optional(e_.Concat(e_.Text("."), e_.Repeat(e_.Text("0"), 1, kUnbounded)));
  } else {
    std::vector<ExprId> ways;
    if (!exclusive) ways.push_back(e_.Concat(e_.Text(fraction), e_.Star(e_.Text("0"))));
    for (size_t i = 0; i < fraction.size(); ++i) {
      const ExprId before = e_.Text(fraction.substr(0, i));
      ways.push_back(e_.Concat({before, Digits('0', static_cast<char>(fraction[i] - 1)), digits_}));
      if (i > 0) ways.push_back(before);
    }
    behind = e_.Optional(e_.Concat(e_.Text("."), e_.Alt(std::move(ways))));
  }
  all.push_back(e_.Concat(e_.Text(whole), behind));
  return e_.Alt(std::move(all));
}

// Digits before the point, without a needless zero.
ExprId JsonText::Whole(uint32_t most) {
  return e_.Alt(e_.Text("0"), e_.Concat(Digits('1', '9'), e_.Repeat(Digits('0', '9'), 0, most - 1)));
}

ExprId JsonText::PointAnd(ExprId digit, uint32_t most) {
  return e_.Optional(e_.Concat(e_.Text("."), e_.Repeat(digit, 1, most)));
}

// Numbers without sign that a double tells from others: a fraction has so many digits that there are 15 in all, or as
// many as the limits have. Otherwise 1.00000000000000001 were above 1 here, and equal to it for who reads it.
// REQUIRES: most_whole >= kPrecise.
ExprId JsonText::Precise(uint32_t most_whole, uint32_t whole_of_limits, uint32_t fraction_of_limits) {
  const ExprId digit = Digits('0', '9'), zeros = PointAnd(e_.Text("0"), kMostFraction);
  const auto fraction = [&](uint32_t whole) {
    const uint32_t most = std::max(kPrecise - whole, whole <= whole_of_limits ? fraction_of_limits : 0);
    return most > 0 ? PointAnd(digit, most) : zeros;
  };
  ExprId behind = e_.Concat(e_.Repeat(digit, 0, most_whole - kPrecise), fraction(kPrecise));
  for (uint32_t whole = kPrecise - 1; whole > 0; --whole) behind = e_.Alt(fraction(whole), e_.Concat(digit, behind));
  return e_.Alt(e_.Concat(e_.Text("0"), fraction(1)), e_.Concat(Digits('1', '9'), behind));
}

// A small model that may write one digit more writes digits for ever. So a number has as many as 64 bits and a double
// need, and as many as the limits themselves have. Of multiples an integer, too, has only digits that a double keeps:
// 9007199254740993 is a multiple of 3, and what a double makes of it is none.
StatusOr<ExprId> JsonText::Number(const NumberLimits& limits) {
  size_t whole_of_limits = 0;
  size_t fraction_of_limits = 0;
  const auto needs = [&](const Decimal& d) {
    whole_of_limits = std::max(whole_of_limits, d.Whole().size());
    fraction_of_limits = std::max(fraction_of_limits, d.Fraction().size());
  };
  if (limits.low) needs(limits.low->value);
  if (limits.high) needs(limits.high->value);
  for (const Decimal& m : limits.multiples) needs(m);
  for (const Decimal& m : limits.no_multiples) needs(m);
  const auto rounded = [one = Decimal::Read("1")](const Decimal& m) { return m != *one; };
  const bool of_multiples = std::any_of(limits.multiples.begin(), limits.multiples.end(), rounded) ||
                            std::any_of(limits.no_multiples.begin(), limits.no_multiples.end(), rounded);
  const auto whole_digits =
      static_cast<uint32_t>(std::max<size_t>(of_multiples ? kPrecise : kMostWhole, whole_of_limits + 1));
  const auto fraction_digits = static_cast<uint32_t>(std::max<size_t>(kMostFraction, fraction_of_limits + 1));
  const ExprId minus = e_.Text("-"), whole = Whole(whole_digits);
  // An exponent of three digits would soon be more than a double holds.
  if (limits.none()) {
    return e_.Concat(
        {e_.Optional(minus), whole, PointAnd(Digits('0', '9'), fraction_digits), Match("([eE][+-]?\\d{1,2})?")});
  }
  const ExprId any =
      Precise(whole_digits, static_cast<uint32_t>(whole_of_limits), static_cast<uint32_t>(fraction_of_limits));
  const ExprId zero = e_.Concat(e_.Text("0"), PointAnd(e_.Text("0"), fraction_digits));
  const ExprId integer =
      e_.Concat({e_.Optional(minus), whole, limits.no_point ? kEpsilon : PointAnd(e_.Text("0"), kMostZeros)});
  const ExprId no_integer = e_.Not(Match("-?(0|[1-9]\\d*)(\\.0+)?"));
  std::vector<ExprId> parts = {limits.integer ? integer : e_.Concat(e_.Optional(minus), any)};
  if (limits.no_integer) parts.push_back(no_integer);
  if (limits.point) parts.push_back(WithPoint());
  if (limits.low.has_value()) {
    const auto& [value, exclusive] = *limits.low;
    if (value.negative()) {
      parts.push_back(e_.Alt(any, e_.Concat(minus, AtMost(value.Negated(), exclusive))));
    } else if (value.zero() && !exclusive) {
      parts.push_back(e_.Alt(any, e_.Concat(minus, zero)));
    } else {
      parts.push_back(AtLeast(value, exclusive));
    }
  }
  if (limits.high.has_value()) {
    const auto& [value, exclusive] = *limits.high;
    if (value.negative() || (value.zero() && exclusive)) {
      parts.push_back(e_.Concat(minus, AtLeast(value.Negated(), exclusive)));
    } else {
      parts.push_back(e_.Alt(e_.Concat(minus, any), AtMost(value, exclusive)));
    }
  }
  for (const bool wanted : {true, false}) {
    for (const Decimal& m : wanted ? limits.multiples : limits.no_multiples) {
      int scale = 0;
      const std::optional<uint64_t> n = m.Scaled(&scale);
      if (!n.has_value()) return ResourceExhausted("grammar: the bound of 17 digits of multipleOf is passed");
      if (*n == 1 && scale == 0) {
        parts.push_back(wanted ? integer : no_integer);
        continue;
      }
      const ExprId multiples = e_.MakeLazy(e_.Own(std::make_unique<Multiple>(*n, scale)), {Multiple::kSign, 0, 0});
      parts.push_back(wanted ? multiples : e_.Not(multiples));
    }
  }
  return parts.size() == 1 ? parts[0] : e_.And(std::move(parts));
}

ExprId JsonText::WithPoint() { return e_.Not(Match("-?(0|[1-9]\\d*)")); }

ExprId JsonText::NumberLiteral(const Decimal& number, uint32_t most_zeros) {
  const std::string fraction = number.Fraction();
  const ExprId zero = e_.Text("0");
  const ExprId behind = fraction.empty() ? PointAnd(zero, most_zeros)
                                         : e_.Concat(e_.Text("." + fraction), e_.Repeat(zero, 0, most_zeros));
  const ExprId size = e_.Concat(e_.Text(number.Whole()), behind);
  const ExprId minus = e_.Text("-");
  return e_.Concat(number.zero() ? e_.Optional(minus) : number.negative() ? minus : kEpsilon, size);
}

}  // namespace gyre::grammar
