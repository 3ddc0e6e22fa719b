#include "model/jinja/list_filters.h"

#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"

namespace gyre::jinja {
namespace {

// Jinja's attribute of an item: "a.b.0".
Value Path(Interpreter& i, Value v, const Value& path, const Value* fallback = nullptr) {
  i.budget().Step();
  const auto or_fallback = [&] { return v.undefined() && fallback != nullptr && !fallback->none() ? *fallback : v; };
  if (path.integral()) {
    v = i.Item(v, path);
    return or_fallback();
  }
  const TextOf text_of(i, path);
  const std::string& text = text_of;
  for (size_t at = 0; at <= text.size();) {
    i.budget().Step();
    const size_t dot = std::min(text.find('.', at), text.size());
    const std::string part = text.substr(at, dot - at);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    v = number && part.size() < 10 ? i.Item(v, Value::Int(std::stoll(part))) : i.Item(v, Value::Str(part));
    v = or_fallback();
    at = dot + 1;
  }
  return v;
}

Arguments Rest(const Arguments& a, size_t from) {
  Arguments out;
  for (size_t k = from; k < a.positional.size(); ++k) out.positional.push_back(a.positional[k]);
  out.named = a.named;
  return out;
}

// The filters select, reject, selectattr, rejectattr.
Value Choose(Interpreter& i, const Value& v, const Arguments& a, bool attribute, bool want) {
  std::vector<Value> out;
  if (!v.Truthy()) return i.NewList(std::move(out));  // Jinja's filter takes None for an empty list
  const size_t first = attribute ? 1 : 0;
  if (attribute && a.positional.empty()) Fail("an attribute's name is missing");
  const std::string test = a.positional.size() > first ? ToText(a.positional[first], i.budget()) : std::string();
  for (const Value& item : i.Iterate(v)) {
    i.budget().Step();
    const Value what = attribute ? Path(i, item, a.positional[0]) : item;
    bool holds = false;
    if (a.positional.size() > first) {
      Arguments rest = Rest(a, first + 1);
      holds = i.ApplyTest(test, what, rest);
    } else {
      holds = what.Truthy();
    }
    if (holds == want) out.push_back(item);
  }
  return i.NewList(std::move(out));
}

Value Fold(Interpreter& i, const Value& v) { return v.str() != nullptr ? Text(i, Lower(*v.str())) : v; }

// Jinja's key of an item: "a,b" are several attributes, in their order.
Value SortKey(Interpreter& i, const Value& item, const Value& by, bool exact, const Value* fallback) {
  if (by.undefined() || by.none()) return exact ? item : Fold(i, item);
  const std::string* text = by.str();
  if (text == nullptr || text->find(',') == std::string::npos) {
    Value key = Path(i, item, by, fallback);
    return exact ? key : Fold(i, key);
  }
  std::vector<Value> keys;
  for (size_t at = 0; at <= text->size();) {
    const size_t comma = std::min(text->find(',', at), text->size());
    Value key = Path(i, item, Value::Str(text->substr(at, comma - at)), fallback);
    keys.push_back(exact ? std::move(key) : Fold(i, key));
    at = comma + 1;
  }
  return i.NewList(std::move(keys));
}

std::vector<Value> Sorted(Interpreter& i, const Items& items, const Arguments& a, const Value& by,
                          const Value* fallback = nullptr) {
  const bool reverse = TakeBool(a, 0, "reverse", false), exact = TakeBool(a, 1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    keyed.emplace_back(SortKey(i, item, by, exact, fallback), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? Less(y.first, x.first, i.budget()) : Less(x.first, y.first, i.budget());
  });
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value Extreme(Interpreter& i, const Value& v, const Arguments& a, bool largest) {
  const Value by = Take(a, 1, "attribute");
  const bool exact = TakeBool(a, 0, "case_sensitive", false);
  Value best;
  Value best_key;
  bool any = false;
  for (const Value& item : i.Iterate(v)) {
    Value key = by.undefined() ? item : Path(i, item, by);
    if (!exact) key = Fold(i, key);
    if (any && !(largest ? Less(best_key, key, i.budget()) : Less(key, best_key, i.budget()))) continue;
    any = true;
    best = item;
    best_key = key;
  }
  return best;
}

int64_t TakeCount(const Arguments& a, const char* name, const char* filter) {
  const int64_t n = TakeInt(a, 0, name, 0);
  if (n < 1) Fail("{} needs a positive number", filter);
  return n;
}

Value Part(Interpreter& i, const Items& items, size_t from, size_t count, const Value* fill, size_t fills) {
  i.budget().Charge((count + fills) * sizeof(Value) + Budget::kObject);
  const auto begin = items.begin() + static_cast<std::ptrdiff_t>(from);
  std::vector<Value> part(begin, begin + static_cast<std::ptrdiff_t>(count));
  if (fill != nullptr) part.resize(count + fills, *fill);
  return Value::OfList(std::move(part));
}

}  // namespace

Value Length(Interpreter& i, const Value& v, Arguments&) {
  if (v.str() != nullptr) {
    i.budget().Read(v.str()->size());
    return Value::Int(static_cast<int64_t>(CountCharacters(*v.str())));
  }
  if (v.list() != nullptr) return Value::Int(static_cast<int64_t>(v.list()->items.size()));
  if (v.dict() != nullptr) return Value::Int(static_cast<int64_t>(v.dict()->items().size()));
  if (v.undefined()) return Value::Int(0);
  Fail("object of type '{}' has no len()", v.TypeName());
}

Value FirstItem(Interpreter& i, const Value& v, Arguments&) {
  const Items items = i.Iterate(v);
  return items.empty() ? Value() : items[0];
}
Value LastItem(Interpreter& i, const Value& v, Arguments&) {
  const Items items = i.Iterate(v);
  return items.empty() ? Value() : items[items.size() - 1];
}

Value Min(Interpreter& i, const Value& v, Arguments& a) { return Extreme(i, v, a, false); }
Value Max(Interpreter& i, const Value& v, Arguments& a) { return Extreme(i, v, a, true); }

Value Sum(Interpreter& i, const Value& v, Arguments& a) {
  const Value by = Take(a, 0, "attribute");
  Value sum = Take(a, 1, "start", Value::Int(0));
  for (const Value& item : i.Iterate(v)) {
    i.budget().Step();
    sum = i.Binary("+", sum, by.undefined() ? item : Path(i, item, by));
  }
  return sum;
}

Value Sort(Interpreter& i, const Value& v, Arguments& a) {
  return i.NewList(Sorted(i, i.Iterate(v), a, Take(a, 2, "attribute")));
}

Value DictItems(Interpreter& i, const Value& v, Arguments&) {
  if (v.undefined()) return Value::OfList({});
  if (v.dict() == nullptr) Fail("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : v.dict()->items()) out.push_back(i.NewList({key, value}, true));
  return i.NewList(std::move(out));
}

Value DictSort(Interpreter& i, const Value& v, Arguments& a) {
  if (v.undefined()) FailUndefined(v);
  const std::string by = TakeText(i, a, 1, "by", "key");
  if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
  const bool by_value = by == "value";
  Arguments order;
  order.positional = {Value::Bool(TakeBool(a, 2, "reverse", false)),
                      Value::Bool(TakeBool(a, 0, "case_sensitive", false))};
  return i.NewList(Sorted(i, i.Iterate(DictItems(i, v, a)), order, Value::Int(by_value ? 1 : 0)));
}

Value Reverse(Interpreter& i, const Value& v, Arguments&) {
  if (const std::string* s = v.str()) {
    i.budget().Charge(s->size() + Budget::kObject);
    std::string out;
    for (size_t end = s->size(); end > 0;) {
      const size_t n = LastUtf8Length(*s, end);
      end -= n;
      out.append(*s, end, n);
    }
    return Value::Str(std::move(out));
  }
  const Items items = i.Iterate(v);
  return i.NewList({std::make_reverse_iterator(items.end()), std::make_reverse_iterator(items.begin())});
}

Value Unique(Interpreter& i, const Value& v, Arguments& a) {
  const bool exact = TakeBool(a, 0, "case_sensitive", false);
  const Value by = Take(a, 1, "attribute");
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : i.Iterate(v)) {
    i.budget().Step();
    Value key = by.undefined() ? item : Path(i, item, by);
    if (!exact) key = Fold(i, key);
    if (seen.Find(key, i.budget()) != nullptr) continue;
    seen.Set(key, Value(), i.budget());
    out.push_back(item);
  }
  return i.NewList(std::move(out));
}

Value Map(Interpreter& i, const Value& v, Arguments& a) {
  std::vector<Value> out;
  const Value* attribute = Given(a, SIZE_MAX, "attribute");
  if (!a.positional.empty()) attribute = nullptr;
  if (attribute == nullptr && a.positional.empty()) Fail("map requires a filter argument");
  for (const auto& [name, value] : a.named) {
    if (attribute != nullptr && name != "attribute" && name != "default") Fail("map has no argument {}", name);
  }
  if (!v.Truthy()) return i.NewList(std::move(out));  // Jinja's filter takes None for an empty list
  const std::string filter = attribute == nullptr ? ToText(a.positional[0], i.budget()) : std::string();
  for (const Value& item : i.Iterate(v)) {
    i.budget().Step();
    if (attribute != nullptr) {
      out.push_back(Path(i, item, *attribute, Given(a, SIZE_MAX, "default")));
    } else {
      Arguments rest = Rest(a, 1);
      out.push_back(i.ApplyFilter(filter, item, rest));
    }
  }
  return i.NewList(std::move(out));
}

Value Select(Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, false, true); }
Value Reject(Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, false, false); }
Value SelectAttr(Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, true, true); }
Value RejectAttr(Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, true, false); }

