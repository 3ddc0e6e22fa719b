// A position among a template's tokens, and questions about the tokens there. Errors are thrown with the line.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace gyre::jinja {

class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Limits recursion, as the stack has a limit.
  class Deeper {
   public:
    explicit Deeper(TokenCursor& c) : c_(c) {
      if (++c_.depth_ > kMaxDepth) Fail("line {}: nested more than {} deep", c_.Now().line, kMaxDepth);
    }
    ~Deeper() { --c_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    TokenCursor& c_;
  };

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  const Token& Take() { return tokens_[at_++]; }  // REQUIRES: this is not the end
  size_t place() const { return at_; }
  // Whether the name stands among the tokens from a place up to here.
  bool Mentions(std::string_view name, size_t from) const {
    return std::any_of(tokens_.begin() + static_cast<std::ptrdiff_t>(from),
                       tokens_.begin() + static_cast<std::ptrdiff_t>(at_),
                       [name](const Token& t) { return t.kind == Token::Kind::kName && t.text == name; });
  }
  bool Is(Token::Kind kind) const { return Now().kind == kind; }
  bool IsOp(std::string_view op) const { return Is(Token::Kind::kOperator) && Now().text == op; }
  bool IsName(std::string_view name) const { return Is(Token::Kind::kName) && Now().text == name; }
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
  void NeedOp(std::string_view op) {
    if (!TakeOp(op)) Fail("line {}: expected '{}', found {}", Now().line, op, Describe(Now()));
  }
  std::string NeedName() {
    if (!Is(Token::Kind::kName)) Fail("line {}: expected a name, found {}", Now().line, Describe(Now()));
    return Take().text;
  }
  void NeedBlockEnd() {
    if (!Is(Token::Kind::kBlockEnd)) Fail("line {}: expected %}}, found {}", Now().line, Describe(Now()));
    ++at_;
  }
  void NeedOutputEnd() {
    if (!Is(Token::Kind::kOutputEnd)) Fail("line {}: expected }}}}, found {}", Now().line, Describe(Now()));
    ++at_;
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
  // An expression with the current line.
  ExprPtr Make(Expr::Kind kind, std::string text = "") const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = Now().line;
    e->text = std::move(text);
    return e;
  }

 private:
  static constexpr int kMaxDepth = 200;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace gyre::jinja
