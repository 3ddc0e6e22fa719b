#include "model/jinja/interpreter.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "model/jinja/builtins.h"
#include "model/jinja/parser.h"
#include "model/quoted.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

constexpr int kTemplateDepth = 300;

const Value* Lookup(const Scope* scope, const std::string& name) {
  for (; scope != nullptr; scope = scope->parent.get()) {
    const auto it = scope->names.find(name);
    if (it != scope->names.end()) return &it->second;
  }
  return nullptr;
}

std::shared_ptr<Scope> Inner(const std::shared_ptr<Scope>& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

[[noreturn]] void NoSuch(const Value& v) {
  Fail("{} is undefined",
       std::get<Undefined>(v.data()).what.empty() ? "a value" : "'" + std::get<Undefined>(v.data()).what + "'");
}

void NoOverflow(bool overflow) {
  if (overflow) Fail("a number is too large");
}

int64_t FloorDiv(int64_t a, int64_t b) {
  if (b == 0) Fail("division by zero");
  NoOverflow(b == -1 && a == INT64_MIN);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

}  // namespace

// Bounds recursion through macros and nested blocks, which the stack pays for.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter* i) : i_(i) {
    if (++i_->depth_ > kTemplateDepth)
      throw Error{ResourceExhausted("the template nests more than {} deep", kTemplateDepth)};
  }
  ~Deeper() { --i_->depth_; }

 private:
  Interpreter* i_;
};

std::string Interpreter::Run(const Body& body, std::shared_ptr<Scope> globals) {
  std::string out;
  Execute(body, globals, &out);
  return out;
}

void Interpreter::Step() {
  if (steps_left_ == 0) throw Error{ResourceExhausted("the template takes more than {} steps", options_.max_steps)};
  --steps_left_;
}

void Interpreter::Charge(size_t bytes) {
  if (bytes > bytes_left_) throw Error{ResourceExhausted("the template makes more than {} bytes", options_.max_bytes)};
  bytes_left_ -= bytes;
}

void Interpreter::Emit(const std::string& text, std::string* out) {
  Charge(text.size());
  *out += text;
}

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
  Step();
  switch (node.kind) {
    case Node::Kind::kText: Emit(node.text, out); break;
    case Node::Kind::kOutput: Emit(Eval(*node.expr, scope).ToString(), out); break;
    case Node::Kind::kIf:
      for (const auto& [condition, body] : node.branches) {
        if (condition == nullptr || Eval(*condition, scope).Truthy()) return Execute(body, scope, out);
      }
      break;
    case Node::Kind::kFor: ExecuteFor(node, scope, Eval(*node.expr, scope), 0, out); break;
    case Node::Kind::kSet: {
      Value v = Eval(*node.expr, scope);
      if (node.text.empty()) {
        Assign(node.targets, v, scope.get());
        break;
      }
      const Value* target = Lookup(scope.get(), node.targets[0]);
      if (target == nullptr || target->dict() == nullptr || !target->dict()->is_namespace) {
        Fail("line {}: cannot set an attribute of '{}', which is no namespace", node.line, node.targets[0]);
      }
      target->dict()->Set(Value::Str(node.text), std::move(v));
      break;
    }
    case Node::Kind::kSetBlock: {
      Value v = Value::Str(Capture(node.body, Inner(scope)));
      if (node.expr != nullptr) v = EvalFilterOn(*node.expr, v, scope);
      Assign(node.targets, v, scope.get());
      break;
    }
    case Node::Kind::kMacro: scope->names[node.text] = MakeMacro(node, scope); break;
    case Node::Kind::kCallBlock: {
      Value callee = Eval(*node.expr->children[0], scope);
      Arguments arguments = EvalArguments(*node.expr, scope);
      arguments.named.emplace_back("caller", MakeMacro(node, scope));
      Emit(Call(callee, arguments).ToString(), out);
      break;
    }
    case Node::Kind::kFilter:
      Emit(EvalFilterOn(*node.expr, Value::Str(Capture(node.body, Inner(scope))), scope).ToString(), out);
      break;
    case Node::Kind::kWith: {
      const auto inner = Inner(scope);
      for (size_t i = 0; i < node.targets.size(); ++i) inner->names[node.targets[i]] = Eval(*node.values[i], scope);
      return Execute(node.body, inner, out);
    }
    case Node::Kind::kBreak: return Flow::kBreak;
    case Node::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::ExecuteFor(const Node& node, const std::shared_ptr<Scope>& scope, const Value& over, int depth,
                             std::string* out) {
  const Deeper deeper(this);
  auto loop = std::make_shared<Loop>();
  loop->depth = depth;
  for (Value& item : Iterate(over)) {
    Step();
    if (node.condition != nullptr) {
      const auto trial = Inner(scope);
      Assign(node.targets, item, trial.get());
      if (!Eval(*node.condition, trial).Truthy()) continue;
    }
    loop->items.push_back(std::move(item));
  }
  if (loop->items.empty()) {
    Execute(node.orelse, scope, out);
    return;
  }
  if (node.recursive) {
    loop->recurse = [&node, scope, depth](Interpreter& self, Arguments& arguments) {
      if (arguments.positional.size() != 1) Fail("loop() takes what it is to go through");
      std::string text;
      self.ExecuteFor(node, scope, arguments.positional[0], depth + 1, &text);
      return Value::Str(std::move(text));
    };
  }
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    const auto turn = Inner(scope);
    turn->names["loop"] = Value::OfLoop(loop);
    Assign(node.targets, loop->items[loop->index], turn.get());
    if (Execute(node.body, turn, out) == Flow::kBreak) break;
  }
  loop->recurse = nullptr;
}

