#include "model/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace gyre::jinja {
namespace {

// One method for each level of precedence, the lowest first.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& c) : c_(c) {}

  ExprPtr Tuple(bool conditions) {
    ExprPtr first = conditions ? Expression() : Or();
    if (!c_.IsOp(",")) return first;
    ExprPtr tuple = c_.Make(Kind::kTuple);
    Add(*tuple, std::move(first));
    while (c_.TakeOp(",")) {
      if (EndsTuple()) break;
      Add(*tuple, conditions ? Expression() : Or());
    }
    return tuple;
  }

  ExprPtr Expression() {
    const TokenCursor::Deeper deeper(c_);
    ExprPtr e = Or();
    while (c_.IsName("if")) {
      ExprPtr choice = c_.Make(Kind::kCondition);
      c_.Take();
      Add(*choice, std::move(e));
      Add(*choice, Or());
      Add(*choice, c_.TakeName("else") ? Expression() : nullptr);
      e = std::move(choice);
    }
    return e;
  }
  ExprPtr OneFilter(ExprPtr e) {
    std::string name = c_.NeedName();
    while (c_.TakeOp(".")) name += "." + c_.NeedName();
    ExprPtr filter = c_.Make(Kind::kFilter, std::move(name));
    Add(*filter, std::move(e));
    if (c_.IsOp("(")) CallArguments(filter.get());
    return filter;
  }
  ExprPtr Filters(ExprPtr e) {
    for (;;) {
      if (c_.TakeOp("|")) {
        e = OneFilter(std::move(e));
      } else if (c_.TakeName("is")) {
        e = Test(std::move(e));
      } else if (c_.IsOp("(")) {
        e = Postfix(std::move(e));
      } else {
        return e;
      }
    }
  }

 private:
  using Kind = Expr::Kind;

  bool EndsTuple() const {
    return c_.Now().kind == Token::Kind::kBlockEnd || c_.Now().kind == Token::Kind::kOutputEnd || c_.IsOp(")") ||
           c_.IsOp("=");
  }

