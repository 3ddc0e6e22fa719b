#include "model/jinja/lexer.h"

#include <cctype>
#include <optional>

#include "model/utf8.h"

namespace gyre::jinja {
namespace {

bool Blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {  // newlines as one kind
      if (source[i] == '\r') {
        text_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        text_ += source[i];
      }
    }
    if (!text_.empty() && text_.back() == '\n') text_.pop_back();
  }

  std::vector<Token> Run() {
    while (at_ < text_.size()) Data();
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool Here(std::string_view what) const { return std::string_view(text_).substr(at_, what.size()) == what; }
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void Advance(size_t n) {
    for (size_t i = 0; i < n; ++i) line_ += text_[at_ + i] == '\n';
    at_ += n;
  }

  // Reads text up to the next tag, then that tag.
  void Data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        tag = text_.size();
        break;
      }
      const char c = text_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
    }
    const char kind = tag < text_.size() ? text_[tag + 1] : '\0';
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    std::string data = text_.substr(at_, tag - at_);
    if (kind != '\0' && sign == '-') {
      while (!data.empty() && Blank(data.back())) data.pop_back();
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      // Blanks between the beginning of a line and a block or comment are dropped.
      size_t cut = data.size();
      while (cut > 0 && (data[cut - 1] == ' ' || data[cut - 1] == '\t')) --cut;
      if (cut > 0 ? data[cut - 1] == '\n' : line_begins_) data.resize(cut);
    }
    if (!data.empty()) Add(Token::Kind::kData, std::move(data));
    Advance(tag - at_);
    if (kind == '\0') return;
    if (kind == '#') return Comment();
    Advance(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '%' && Raw()) return;
    Tag(kind == '%');
  }

  void Comment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == std::string::npos) Fail("line {}: a comment has no end", line_);
    const char sign = text_[end - 1];
    Advance(end + 2 - at_);
    After(sign, true);
  }

  // Handles the text after a tag's end: `-` drops all white space, else a block's newline is dropped.
  void After(char sign, bool block) {
    line_begins_ = false;
    if (sign == '-') {
      while (at_ < text_.size() && Blank(text_[at_])) Advance(1);
      // The text that follows is still at the beginning of its line.
      line_begins_ = at_ > 0 && text_[at_ - 1] == '\n';
    } else if (block && sign != '+' && Peek() == '\n') {
      Advance(1);
      line_begins_ = true;
    }
  }

  // Reads {% raw %} ... {% endraw %}; the opening tag's sign is already read.
  bool Raw() {
    size_t p = at_;
    auto blanks = [&] {
      while (p < text_.size() && Blank(text_[p])) ++p;
    };
    blanks();
    if (text_.compare(p, 3, "raw") != 0) return false;
    p += 3;
    blanks();
    char sign = '\0';
    if (p < text_.size() && (text_[p] == '-' || text_[p] == '+')) sign = text_[p++];
    if (text_.compare(p, 2, "%}") != 0) return false;
    Advance(p + 2 - at_);
    After(sign, true);
    for (size_t tag = at_;; ++tag) {
      tag = text_.find("{%", tag);
      if (tag == std::string::npos) Fail("line {}: a raw block has no end", line_);
      p = tag + 2;
      const char before = p < text_.size() ? text_[p] : '\0';
      if (before == '-' || before == '+') ++p;
      blanks();
      if (text_.compare(p, 6, "endraw") != 0) continue;
      p += 6;
      blanks();
      sign = '\0';
      if (p < text_.size() && (text_[p] == '-' || text_[p] == '+')) sign = text_[p++];
      if (text_.compare(p, 2, "%}") != 0) continue;
      std::string data = text_.substr(at_, tag - at_);
      while (before == '-' && !data.empty() && Blank(data.back())) data.pop_back();
      if (!data.empty()) Add(Token::Kind::kData, std::move(data));
      Advance(p + 2 - at_);
      After(sign, true);
      return true;
    }
  }

  void Tag(bool block) {
    Add(block ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    const std::string_view end = block ? "%}" : "}}";
    std::string brackets;
    for (;;) {
      while (at_ < text_.size() && Blank(text_[at_])) Advance(1);
      if (at_ >= text_.size()) Fail("line {}: a tag has no end", line_);
      if (brackets.empty()) {
        const char sign = Peek() == '-' || (block && Peek() == '+') ? Peek() : '\0';
        const size_t skip = sign == '\0' ? 0 : 1;
        if (text_.compare(at_ + skip, 2, end) == 0) {
          Add(block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
          Advance(skip + 2);
          return After(sign, block);
        }
      }
      One(&brackets);
    }
  }

  void One(std::string* brackets) {
    const char c = Peek();
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      size_t n = 1;
      while (std::isalnum(static_cast<unsigned char>(Peek(n))) != 0 || Peek(n) == '_' ||
             static_cast<unsigned char>(Peek(n)) >= 0x80)
        ++n;
      Add(Token::Kind::kName, text_.substr(at_, n));
      return Advance(n);
    }
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return Number();
    if (c == '"' || c == '\'') return String(c);
    for (std::string_view op : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (!Here(op)) continue;
      Add(Token::Kind::kOperator, std::string(op));
      return Advance(2);
    }
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos) {
      Fail("line {}: '{}' has no meaning in a tag", line_, c >= ' ' && c < 127 ? std::string(1, c) : std::string("?"));
    }
    if (c == '(' || c == '[' || c == '{') {
      if (brackets->size() > 200) Fail("line {}: brackets are nested too deep", line_);
      brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    }
    if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty() || brackets->back() != c) Fail("line {}: '{}' closes nothing", line_, c);
      brackets->pop_back();
    }
    Add(Token::Kind::kOperator, std::string(1, c));
    Advance(1);
  }

  void Number() {
    size_t n = 0;
    bool is_float = false;
    auto digits = [&] {
      while (std::isdigit(static_cast<unsigned char>(Peek(n))) != 0 || (Peek(n) == '_' && n > 0)) ++n;
    };
    digits();
    if (Peek(n) == '.' && std::isdigit(static_cast<unsigned char>(Peek(n + 1))) != 0) {
      is_float = true;
      ++n;
      digits();
    }
    if (Peek(n) == 'e' || Peek(n) == 'E') {
      const size_t sign = Peek(n + 1) == '+' || Peek(n + 1) == '-' ? 1 : 0;
      if (std::isdigit(static_cast<unsigned char>(Peek(n + 1 + sign))) != 0) {
        is_float = true;
        n += 1 + sign;
        digits();
      }
    }
    std::string text = text_.substr(at_, n);
    std::erase(text, '_');
    Add(is_float ? Token::Kind::kFloat : Token::Kind::kInt, std::move(text));
    Advance(n);
  }

  std::optional<char32_t> Hex(size_t at, size_t digits) const {
    char32_t v = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = at + i < text_.size() ? text_[at + i] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
      v = v * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
  }

  // Handles Python's escapes.
  void String(char quote) {
    std::string out;
    size_t p = at_ + 1;
    for (; p < text_.size() && text_[p] != quote; ++p) {
      if (text_[p] != '\\') {
        out += text_[p];
        continue;
      }
      if (++p >= text_.size()) break;
      const char c = text_[p];
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (digits > 0) {
        const auto v = Hex(p + 1, digits);
        if (v && *v <= 0x10FFFF && (*v < 0xD800 || *v >= 0xE000)) {
          AppendUtf8(*v, &out);
          p += digits;
          continue;
        }
      }
      constexpr std::string_view kFrom = "ntr\\'\"abfv0\n", kTo = "\n\t\r\\'\"\a\b\f\v\0";
      const size_t found = kFrom.find(c);
      if (c == '\n') continue;
      if (found != std::string_view::npos) {
        out += found < kTo.size() ? kTo[found] : '\0';
      } else {
        out += '\\';
        out += c;
      }
    }
    if (p >= text_.size()) Fail("line {}: a string has no end", line_);
    Add(Token::Kind::kString, std::move(out));
    Advance(p + 1 - at_);
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // what follows stands at the beginning of a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Lex(std::string_view source) { return Lexer(source).Run(); }

}  // namespace gyre::jinja