Value Batch(Interpreter& i, const Value& v, Arguments& a) {
  const auto n = static_cast<size_t>(TakeCount(a, "linecount", "batch"));
  const Value* fill = GivenSome(a, 1, "fill_with");
  const Items items = i.Iterate(v);
  std::vector<Value> out;
  for (size_t at = 0; at < items.size();) {
    const size_t count = std::min(n, items.size() - at);
    out.push_back(Part(i, items, at, count, fill, fill != nullptr && n <= 10000 ? n - count : 0));
    at += count;
  }
  return i.NewList(std::move(out));
}

Value Slice(Interpreter& i, const Value& v, Arguments& a) {
  const auto n = static_cast<size_t>(TakeCount(a, "slices", "slice"));
  const Value* fill = GivenSome(a, 1, "fill_with");
  const Items items = i.Iterate(v);
  i.budget().Charge(n, sizeof(Value));
  std::vector<Value> out;
  size_t at = 0;
  for (size_t s = 0; s < n; ++s) {
    const bool longer = s < items.size() % n;
    const size_t count = items.size() / n + (longer ? 1 : 0);
    out.push_back(Part(i, items, at, count, fill, fill != nullptr && items.size() % n != 0 && !longer ? 1 : 0));
    at += count;
  }
  return Value::OfList(std::move(out));
}