void Interpreter::Assign(const std::vector<std::string>& targets, const Value& v, Scope* scope) {
  if (targets.size() == 1) {
    scope->names[targets[0]] = v;
    return;
  }
  const std::vector<Value> parts = Iterate(v);
  if (parts.size() != targets.size()) Fail("{} values for {} names", parts.size(), targets.size());
  for (size_t i = 0; i < parts.size(); ++i) scope->names[targets[i]] = parts[i];
}

// A macro sees the scope in which it stands. The tree outlives the rendering.
Value Interpreter::MakeMacro(const Node& node, const std::shared_ptr<Scope>& scope) {
  return Value::OfFunction([&node, weak = std::weak_ptr<Scope>(scope)](Interpreter& self, Arguments& arguments) {
    const auto outer = weak.lock();
    if (outer == nullptr) Fail("the macro {} is called from outside the block that it belongs to", node.text);
    const auto inner = Inner(outer);
    const size_t known = node.parameters.size();
    std::vector<Value> more;
    for (size_t i = known; i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
    auto named = std::make_shared<Dict>();
    for (const auto& given : arguments.named) {
      const std::string& name = given.first;
      const bool is_parameter =
          std::any_of(node.parameters.begin(), node.parameters.end(), [&](const auto& p) { return p.name == name; });
      if (is_parameter || name == "caller") {
        inner->names[name] = given.second;
      } else {
        named->Set(Value::Str(name), given.second);
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
    inner->names["varargs"] = Value::OfList(std::move(more), true);
    inner->names["kwargs"] = Value::OfDict(std::move(named));
    return Value::Str(self.Capture(node.body, inner));
  });
}

Arguments Interpreter::EvalArguments(const Expr& e, const std::shared_ptr<Scope>& scope) {
  Arguments out;
  for (size_t i = 1; i < e.children.size(); ++i) out.positional.push_back(Eval(*e.children[i], scope));
  for (const auto& [name, value] : e.named) out.named.emplace_back(name, Eval(*value, scope));
  return out;
}

// A chain of filters whose innermost name, the empty one, is a block's text.
Value Interpreter::EvalFilterOn(const Expr& e, const Value& innermost, const std::shared_ptr<Scope>& scope) {
  if (e.kind == Expr::Kind::kName && e.text.empty()) return innermost;
  if (e.kind != Expr::Kind::kFilter) Fail("line {}: expected a filter", e.line);
  const Value v = EvalFilterOn(*e.children[0], innermost, scope);
  Arguments arguments = EvalArguments(e, scope);
  return ApplyFilter(e.text, v, arguments);
}

Value Interpreter::Eval(const Expr& e, const std::shared_ptr<Scope>& scope) {
  Step();
  const Deeper deeper(this);
  switch (e.kind) {
    case Expr::Kind::kLiteral: return e.value;
    case Expr::Kind::kName: {
      const Value* v = Lookup(scope.get(), e.text);
      return v == nullptr ? Value::Missing(e.text) : *v;
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      std::vector<Value> items;
      for (const auto& child : e.children) items.push_back(Eval(*child, scope));
      Charge(items.size() * sizeof(Value));
      return Value::OfList(std::move(items), e.kind == Expr::Kind::kTuple);
    }
    case Expr::Kind::kDict: {
      auto dict = std::make_shared<Dict>();
      for (size_t i = 0; i < e.children.size(); i += 2)
        dict->Set(Eval(*e.children[i], scope), Eval(*e.children[i + 1], scope));
      Charge(e.children.size() * sizeof(Value));
      return Value::OfDict(std::move(dict));
    }
    case Expr::Kind::kAttribute: return Attribute(Eval(*e.children[0], scope), e.text);
    case Expr::Kind::kItem: return Item(Eval(*e.children[0], scope), Eval(*e.children[1], scope));
    case Expr::Kind::kSlice: return EvalSlice(e, scope);
    case Expr::Kind::kCall: {
      const Value callee = Eval(*e.children[0], scope);
      Arguments arguments = EvalArguments(e, scope);
      return Call(callee, arguments);
    }
    case Expr::Kind::kFilter: {
      const Value v = Eval(*e.children[0], scope);
      Arguments arguments = EvalArguments(e, scope);
      return ApplyFilter(e.text, v, arguments);
    }
    case Expr::Kind::kTest: {
      const Value v = Eval(*e.children[0], scope);
      Arguments arguments = EvalArguments(e, scope);
      return Value::Bool(ApplyTest(e.text, v, arguments));
    }
    case Expr::Kind::kUnary: {
      const Value v = Eval(*e.children[0], scope);
      if (e.text == "not") return Value::Bool(!v.Truthy());
      if (v.undefined()) NoSuch(v);
      if (!v.number()) Fail("line {}: bad operand type for unary {}: '{}'", e.line, e.text, v.TypeName());
      if (e.text == "+") return v;
      NoOverflow(v.integral() && v.AsInt() == INT64_MIN);
      if (v.integral()) return Value::Int(-v.AsInt());
      return Value::Float(-v.AsDouble());
    }
    case Expr::Kind::kBinary: {
      Value a = Eval(*e.children[0], scope);
      if (e.text == "and") return a.Truthy() ? Eval(*e.children[1], scope) : a;
      if (e.text == "or") return a.Truthy() ? a : Eval(*e.children[1], scope);
      return Binary(e.text, a, Eval(*e.children[1], scope));
    }
    case Expr::Kind::kCompare: {
      Value left = Eval(*e.children[0], scope);
      for (size_t i = 0; i < e.operators.size(); ++i) {
        Value right = Eval(*e.children[i + 1], scope);
        if (!Compare(e.operators[i], left, right)) return Value::Bool(false);
        left = std::move(right);
      }
      return Value::Bool(true);
    }
    case Expr::Kind::kCondition:
      if (Eval(*e.children[1], scope).Truthy()) return Eval(*e.children[0], scope);
      return e.children[2] != nullptr ? Eval(*e.children[2], scope) : Value();
  }
  return Value();
}

Value Interpreter::EvalSlice(const Expr& e, const std::shared_ptr<Scope>& scope) {
  const Value v = Eval(*e.children[0], scope);
  if (v.undefined()) NoSuch(v);
  const std::string* text = v.str();
  if (text == nullptr && v.list() == nullptr) Fail("line {}: a {} has no slices", e.line, v.TypeName());
  std::vector<size_t> at;
  if (text != nullptr) at = CharacterOffsets(*text);
  const auto n = static_cast<int64_t>(text != nullptr ? at.size() - 1 : v.list()->items.size());
  auto part = [&](size_t i, int64_t fallback) {
    if (e.children[i] == nullptr) return fallback;
    const Value p = Eval(*e.children[i], scope);
    if (p.none()) return fallback;
    if (!p.integral()) Fail("line {}: slice indices must be integers, not '{}'", e.line, p.TypeName());
    return p.AsInt();
  };
  const int64_t step = part(3, 1);
  if (step == 0) Fail("line {}: slice step cannot be zero", e.line);
  auto bound = [&](int64_t i) {
    if (i < 0) i = std::max<int64_t>(i + n, step < 0 ? -1 : 0);
    return std::min(i, step < 0 ? n - 1 : n);
  };
  const int64_t begin = e.children[1] != nullptr ? bound(part(1, step < 0 ? n - 1 : 0)) : step < 0 ? n - 1 : 0;
  int64_t end = step < 0 ? -1 : n;
  if (e.children[2] != nullptr) {
    const int64_t given = part(2, INT64_MIN);
    if (given != INT64_MIN) end = bound(given);
  }
  std::string out;
  std::vector<Value> items;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    const auto u = static_cast<size_t>(i);
    if (text != nullptr) {
      out.append(*text, at[u], at[u + 1] - at[u]);
    } else {
      items.push_back(v.list()->items[u]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  Charge(out.size() + items.size() * sizeof(Value));
  return text != nullptr ? Value::Str(std::move(out)) : Value::OfList(std::move(items), v.list()->tuple);
}

bool Interpreter::Compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return Equal(a, b);
  if (op == "!=") return !Equal(a, b);
  if (op == "in" || op == "not in") {
    bool found = false;
    if (const std::string* s = b.str()) {
      if (a.str() == nullptr) Fail("'in <string>' requires string as left operand, not {}", a.TypeName());
      found = s->find(*a.str()) != std::string::npos;
    } else if (b.dict() != nullptr) {
      found = b.dict()->Find(a) != nullptr;
    } else {
      for (const Value& item : Iterate(b)) found = found || Equal(item, a);
    }
    return found == (op == "in");
  }
  if (a.undefined()) NoSuch(a);
  if (b.undefined()) NoSuch(b);
  if (op == "<") return Less(a, b);
  if (op == ">") return Less(b, a);
  if (op == "<=") return !Less(b, a);
  return !Less(a, b);
}

Value Interpreter::Binary(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") {
    std::string text = a.ToString();
    const std::string more = b.ToString();
    Charge(text.size() + more.size());
    return Value::Str(text += more);
  }
  if (a.undefined()) NoSuch(a);
  if (b.undefined()) NoSuch(b);
  if (op == "+") {
    if (a.str() != nullptr && b.str() != nullptr) {
      Charge(a.str()->size() + b.str()->size());
      return Value::Str(*a.str() + *b.str());
    }
    if (a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
      std::vector<Value> items = a.list()->items;
      items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
      Charge(items.size() * sizeof(Value));
      return Value::OfList(std::move(items), a.list()->tuple);
    }
  }
  if (op == "*" && (a.integral() || b.integral())) {
    const Value& thing = a.integral() ? b : a;
    if (thing.str() != nullptr || thing.list() != nullptr) {
      const int64_t n = std::max<int64_t>(0, (a.integral() ? a : b).AsInt());
      const size_t each = thing.str() != nullptr ? thing.str()->size() : thing.list()->items.size() * sizeof(Value);
      if (each > 0 && static_cast<uint64_t>(n) > options_.max_bytes / each) Charge(SIZE_MAX);
      Charge(each * static_cast<size_t>(n));
      std::string text;
      std::vector<Value> items;
      for (int64_t i = 0; i < n && each > 0; ++i) {
        if (thing.str() != nullptr) {
          text += *thing.str();
        } else {
          items.insert(items.end(), thing.list()->items.begin(), thing.list()->items.end());
        }
      }
      return thing.str() != nullptr ? Value::Str(std::move(text))
                                    : Value::OfList(std::move(items), thing.list()->tuple);
    }
  }
  if (op == "%" && a.str() != nullptr) {
    Arguments arguments;
    arguments.positional = b.list() != nullptr && b.list()->tuple ? b.list()->items : std::vector<Value>{b};
    return ApplyFilter("format", a, arguments);
  }
  if (!a.number() || !b.number()) {
    if (op == "+" && a.str() != nullptr) Fail("can only concatenate str (not \"{}\") to str", b.TypeName());
    Fail("unsupported operand type(s) for {}: '{}' and '{}'", op, a.TypeName(), b.TypeName());
  }
  const double x = a.AsDouble(), y = b.AsDouble();
  if (op == "/") {
    if (y == 0) Fail("division by zero");
    return Value::Float(x / y);
  }
  if (a.integral() && b.integral()) {
    const int64_t i = a.AsInt(), j = b.AsInt();
    int64_t r = 0;
    if (op == "+" || op == "-" || op == "*") {
      NoOverflow(op == "+"   ? __builtin_add_overflow(i, j, &r)
                 : op == "-" ? __builtin_sub_overflow(i, j, &r)
                             : __builtin_mul_overflow(i, j, &r));
      return Value::Int(r);
    }
    if (op == "//") return Value::Int(FloorDiv(i, j));
    if (op == "%") return Value::Int(j == -1 ? 0 : i - FloorDiv(i, j) * j);
    if (j >= 0) {  // **
      if (i == 1 || (i == -1 && j % 2 == 0) || j == 0) return Value::Int(1);
      if (i == -1 || i == 0) return Value::Int(i);
      r = 1;
      for (int64_t k = 0; k < j; ++k) NoOverflow(__builtin_mul_overflow(r, i, &r));
      return Value::Int(r);
    }
  }
  if (op == "+") return Value::Float(x + y);
  if (op == "-") return Value::Float(x - y);
  if (op == "*") return Value::Float(x * y);
  if (op == "**") return Value::Float(std::pow(x, y));
  if (y == 0) Fail("division by zero");
  if (op == "//") return Value::Float(std::floor(x / y));
  const double r = std::fmod(x, y);
  return Value::Float(r != 0 && (r < 0) != (y < 0) ? r + y : r);
}

Value Interpreter::Attribute(const Value& v, const std::string& name) {
  if (v.undefined()) NoSuch(v);
  if (v.dict() == nullptr || !v.dict()->is_namespace) {
    Value method = FindMethod(v, name);
    if (!method.undefined()) return method;
  }
  if (v.dict() != nullptr) {
    if (const Value* item = v.dict()->Find(name)) return *item;
  }
  return Value::Missing(name);
}

Value Interpreter::Item(const Value& v, const Value& key) {
  if (v.undefined()) NoSuch(v);
  if (v.dict() != nullptr) {
    const bool hashable = key.dict() == nullptr && (key.list() == nullptr || key.list()->tuple);
    if (const Value* item = hashable ? v.dict()->Find(key) : nullptr) return *item;
  } else if (key.integral() && (v.str() != nullptr || v.list() != nullptr)) {
    std::vector<size_t> at;
    if (v.str() != nullptr) at = CharacterOffsets(*v.str());
    const auto n = static_cast<int64_t>(v.str() != nullptr ? at.size() - 1 : v.list()->items.size());
    const int64_t i = key.AsInt() < 0 ? key.AsInt() + n : key.AsInt();
    if (i < 0 || i >= n) return Value::Missing(fmt::format("item {}", key.AsInt()));
    const auto u = static_cast<size_t>(i);
    return v.str() != nullptr ? Value::Str(v.str()->substr(at[u], at[u + 1] - at[u])) : v.list()->items[u];
  }
  if (key.str() != nullptr) {
    if (v.dict() != nullptr && v.dict()->is_namespace) return Value::Missing(*key.str());
    const Value method = FindMethod(v, *key.str());
    return method.undefined() ? Value::Missing(*key.str()) : method;
  }
  return Value::Missing(key.ToString());
}

std::vector<Value> Interpreter::Iterate(const Value& v) {
  if (v.list() != nullptr) {
    Charge(v.list()->items.size());
    return v.list()->items;
  }
  std::vector<Value> out;
  if (v.undefined()) return out;
  if (v.dict() != nullptr && !v.dict()->is_namespace) {
    for (const auto& [key, value] : v.dict()->items()) out.push_back(key);
  } else if (v.str() != nullptr) {
    const auto at = CharacterOffsets(*v.str());
    Charge(at.size() * sizeof(Value));
    for (size_t i = 0; i + 1 < at.size(); ++i) out.push_back(Value::Str(v.str()->substr(at[i], at[i + 1] - at[i])));
  } else {
    Fail("'{}' object is not iterable", v.TypeName());
  }
  return out;
}

Value Interpreter::Call(const Value& callee, Arguments& arguments) {
  const Deeper deeper(this);
  if (callee.undefined()) NoSuch(callee);
  if (callee.loop() != nullptr && callee.loop()->recurse) return callee.loop()->recurse(*this, arguments);
  if (callee.function() == nullptr) Fail("'{}' object is not callable", callee.TypeName());
  return (*callee.function())(*this, arguments);
}

Value Interpreter::ApplyFilter(const std::string& name, const Value& v, Arguments& arguments) {
  const Filter filter = FindFilter(name);
  if (filter == nullptr) Fail("the filter '{}' is not known", name);
  return filter(*this, v, arguments);
}

bool Interpreter::ApplyTest(const std::string& name, const Value& v, Arguments& arguments) {
  const Test test = FindTest(name);
  if (test == nullptr) Fail("the test '{}' is not known", name);
  return test(*this, v, arguments);
}

struct Template::Rep {
  Body body;
};
Template::Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

namespace {
// Names and texts of the template stand in its errors: it can't send escape sequences to a terminal by them.
Status ForPeople(const Status& status) { return Status(status.code(), PrintableSentence(Message(status))); }
}  // namespace

StatusOr<Template> Template::Parse(std::string_view source) {
  try {
    auto rep = std::make_unique<Rep>();
    rep->body = jinja::Parse(source);
    Template t;
    t.rep_ = std::move(rep);
    return t;
  } catch (const Error& e) {
    return ForPeople(e.status);
  }
}

StatusOr<std::string> Template::Render(const boost::json::object& variables, const RenderOptions& options) const {
  try {
    auto globals = std::make_shared<Scope>();
    AddGlobals(globals.get());
    auto scope = Inner(globals);
    for (const auto& item : variables) {
      scope->names[std::string(item.key().data(), item.key().size())] = Value::FromJson(item.value());
    }
    return Interpreter(options).Run(rep_->body, scope);
  } catch (const Error& e) {
    return ForPeople(e.status);
  }
}

}  // namespace gyre::jinja
