#include "coordinator/grammar/regex.h"

#include <utf8proc.h>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/hex.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

struct Ast;
using AstPtr = std::unique_ptr<Ast>;
struct Ast {
  enum class Kind : uint8_t { kEmpty, kSet, kConcat, kAlt, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kEmpty;
  bool anchored = false;  // it, or a part of it, is an anchor
  CodePoints set;
  std::vector<AstPtr> parts;
  uint32_t min = 0, max = 0;
};

AstPtr Make(Ast::Kind kind, std::vector<AstPtr> parts = {}) {
  auto a = std::make_unique<Ast>();
  a->kind = kind;
  a->anchored = kind == Ast::Kind::kBegin || kind == Ast::Kind::kEnd;
  for (const AstPtr& p : parts) a->anchored = a->anchored || p->anchored;
  a->parts = std::move(parts);
  return a;
}

AstPtr MakeSet(CodePoints set) {
  AstPtr a = Make(Ast::Kind::kSet);
  a->set = std::move(set);
  return a;
}

// The code points of a general category, or of a group of them as "L". Empty: no such category.
CodePoints Category(std::string_view name) {
  constexpr std::pair<const char*, const char*> kLong[] = {{"Letter", "L"},
                                                           {"Uppercase_Letter", "Lu"},
                                                           {"Lowercase_Letter", "Ll"},
                                                           {"Number", "N"},
                                                           {"Mark", "M"},
                                                           {"Decimal_Number", "Nd"},
                                                           {"Punctuation", "P"},
                                                           {"punct", "P"},
                                                           {"Symbol", "S"},
                                                           {"Separator", "Z"},
                                                           {"Space_Separator", "Zs"},
                                                           {"Other", "C"},
                                                           {"Control", "Cc"},
                                                           {"digit", "Nd"}};
  for (const auto& [full, abbreviated] : kLong) {
    if (name == full) name = abbreviated;
  }
  CodePoints set;
  if (name == "Any") return CodePoints::All();
  if (name == "ASCII") return {0, 0x7F};
  if (name == "ASCII_Hex_Digit") {
    set.Add('0', '9');
    set.Add('A', 'F');
    set.Add('a', 'f');
    return set;
  }
  if (name.empty() || name.size() > 2) return set;
  char32_t begin = 0;
  bool in = false;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const std::string_view category = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
    const bool now = category.substr(0, name.size()) == name ||
                     (name == "LC" && (category == "Lu" || category == "Ll" || category == "Lt"));
    if (now && !in) begin = c;
    if (!now && in) set.Add(begin, c - 1);
    in = now;
  }
  if (in) set.Add(begin, 0x10FFFF);
  return set;
}

class PatternReader {
 public:
  PatternReader(std::string_view text, const PatternOptions& options, size_t nesting)
      : text_(text), options_(options), nesting_(nesting) {}

  StatusOr<AstPtr> Read() {
    for (size_t i = 0; i < text_.size();) {
      const size_t n = ValidUtf8Length(text_, i);
      if (n == 0) return Wrong("bytes that are no UTF-8");
      i += n;
    }
    GYRE_ASSIGN_OR_RETURN(AstPtr all, Alternatives());
    if (!Ends()) return Wrong(Peek() == ')' ? "a ) without a (" : "a character that stands for itself only escaped");
    return all;
  }

 private:
  bool Ends() const { return at_ >= text_.size(); }
  char Peek() const { return Ends() ? '\0' : text_[at_]; }
  bool Take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  Status Wrong(std::string_view why) const {
    return InvalidArgument("not a regular expression: {} at byte {}", why, at_);
  }
  Status Unsupported(std::string_view what) const {
    return Unimplemented("a {} at byte {} of a regular expression is not supported", what, at_);
  }
  char32_t TakeCodePoint() {
    const size_t n = ValidUtf8Length(text_, at_);
    const char32_t c = Utf8Decode(text_, at_, n);
    at_ += n;
    return c;
  }

  StatusOr<AstPtr> Alternatives() {
    if (++depth_ > nesting_) return ResourceExhausted("grammar: the bound of {} groups in groups is passed", nesting_);
    std::vector<AstPtr> all;
    do {
      std::vector<AstPtr> row;
      while (!Ends() && Peek() != '|' && Peek() != ')') {
        GYRE_ASSIGN_OR_RETURN(AstPtr term, Term());
        row.push_back(std::move(term));
      }
      all.push_back(row.size() == 1 ? std::move(row[0]) : Make(Ast::Kind::kConcat, std::move(row)));
    } while (Take("|"));
    --depth_;
    if (all.size() == 1) return std::move(all[0]);
    return Make(Ast::Kind::kAlt, std::move(all));
  }

