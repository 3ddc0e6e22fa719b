#include "model/jinja/value.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <compare>
#include <cstdlib>

#include "model/jinja/print.h"

namespace gyre::jinja {
namespace {

// The kind and text of a key; equal numbers have equal texts.
std::string KeyText(const Value& key, Budget& budget) {
  if (const std::string* s = key.str()) {
    budget.Read(s->size());
    return 's' + *s;
  }
  if (key.whole()) return 'n' + key.Decimal();
  if (key.Is<double>()) {
    const double d = key.AsDouble();
    return 'n' + (std::isfinite(d) && d == std::floor(d) ? Value::Truncated(d).Decimal() : FloatToString(d));
  }
  if (key.none()) return "0";
  if (key.undefined()) return "u";
  if (key.list() != nullptr && key.list()->tuple) return 't' + Repr(key, budget);
  Fail("unhashable type: '{}'", key.TypeName());
}

// Compares two whole numbers that are written as Value::Decimal writes them: a minus if there is one, and no zeros at
// the front, so that of two numbers of one sign the longer text is farther from zero.
std::strong_ordering CompareDecimals(const std::string& x, const std::string& y) {
  const bool minus = x[0] == '-';
  if (minus != (y[0] == '-')) return minus ? std::strong_ordering::less : std::strong_ordering::greater;
  const std::strong_ordering sizes = x.size() <=> y.size(), larger = sizes != 0 ? sizes : x.compare(y) <=> 0;
  return minus ? 0 <=> larger : larger;
}

// Compares the exact values of two numbers, as Python does.
std::partial_ordering CompareNumbers(const Value& a, const Value& b) {
  if (a.integral() && b.integral()) return a.AsInt() <=> b.AsInt();
  if (a.whole() && b.whole()) return CompareDecimals(a.Decimal(), b.Decimal());
  const double x = a.AsDouble(), y = b.AsDouble();
  constexpr double kExact = 9e15;  // a float holds each whole number up to here
  if ((!a.whole() && !b.whole()) || (std::fabs(x) < kExact && std::fabs(y) < kExact)) return x <=> y;
  if (!a.whole() && !std::isfinite(x)) return x <=> 0.0;
  if (!b.whole() && !std::isfinite(y)) return 0.0 <=> y;
  // The larger one has no fraction, so the whole parts decide.
  const auto whole_part = [](const Value& v) { return (v.whole() ? v : Value::Truncated(v.AsDouble())).Decimal(); };
  return CompareDecimals(whole_part(a), whole_part(b));
}

}  // namespace

int NestingAround(const Value& v) {
  const int nesting = v.nesting() + 1;
  if (nesting > kMaxNesting) Fail("a value is nested more than {} deep", kMaxNesting);
  return nesting;
}

int NestingAround(const std::vector<Value>& items) {
  int nesting = 1;
  for (const Value& item : items) nesting = std::max(nesting, NestingAround(item));
  return nesting;
}

Value Value::Missing(std::string_view what) {
  constexpr size_t kMost = 200;  // of a name for a message; each missing value keeps one
  return Value(Data(Undefined{std::make_shared<const std::string>(what.substr(0, kMost))}));
}

Value Value::OfList(std::vector<Value> items, bool tuple, bool group) {
  const int nesting = NestingAround(items);
  return Value(Data(std::make_shared<const List>(List{std::move(items), tuple, nesting, group})));
}

Value Value::Whole(std::string_view decimal) {
  const bool minus = decimal[0] == '-';
  if (minus || decimal[0] == '+') decimal.remove_prefix(1);
  decimal.remove_prefix(std::min(decimal.find_first_not_of('0'), decimal.size() - 1));
  std::string digits(minus ? "-" : "");
  digits += decimal;
  int64_t n = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), n).ec == std::errc()) return Int(n);
  return Value(Data(std::shared_ptr<const BigInt>(std::make_shared<BigInt>(BigInt{std::move(digits)}))));
}

Value Value::Truncated(double v) {
  if (!std::isfinite(v)) Fail("cannot convert float {} to integer", std::isnan(v) ? "NaN" : "infinity");
  return Whole(fmt::format("{:.0f}", std::trunc(v)));
}

Value Value::OfFunction(Function f, const Value& holds) {
  return Value(Data(std::make_shared<const Callable>(Callable{std::move(f), NestingAround(holds)})));
}

Value Value::OfMacro(Function f, const Node* node) {
  return Value(Data(std::make_shared<const Callable>(Callable{std::move(f), 1, node})));
}

Value Value::FromJson(const boost::json::value& json) {
  switch (json.kind()) {
    case boost::json::kind::null: return OfNone();
    case boost::json::kind::bool_: return Bool(json.get_bool());
    case boost::json::kind::int64: return Int(json.get_int64());
    case boost::json::kind::uint64: return Whole(std::to_string(json.get_uint64()));
    case boost::json::kind::double_: return Float(json.get_double());
    case boost::json::kind::string: return Str(std::string(json.get_string().c_str(), json.get_string().size()));
    case boost::json::kind::array: {
      std::vector<Value> items;
      for (const auto& item : json.get_array()) items.push_back(FromJson(item));
      return OfList(std::move(items));
    }
    case boost::json::kind::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& item : json.get_object()) {
        dict->Set(std::string_view(item.key().data(), item.key().size()), FromJson(item.value()));
      }
      return OfDict(std::move(dict));
    }
  }
  return OfNone();
}

