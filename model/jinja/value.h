// Values of a template: Python's, as far as chat templates see them.
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
#include "base/status.h"
#include "boost/json/fwd.hpp"

namespace gyre::jinja {

// What goes wrong while a template is read or rendered. Thrown inside this folder only, where errors arise deep in
// recursion; Template turns it into a Status.
struct Error {
  Status status;
};
template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error{InvalidArgument(format, std::forward<Args>(args)...)};
}

class Value;
class Interpreter;

// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Function = std::function<Value(Interpreter&, Arguments&)>;

struct List;
class Dict;
struct Loop;

struct Undefined {
  std::string what;  // the name or attribute that is not there
};
struct None {};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>, std::shared_ptr<List>,
                   std::shared_ptr<Dict>, std::shared_ptr<Loop>, std::shared_ptr<const Function>>;

  Value() : data_(Undefined{}) {}
  static Value Missing(std::string what) { return Value(Data(Undefined{std::move(what)})); }
  static Value OfNone() { return Value(Data(None{})); }
  static Value Bool(bool v) { return Value(Data(v)); }
  static Value Int(int64_t v) { return Value(Data(v)); }
  static Value Float(double v) { return Value(Data(v)); }
  static Value Str(std::string v) { return Value(Data(std::make_shared<const std::string>(std::move(v)))); }
  static Value OfList(std::vector<Value> items, bool tuple = false);
  static Value OfDict(std::shared_ptr<Dict> dict) { return Value(Data(std::move(dict))); }
  static Value OfLoop(std::shared_ptr<Loop> loop) { return Value(Data(std::move(loop))); }
  static Value OfFunction(Function f) { return Value(Data(std::make_shared<const Function>(std::move(f)))); }
  static Value FromJson(const boost::json::value& json);

  const Data& data() const { return data_; }
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool undefined() const { return Is<Undefined>(); }
  bool none() const { return Is<None>(); }
  // Null where it is another kind.
  const std::string* str() const {
    auto* p = std::get_if<std::shared_ptr<const std::string>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  List* list() const {
    auto* p = std::get_if<std::shared_ptr<List>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  Dict* dict() const {
    auto* p = std::get_if<std::shared_ptr<Dict>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  Loop* loop() const {
    auto* p = std::get_if<std::shared_ptr<Loop>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  const Function* function() const {
    auto* p = std::get_if<std::shared_ptr<const Function>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  bool number() const { return Is<int64_t>() || Is<double>() || Is<bool>(); }
  double AsDouble() const;  // REQUIRES: number()
  bool integral() const { return Is<int64_t>() || Is<bool>(); }
  int64_t AsInt() const;  // REQUIRES: integral()

  bool Truthy() const;
  std::string TypeName() const;  // as Python says it, for messages
  std::string ToString() const;  // str(v)
  std::string Repr() const;      // repr(v)

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
};

// Keys in the order in which they came.
class Dict {
 public:
  bool is_namespace = false;  // attributes can be set
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const { return FindKey('s' + std::string(key)); }
  void Set(const Value& key, Value value);

 private:
  const Value* FindKey(const std::string& key) const;
  std::vector<std::pair<Value, Value>> items_;
  absl::flat_hash_map<std::string, size_t> index_;  // a key's kind and text -> place
};

// What `loop` is in a for block.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  int depth = 0;
  Value changed;     // last arguments of loop.changed()
  Function recurse;  // loop(...) of a recursive loop
};

bool Equal(const Value& a, const Value& b);
// Of numbers, strings and lists; Fail for what Python does not order.
bool Less(const Value& a, const Value& b);

struct JsonOptions {
  int indent = -1;  // < 0: one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator, key_separator;  // empty: Python's
};
// json.dumps
std::string DumpJson(const Value& v, const JsonOptions& options);

// str() of a float: the shortest text that reads back the same.
std::string FloatToString(double v);

// Text by characters. Bytes that are no UTF-8 count one each.
std::vector<size_t> CharacterOffsets(std::string_view text);  // and text.size() at the end
size_t CountCharacters(std::string_view text);
// Python's str.isspace of a character.
bool IsSpace(char32_t c);

}  // namespace gyre::jinja
