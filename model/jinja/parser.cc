#include "model/jinja/parser.h"

#include <initializer_list>

#include "model/jinja/expression_parser.h"

namespace gyre::jinja {
namespace {

// One method for each statement.
class Parser {
 public:
  explicit Parser(std::string_view source) : c_(Lex(source)) {}

  Body Run() {
    Body body = ParseBody({});
    if (!c_.Is(Token::Kind::kEnd))
      Fail("line {}: the block '{}' belongs to none that is open", c_.Now().line, c_.Now().text);
    return body;
  }

 private:
  // Parses up to a block with one of these names; the name itself is left to be read.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const TokenCursor::Deeper deeper(c_);
    Body body;
    for (;;) {
      const Token& t = c_.Now();
      if (t.kind == Token::Kind::kEnd) {
        if (ends.size() > 0)
          Fail("line {}: expected {{% {} %}}, found the end of the template", t.line, *(ends.end() - 1));
        return body;
      }
      if (t.kind == Token::Kind::kData) {
        auto node = NewNode(Node::Kind::kText);
        node->text = t.text;
        c_.Take();
        body.push_back(std::move(node));
      } else if (t.kind == Token::Kind::kOutputBegin) {
        c_.Take();
        auto node = NewNode(Node::Kind::kOutput);
        node->expr = ParseTuple(c_);
        c_.NeedOutputEnd();
        body.push_back(std::move(node));
      } else {
        c_.Take();  // a block begins
        for (std::string_view end : ends) {
          if (c_.IsName(end)) return body;
        }
        Statement(&body);
      }
    }
  }
  std::unique_ptr<Node> NewNode(Node::Kind kind) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = c_.Now().line;
    return node;
  }
  void End(std::string_view name) {
    if (!c_.TakeName(name)) Fail("line {}: expected {}, found {}", c_.Now().line, name, c_.Describe(c_.Now()));
    c_.NeedBlockEnd();
  }

  void Statement(Body* out) {
    const int line = c_.Now().line;
    const std::string name = c_.NeedName();
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
      return c_.NeedBlockEnd();
    }
    if (name == "generation") {  // marks what the model wrote; the text is the same
      c_.NeedBlockEnd();
      Body body = ParseBody({"endgeneration"});
      End("endgeneration");
      for (auto& node : body) out->push_back(std::move(node));
      return;
    }
    Fail("line {}: the block '{}' is not known, or belongs to none that is open", line, name);
  }

  std::unique_ptr<Node> If() {
    auto node = NewNode(Node::Kind::kIf);
    ExprPtr condition = ParseTuple(c_);
    for (;;) {
      c_.NeedBlockEnd();
      Body body = ParseBody({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      if (c_.TakeName("elif")) {
        condition = ParseTuple(c_);
        continue;
      }
      if (c_.TakeName("else")) {
        c_.NeedBlockEnd();
        Body last = ParseBody({"endif"});
        node->branches.emplace_back(nullptr, std::move(last));
      }
      End("endif");
      return node;
    }
  }

  std::vector<std::string> Targets() {
    std::vector<std::string> names;
    const bool paren = c_.TakeOp("(");
    do {
      if (!names.empty() && c_.Now().kind != Token::Kind::kName) break;  // (a,)
      names.push_back(c_.NeedName());
    } while (c_.TakeOp(","));
    if (paren) c_.NeedOp(")");
    return names;
  }

  std::unique_ptr<Node> For() {
    auto node = NewNode(Node::Kind::kFor);
    node->targets = Targets();
    if (!c_.TakeName("in")) Fail("line {}: expected 'in', found {}", c_.Now().line, c_.Describe(c_.Now()));
    // `if` after the list is the loop's condition, not a choice between lists.
    node->expr = ParseTuple(c_, false);
    if (c_.TakeName("if")) node->condition = ParseExpression(c_);
    node->recursive = c_.TakeName("recursive");
    c_.NeedBlockEnd();
    ++loops_;
    node->body = ParseBody({"else", "endfor"});
    --loops_;
    if (c_.TakeName("else")) {
      c_.NeedBlockEnd();
      node->orelse = ParseBody({"endfor"});
    }
    End("endfor");
    return node;
  }

  std::unique_ptr<Node> Set() {
    auto node = NewNode(Node::Kind::kSet);
    if (c_.Now().kind == Token::Kind::kName && c_.Ahead(1).kind == Token::Kind::kOperator && c_.Ahead(1).text == ".") {
      node->targets.push_back(c_.NeedName());
      c_.NeedOp(".");
      node->text = c_.NeedName();
    } else {
      node->targets = Targets();
    }
    if (c_.TakeOp("=")) {
      node->expr = ParseTuple(c_);
      c_.NeedBlockEnd();
      return node;
    }
    node->kind = Node::Kind::kSetBlock;
    if (c_.IsOp("|")) node->expr = ParseFilters(c_, c_.Make(Expr::Kind::kName));
    c_.NeedBlockEnd();
    node->body = ParseBody({"endset"});
    End("endset");
    return node;
  }

  std::vector<Parameter> Parameters() {
    std::vector<Parameter> out;
    c_.NeedOp("(");
    while (!c_.IsOp(")")) {
      if (!out.empty()) c_.NeedOp(",");
      if (c_.IsOp(")")) break;
      Parameter p{.name = c_.NeedName(), .fallback = nullptr};
      if (c_.TakeOp("=")) p.fallback = ParseExpression(c_);
      out.push_back(std::move(p));
    }
    c_.NeedOp(")");
    return out;
  }

  // A break in a macro does not end a loop around the macro.
  Body Outside(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBody({end});
    loops_ = loops;
    End(end);
    return body;
  }

  void MacroBody(Node* node, std::string_view end) {
    const size_t begin = c_.place();
    node->body = Outside(end);
    node->varargs = c_.Mentions("varargs", begin);
    node->kwargs = c_.Mentions("kwargs", begin);
    node->caller = c_.Mentions("caller", begin);
  }

  std::unique_ptr<Node> Macro() {
    auto node = NewNode(Node::Kind::kMacro);
    node->text = c_.NeedName();
    node->parameters = Parameters();
    c_.NeedBlockEnd();
    MacroBody(node.get(), "endmacro");
    return node;
  }

  std::unique_ptr<Node> CallBlock() {
    auto node = NewNode(Node::Kind::kCallBlock);
    if (c_.IsOp("(")) node->parameters = Parameters();
    node->expr = ParseExpression(c_);
    if (node->expr->kind != Expr::Kind::kCall) Fail("line {}: expected a call", node->line);
    c_.NeedBlockEnd();
    MacroBody(node.get(), "endcall");
    return node;
  }

  std::unique_ptr<Node> FilterBlock() {
    auto node = NewNode(Node::Kind::kFilter);
    node->expr = ParseFilters(c_, ParseOneFilter(c_, c_.Make(Expr::Kind::kName)));
    c_.NeedBlockEnd();
    node->body = ParseBody({"endfilter"});
    End("endfilter");
    return node;
  }

  std::unique_ptr<Node> With() {
    auto node = NewNode(Node::Kind::kWith);
    while (c_.Now().kind == Token::Kind::kName) {
      node->targets.push_back(c_.NeedName());
      c_.NeedOp("=");
      node->values.push_back(ParseExpression(c_));
      if (!c_.TakeOp(",")) break;
    }
    c_.NeedBlockEnd();
    node->body = ParseBody({"endwith"});
    End("endwith");
    return node;
  }

  TokenCursor c_;
  int loops_ = 0;  // that are open here
};

}  // namespace

Body Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace gyre::jinja