Value GroupBy(Interpreter& i, const Value& v, Arguments& a) {
  const Value by = Take(a, 0, "attribute");
  const Value* fallback = Given(a, 1, "default");
  const bool exact = TakeBool(a, 2, "case_sensitive", false);
  std::vector<Value> out, group;
  Value last;  // the first key of the group, as it is spelled
  auto close = [&] {
    if (group.empty()) return;
    out.push_back(i.NewList({last, i.NewList(std::move(group))}, true, true));
    group.clear();
  };
  Arguments order;
  order.positional = {Value::Bool(false), Value::Bool(exact)};
  for (const Value& item : Sorted(i, i.Iterate(v), order, by, fallback)) {
    const Value key = Path(i, item, by, fallback);
    const bool same =
        !group.empty() && (exact ? Equal(key, last, i.budget()) : Equal(Fold(i, key), Fold(i, last), i.budget()));
    if (!same) close();
    if (group.empty()) last = key;
    group.push_back(item);
  }
  close();
  return i.NewList(std::move(out));
}

// The filter join, which is a method too.
Value Join(Interpreter& i, const Value& v, Arguments& a) {
  const std::string by = TakeText(i, a, 0, "d", "");
  const Value attribute = Take(a, 1, "attribute");
  std::string out;
  bool first = true;
  i.budget().Charge(Budget::kObject);
  for (const Value& item : i.Iterate(v)) {
    i.budget().Step();
    if (!first) {
      i.budget().Charge(by.size());
      out += by;
    }
    first = false;
    AppendText(attribute.undefined() ? item : Path(i, item, attribute), i.budget(), &out);
  }
  return Value::Str(std::move(out));
}

}  // namespace gyre::jinja
