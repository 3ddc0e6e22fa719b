// Functions that every template can call.
#include "model/jinja/builtins.h"
#include "model/jinja/text.h"

namespace gyre::jinja {

void AddGlobals(Scope* scope) {
  auto& names = scope->names;
  names["range"] = Value::OfFunction([](Interpreter& i, Arguments& a) {
    Check("", "range", a, "/start!,stop,step");
    const size_t n = a.positional.size();
    const int64_t begin = n == 1 ? 0 : TakeInt(a, 0, "start", 0), end = TakeInt(a, n == 1 ? 0 : 1, "stop", 0),
                  step = TakeInt(a, 2, "step", 1);
    if (step == 0) Fail("range() arg 3 must not be zero");
    std::vector<Value> out;
    for (int64_t k = begin; step > 0 ? k < end : k > end;) {
      i.budget().Charge(sizeof(Value));
      out.push_back(Value::Int(k));
      if (__builtin_add_overflow(k, step, &k)) break;
    }
    return Value::OfList(std::move(out));
  });
  auto make_dict = [](bool is_namespace) {
    return [is_namespace](Interpreter& i, Arguments& a) {
      i.budget().Charge(Budget::kObject);
      auto d = std::make_shared<Dict>();
      d->is_namespace = is_namespace;
      if (is_namespace) i.EmptyAtEnd(d);
      if (a.positional.size() > 1)
        Fail("expected at most one mapping beside named values, not {}", a.positional.size());
      for (const Value& v : a.positional) {
        if (v.dict() == nullptr) Fail("expected a mapping, found {}", v.TypeName());
        for (const auto& [key, value] : v.dict()->items()) d->Set(key, value, i.budget());
      }
      for (const auto& [name, v] : a.named) d->Set(Value::Str(name), v, i.budget());
      return Value::OfDict(std::move(d));
    };
  };
  names["dict"] = Value::OfFunction(make_dict(false));
  names["namespace"] = Value::OfFunction(make_dict(true));
  names["raise_exception"] = Value::OfFunction([](Interpreter& i, Arguments& a) -> Value {
    Check("", "raise_exception", a, "message");
    throw Error{InvalidArgument("{}", TakeText(i, a, 0, "message", "the template refuses these messages"))};
  });
  names["strftime_now"] = Value::OfFunction([](Interpreter& i, Arguments& a) {
    Check("", "strftime_now", a, "format");
    const std::string format = TakeText(i, a, 0, "format", "%Y-%m-%d");
    if (format.empty() || format.size() > 1000) return Value::Str("");
    char buffer[4096] = {};
    const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &i.now());
    return Text(i, std::string(buffer, n));
  });
}

}  // namespace gyre::jinja