  StatusOr<AstPtr> Term() {
    if (Take("^")) return Make(Ast::Kind::kBegin);
    if (Take("$")) return Make(Ast::Kind::kEnd);
    if (Take("\\b") || Take("\\B")) return Unsupported("word boundary");
    GYRE_ASSIGN_OR_RETURN(AstPtr atom, Atom());
    return Quantified(std::move(atom));
  }

  StatusOr<AstPtr> Atom() {
    const char c = Peek();
    if (c == '(') return Group();
    if (c == '[') {
      GYRE_ASSIGN_OR_RETURN(CodePoints set, Class());
      return MakeSet(std::move(set));
    }
    if (c == '.') {
      ++at_;
      return MakeSet(CodePoints::LineEnds().Complement());
    }
    if (c == '\\') {
      ++at_;
      GYRE_ASSIGN_OR_RETURN(CodePoints set, Escape(false));
      return MakeSet(std::move(set));
    }
    if (c == '*' || c == '+' || c == '?') return Wrong("nothing to repeat");
    if (c == '{') {
      const size_t before = at_;
      uint32_t min, max;
      GYRE_ASSIGN_OR_RETURN(const bool counted, Counts(&min, &max));
      if (counted) return Wrong("nothing to repeat");
      at_ = before;
    }
    if ((c == '{' || c == '}' || c == ']') && !options_.lenient) return Wrong("a bracket that is not escaped");
    const char32_t p = TakeCodePoint();
    return MakeSet({p, p});
  }

  StatusOr<AstPtr> Group() {
    if (Take("(?=") || Take("(?!")) return Unsupported("lookahead");
    if (Take("(?<=") || Take("(?<!")) return Unsupported("lookbehind");
    if (Take("(?<")) {
      const size_t from = at_;
      while (!Ends() && Peek() != '>') ++at_;
      if (at_ == from || !Take(">")) return Wrong("a group's name that does not end");
    } else if (!Take("(?:")) {
      if (Take("(?")) return Wrong("an unknown kind of group");
      Take("(");
    }
    GYRE_ASSIGN_OR_RETURN(AstPtr inner, Alternatives());
    if (!Take(")")) return Wrong("a group that does not end");
    return inner;
  }

