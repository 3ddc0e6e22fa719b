#include "coordinator/grammar/gbnf.h"

#include <algorithm>
#include <optional>

#include "base/hex.h"
#include "coordinator/grammar/code_points.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfReader {
 public:
  GbnfReader(std::string_view text, Grammar* grammar) : text_(text), grammar_(grammar), e_(&grammar->expressions()) {}

  Status Read() {
    Space(true);
    while (!Ends()) {
      const std::string_view name = Name();
      if (name.empty()) return Wrong("expected the name of a rule");
      Space(false);
      if (!Take("::=")) return Wrong("expected ::= behind the name of a rule");
      Space(true);
      GYRE_ASSIGN_OR_RETURN(const ExprId body, Alternatives(false));
      const RuleId rule = Rule(name);
      if (!defined_.insert(rule).second) return Wrong(fmt::format("the rule {} is there twice", name));
      grammar_->SetBody(rule, body);
      if (!Ends() && !LineEnd()) return Wrong(Peek() == ')' ? "a ) without a (" : "expected the end of a rule");
      Space(true);
      GYRE_RETURN_IF_ERROR(grammar_->budget().status());
    }
    for (const auto& [name, rule] : rules_) {
      if (!defined_.contains(rule)) return InvalidArgument("gbnf: no rule has the name {}", name);
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return InvalidArgument("gbnf: there is no rule root");
    grammar_->SetRoot(root->second);
    return absl::OkStatus();
  }

 private:
  bool Ends() const { return at_ >= text_.size(); }
  char Peek() const { return Ends() ? '\0' : text_[at_]; }
  bool Take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  bool LineEnd() { return Take("\r\n") || Take("\n") || Take("\r"); }
  Status Wrong(std::string_view why) const {
    const size_t end = std::min(at_, text_.size());
    return InvalidArgument("gbnf: line {}: {}",
                           1 + std::count(text_.begin(), text_.begin() + static_cast<long>(end), '\n'), why);
  }
  void Space(bool lines) {
    while (!Ends()) {
      if (Peek() == '#') {
        while (!Ends() && Peek() != '\n' && Peek() != '\r') ++at_;
      } else if (Peek() == ' ' || Peek() == '\t' || (lines && (Peek() == '\n' || Peek() == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string_view Name() {
    const size_t from = at_;
    while (!Ends() && IsNameByte(Peek())) ++at_;
    return text_.substr(from, at_ - from);
  }
  RuleId Rule(std::string_view name) {
    const auto [at, fresh] = rules_.emplace(std::string(name), 0);
    if (fresh) at->second = grammar_->AddRule();
    return at->second;
  }

  StatusOr<ExprId> Alternatives(bool in_group) {
    if (++depth_ > grammar_->budget().bounds().nesting) {
      return ResourceExhausted("grammar: the bound of {} groups in groups is passed",
                               grammar_->budget().bounds().nesting);
    }
    std::vector<ExprId> all;
    do {
      Space(true);
      std::vector<ExprId> row;
      while (true) {
        GYRE_ASSIGN_OR_RETURN(const std::optional<ExprId> item, Item());
        if (!item.has_value()) break;
        row.push_back(*item);
        Space(in_group);
      }
      ExprId whole = kEpsilon;
      for (size_t i = row.size(); i-- > 0;) whole = e_->Concat(row[i], whole);
      all.push_back(whole);
      // A bar may stand at the end of a line or, within a group, in a new one.
      Space(in_group);
    } while (Take("|"));
    --depth_;
    return e_->Alt(std::move(all));
  }

  // One item with its counts; nothing: the row ends.
  StatusOr<std::optional<ExprId>> Item() {
    ExprId item = kNothing;
    const char c = Peek();
    if (c == '"') {
      GYRE_ASSIGN_OR_RETURN(item, Quoted());
    } else if (c == '[') {
      GYRE_ASSIGN_OR_RETURN(item, Class());
    } else if (Take(".")) {
      item = OneOf(e_, CodePoints::All(), Writing::kPlain);
    } else if (Take("(")) {
      GYRE_ASSIGN_OR_RETURN(item, Alternatives(true));
      Space(true);
      if (!Take(")")) return Wrong("expected ) at the end of a group");
    } else if (IsNameByte(c)) {
      item = e_->Call(Rule(Name()));
    } else if (c == '*' || c == '+' || c == '?' || c == '{') {
      return Wrong("there is nothing to repeat");
    } else {
      return std::optional<ExprId>();
    }
    while (true) {
      if (Take("*")) {
        item = e_->Star(item);
      } else if (Take("+")) {
        item = e_->Repeat(item, 1, kUnbounded);
      } else if (Take("?")) {
        item = e_->Optional(item);
      } else if (Take("{")) {
        GYRE_ASSIGN_OR_RETURN(item, Counted(item));
      } else {
        return std::optional<ExprId>(item);
      }
    }
  }

  StatusOr<ExprId> Counted(ExprId item) {
    auto number = [&]() -> std::optional<uint32_t> {
      Space(false);
      std::optional<uint32_t> n;
      while (Peek() >= '0' && Peek() <= '9') {
        n = static_cast<uint32_t>(
            std::min<uint64_t>(n.value_or(0) * uint64_t{10} + static_cast<uint64_t>(Peek() - '0'), kUnbounded - 1));
        ++at_;
      }
      Space(false);
      return n;
    };
    const std::optional<uint32_t> min = number();
    std::optional<uint32_t> max = min;
    if (Take(",")) {
      max = number().value_or(kUnbounded);
    } else if (!min.has_value()) {
      return Wrong("expected how often to repeat");
    }
    if (!Take("}")) return Wrong("expected } behind the bounds of a repetition");
    if (*max < min.value_or(0)) return Wrong("the bounds of a repetition are not in order");
    return e_->Repeat(item, min.value_or(0), *max);
  }

  StatusOr<char32_t> CodePoint() {
    if (Take("\\")) {
      const char c = Peek();
      ++at_;
      switch (c) {
        case 'n': return U'\n';
        case 'r': return U'\r';
        case 't': return U'\t';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^':
        case '/': return static_cast<char32_t>(c);
        case 'x': return Hex(2);
        case 'u': return Hex(4);
        case 'U': return Hex(8);
        default: --at_; return Wrong("unknown escape");
      }
    }
    const size_t n = ValidUtf8Length(text_, at_);
    if (n == 0) return Wrong("bytes that are no UTF-8");
    const char32_t c = Utf8Decode(text_, at_, n);
    at_ += n;
    return c;
  }

  StatusOr<char32_t> Hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = HexValue(Peek());
      if (digit < 0) return Wrong("an escape without its hexadecimal digits");
      value = value * 16 + static_cast<uint64_t>(digit);
      ++at_;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return Wrong("an escape of no character");
    return static_cast<char32_t>(value);
  }

  StatusOr<ExprId> Quoted() {
    Take("\"");
    std::string text;
    while (!Take("\"")) {
      if (Ends() || Peek() == '\n' || Peek() == '\r') return Wrong("a string that does not end");
      GYRE_ASSIGN_OR_RETURN(const char32_t c, CodePoint());
      AppendUtf8(c, &text);
    }
    return e_->Text(text);
  }

  StatusOr<ExprId> Class() {
    Take("[");
    const bool complement = Take("^");
    CodePoints set;
    while (!Take("]")) {
      if (Ends() || Peek() == '\n' || Peek() == '\r') return Wrong("a class that does not end");
      GYRE_ASSIGN_OR_RETURN(const char32_t first, CodePoint());
      char32_t last = first;
      if (Peek() == '-' && text_.substr(at_, 2) != "-]") {
        Take("-");
        if (Ends() || Peek() == '\n' || Peek() == '\r') return Wrong("a class that does not end");
        GYRE_ASSIGN_OR_RETURN(last, CodePoint());
      }
      if (last < first) return Wrong("a range of a class is not in order");
      set.Add(first, last);
    }
    return OneOf(e_, complement ? set.Complement() : set, Writing::kPlain);
  }

  const std::string_view text_;
  Grammar* const grammar_;
  Expressions* const e_;
  absl::flat_hash_map<std::string, RuleId> rules_;
  absl::flat_hash_set<RuleId> defined_;
  size_t at_ = 0, depth_ = 0;
};

}  // namespace

StatusOr<Grammar> GbnfGrammar(std::string_view text, const Bounds& bounds) {
  if (text.size() > bounds.source_bytes) {
    return ResourceExhausted("grammar: the bound of {} bytes of a grammar is passed", bounds.source_bytes);
  }
  Grammar grammar(bounds);
  GYRE_RETURN_IF_ERROR(GbnfReader(text, &grammar).Read());
  GYRE_RETURN_IF_ERROR(grammar.Finish());
  return grammar;
}

}  // namespace gyre::grammar
