// Binary operators: arithmetic, and + * % ~ on texts and lists.
#include <algorithm>
#include <cmath>

#include "model/jinja/interpreter.h"
#include "model/jinja/print.h"

namespace gyre::jinja {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) {
  if (b == 0) Fail("division by zero");
  FailOnOverflow(b == -1 && a == INT64_MIN);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t Modulo(int64_t a, int64_t b) {
  if (b == 0) Fail("division by zero");
  if (b == -1) return 0;  // the processor can't divide INT64_MIN by it
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

int64_t IntPower(int64_t base, int64_t exponent) {  // REQUIRES: exponent >= 0
  if (base == 1 || (base == -1 && exponent % 2 == 0) || exponent == 0) return 1;
  if (base == -1 || base == 0) return base;
  int64_t r = 1;
  for (int64_t k = 0; k < exponent; ++k) FailOnOverflow(__builtin_mul_overflow(r, base, &r));
  return r;
}

// All operators but division, whose result is a float.
Value IntArithmetic(const std::string& op, int64_t i, int64_t j) {
  int64_t r = 0;
  if (op == "//") return Value::Int(FloorDiv(i, j));
  if (op == "%") return Value::Int(Modulo(i, j));
  if (op == "**") return Value::Int(IntPower(i, j));
  FailOnOverflow(op == "+"   ? __builtin_add_overflow(i, j, &r)
                 : op == "-" ? __builtin_sub_overflow(i, j, &r)
                             : __builtin_mul_overflow(i, j, &r));
  return Value::Int(r);
}

double FloatArithmetic(const std::string& op, double x, double y) {
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "**") return std::pow(x, y);
  if (y == 0) Fail("division by zero");
  if (op == "/") return x / y;
  if (op == "//") return std::floor(x / y);
  const double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

}  // namespace

Value Interpreter::Repeat(const Value& thing, int64_t times) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(0, times));
  if (const std::string* s = thing.str()) {
    budget_.Charge(Budget::kObject);
    budget_.Charge(n, s->size());
    std::string text;
    for (uint64_t i = 0; i < n && !s->empty(); ++i) text += *s;
    return Value::Str(std::move(text));
  }
  const std::vector<Value>& once = thing.list()->items;
  budget_.Charge(n, once.size() * sizeof(Value));
  std::vector<Value> items;
  for (uint64_t i = 0; i < n && !once.empty(); ++i) items.insert(items.end(), once.begin(), once.end());
  return Value::OfList(std::move(items), thing.list()->tuple);
}

Value Interpreter::Binary(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") {
    budget_.Charge(Budget::kObject);
    std::string text;
    AppendText(a, budget_, &text);
    AppendText(b, budget_, &text);
    return Value::Str(std::move(text));
  }
  if (a.undefined()) FailUndefined(a);
  if (b.undefined()) FailUndefined(b);
  if (op == "+" && a.str() != nullptr && b.str() != nullptr) {
    const bool safe = a.safe() || b.safe();
    const Value x = safe ? Escape(*this, a) : a, y = safe ? Escape(*this, b) : b;
    budget_.Charge(x.str()->size() + y.str()->size() + Budget::kObject);
    return safe ? Value::Safe(*x.str() + *y.str()) : Value::Str(*x.str() + *y.str());
  }
  if (op == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
    const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
    budget_.Charge((x.size() + y.size()) * sizeof(Value) + Budget::kObject);
    std::vector<Value> items = x;
    items.insert(items.end(), y.begin(), y.end());
    return Value::OfList(std::move(items), a.list()->tuple);
  }
  if (op == "*" && (a.integral() || b.integral())) {
    const Value& thing = a.integral() ? b : a;
    if (thing.str() != nullptr || thing.list() != nullptr) return Repeat(thing, (a.integral() ? a : b).AsInt());
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
  FailOnOverflow(a.big() != nullptr || b.big() != nullptr);
  const bool whole = a.integral() && b.integral() && op != "/" && (op != "**" || b.AsInt() >= 0);
  if (whole) return IntArithmetic(op, a.AsInt(), b.AsInt());
  return Value::Float(FloatArithmetic(op, a.AsDouble(), b.AsDouble()));
}

}  // namespace gyre::jinja