  // {n}, {n,}, {n,m} behind an atom; false: there is none, and nothing was taken.
  StatusOr<bool> Counts(uint32_t* min, uint32_t* max) {
    const size_t before = at_;
    auto number = [&]() -> std::optional<uint32_t> {
      if (Peek() < '0' || Peek() > '9') return std::nullopt;
      uint64_t n = 0;
      while (Peek() >= '0' && Peek() <= '9')
        n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(text_[at_++] - '0'), kUnbounded - 1);
      return static_cast<uint32_t>(n);
    };
    Take("{");
    const std::optional<uint32_t> first = number();
    if (first.has_value()) {
      *min = *max = *first;
      if (Take(",")) {
        const std::optional<uint32_t> second = number();
        *max = second.value_or(kUnbounded);
      }
      if (Take("}")) {
        if (*max < *min) return Wrong("bounds that are not in order");
        return true;
      }
    }
    at_ = before;
    return false;
  }

  StatusOr<AstPtr> Quantified(AstPtr atom) {
    uint32_t min = 1, max = 1;
    if (Take("*")) {
      min = 0, max = kUnbounded;
    } else if (Take("+")) {
      max = kUnbounded;
    } else if (Take("?")) {
      min = 0;
    } else if (Peek() == '{') {
      GYRE_ASSIGN_OR_RETURN(const bool counted, Counts(&min, &max));
      if (!counted) {
        if (!options_.lenient) return Wrong("a { that is not escaped");
        return atom;
      }
    } else {
      return atom;
    }
    Take("?");
    const char next = Peek();
    if (next == '*' || next == '+' || next == '?') return Wrong("nothing to repeat");
    std::vector<AstPtr> parts;
    parts.push_back(std::move(atom));
    AstPtr repeat = Make(Ast::Kind::kRepeat, std::move(parts));
    repeat->min = min;
    repeat->max = max;
    return repeat;
  }

  StatusOr<uint32_t> HexDigits(size_t count) {
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const int digit = HexValue(Peek());
      if (digit < 0) return Wrong("an escape without its hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return value;
  }

  StatusOr<char32_t> UnicodeEscape() {
    if (Take("{")) {
      uint32_t value = 0;
      const size_t from = at_;
      while (!Ends() && Peek() != '}') {
        GYRE_ASSIGN_OR_RETURN(const uint32_t digit, HexDigits(1));
        value = value * 16 + digit;
        if (value > 0x10FFFF) return Wrong("an escape above U+10FFFF");
      }
      if (at_ == from || !Take("}")) return Wrong("an escape that does not end");
      return value;
    }
    GYRE_ASSIGN_OR_RETURN(const uint32_t high, HexDigits(4));
    if (high >= 0xD800 && high < 0xDC00 && text_.substr(at_, 2) == "\\u" && text_.substr(at_ + 2, 1) != "{") {
      const size_t before = at_;
      at_ += 2;
      GYRE_ASSIGN_OR_RETURN(const uint32_t low, HexDigits(4));
      if (low >= 0xDC00 && low < 0xE000) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
      at_ = before;
    }
    return high;
  }

  // What follows a backslash.
  StatusOr<CodePoints> Escape(bool in_class) {
    if (Ends()) return Wrong("a backslash at the end");
    const char c = Peek();
    auto one = [](char32_t p) { return CodePoints(p, p); };
    if (c >= '1' && c <= '9' && !in_class) return Unsupported("back reference");
    if (c == 'k' && !in_class && text_.substr(at_, 2) == "k<") return Unsupported("back reference");
    const char32_t p = TakeCodePoint();
    switch (p) {
      case 'd': return CodePoints::Digits();
      case 'D': return CodePoints::Digits().Complement();
      case 'w': return CodePoints::Words();
      case 'W': return CodePoints::Words().Complement();
      case 's': return CodePoints::Spaces();
      case 'S': return CodePoints::Spaces().Complement();
      case 'f': return one('\f');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'v': return one('\v');
      case 'b':
        if (in_class) return one('\b');
        break;
      case '-':
        if (in_class || options_.lenient) return one('-');
        break;
      case '0':
        if (Peek() >= '0' && Peek() <= '9') return Wrong("an octal escape");
        return one(0);
      case 'c': {
        const char letter = Peek();
        if ((letter < 'a' || letter > 'z') && (letter < 'A' || letter > 'Z')) return Wrong("\\c without a letter");
        ++at_;
        return one(static_cast<char32_t>(letter) & 0x1F);
      }
      case 'x': {
        GYRE_ASSIGN_OR_RETURN(const uint32_t value, HexDigits(2));
        return one(value);
      }
      case 'u': {
        GYRE_ASSIGN_OR_RETURN(const char32_t value, UnicodeEscape());
        return one(value);
      }
      case 'p':
      case 'P': return Property(p == 'P');
      default: break;
    }
    if (p < 0x80 && std::string_view("^$\\.*+?()[]{}|/").find(static_cast<char>(p)) != std::string_view::npos)
      return one(p);
    const bool letter = (p >= '0' && p <= '9') || (p >= 'a' && p <= 'z') || (p >= 'A' && p <= 'Z');
    if (options_.lenient && !letter) return one(p);
    return Wrong("an unknown escape");
  }

  StatusOr<CodePoints> Property(bool complement) {
    if (!Take("{")) return Wrong("\\p without {");
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) return Wrong("a property that does not end");
    std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 1;
    for (const std::string_view prefix : {"General_Category=", "gc="}) {
      if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
    }
    CodePoints set = Category(name);
    if (set.empty()) return Unimplemented("the property {} of Unicode in a regular expression is not supported", name);
    return complement ? set.Complement() : set;
  }

  StatusOr<CodePoints> Class() {
    Take("[");
    const bool complement = Take("^");
    CodePoints set;
    while (true) {
      if (Ends()) return Wrong("a class that does not end");
      if (Take("]")) break;
      bool single = false;
      char32_t first = 0;
      GYRE_ASSIGN_OR_RETURN(const CodePoints one, ClassAtom(&single, &first));
      if (Peek() != '-' || text_.substr(at_, 2) == "-]" || text_.substr(at_).size() < 2) {
        set.Add(one);
        continue;
      }
      ++at_;
      char32_t last = 0;
      bool last_single = false;
      GYRE_ASSIGN_OR_RETURN(const CodePoints other, ClassAtom(&last_single, &last));
      if (!single || !last_single) {
        if (!options_.lenient) return Wrong("a range with a class at an end");
        set.Add(one);
        set.Add('-', '-');
        set.Add(other);
        continue;
      }
      if (first > last) return Wrong("a range that is not in order");
      set.Add(first, last);
    }
    return complement ? set.Complement() : set;
  }

  StatusOr<CodePoints> ClassAtom(bool* single, char32_t* value) {
    if (Ends()) return Wrong("a class that does not end");
    if (Peek() != '\\') {
      *single = true;
      *value = TakeCodePoint();
      return CodePoints(*value, *value);
    }
    ++at_;
    const char c = Peek();
    GYRE_ASSIGN_OR_RETURN(CodePoints set, Escape(true));
    *single = std::string_view("dDwWsSpP").find(c) == std::string_view::npos;
    if (*single) *value = set.empty() ? 0xD800 : set.ranges()[0].first;
    return set;
  }

  const std::string_view text_;
  const PatternOptions& options_;
  const size_t nesting_;
  size_t at_ = 0, depth_ = 0;
};

