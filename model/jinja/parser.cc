#include "model/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "model/jinja/lexer.h"

namespace gyre::jinja {
namespace {

constexpr int kParserDepth = 200;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Lex(source)) {}

  Body Run() {
    Body body = ParseBody({});
    if (Now().kind != Token::Kind::kEnd)
      Fail("line {}: the block '{}' belongs to none that is open", Now().line, Now().text);
    return body;
  }

 private:
  using Kind = Expr::Kind;

  // Bounds recursion, which the stack pays for.
  class Deeper {
   public:
    explicit Deeper(Parser* p) : p_(p) {
      if (++p_->depth_ > kParserDepth) Fail("line {}: nested more than {} deep", p_->Now().line, kParserDepth);
    }
    ~Deeper() { --p_->depth_; }

   private:
    Parser* p_;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  bool IsOp(std::string_view op) const { return Now().kind == Token::Kind::kOperator && Now().text == op; }
  bool IsName(std::string_view name) const { return Now().kind == Token::Kind::kName && Now().text == name; }
  bool TakeOp(std::string_view op) {
    if (!IsOp(op)) return false;
    ++at_;
    return true;
  }
  bool TakeName(std::string_view name) {
    if (!IsName(name)) return false;
    ++at_;
    return true;
  }
  static std::string Describe(const Token& t) {
    switch (t.kind) {
      case Token::Kind::kBlockEnd: return "%}";
      case Token::Kind::kOutputEnd: return "}}";
      case Token::Kind::kEnd: return "the end";
      case Token::Kind::kString: return "a string";
      default: return "'" + t.text + "'";
    }
  }
  void NeedOp(std::string_view op) {
    if (!TakeOp(op)) Fail("line {}: expected '{}', found {}", Now().line, op, Describe(Now()));
  }
  std::string NeedName() {
    if (Now().kind != Token::Kind::kName) Fail("line {}: expected a name, found {}", Now().line, Describe(Now()));
    return tokens_[at_++].text;
  }
  void NeedBlockEnd() {
    if (Now().kind != Token::Kind::kBlockEnd) Fail("line {}: expected %}}, found {}", Now().line, Describe(Now()));
    ++at_;
  }
  ExprPtr Make(Kind kind, std::string text = "") const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = Now().line;
    e->text = std::move(text);
    return e;
  }

  // ---- statements

