// Executes a template's tree. Variables are in scopes as in Jinja: a loop's turn, a macro and a with block have
// their own.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/template.h"
#include "model/jinja/value.h"

namespace gyre::jinja {

struct Scope {
  std::map<std::string, Value, std::less<>> names;
  std::shared_ptr<Scope> parent;
};
// The value of a name in this scope or one around it, or null.
const Value* Lookup(const Scope* scope, const std::string& name);
std::shared_ptr<Scope> InnerScope(const std::shared_ptr<Scope>& parent);

// The items of a for loop, which are kept alive.
class Items {
 public:
  explicit Items(std::shared_ptr<const List> list) : list_(std::move(list)) {}
  auto begin() const { return list_->items.begin(); }
  auto end() const { return list_->items.end(); }
  size_t size() const { return list_->items.size(); }
  bool empty() const { return list_->items.empty(); }
  const Value& operator[](size_t i) const { return list_->items[i]; }
  const std::shared_ptr<const List>& list() const { return list_; }

 private:
  std::shared_ptr<const List> list_;
};

// One rendering. Throws Error.
class Interpreter {
 public:
  explicit Interpreter(const RenderOptions& options)
      : options_(options), budget_(options.max_steps, options.max_bytes) {}
  ~Interpreter();

  std::string Run(const Body& body, std::shared_ptr<Scope> globals);

  // Builtins use these.
  Budget& budget() { return budget_; }
  const std::tm& now() const { return options_.now; }
  Value NewList(std::vector<Value> items, bool tuple = false, bool group = false);  // counts against the budget
  // A template can make a namespace or a loop hold itself, so both are emptied when the rendering ends.
  void EmptyAtEnd(std::shared_ptr<Dict> name_space);
  void EmptyAtEnd(std::shared_ptr<Loop> loop);
  Value Call(const Value& callee, Arguments& arguments);
  Value ApplyFilter(const std::string& name, const Value& v, Arguments& arguments);
  bool ApplyTest(const std::string& name, const Value& v, Arguments& arguments);
  // The value of `v.name`; undefined if there is none.
  Value Attribute(const Value& v, const std::string& name);
  Value Item(const Value& v, const Value& key);
  // A list's items, a dict's keys, a string's characters; an undefined value has none.
  Items Iterate(const Value& v);
  Value Binary(const std::string& op, const Value& a, const Value& b);
  bool In(const Value& needle, const Value& where);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Deeper;

  // Statements (interpreter.cc).
  Flow Execute(const Body& body, const std::shared_ptr<Scope>& scope, std::string* out);
  Flow ExecuteNode(const Node& node, const std::shared_ptr<Scope>& scope, std::string* out);
  void ExecuteFor(const Node& node, const std::shared_ptr<Scope>& scope, const Value& over, int depth,
                  std::string* out);
  std::shared_ptr<const List> Chosen(const Node& node, const std::shared_ptr<Scope>& scope, const Items& items);
  std::string Capture(const Body& body, const std::shared_ptr<Scope>& scope);
  void Emit(const Value& v, std::string* out);
  void Store(const Node& node, Value v, Scope* scope);
  void Assign(const std::vector<std::string>& targets, const Value& v, Scope* scope);
  Value MakeMacro(const Node& node, const std::shared_ptr<Scope>& scope);
  // What Jinja tells of a macro; undefined if there is no attribute of this name.
  Value MacroAttribute(const Node& macro, const std::string& name);

  // Expressions (evaluate.cc).
  Value Eval(const Expr& e, const std::shared_ptr<Scope>& scope);
  Value EvalUnary(const Expr& e, const Value& v);
  Value EvalSlice(const Expr& e, const std::shared_ptr<Scope>& scope);
  Value SliceText(const std::string& text, int64_t begin, int64_t end, int64_t step);
  // An attribute that a value of this kind has, a method or another one; undefined if there is none.
  Value Member(const Value& v, const std::string& name);
  bool Compare(const std::string& op, const Value& a, const Value& b);
  Arguments EvalArguments(const Expr& e, const std::shared_ptr<Scope>& scope);
  Value EvalFilterOn(const Expr& e, const Value& innermost, const std::shared_ptr<Scope>& scope);

  // Operators (operators.cc).
  Value Repeat(const Value& thing, int64_t times);

  const RenderOptions& options_;
  Budget budget_;
  int depth_ = 0;
  std::vector<std::shared_ptr<Dict>> namespaces_;
  std::vector<std::shared_ptr<Loop>> loops_;
};

// Limits recursion through macros, nested blocks and expressions, as the stack has a limit.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter* i);
  ~Deeper() { --i_->depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Interpreter* i_;
};

[[noreturn]] void FailUndefined(const Value& v);
// A whole number that no int64 holds is an error, not another number.
inline void FailOnOverflow(bool overflow) {
  if (overflow) Fail("a number is too large");
}

}  // namespace gyre::jinja