// The texts of a part by whether its ends are the text's: [1][.] it begins where the text does, [.][1] it ends there.
struct Pieces {
  std::array<std::array<ExprId, 2>, 2> some;  // one code point or more
  std::array<std::array<bool, 2>, 2> none;    // whether the empty text is one
};

class PatternBuilder {
 public:
  PatternBuilder(Expressions* e, Writing writing) : e_(e), writing_(writing) {}

  StatusOr<ExprId> Build(const Ast& ast, bool search) {
    const ExprId any = OneOf(e_, CodePoints::All(), writing_);
    if (!ast.anchored) {
      const ExprId all = Plain(ast);
      return search ? e_->Concat({e_->Star(any), all, e_->Star(any)}) : all;
    }
    GYRE_ASSIGN_OR_RETURN(Pieces p, Cut(ast));
    if (search) {
      Pieces around;
      for (auto& row : around.some) row.fill(e_->Repeat(any, 1, kUnbounded));
      for (auto& row : around.none) row.fill(true);
      p = Row(Row(around, p), around);
    }
    return p.none[1][1] ? e_->Optional(p.some[1][1]) : p.some[1][1];
  }

 private:
  ExprId Plain(const Ast& ast) {
    switch (ast.kind) {
      case Ast::Kind::kSet: return OneOf(e_, ast.set, writing_);
      case Ast::Kind::kConcat: {
        ExprId all = kEpsilon;
        for (size_t i = ast.parts.size(); i-- > 0;) all = e_->Concat(Plain(*ast.parts[i]), all);
        return all;
      }
      case Ast::Kind::kAlt: {
        std::vector<ExprId> all;
        for (const AstPtr& p : ast.parts) all.push_back(Plain(*p));
        return e_->Alt(std::move(all));
      }
      case Ast::Kind::kRepeat: return e_->Repeat(Plain(*ast.parts[0]), ast.min, ast.max);
      default: return kEpsilon;
    }
  }

  // The texts but the empty one.
  ExprId Some(const Ast& ast) {
    switch (ast.kind) {
      case Ast::Kind::kSet: return OneOf(e_, ast.set, writing_);
      case Ast::Kind::kConcat: {
        ExprId some = kNothing, all = kEpsilon;
        for (size_t i = ast.parts.size(); i-- > 0;) {
          const ExprId part = Plain(*ast.parts[i]);
          const ExprId first = e_->Concat(Some(*ast.parts[i]), all);
          some = e_->Nullable(part) ? e_->Alt(first, some) : first;
          all = e_->Concat(part, all);
        }
        return some;
      }
      case Ast::Kind::kAlt: {
        std::vector<ExprId> all;
        for (const AstPtr& p : ast.parts) all.push_back(Some(*p));
        return e_->Alt(std::move(all));
      }
      case Ast::Kind::kRepeat: {
        if (ast.max == 0) return kNothing;
        const ExprId part = Plain(*ast.parts[0]);
        const uint32_t min = e_->Nullable(part) || ast.min == 0 ? 0 : ast.min - 1;
        return e_->Concat(Some(*ast.parts[0]), e_->Repeat(part, min, ast.max == kUnbounded ? kUnbounded : ast.max - 1));
      }
      default: return kNothing;
    }
  }