const Function* Value::function() const {
  const Callable* callable = Get<const Callable>();
  return callable == nullptr ? nullptr : &callable->call;
}

const Node* Value::macro() const {
  const Callable* callable = Get<const Callable>();
  return callable == nullptr ? nullptr : callable->macro;
}

double Value::AsDouble() const {
  if (auto* d = std::get_if<double>(&data_)) return *d;
  if (const BigInt* b = big()) return std::strtod(b->digits.c_str(), nullptr);
  return static_cast<double>(AsInt());
}
int64_t Value::AsInt() const {
  if (auto* b = std::get_if<bool>(&data_)) return *b ? 1 : 0;
  return std::get<int64_t>(data_);
}
std::string Value::Decimal() const { return big() != nullptr ? big()->digits : std::to_string(AsInt()); }

bool Value::Truthy() const {
  if (number()) return AsDouble() != 0;
  if (const std::string* s = str()) return !s->empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return d->is_namespace || !d->items().empty();
  return !undefined() && !none();
}

std::string Value::TypeName() const {
  if (undefined()) return "Undefined";
  if (none()) return "NoneType";
  if (Is<bool>()) return "bool";
  if (Is<int64_t>() || big() != nullptr) return "int";
  if (Is<double>()) return "float";
  if (str() != nullptr) return "str";
  if (list() != nullptr) return list()->tuple ? "tuple" : "list";
  if (dict() != nullptr) return dict()->is_namespace ? "namespace" : "dict";
  return loop() != nullptr ? "loop" : "function";
}

int Value::nesting() const {
  if (const List* l = list()) return l->nesting;
  if (const Dict* d = dict()) return d->nesting();
  if (const Loop* l = loop()) return l->items->nesting;
  const Callable* callable = Get<const Callable>();
  return callable == nullptr ? 0 : callable->nesting;
}

const Value* Dict::FindKey(const std::string& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &items_[it->second].second;
}
const Value* Dict::Find(const Value& key, Budget& budget) const { return FindKey(KeyText(key, budget)); }
void Dict::SetKey(std::string text, Value key, Value value) {
  nesting_ = std::max({nesting_, NestingAround(key), NestingAround(value)});
  const auto [it, added] = index_.try_emplace(std::move(text), items_.size());
  if (added) {
    items_.emplace_back(std::move(key), std::move(value));
  } else {
    items_[it->second].second = std::move(value);
  }
}
void Dict::Set(const Value& key, Value value, Budget& budget) {
  std::string text = KeyText(key, budget);
  if (FindKey(text) == nullptr) budget.Charge(text.size() + 2 * sizeof(Value) + Budget::kObject);
  SetKey(std::move(text), key, std::move(value));
}
void Dict::Set(std::string_view key, Value value) {
  SetKey('s' + std::string(key), Value::Str(std::string(key)), std::move(value));
}

void Dict::Clear() {
  items_.clear();
  index_.clear();
}

void Loop::Forget() { changed = Value(); }

bool Equal(const Value& a, const Value& b, Budget& budget) {
  budget.Step();
  if (a.number() && b.number()) return CompareNumbers(a, b) == 0;
  if (a.data().index() != b.data().index()) return false;
  if (a.str() != nullptr) {
    if (a.str()->size() == b.str()->size()) budget.Read(a.str()->size());
    return *a.str() == *b.str();
  }
  auto equal = [&budget](const Value& x, const Value& y) { return Equal(x, y, budget); };
  if (a.list() != nullptr) {
    const List &x = *a.list(), &y = *b.list();
    return &x == &y ||
           (x.tuple == y.tuple && std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal));
  }
  if (a.dict() != nullptr) {
    const Dict &x = *a.dict(), &y = *b.dict();
    if (x.is_namespace || y.is_namespace) return &x == &y;
    if (x.items().size() != y.items().size()) return false;
    return std::all_of(x.items().begin(), x.items().end(), [&](const auto& item) {
      const Value* other = y.Find(item.first, budget);
      return other != nullptr && equal(item.second, *other);
    });
  }
  if (a.loop() != nullptr) return a.loop() == b.loop();
  if (a.function() != nullptr) return a.function() == b.function();
  return true;  // none, undefined
}

bool Less(const Value& a, const Value& b, Budget& budget) {
  budget.Step();
  if (a.number() && b.number()) return CompareNumbers(a, b) < 0;
  if (a.str() != nullptr && b.str() != nullptr) {
    budget.Read(std::min(a.str()->size(), b.str()->size()));
    return *a.str() < *b.str();  // UTF-8 sorts as code points do
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    // As in Python, the first items that differ decide.
    const auto &x = a.list()->items, &y = b.list()->items;
    const auto [p, q] = std::mismatch(x.begin(), x.end(), y.begin(), y.end(),
                                      [&](const Value& i, const Value& j) { return Equal(i, j, budget); });
    return q != y.end() && (p == x.end() || Less(*p, *q, budget));
  }
  Fail("'<' not supported between instances of '{}' and '{}'", a.TypeName(), b.TypeName());
}

bool AtMost(const Value& a, const Value& b, Budget& budget) {
  // NaN is neither less nor more than a number.
  if (a.number() && b.number()) return CompareNumbers(a, b) <= 0;
  return !Less(b, a, budget);
}

}  // namespace gyre::jinja
