#include "model/jinja/interpreter.h"

#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"

namespace gyre::jinja {
namespace {

constexpr int kTemplateDepth = 300;

}  // namespace

const Value* Lookup(const Scope* scope, const std::string& name) {
  for (; scope != nullptr; scope = scope->parent.get()) {
    const auto it = scope->names.find(name);
    if (it != scope->names.end()) return &it->second;
  }
  return nullptr;
}

std::shared_ptr<Scope> InnerScope(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

void FailUndefined(const Value& v) {
  const auto& what = std::get<Undefined>(v.data()).what;
  Fail("{} is undefined", what == nullptr || what->empty() ? "a value" : "'" + *what + "'");
}

Interpreter::Deeper::Deeper(Interpreter* i) : i_(i) {
  // The depth is counted only after this check, as a constructor that throws has no destructor.
  if (i->depth_ >= kTemplateDepth) {
    throw Error{ResourceExhausted("the template nests more than {} deep", kTemplateDepth)};
  }
  ++i->depth_;
}

Interpreter::~Interpreter() {
  for (const auto& name_space : namespaces_) name_space->Clear();
  for (const auto& loop : loops_) loop->Forget();
}

void Interpreter::EmptyAtEnd(std::shared_ptr<Dict> name_space) {
  budget_.Charge(Budget::kObject);
  namespaces_.push_back(std::move(name_space));
}
void Interpreter::EmptyAtEnd(std::shared_ptr<Loop> loop) {
  if (!loops_.empty() && loops_.back() == loop) return;
  budget_.Charge(Budget::kObject);
  loops_.push_back(std::move(loop));
}

std::string Interpreter::Run(const Body& body, std::shared_ptr<Scope> globals) {
  std::string out;
  Execute(body, globals, &out);
  return out;
}

Value Interpreter::NewList(std::vector<Value> items, bool tuple, bool group) {
  budget_.Charge(items.size() * sizeof(Value) + Budget::kObject);
  return Value::OfList(std::move(items), tuple, group);
}

void Interpreter::Emit(const Value& v, std::string* out) { AppendText(v, budget_, out); }

Interpreter::Flow Interpreter::Execute(const Body& body, const std::shared_ptr<Scope>& scope, std::string* out) {
  const Deeper deeper(this);
  for (const auto& node : body) {
    const Flow flow = ExecuteNode(*node, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

std::string Interpreter::Capture(const Body& body, const std::shared_ptr<Scope>& scope) {
  std::string text;
  Execute(body, scope, &text);
  return text;
}

Interpreter::Flow Interpreter::ExecuteNode(const Node& node, const std::shared_ptr<Scope>& scope, std::string* out) {
  budget_.Step();
  switch (node.kind) {
    case Node::Kind::kText:
      budget_.Charge(node.text.size());
      *out += node.text;
      break;
    case Node::Kind::kOutput: Emit(Eval(*node.expr, scope), out); break;
    case Node::Kind::kIf:
      for (const auto& [condition, body] : node.branches) {
        if (condition == nullptr || Eval(*condition, scope).Truthy()) return Execute(body, scope, out);
      }
      break;
    case Node::Kind::kFor: ExecuteFor(node, scope, Eval(*node.expr, scope), 0, out); break;
    case Node::Kind::kSet: {
      Value v = Eval(*node.expr, scope);
      Store(node, std::move(v), scope.get());
      break;
    }
    case Node::Kind::kSetBlock: {
      Value v = Value::Str(Capture(node.body, InnerScope(scope)));
      if (node.expr != nullptr) v = EvalFilterOn(*node.expr, v, scope);
      Store(node, std::move(v), scope.get());
      break;
    }
    case Node::Kind::kMacro: scope->names[node.text] = MakeMacro(node, scope); break;
    case Node::Kind::kCallBlock: {
      Value callee = Eval(*node.expr->children[0], scope);
      Arguments arguments = EvalArguments(*node.expr, scope);
      arguments.named.emplace_back("caller", MakeMacro(node, scope));
      Emit(Call(callee, arguments), out);
      break;
    }
    case Node::Kind::kFilter:
      Emit(EvalFilterOn(*node.expr, Value::Str(Capture(node.body, InnerScope(scope))), scope), out);
      break;
    case Node::Kind::kWith: {
      const auto inner = InnerScope(scope);
      for (size_t i = 0; i < node.targets.size(); ++i) inner->names[node.targets[i]] = Eval(*node.values[i], scope);
      return Execute(node.body, inner, out);
    }
    case Node::Kind::kBreak: return Flow::kBreak;
    case Node::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

// The items for which the loop's `if` holds.
std::shared_ptr<const List> Interpreter::Chosen(const Node& node, const std::shared_ptr<Scope>& scope,
                                                const Items& items) {
  budget_.Step(items.size());
  if (node.condition == nullptr) return items.list();
  std::vector<Value> chosen;
  for (const Value& item : items) {
    const auto trial = InnerScope(scope);
    Assign(node.targets, item, trial.get());
    if (Eval(*node.condition, trial).Truthy()) chosen.push_back(item);
  }
  return Iterate(NewList(std::move(chosen))).list();
}

void Interpreter::ExecuteFor(const Node& node, const std::shared_ptr<Scope>& scope, const Value& over, int depth,
                             std::string* out) {
  const Deeper deeper(this);
  auto loop = std::make_shared<Loop>();
  loop->depth = depth;
  loop->items = Chosen(node, scope, Iterate(over));
  const std::vector<Value>& items = loop->items->items;
  if (items.empty()) {
    Execute(node.orelse, scope, out);
    return;
  }
  // The function holds the scope, which may hold the loop, so it is removed on every way out.
  struct Forget {
    Loop* loop;
    ~Forget() { loop->recurse = nullptr; }
  } const forget{loop.get()};
  if (node.recursive) {
    loop->recurse = [&node, scope, depth](Interpreter& self, Arguments& arguments) {
      if (arguments.positional.size() != 1) Fail("loop() takes what it is to go through");
      std::string text;
      self.ExecuteFor(node, scope, arguments.positional[0], depth + 1, &text);
      return Value::Str(std::move(text));
    };
  }
  for (loop->index = 0; loop->index < items.size(); ++loop->index) {
    const auto turn = InnerScope(scope);
    turn->names["loop"] = Value::OfLoop(loop);
    Assign(node.targets, items[loop->index], turn.get());
    if (Execute(node.body, turn, out) == Flow::kBreak) break;
  }
}

// Gives the value to the targets of a set: names, or an attribute of a namespace.
void Interpreter::Store(const Node& node, Value v, Scope* scope) {
  if (node.text.empty()) return Assign(node.targets, v, scope);
  const Value* target = Lookup(scope, node.targets[0]);
  if (target == nullptr || target->dict() == nullptr || !target->dict()->is_namespace) {
    Fail("line {}: cannot set an attribute of '{}', which is no namespace", node.line, node.targets[0]);
  }
  target->dict()->Set(Value::Str(node.text), std::move(v), budget_);
}

void Interpreter::Assign(const std::vector<std::string>& targets, const Value& v, Scope* scope) {
  if (targets.size() == 1) {
    scope->names[targets[0]] = v;
    return;
  }
  const Items parts = Iterate(v);
  if (parts.size() != targets.size()) Fail("{} values for {} names", parts.size(), targets.size());
  for (size_t i = 0; i < parts.size(); ++i) scope->names[targets[i]] = parts[i];
}

// A macro sees the scope in which it is defined. The tree outlives the rendering.
Value Interpreter::MakeMacro(const Node& node, const std::shared_ptr<Scope>& scope) {
  Function call = [&node, weak = std::weak_ptr<Scope>(scope)](Interpreter& self, Arguments& arguments) {
    const auto outer = weak.lock();
    if (outer == nullptr) Fail("the macro {} is called from outside the block that it belongs to", node.text);
    const auto inner = InnerScope(outer);
    const size_t known = node.parameters.size();
    if (arguments.positional.size() > known && !node.varargs)
      Fail("the macro {} takes at most {} arguments, not {}", node.text, known, arguments.positional.size());
    if (node.varargs) {
      const auto& given = arguments.positional;
      const auto more = given.begin() + static_cast<std::ptrdiff_t>(std::min(known, given.size()));
      inner->names["varargs"] = self.NewList({more, given.end()}, true);
    }
    std::shared_ptr<Dict> named;
    if (node.kwargs) {
      self.budget().Charge(Budget::kObject);
      named = std::make_shared<Dict>();
      inner->names["kwargs"] = Value::OfDict(named);
    }
    for (const auto& given : arguments.named) {
      const std::string& name = given.first;
      const auto parameter =
          std::find_if(node.parameters.begin(), node.parameters.end(), [&](const auto& p) { return p.name == name; });
      const bool is_parameter = parameter != node.parameters.end();
      const bool placed = is_parameter && parameter - node.parameters.begin() <
                                              static_cast<std::ptrdiff_t>(arguments.positional.size());
      if (placed || (!is_parameter && name != "caller" && !node.kwargs))
        Fail("the macro {} has no argument {}, or it is given twice", node.text, name);
      if (is_parameter || name == "caller") {
        inner->names[name] = given.second;
      } else {
        named->Set(Value::Str(name), given.second, self.budget());
      }
    }
    for (size_t i = 0; i < known; ++i) {
      const Parameter& p = node.parameters[i];
      if (i < arguments.positional.size()) {
        inner->names[p.name] = arguments.positional[i];
      } else if (inner->names.count(p.name) == 0) {
        inner->names[p.name] = p.fallback != nullptr ? self.Eval(*p.fallback, inner) : Value::Missing(p.name);
      }
    }
    return Value::Str(self.Capture(node.body, inner));
  };
  return Value::OfMacro(std::move(call), &node);
}

Value Interpreter::MacroAttribute(const Node& macro, const std::string& name) {
  if (name == "name") return macro.kind == Node::Kind::kMacro ? Text(*this, macro.text) : Value::OfNone();
  if (name == "catch_varargs") return Value::Bool(macro.varargs);
  if (name == "catch_kwargs") return Value::Bool(macro.kwargs);
  if (name == "caller") return Value::Bool(macro.caller);
  if (name != "arguments") return Value();
  std::vector<Value> names;
  for (const Parameter& p : macro.parameters) names.push_back(Text(*this, p.name));
  return NewList(std::move(names), true);
}

Value Interpreter::Call(const Value& callee, Arguments& arguments) {
  const Deeper deeper(this);
  if (callee.undefined()) FailUndefined(callee);
  if (callee.loop() != nullptr && callee.loop()->recurse) return callee.loop()->recurse(*this, arguments);
  if (callee.function() == nullptr) Fail("'{}' object is not callable", callee.TypeName());
  return (*callee.function())(*this, arguments);
}

}  // namespace gyre::jinja