  static Pieces Nothing() {
    Pieces p;
    for (auto& row : p.some) row.fill(kNothing);
    for (auto& row : p.none) row.fill(false);
    return p;
  }

  Pieces Row(const Pieces& a, const Pieces& b) {
    Pieces all = Nothing();
    for (size_t s = 0; s < 2; ++s) {
      for (size_t t = 0; t < 2; ++t) {
        all.none[s][t] = a.none[s][t] && b.none[s][t];
        all.some[s][t] = e_->Alt({e_->Concat(a.some[s][0], b.some[0][t]), a.none[s][0] ? b.some[s][t] : kNothing,
                                  b.none[0][t] ? a.some[s][t] : kNothing});
      }
    }
    return all;
  }

  StatusOr<Pieces> Cut(const Ast& ast) {
    Pieces all = Nothing();
    if (!ast.anchored) {
      const bool none = e_->Nullable(Plain(ast));
      for (auto& row : all.some) row.fill(Some(ast));
      for (auto& row : all.none) row.fill(none);
      return all;
    }
    switch (ast.kind) {
      case Ast::Kind::kBegin: all.none[1][0] = all.none[1][1] = true; break;
      case Ast::Kind::kEnd: all.none[0][1] = all.none[1][1] = true; break;
      case Ast::Kind::kConcat: {
        for (auto& row : all.none) row.fill(true);
        for (const AstPtr& p : ast.parts) {
          GYRE_ASSIGN_OR_RETURN(const Pieces part, Cut(*p));
          all = Row(all, part);
        }
        break;
      }
      case Ast::Kind::kAlt:
        for (const AstPtr& p : ast.parts) {
          GYRE_ASSIGN_OR_RETURN(const Pieces part, Cut(*p));
          for (size_t s = 0; s < 2; ++s) {
            for (size_t t = 0; t < 2; ++t) {
              all.some[s][t] = e_->Alt(all.some[s][t], part.some[s][t]);
              all.none[s][t] = all.none[s][t] || part.none[s][t];
            }
          }
        }
        break;
      case Ast::Kind::kRepeat: {
        GYRE_ASSIGN_OR_RETURN(const Pieces part, Cut(*ast.parts[0]));
        if (ast.max == 0) {
          for (auto& row : all.none) row.fill(true);
          break;
        }
        const bool many = ast.max == kUnbounded && ast.min <= 1;
        if (!many && (ast.max > 1)) return Unimplemented("an anchor in a counted repetition is not supported");
        all = part;
        for (size_t s = 0; many && s < 2; ++s) {
          for (size_t t = 0; t < 2; ++t) {
            all.some[s][t] =
                e_->Alt(part.some[s][t], e_->Concat({part.some[s][0], e_->Star(part.some[0][0]), part.some[0][t]}));
          }
        }
        if (ast.min == 0) {
          for (auto& row : all.none) row.fill(true);
        }
        break;
      }
      default: break;
    }
    return all;
  }

  Expressions* const e_;
  const Writing writing_;
};

}  // namespace

StatusOr<ExprId> ReadPattern(Expressions* e, std::string_view pattern, const PatternOptions& options) {
  PatternReader reader(pattern, options, e->budget().bounds().nesting);
  GYRE_ASSIGN_OR_RETURN(const AstPtr ast, reader.Read());
  GYRE_ASSIGN_OR_RETURN(const ExprId all, PatternBuilder(e, options.writing).Build(*ast, options.search));
  GYRE_RETURN_IF_ERROR(e->budget().status());
  return all;
}

StatusOr<Grammar> RegexGrammar(std::string_view pattern, const Bounds& bounds) {
  if (pattern.size() > bounds.source_bytes) {
    return ResourceExhausted("grammar: the bound of {} bytes of a pattern is passed", bounds.source_bytes);
  }
  Grammar grammar(bounds);
  GYRE_ASSIGN_OR_RETURN(const ExprId all, ReadPattern(&grammar.expressions(), pattern, {}));
  grammar.SetRoot(grammar.AddRule());
  grammar.SetBody(grammar.root(), all);
  GYRE_RETURN_IF_ERROR(grammar.Finish());
  return grammar;
}

}  // namespace gyre::grammar
