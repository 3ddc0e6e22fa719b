// Evaluates expressions.
#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {

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
  budget_.Step();
  const Deeper deeper(this);
  switch (e.kind) {
    case Expr::Kind::kLiteral: return e.value;
    case Expr::Kind::kName: {
      const Value* v = Lookup(scope.get(), e.text);
      if (v == nullptr && e.text == "self")
        Fail("'self' is not known");  // the template's blocks, of which there are none
      return v == nullptr ? Value::Missing(e.text) : *v;
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      std::vector<Value> items;
      for (const auto& child : e.children) items.push_back(Eval(*child, scope));
      return NewList(std::move(items), e.kind == Expr::Kind::kTuple);
    }
    case Expr::Kind::kDict: {
      budget_.Charge(Budget::kObject);
      auto dict = std::make_shared<Dict>();
      for (size_t i = 0; i < e.children.size(); i += 2)
        dict->Set(Eval(*e.children[i], scope), Eval(*e.children[i + 1], scope), budget_);
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
    case Expr::Kind::kUnary: return EvalUnary(e, Eval(*e.children[0], scope));
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

Value Interpreter::EvalUnary(const Expr& e, const Value& v) {
  if (e.text == "not") return Value::Bool(!v.Truthy());
  if (v.undefined()) FailUndefined(v);
  if (!v.number()) Fail("line {}: bad operand type for unary {}: '{}'", e.line, e.text, v.TypeName());
  if (e.text == "+") return v.Is<bool>() ? Value::Int(v.AsInt()) : v;
  return v.whole() ? Value::Whole(Negated(v.Decimal())) : Value::Float(-v.AsDouble());
}

Value Interpreter::EvalSlice(const Expr& e, const std::shared_ptr<Scope>& scope) {
  const Value v = Eval(*e.children[0], scope);
  if (v.undefined()) FailUndefined(v);
  if (v.none() && e.children[0]->kind == Expr::Kind::kLiteral) return Value();  // as Jinja has it for a constant
  const std::string* text = v.str();
  if (text == nullptr && v.list() == nullptr) Fail("line {}: a {} has no slices", e.line, v.TypeName());
  if (text != nullptr) budget_.Read(text->size());
  const auto n = static_cast<int64_t>(text != nullptr ? CountCharacters(*text) : v.list()->items.size());
  auto part = [&](size_t i, int64_t fallback) {
    if (e.children[i] == nullptr) return fallback;
    const Value p = Eval(*e.children[i], scope);
    if (p.none()) return fallback;
    if (p.big() != nullptr) return p.Decimal()[0] == '-' ? -INT64_MAX : INT64_MAX;  // beyond all items
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
  if (text != nullptr) return SliceText(*text, begin, end, step);
  std::vector<Value> items;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    budget_.Step();
    items.push_back(v.list()->items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return NewList(std::move(items), v.list()->tuple);
}

// Characters begin, begin + step, ... up to `end`, which is excluded; all are within the text.
Value Interpreter::SliceText(const std::string& text, int64_t begin, int64_t end, int64_t step) {
  if (step < 0 ? begin <= end : begin >= end) return Text(*this, "");
  constexpr uint64_t kLongest = 4;  // bytes of a character
  const auto last = static_cast<uint64_t>(step < 0 ? begin - end - 1 : end - begin - 1);
  const uint64_t count =
      1 + last / (step < 0 ? uint64_t{0} - static_cast<uint64_t>(step) : static_cast<uint64_t>(step));
  budget_.Charge(std::min<uint64_t>(text.size(), kLongest * count) + Budget::kObject);
  size_t at = CharacterOffset(text, begin);
  std::string out;
  for (int64_t i = begin;;) {
    const size_t n = Utf8Length(text, at);
    out.append(text, at, n);
    if (__builtin_add_overflow(i, step, &i) || (step < 0 ? i <= end : i >= end)) break;
    for (int64_t moves = step; moves > 0; --moves) at += Utf8Length(text, at);
    for (int64_t moves = step; moves < 0; ++moves) at -= LastUtf8Length(text, at);
  }
  return Value::Str(std::move(out));
}

bool Interpreter::In(const Value& needle, const Value& where) {
  if (const std::string* s = where.str()) {
    if (needle.str() == nullptr) Fail("'in <string>' requires string as left operand, not {}", needle.TypeName());
    budget_.Search(s->size(), needle.str()->size());
    return s->find(*needle.str()) != std::string::npos;
  }
  if (where.dict() != nullptr) return where.dict()->Find(needle, budget_) != nullptr;
  for (const Value& item : Iterate(where)) {
    if (Equal(item, needle, budget_)) return true;
  }
  return false;
}

bool Interpreter::Compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return Equal(a, b, budget_);
  if (op == "!=") return !Equal(a, b, budget_);
  if (op == "in") return In(a, b);
  if (op == "not in") return !In(a, b);
  if (a.undefined()) FailUndefined(a);
  if (b.undefined()) FailUndefined(b);
  if (op == "<") return Less(a, b, budget_);
  if (op == ">") return Less(b, a, budget_);
  if (op == "<=") return AtMost(a, b, budget_);
  return AtMost(b, a, budget_);
}

// The item of a group of groupby that also has this name; null: none.
static const Value* GroupItem(const Value& v, const std::string& name) {
  const bool grouper = name == "grouper";
  if (v.list() == nullptr || !v.list()->group || (!grouper && name != "list")) return nullptr;
  return &v.list()->items[grouper ? 0 : 1];
}

Value Interpreter::Member(const Value& v, const std::string& name) {
  if (const Value* item = GroupItem(v, name)) return *item;
  if (const Node* macro = v.macro()) return MacroAttribute(*macro, name);
  Value method = FindMethod(v, name);
  if (method.function() != nullptr) budget_.Charge(Budget::kObject);
  return method;
}

Value Interpreter::Attribute(const Value& v, const std::string& name) {
  if (v.undefined()) FailUndefined(v);
  if (v.dict() == nullptr || !v.dict()->is_namespace) {
    Value member = Member(v, name);
    if (!member.undefined()) return member;
  }
  if (v.dict() != nullptr) {
    if (const Value* item = v.dict()->Find(name)) return *item;
  }
  return Value::Missing(name);
}

Value Interpreter::Item(const Value& v, const Value& key) {
  if (v.undefined()) FailUndefined(v);
  if (v.dict() != nullptr) {
    const bool hashable = key.dict() == nullptr && (key.list() == nullptr || key.list()->tuple);
    if (const Value* item = hashable ? v.dict()->Find(key, budget_) : nullptr) return *item;
  } else if (key.integral() && v.str() != nullptr) {
    budget_.Read(v.str()->size());
    const size_t at = CharacterOffset(*v.str(), key.AsInt());
    if (at == std::string::npos) return Value::Missing(fmt::format("item {}", key.AsInt()));
    return Text(*this, v.str()->substr(at, Utf8Length(*v.str(), at)));
  } else if (key.integral() && v.list() != nullptr) {
    const auto n = static_cast<int64_t>(v.list()->items.size());
    const int64_t i = key.AsInt() < 0 ? key.AsInt() + n : key.AsInt();
    if (i < 0 || i >= n) return Value::Missing(fmt::format("item {}", key.AsInt()));
    return v.list()->items[static_cast<size_t>(i)];
  }
  if (const std::string* name = key.str()) {
    if (v.dict() != nullptr && v.dict()->is_namespace) return Value::Missing(*name);
    Value member = Member(v, *name);
    return member.undefined() ? Value::Missing(*name) : member;
  }
  return Value::Missing(ToText(key, budget_));
}

Items Interpreter::Iterate(const Value& v) {
  if (v.list() != nullptr) return Items(std::get<std::shared_ptr<const List>>(v.data()));
  std::vector<Value> out;
  if (v.dict() != nullptr && !v.dict()->is_namespace) {
    budget_.Step(v.dict()->items().size());
    for (const auto& [key, value] : v.dict()->items()) out.push_back(key);
  } else if (const std::string* s = v.str()) {
    budget_.Charge(CountCharacters(*s), Budget::kObject);
    for (size_t at = 0; at < s->size();) {
      const size_t n = Utf8Length(*s, at);
      out.push_back(Value::Str(s->substr(at, n)));
      at += n;
    }
  } else if (!v.undefined()) {
    Fail("'{}' object is not iterable", v.TypeName());
  }
  return Items(std::get<std::shared_ptr<const List>>(NewList(std::move(out)).data()));
}

}  // namespace gyre::jinja
