#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/text_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <vector>

#include "model/quoted.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr int kMaxClassDepth = 50;

// PCRE2's \s lacks U+0085, and its \w has other characters than the dialect of the publishers' expressions.
constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{"
    "1F189}";
constexpr std::string_view kHex = "0-9A-Fa-f";

// Rewrites an expression character by character.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  StatusOr<std::string> Run() {
    std::string out;
    while (at_ < in_.size() && status_.ok()) {
      if (in_[at_] == '\\') {
        out += Escape(false).AsExpression();
      } else if (in_[at_] == '[') {
        out += Class(0).AsExpression();
      } else if (in_[at_] == '^' || in_[at_] == '$') {  // of each line, in that dialect
        out += std::string("(?m:") + in_[at_++] + ")";
      } else {
        out += in_[at_++];
      }
    }
    if (!status_.ok()) return status_;
    return out;
  }

 private:
  // A class as the items of PCRE2's [items] or [^items], or, if no such class says it, as an expression.
  struct CharacterClass {
    std::string items, expression;
    bool negated = false;
    std::string AsExpression() const {
      if (!expression.empty()) return expression;
      return (negated ? "[^" : "[") + items + "]";
    }
  };

  // The characters of \s, \w, \h and of their opposites, as items of a class; "" for other escapes.
  static std::string_view SetOf(char c) {
    switch (c) {
      case 's':
      case 'S': return kSpace;
      case 'w':
      case 'W': return kWord;
      case 'h':
      case 'H': return kHex;
      default: return "";
    }
  }

  // Takes an escape sequence, outside a class or as an item of one.
  CharacterClass Escape(bool in_class) {
    CharacterClass out;
    if (at_ + 1 >= in_.size()) {
      at_ = in_.size();
      out.items = "\\";
      return out;
    }
    const char c = in_[at_ + 1];
    at_ += 2;
    out.items = SetOf(c);
    if (!out.items.empty()) {
      out.negated = c < 'a';
      if (!in_class) out.expression = out.AsExpression();
      return out;
    }
    if (std::string_view("bBRXyYKOGmM").find(c) != std::string_view::npos && !(in_class && c == 'b') && status_.ok())
      status_ = Unimplemented("the expression {} has \\{}, which is not known", Printable(std::string(in_)), c);
    out.items = {'\\', c};
    if (!in_class) out.expression = out.items;
    return out;
  }

  // A class whose '[' is next.
  CharacterClass Class(int depth) {
    CharacterClass out;
    if (depth > kMaxClassDepth) {
      status_ = Unimplemented("an expression's classes are nested more than {} deep", kMaxClassDepth);
      at_ = in_.size();
      return out;
    }
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out.negated = true;
      ++at_;
    }
    std::vector<CharacterClass> factors(1);  // of an intersection
    std::vector<std::string> others;         // of the last factor: classes that are no items
    const auto finish = [&] {
      if (others.empty()) return;
      CharacterClass& f = factors.back();
      std::string any;
      if (!f.items.empty()) any = "[" + f.items + "]";
      for (const std::string& o : others) any += (any.empty() ? "" : "|") + o;
      f.expression = "(?:" + any + ")";
      others.clear();
    };
    bool first = true;
    for (;; first = false) {
      if (at_ >= in_.size()) {  // PCRE2 says what is wrong
        out.items = factors[0].items;
        out.expression = "[" + out.items;
        return out;
      }
      const char c = in_[at_];
      if (c == ']' && !first) break;
      const auto add = [&](const CharacterClass& inner) {
        if (inner.expression.empty() && !inner.negated) {
          factors.back().items += inner.items;
        } else {
          others.push_back(inner.AsExpression());
        }
      };
      if (c == '\\') {
        add(Escape(true));
      } else if (c == '[' && in_.substr(at_, 2) == "[:") {
        const size_t end = std::min(in_.find(":]", at_), in_.size());
        factors.back().items += in_.substr(at_, end + 2 - at_);
        at_ = std::min(end + 2, in_.size());
      } else if (c == '[') {
        add(Class(depth + 1));
      } else if (in_.substr(at_, 2) == "&&") {
        at_ += 2;
        finish();
        factors.emplace_back();
      } else {
        if (c == ']') factors.back().items += '\\';
        factors.back().items += c;
        ++at_;
      }
    }
    ++at_;
    finish();
    if (factors.size() == 1 && factors[0].expression.empty()) {
      out.items = factors[0].items;
      return out;
    }
    // All factors hold for the next character; each is one character long.
    std::string all;
    for (size_t i = 0; i + 1 < factors.size(); ++i) all += "(?=" + factors[i].AsExpression() + ")";
    all += factors.back().AsExpression();
    out.expression = out.negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
    out.negated = false;
    return out;
  }

  const std::string_view in_;
  size_t at_ = 0;
  Status status_;
};

}  // namespace

StatusOr<std::string> ToPcre(std::string_view expression) { return Translator(expression).Run(); }

struct TextPattern::Rep {
  explicit Rep(pcre2_code* c) : code(c) {}
  Rep(const Rep&) = delete;
  Rep& operator=(const Rep&) = delete;
  ~Rep() { pcre2_code_free(code); }
  pcre2_code* code;
  std::array<bool, 256> begins{};
  bool any = true;  // almost every text has such a byte: looking for it would only cost
};

TextPattern::TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;
TextPattern::~TextPattern() = default;

StatusOr<TextPattern> TextPattern::Compile(std::string_view expression) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ToPcre(expression));
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR words[200] = {};
    pcre2_get_error_message(error, words, sizeof words);
    return InvalidArgument("{} is no regular expression: {} at {}", Printable(std::string(expression)),
                           reinterpret_cast<const char*>(words), offset);
  }
  auto rep = std::make_unique<Rep>(code);
  rep->begins.fill(true);
  const uint8_t* first = nullptr;
  if (pcre2_pattern_info(code, PCRE2_INFO_FIRSTBITMAP, &first) == 0 && first != nullptr) {
    for (unsigned b = 0; b < 256; ++b) rep->begins[b] = (first[b / 8] >> b % 8 & 1) != 0;
    rep->any = rep->begins['e'] || rep->begins[' '];
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, pcre2_match interprets the pattern
  TextPattern pattern;
  pattern.rep_ = std::move(rep);
  return pattern;
}

bool TextPattern::MatchesEmpty() const {
  uint32_t empty = 0;
  return pcre2_pattern_info(rep_->code, PCRE2_INFO_MATCHEMPTY, &empty) == 0 && empty != 0;
}

bool TextPattern::MayMatch(std::string_view text) const {
  return rep_->any ||
         std::any_of(text.begin(), text.end(), [&](char c) { return rep_->begins[static_cast<uint8_t>(c)]; });
}

bool TextPattern::Find(std::string_view text, size_t from, Match* match) const {
  struct Scratch {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    ~Scratch() { pcre2_match_data_free(data); }
  };
  thread_local Scratch scratch;
  while (from < text.size()) {
    const int found =
        pcre2_match(rep_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, scratch.data, nullptr);
    if (found < 0) return false;
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(scratch.data);
    if (at[1] > at[0]) {
      *match = {.begin = at[0], .end = at[1]};
      return true;
    }
    from = std::max(from, at[1]) + Utf8Length(text, std::max(from, at[1]));
  }
  return false;
}

}  // namespace gyre
