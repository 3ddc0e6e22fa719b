// Walks a template's tree. Variables live in scopes as Jinja has them: a loop's turn, a macro and a with block have
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

// One rendering. Throws Error.
class Interpreter {
 public:
  explicit Interpreter(const RenderOptions& options)
      : options_(options), steps_left_(options.max_steps), bytes_left_(options.max_bytes) {}

  std::string Run(const Body& body, std::shared_ptr<Scope> globals);

  // For builtins.
  void Charge(size_t bytes);  // before they are made
  const std::tm& now() const { return options_.now; }
  Value Call(const Value& callee, Arguments& arguments);
  Value ApplyFilter(const std::string& name, const Value& v, Arguments& arguments);
  bool ApplyTest(const std::string& name, const Value& v, Arguments& arguments);
  // What `v.name` is, an undefined value if nothing.
  Value Attribute(const Value& v, const std::string& name);
  Value Item(const Value& v, const Value& key);
  // What a for loop goes through: a list's items, a dict's keys, a string's characters; an undefined value has none.
  std::vector<Value> Iterate(const Value& v);
  Value Binary(const std::string& op, const Value& a, const Value& b);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Deeper;

  void Step();
  Flow Execute(const Body& body, const std::shared_ptr<Scope>& scope, std::string* out);
  Flow ExecuteNode(const Node& node, const std::shared_ptr<Scope>& scope, std::string* out);
  void ExecuteFor(const Node& node, const std::shared_ptr<Scope>& scope, const Value& over, int depth,
                  std::string* out);
  std::string Capture(const Body& body, const std::shared_ptr<Scope>& scope);
  void Emit(const std::string& text, std::string* out);
  void Assign(const std::vector<std::string>& targets, const Value& v, Scope* scope);
  Value MakeMacro(const Node& node, const std::shared_ptr<Scope>& scope);

  Value Eval(const Expr& e, const std::shared_ptr<Scope>& scope);
  Value EvalSlice(const Expr& e, const std::shared_ptr<Scope>& scope);
  bool Compare(const std::string& op, const Value& a, const Value& b);
  Arguments EvalArguments(const Expr& e, const std::shared_ptr<Scope>& scope);
  Value EvalFilterOn(const Expr& e, const Value& innermost, const std::shared_ptr<Scope>& scope);

  const RenderOptions& options_;
  uint64_t steps_left_;
  size_t bytes_left_;
  int depth_ = 0;
};

}  // namespace gyre::jinja
