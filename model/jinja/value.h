// Values of a template: Python's, as far as chat templates use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "boost/json/fwd.hpp"
#include "model/jinja/budget.h"

namespace gyre::jinja {

class Value;
class Interpreter;

// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Function = std::function<Value(Interpreter&, Arguments&)>;

struct Callable;
struct List;
struct Node;
class Dict;
struct Loop;

// A whole number that no int64 holds. It is printed and compared, but not calculated with.
struct BigInt {
  std::string digits;  // decimal, without a leading zero; a minus sign before them if it is negative
};
struct Undefined {
  std::shared_ptr<const std::string> what;  // the name or attribute that is missing, shortened; null: a value
};
struct None {};

// Lists, dicts and functions may hold values up to kMaxNesting deep, which limits recursion through them, also when
// they are destroyed; making a deeper one throws Error.
constexpr int kMaxNesting = 200;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<Loop>,
                            std::shared_ptr<const Callable>, std::shared_ptr<const BigInt>>;

  Value() : data_(Undefined{}) {}
  static Value Missing(std::string_view what);
  static Value OfNone() { return Value(Data(None{})); }
  static Value Bool(bool v) { return Value(Data(v)); }
  static Value Int(int64_t v) { return Value(Data(v)); }
  // A whole number of any size. REQUIRES: decimal digits, with or without a sign before them.
  static Value Whole(std::string_view decimal);
  // A float without its fraction. Throws Error for one that is not finite.
  static Value Truncated(double v);
  static Value Float(double v) { return Value(Data(v)); }
  static Value Str(std::string v) { return Value(Data(std::make_shared<const std::string>(std::move(v)))); }
  // A text that is escaped already, Jinja2's Markup. What filters and methods make of it is a plain text here.
  static Value Safe(std::string v) {
    Value out = Str(std::move(v));
    out.safe_ = true;
    return out;
  }
  static Value OfList(std::vector<Value> items, bool tuple = false, bool group = false);
  static Value OfDict(std::shared_ptr<Dict> dict) { return Value(Data(std::move(dict))); }
  static Value OfLoop(std::shared_ptr<Loop> loop) { return Value(Data(std::move(loop))); }
  // `holds`: the value that the function keeps, if any.
  static Value OfFunction(Function f, const Value& holds = Value());
  static Value OfMacro(Function f, const Node* node);  // the node outlives it
  static Value FromJson(const boost::json::value& json);

  const Data& data() const { return data_; }
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool undefined() const { return Is<Undefined>(); }
  bool none() const { return Is<None>(); }
  // Each returns null if the value is of another kind.
  const std::string* str() const { return Get<const std::string>(); }
  bool safe() const { return safe_; }
  const List* list() const { return Get<const List>(); }
  Dict* dict() const { return Get<Dict>(); }
  Loop* loop() const { return Get<Loop>(); }
  const Function* function() const;
  const Node* macro() const;
  const BigInt* big() const { return Get<const BigInt>(); }
  bool number() const { return Is<int64_t>() || Is<double>() || Is<bool>() || big() != nullptr; }
  double AsDouble() const;  // REQUIRES: number()
  // A whole number that an int64 holds.
  bool integral() const { return Is<int64_t>() || Is<bool>(); }
  int64_t AsInt() const;  // REQUIRES: integral()
  bool whole() const { return integral() || big() != nullptr; }
  // Its digits, with a minus sign before them if it is negative. REQUIRES: whole()
  std::string Decimal() const;

  bool Truthy() const;
  std::string TypeName() const;  // as Python says it, for messages
  int nesting() const;           // 0: it holds no other value

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  template <typename T>
  T* Get() const {
    auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  Data data_;
  bool safe_ = false;
};

// The nesting of a container that holds a value of this nesting. Throws Error beyond kMaxNesting.
int NestingAround(const Value& v);
int NestingAround(const std::vector<Value>& items);

// A list, which never changes once it is made.
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int nesting = 1;
  bool group = false;  // a tuple of groupby, whose items are also its attributes grouper and list
};

struct Callable {
  Function call;
  int nesting = 0;
  const Node* macro = nullptr;  // null: another function
};

// A dict, with its keys in the order of insertion.
class Dict {
 public:
  bool is_namespace = false;  // attributes can be set
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  // A namespace can hold itself, so it counts as flat: code that walks one limits the depth.
  int nesting() const { return is_namespace ? 0 : nesting_; }
  const Value* Find(const Value& key, Budget& budget) const;
  const Value* Find(std::string_view key) const { return FindKey('s' + std::string(key)); }
  void Set(const Value& key, Value value, Budget& budget);  // charged for where the key is new
  void Set(std::string_view key, Value value);
  void Clear();

 private:
  const Value* FindKey(const std::string& key) const;
  void SetKey(std::string text, Value key, Value value);
  std::vector<std::pair<Value, Value>> items_;
  absl::flat_hash_map<std::string, size_t> index_;  // a key's kind and text -> place
  int nesting_ = 1;
};

// The value of `loop` in a for block.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int depth = 0;
  Value changed;     // last arguments of loop.changed()
  Function recurse;  // loop(...) of a recursive loop
  void Forget();     // lets go of the values that a template may have made a circle of
};

bool Equal(const Value& a, const Value& b, Budget& budget);
// Whether a comes before b, of two numbers, strings or lists. Throws Error for values that Python does not order.
bool Less(const Value& a, const Value& b, Budget& budget);
bool AtMost(const Value& a, const Value& b, Budget& budget);  // a <= b

}  // namespace gyre::jinja