  // Up to a block with one of these names, whose name is left to be read.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(this);
    Body body;
    for (;;) {
      const Token& t = Now();
      if (t.kind == Token::Kind::kEnd) {
        if (ends.size() > 0)
          Fail("line {}: expected {{% {} %}}, found the end of the template", t.line, *(ends.end() - 1));
        return body;
      }
      if (t.kind == Token::Kind::kData) {
        auto node = NewNode(Node::Kind::kText);
        node->text = t.text;
        ++at_;
        body.push_back(std::move(node));
      } else if (t.kind == Token::Kind::kOutputBegin) {
        ++at_;
        auto node = NewNode(Node::Kind::kOutput);
        node->expr = ParseTuple();
        if (Now().kind != Token::Kind::kOutputEnd)
          Fail("line {}: expected }}}}, found {}", Now().line, Describe(Now()));
        ++at_;
        body.push_back(std::move(node));
      } else {
        ++at_;  // a block begins
        for (std::string_view end : ends) {
          if (IsName(end)) return body;
        }
        Statement(&body);
      }
    }
  }
  std::unique_ptr<Node> NewNode(Node::Kind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = Now().line;
    return node;
  }
  void End(std::string_view name) {
    if (!TakeName(name)) Fail("line {}: expected {}, found {}", Now().line, name, Describe(Now()));
    NeedBlockEnd();
  }

  void Statement(Body* out) {
    const int line = Now().line;
    const std::string name = NeedName();
    if (name == "if") return out->push_back(If());
    if (name == "for") return out->push_back(For());
    if (name == "set") return out->push_back(Set());
    if (name == "macro") return out->push_back(Macro());
    if (name == "call") return out->push_back(CallBlock());
    if (name == "filter") return out->push_back(FilterBlock());
    if (name == "with") return out->push_back(With());
    if (name == "break" || name == "continue") {
      if (loops_ == 0) Fail("line {}: {} stands in no loop", line, name);
      out->push_back(NewNode(name == "break" ? Node::Kind::kBreak : Node::Kind::kContinue));
      return NeedBlockEnd();
    }
    if (name == "generation") {  // marks what the model wrote; the text is the same
      NeedBlockEnd();
      Body body = ParseBody({"endgeneration"});
      End("endgeneration");
      for (auto& node : body) out->push_back(std::move(node));
      return;
    }
    Fail("line {}: the block '{}' is not known, or belongs to none that is open", line, name);
  }

  std::unique_ptr<Node> If() {
    auto node = NewNode(Node::Kind::kIf);
    ExprPtr condition = ParseTuple();
    for (;;) {
      NeedBlockEnd();
      Body body = ParseBody({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      if (TakeName("elif")) {
        condition = ParseTuple();
        continue;
      }
      if (TakeName("else")) {
        NeedBlockEnd();
        Body last = ParseBody({"endif"});
        node->branches.emplace_back(nullptr, std::move(last));
      }
      End("endif");
      return node;
    }
  }

  std::vector<std::string> Targets() {
    std::vector<std::string> names;
    const bool paren = TakeOp("(");
    do {
      if (!names.empty() && Now().kind != Token::Kind::kName) break;  // (a,)
      names.push_back(NeedName());
    } while (TakeOp(","));
    if (paren) NeedOp(")");
    return names;
  }

  std::unique_ptr<Node> For() {
    auto node = NewNode(Node::Kind::kFor);
    node->targets = Targets();
    if (!TakeName("in")) Fail("line {}: expected 'in', found {}", Now().line, Describe(Now()));
    // `if` after the list is the loop's condition, not a choice between lists.
    node->expr = ParseTuple(false);
    if (TakeName("if")) node->condition = ParseExpr();
    node->recursive = TakeName("recursive");
    NeedBlockEnd();
    ++loops_;
    node->body = ParseBody({"else", "endfor"});
    --loops_;
    if (TakeName("else")) {
      NeedBlockEnd();
      node->orelse = ParseBody({"endfor"});
    }
    End("endfor");
    return node;
  }

  std::unique_ptr<Node> Set() {
    auto node = NewNode(Node::Kind::kSet);
    if (Now().kind == Token::Kind::kName && Ahead(1).kind == Token::Kind::kOperator && Ahead(1).text == ".") {
      node->targets.push_back(NeedName());
      NeedOp(".");
      node->text = NeedName();
    } else {
      node->targets = Targets();
    }
    if (TakeOp("=")) {
      node->expr = ParseTuple();
      NeedBlockEnd();
      return node;
    }
    node->kind = Node::Kind::kSetBlock;
    if (IsOp("|")) node->expr = Filters(Make(Kind::kName, ""));
    NeedBlockEnd();
    node->body = ParseBody({"endset"});
    End("endset");
    return node;
  }

  std::vector<Parameter> Parameters() {
    std::vector<Parameter> out;
    NeedOp("(");
    while (!IsOp(")")) {
      if (!out.empty()) NeedOp(",");
      if (IsOp(")")) break;
      Parameter p{.name = NeedName(), .fallback = nullptr};
      if (TakeOp("=")) p.fallback = ParseExpr();
      out.push_back(std::move(p));
    }
    NeedOp(")");
    return out;
  }

  // A loop's break does not reach out of a macro.
  Body Outside(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBody({end});
    loops_ = loops;
    End(end);
    return body;
  }

  std::unique_ptr<Node> Macro() {
    auto node = NewNode(Node::Kind::kMacro);
    node->text = NeedName();
    node->parameters = Parameters();
    NeedBlockEnd();
    node->body = Outside("endmacro");
    return node;
  }

  std::unique_ptr<Node> CallBlock() {
    auto node = NewNode(Node::Kind::kCallBlock);
    if (IsOp("(")) node->parameters = Parameters();
    node->expr = ParseExpr();
    if (node->expr->kind != Kind::kCall) Fail("line {}: expected a call", node->line);
    NeedBlockEnd();
    node->body = Outside("endcall");
    return node;
  }

  std::unique_ptr<Node> FilterBlock() {
    auto node = NewNode(Node::Kind::kFilter);
    node->expr = Filters(OneFilter(Make(Kind::kName, "")));
    NeedBlockEnd();
    node->body = ParseBody({"endfilter"});
    End("endfilter");
    return node;
  }

  std::unique_ptr<Node> With() {
    auto node = NewNode(Node::Kind::kWith);
    while (Now().kind == Token::Kind::kName) {
      node->targets.push_back(NeedName());
      NeedOp("=");
      node->values.push_back(ParseExpr());
      if (!TakeOp(",")) break;
    }
    NeedBlockEnd();
    node->body = ParseBody({"endwith"});
    End("endwith");
    return node;
  }

  // ---- expressions, loosest first

  ExprPtr ParseTuple(bool with_condition = true) {
    ExprPtr first = with_condition ? ParseExpr() : Or();
    if (!IsOp(",")) return first;
    ExprPtr tuple = Make(Kind::kTuple);
    tuple->children.push_back(std::move(first));
    while (TakeOp(",")) {
      if (EndsTuple()) break;
      tuple->children.push_back(with_condition ? ParseExpr() : Or());
    }
    return tuple;
  }
  bool EndsTuple() const {
    return Now().kind == Token::Kind::kBlockEnd || Now().kind == Token::Kind::kOutputEnd || IsOp(")") || IsOp("=");
  }

  ExprPtr ParseExpr() {
    const Deeper deeper(this);
    ExprPtr e = Or();
    while (IsName("if")) {
      ExprPtr choice = Make(Kind::kCondition);
      ++at_;
      choice->children.push_back(std::move(e));
      choice->children.push_back(Or());
      choice->children.push_back(TakeName("else") ? ParseExpr() : nullptr);
      e = std::move(choice);
    }
    return e;
  }
  ExprPtr Joined(Kind kind, std::string op, ExprPtr left, ExprPtr right) {
    ExprPtr e = Make(kind, std::move(op));
    e->children.push_back(std::move(left));
    e->children.push_back(std::move(right));
    return e;
  }
  ExprPtr Or() {
    ExprPtr e = And();
    while (TakeName("or")) e = Joined(Kind::kBinary, "or", std::move(e), And());
    return e;
  }
  ExprPtr And() {
    ExprPtr e = Not();
    while (TakeName("and")) e = Joined(Kind::kBinary, "and", std::move(e), Not());
    return e;
  }
  ExprPtr Not() {
    if (!IsName("not")) return Compare();
    const Deeper deeper(this);
    ExprPtr e = Make(Kind::kUnary, "not");
    ++at_;
    e->children.push_back(Not());
    return e;
  }
  ExprPtr Compare() {
    ExprPtr first = Sum();
    ExprPtr chain;
    for (;;) {
      std::string op;
      if (Now().kind == Token::Kind::kOperator) {
        for (std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
          if (Now().text == known) op = known;
        }
      } else if (IsName("in")) {
        op = "in";
      } else if (IsName("not") && Ahead(1).kind == Token::Kind::kName && Ahead(1).text == "in") {
        op = "not in";
        ++at_;
      }
      if (op.empty()) return chain != nullptr ? std::move(chain) : std::move(first);
      ++at_;
      if (chain == nullptr) {
        chain = Make(Kind::kCompare);
        chain->children.push_back(std::move(first));
      }
      chain->operators.push_back(op);
      chain->children.push_back(Sum());
    }
  }
  // Left-associative operators of one rank.
  template <typename Next>
  ExprPtr Chain(std::initializer_list<std::string_view> ops, Next next) {
    ExprPtr e = next();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [this](std::string_view known) { return IsOp(known); });
      if (op == ops.end()) return e;
      ++at_;
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
    const Deeper deeper(this);
    ExprPtr e;
    if (IsOp("-") || IsOp("+")) {
      e = Make(Kind::kUnary, Now().text);
      ++at_;
      e->children.push_back(Unary(false));
    } else {
      e = Primary();
    }
    e = Postfix(std::move(e));
    return filters ? Filters(std::move(e)) : std::move(e);
  }

  ExprPtr Primary() {
    const Token& t = Now();
    switch (t.kind) {
      case Token::Kind::kName: {
        ++at_;
        ExprPtr e = Make(Kind::kLiteral);
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
        ExprPtr e = Make(Kind::kLiteral);
        while (Now().kind == Token::Kind::kString) text += tokens_[at_++].text;
        e->value = Value::Str(std::move(text));
        return e;
      }
      case Token::Kind::kInt:
      case Token::Kind::kFloat: return Number();
      case Token::Kind::kOperator: break;
      default: Fail("line {}: expected an expression, found {}", t.line, Describe(t));
    }
    if (TakeOp("(")) {
      if (TakeOp(")")) return Make(Kind::kTuple);
      ExprPtr e = ParseTuple();
      NeedOp(")");
      return e;
    }
    if (TakeOp("[")) {
      ExprPtr e = Make(Kind::kList);
      while (!IsOp("]")) {
        if (!e->children.empty()) NeedOp(",");
        if (IsOp("]")) break;
        e->children.push_back(ParseExpr());
      }
      NeedOp("]");
      return e;
    }
    if (TakeOp("{")) {
      ExprPtr e = Make(Kind::kDict);
      while (!IsOp("}")) {
        if (!e->children.empty()) NeedOp(",");
        if (IsOp("}")) break;
        e->children.push_back(ParseExpr());
        NeedOp(":");
        e->children.push_back(ParseExpr());
      }
      NeedOp("}");
      return e;
    }
    Fail("line {}: expected an expression, found {}", t.line, Describe(t));
  }

  ExprPtr Number() {
    ExprPtr e = Make(Kind::kLiteral);
    const std::string& text = Now().text;
    if (Now().kind == Token::Kind::kInt) {
      int64_t v = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), v).ec != std::errc())
        Fail("line {}: {} is too large", Now().line, text);
      e->value = Value::Int(v);
    } else {
      double v = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), v).ec != std::errc())
        Fail("line {}: {} is out of range", Now().line, text);
      e->value = Value::Float(v);
    }
    ++at_;
    return e;
  }

  ExprPtr Postfix(ExprPtr e) {
    for (;;) {
      if (TakeOp(".")) {
        if (Now().kind == Token::Kind::kInt) {  // Jinja's x.0
          ExprPtr item = Make(Kind::kItem);
          item->children.push_back(std::move(e));
          item->children.push_back(Number());
          e = std::move(item);
          continue;
        }
        ExprPtr attribute = Make(Kind::kAttribute, NeedName());
        attribute->children.push_back(std::move(e));
        e = std::move(attribute);
      } else if (TakeOp("[")) {
        e = Subscript(std::move(e));
      } else if (IsOp("(")) {
        ExprPtr call = Make(Kind::kCall);
        call->children.push_back(std::move(e));
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
    while (!IsOp("]")) {
      if (TakeOp(":")) {
        slice = true;
        if (++part > 2) Fail("line {}: a slice has three parts at most", Now().line);
      } else {
        if (parts[part] != nullptr) Fail("line {}: expected ']', found {}", Now().line, Describe(Now()));
        parts[part] = ParseTuple();
      }
    }
    NeedOp("]");
    ExprPtr out = Make(slice ? Kind::kSlice : Kind::kItem);
    out->children.push_back(std::move(e));
    if (!slice && parts[0] == nullptr) Fail("line {}: expected an index between the brackets", Now().line);
    for (int i = 0; i < (slice ? 3 : 1); ++i) out->children.push_back(std::move(parts[i]));
    return out;
  }
  // "(a, b=c)" into e's further children and named.
  void CallArguments(Expr* e) {
    NeedOp("(");
    for (bool first = true; !IsOp(")"); first = false) {
      if (!first) NeedOp(",");
      if (IsOp(")")) break;
      if (IsOp("*") || IsOp("**")) Fail("line {}: unpacked arguments are not known", Now().line);
      if (Now().kind == Token::Kind::kName && Ahead(1).kind == Token::Kind::kOperator && Ahead(1).text == "=") {
        std::string name = NeedName();
        NeedOp("=");
        e->named.emplace_back(std::move(name), ParseExpr());
      } else {
        e->children.push_back(ParseExpr());
      }
    }
    NeedOp(")");
  }

  ExprPtr OneFilter(ExprPtr e) {
    std::string name = NeedName();
    while (TakeOp(".")) name += "." + NeedName();
    ExprPtr filter = Make(Kind::kFilter, std::move(name));
    filter->children.push_back(std::move(e));
    if (IsOp("(")) CallArguments(filter.get());
    return filter;
  }
  ExprPtr Filters(ExprPtr e) {
    for (;;) {
      if (TakeOp("|")) {
        e = OneFilter(std::move(e));
      } else if (TakeName("is")) {
        e = Test(std::move(e));
      } else if (IsOp("(")) {
        e = Postfix(std::move(e));
      } else {
        return e;
      }
    }
  }
  ExprPtr Test(ExprPtr e) {
    const bool negated = TakeName("not");
    ExprPtr test = Make(Kind::kTest, NeedName());
    test->children.push_back(std::move(e));
    const Token& t = Now();
    if (IsOp("(")) {
      CallArguments(test.get());
    } else if (t.kind == Token::Kind::kString || t.kind == Token::Kind::kInt || t.kind == Token::Kind::kFloat ||
               IsOp("[") || IsOp("{") ||
               (t.kind == Token::Kind::kName && t.text != "else" && t.text != "or" && t.text != "and" &&
                t.text != "is" && t.text != "if" && t.text != "in" && t.text != "not" && t.text != "recursive")) {
      const Deeper deeper(this);
      test->children.push_back(Postfix(Primary()));
    }
    if (!negated) return test;
    ExprPtr e2 = Make(Kind::kUnary, "not");
    e2->children.push_back(std::move(test));
    return e2;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Body Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace gyre::jinja