  ExprPtr Joined(Kind kind, std::string op, ExprPtr left, ExprPtr right) {
    ExprPtr e = c_.Make(kind, std::move(op));
    Add(*e, std::move(left));
    Add(*e, std::move(right));
    return e;
  }
  ExprPtr Or() {
    ExprPtr e = And();
    while (c_.TakeName("or")) e = Joined(Kind::kBinary, "or", std::move(e), And());
    return e;
  }
  ExprPtr And() {
    ExprPtr e = Not();
    while (c_.TakeName("and")) e = Joined(Kind::kBinary, "and", std::move(e), Not());
    return e;
  }
  ExprPtr Not() {
    if (!c_.IsName("not")) return Compare();
    const TokenCursor::Deeper deeper(c_);
    ExprPtr e = c_.Make(Kind::kUnary, "not");
    c_.Take();
    Add(*e, Not());
    return e;
  }
  ExprPtr Compare() {
    ExprPtr first = Sum();
    ExprPtr chain;
    for (;;) {
      std::string op;
      if (c_.Now().kind == Token::Kind::kOperator) {
        for (std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
          if (c_.Now().text == known) op = known;
        }
      } else if (c_.IsName("in")) {
        op = "in";
      } else if (c_.IsName("not") && c_.Ahead(1).kind == Token::Kind::kName && c_.Ahead(1).text == "in") {
        op = "not in";
        c_.Take();
      }
      if (op.empty()) return chain != nullptr ? std::move(chain) : std::move(first);
      c_.Take();
      if (chain == nullptr) {
        chain = c_.Make(Kind::kCompare);
        Add(*chain, std::move(first));
      }
      chain->operators.push_back(op);
      Add(*chain, Sum());
    }
  }
  // Parses left-associative operators of one level.
  template <typename Next>
  ExprPtr Chain(std::initializer_list<std::string_view> ops, Next next) {
    ExprPtr e = next();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [this](std::string_view known) { return c_.IsOp(known); });
      if (op == ops.end()) return e;
      c_.Take();
      e = Joined(Kind::kBinary, std::string(*op), std::move(e), next());
    }
  }
  ExprPtr Sum() {
    return Chain({"+", "-"}, [this] { return Concat(); });
  }
  ExprPtr Concat() {
    return Chain({"~"}, [this] { return Product(); });
  }
  ExprPtr Product() {
    return Chain({"*", "/", "//", "%"}, [this] { return Power(); });
  }
  ExprPtr Power() {
    return Chain({"**"}, [this] { return Unary(true); });
  }
  ExprPtr Unary(bool filters) {
    const TokenCursor::Deeper deeper(c_);
    ExprPtr e;
    if (c_.IsOp("-") || c_.IsOp("+")) {
      e = c_.Make(Kind::kUnary, c_.Now().text);
      c_.Take();
      Add(*e, Unary(false));
    } else {
      e = Primary();
    }
    e = Postfix(std::move(e));
    return filters ? Filters(std::move(e)) : std::move(e);
  }

  ExprPtr Primary() {
    const Token& t = c_.Now();
    switch (t.kind) {
      case Token::Kind::kName: {
        c_.Take();
        ExprPtr e = c_.Make(Kind::kLiteral);
        if (t.text == "true" || t.text == "True") {
          e->value = Value::Bool(true);
        } else if (t.text == "false" || t.text == "False") {
          e->value = Value::Bool(false);
        } else if (t.text == "none" || t.text == "None") {
          e->value = Value::OfNone();
        } else {
          e->kind = Kind::kName;
          e->text = t.text;
        }
        return e;
      }
      case Token::Kind::kString: {
        std::string text;
        ExprPtr e = c_.Make(Kind::kLiteral);
        while (c_.Now().kind == Token::Kind::kString) text += c_.Take().text;
        e->value = Value::Str(std::move(text));
        return e;
      }
      case Token::Kind::kInt:
      case Token::Kind::kFloat: return Number();
      case Token::Kind::kOperator: break;
      default: Fail("line {}: expected an expression, found {}", t.line, c_.Describe(t));
    }
    if (c_.TakeOp("(")) {
      if (c_.TakeOp(")")) return c_.Make(Kind::kTuple);
      ExprPtr e = Tuple(true);
      c_.NeedOp(")");
      return e;
    }
    if (c_.TakeOp("[")) {
      ExprPtr e = c_.Make(Kind::kList);
      while (!c_.IsOp("]")) {
        if (!e->children.empty()) c_.NeedOp(",");
        if (c_.IsOp("]")) break;
        Add(*e, Expression());
      }
      c_.NeedOp("]");
      return e;
    }
    if (c_.TakeOp("{")) {
      ExprPtr e = c_.Make(Kind::kDict);
      while (!c_.IsOp("}")) {
        if (!e->children.empty()) c_.NeedOp(",");
        if (c_.IsOp("}")) break;
        Add(*e, Expression());
        c_.NeedOp(":");
        Add(*e, Expression());
      }
      c_.NeedOp("}");
      return e;
    }
    Fail("line {}: expected an expression, found {}", t.line, c_.Describe(t));
  }

  ExprPtr Number() {
    ExprPtr e = c_.Make(Kind::kLiteral);
    const std::string& text = c_.Now().text;
    if (c_.Now().kind == Token::Kind::kInt) {
      e->value = Value::Whole(text);
    } else {
      double v = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), v).ec != std::errc())
        Fail("line {}: {} is out of range", c_.Now().line, text);
      e->value = Value::Float(v);
    }
    c_.Take();
    return e;
  }

  ExprPtr Postfix(ExprPtr e) {
    for (;;) {
      if (c_.TakeOp(".")) {
        if (c_.Now().kind == Token::Kind::kInt) {  // Jinja's x.0
          ExprPtr item = c_.Make(Kind::kItem);
          Add(*item, std::move(e));
          Add(*item, Number());
          e = std::move(item);
          continue;
        }
        ExprPtr attribute = c_.Make(Kind::kAttribute, c_.NeedName());
        Add(*attribute, std::move(e));
        e = std::move(attribute);
      } else if (c_.TakeOp("[")) {
        e = Subscript(std::move(e));
      } else if (c_.IsOp("(")) {
        ExprPtr call = c_.Make(Kind::kCall);
        Add(*call, std::move(e));
        CallArguments(call.get());
        e = std::move(call);
      } else {
        return e;
      }
    }
  }
  ExprPtr Subscript(ExprPtr e) {
    ExprPtr parts[3];
    int part = 0;
    bool slice = false;
    while (!c_.IsOp("]")) {
      if (c_.TakeOp(":")) {
        slice = true;
        if (++part > 2) Fail("line {}: a slice has three parts at most", c_.Now().line);
      } else {
        if (parts[part] != nullptr) Fail("line {}: expected ']', found {}", c_.Now().line, c_.Describe(c_.Now()));
        parts[part] = Tuple(true);
      }
    }
    c_.NeedOp("]");
    ExprPtr out = c_.Make(slice ? Kind::kSlice : Kind::kItem);
    Add(*out, std::move(e));
    if (!slice && parts[0] == nullptr) Fail("line {}: expected an index between the brackets", c_.Now().line);
    for (int i = 0; i < (slice ? 3 : 1); ++i) Add(*out, std::move(parts[i]));
    return out;
  }
  // Parses "(a, b=c)" into e's further children and names.
  void CallArguments(Expr* e) {
    c_.NeedOp("(");
    for (bool first = true; !c_.IsOp(")"); first = false) {
      if (!first) c_.NeedOp(",");
      if (c_.IsOp(")")) break;
      if (c_.IsOp("*") || c_.IsOp("**")) Fail("line {}: unpacked arguments are not known", c_.Now().line);
      if (c_.Now().kind == Token::Kind::kName && c_.Ahead(1).kind == Token::Kind::kOperator &&
          c_.Ahead(1).text == "=") {
        std::string name = c_.NeedName();
        c_.NeedOp("=");
        Add(*e, Expression(), std::move(name));
      } else {
        Add(*e, Expression());
      }
    }
    c_.NeedOp(")");
  }

  ExprPtr Test(ExprPtr e) {
    const bool negated = c_.TakeName("not");
    ExprPtr test = c_.Make(Kind::kTest, c_.NeedName());
    Add(*test, std::move(e));
    const Token& t = c_.Now();
    if (c_.IsOp("(")) {
      CallArguments(test.get());
    } else if (t.kind == Token::Kind::kString || t.kind == Token::Kind::kInt || t.kind == Token::Kind::kFloat ||
               c_.IsOp("[") || c_.IsOp("{") ||
               (t.kind == Token::Kind::kName && t.text != "else" && t.text != "or" && t.text != "and" &&
                t.text != "is" && t.text != "if" && t.text != "in" && t.text != "not" && t.text != "recursive")) {
      const TokenCursor::Deeper deeper(c_);
      Add(*test, Postfix(Primary()));
    }
    if (!negated) return test;
    ExprPtr e2 = c_.Make(Kind::kUnary, "not");
    Add(*e2, std::move(test));
    return e2;
  }

  // Adds an operand to e, by name if it has one. Chains as a.b.c are parsed here without recursion, but are evaluated
  // and destroyed with recursion.
  static void Add(Expr& e, ExprPtr child, std::string name = "") {
    constexpr int kMaxDepth = 1000;
    if (child != nullptr) e.depth = std::max(e.depth, child->depth + 1);
    if (e.depth > kMaxDepth) Fail("line {}: an expression of more than {} parts in a row", e.line, kMaxDepth);
    if (name.empty()) {
      e.children.push_back(std::move(child));
    } else {
      e.named.emplace_back(std::move(name), std::move(child));
    }
  }

  TokenCursor& c_;
};

}  // namespace

ExprPtr ParseExpression(TokenCursor& c) { return ExpressionParser(c).Expression(); }
ExprPtr ParseTuple(TokenCursor& c, bool conditions) { return ExpressionParser(c).Tuple(conditions); }
ExprPtr ParseOneFilter(TokenCursor& c, ExprPtr e) { return ExpressionParser(c).OneFilter(std::move(e)); }
ExprPtr ParseFilters(TokenCursor& c, ExprPtr e) { return ExpressionParser(c).Filters(std::move(e)); }

}  // namespace gyre::jinja
