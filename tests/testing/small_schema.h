// Random JSON Schemas of the usual keywords, and a plain reading of what they mean, which shares nothing with the
// grammars.
#pragma once

#include <cmath>
#include <random>
#include <regex>
#include <string>

#include <boost/json.hpp>

namespace gyre::testing {

// random: gives unsigned numbers.
template <typename Random>
boost::json::value RandomSchema(Random* random, int depth) {
  namespace json = boost::json;
  auto pick = [random](int n) { return static_cast<int>((*random)() % static_cast<unsigned>(n)); };
  if (depth <= 0 && pick(3) == 0) return true;
  json::object s;
  const int kind = pick(depth > 0 ? 9 : 5);
  const char* names[] = {"a", "b", "name", "é\"x", "id"};
  switch (kind) {
    case 0: s["type"] = pick(2) ? "null" : "boolean"; break;
    case 1:
      s["type"] = pick(2) ? "integer" : "number";
      if (pick(2)) s["minimum"] = pick(40) - 20;
      if (pick(2)) s[pick(2) ? "maximum" : "exclusiveMaximum"] = pick(200) + 1.5;
      if (pick(4) == 0) s["multipleOf"] = pick(2) ? 3.0 : 0.25;
      break;
    case 2:
      s["type"] = "string";
      if (pick(2)) s["minLength"] = pick(4);
      if (pick(2)) s["maxLength"] = 4 + pick(6);
      if (pick(4) == 0) {
        s = {{"type", "string"}};
        s["pattern"] = std::string(pick(2) ? "^[a-f]{2,5}$" : pick(2) ? "x+y?$" : "^(ab|cd)+-\\d{3}$");
      }
      break;
    case 3: s["enum"] = json::array{1, "x", nullptr, json::array{1, 2}, json::object{{"k", true}}}; break;
    case 4: s["const"] = pick(2) ? json::value("c") : json::value(2.5); break;
    case 5:
      s["type"] = "array";
      s["items"] = RandomSchema(random, depth - 1);
      if (pick(2)) s["prefixItems"] = json::array{RandomSchema(random, depth - 1)};
      if (pick(2)) s["minItems"] = pick(3);
      if (pick(2)) s["maxItems"] = 3 + pick(3);
      if (pick(4) == 0) s["contains"] = RandomSchema(random, 0);
      break;
    case 6:
    case 7: {
      s["type"] = "object";
      json::object properties;
      for (int i = 0; i < 1 + pick(4); ++i) properties[names[pick(5)]] = RandomSchema(random, depth - 1);
      json::array required;
      for (const auto& p : properties) {
        if (pick(2)) required.emplace_back(p.key());
      }
      s["properties"] = std::move(properties);
      s["required"] = std::move(required);
      if (pick(2)) s["additionalProperties"] = RandomSchema(random, 0);
      if (pick(3) == 0) s["additionalProperties"] = false;
      if (pick(4) == 0) s["maxProperties"] = 3 + pick(3);
      if (pick(4) == 0) s["minProperties"] = 1;
      if (pick(5) == 0) s["dependentRequired"] = json::object{{names[pick(5)], json::array{names[pick(5)]}}};
      break;
    }
    default: {
      const char* keyword = pick(3) == 0 ? "allOf" : pick(2) ? "anyOf" : "oneOf";
      s[keyword] = json::array{RandomSchema(random, depth - 1), RandomSchema(random, depth - 1)};
      if (pick(3) == 0) s["not"] = RandomSchema(random, 0);
      if (pick(3) == 0) {
        s["if"] = RandomSchema(random, 0);
        s["then"] = RandomSchema(random, 0);
        s["else"] = RandomSchema(random, 0);
      }
      break;
    }
  }
  return s;
}

inline bool SameJson(const boost::json::value& a, const boost::json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    if (a.get_array().size() != b.get_array().size()) return false;
    for (size_t i = 0; i < a.get_array().size(); ++i) {
      if (!SameJson(a.get_array()[i], b.get_array()[i])) return false;
    }
    return true;
  }
  if (a.is_object()) {
    if (a.get_object().size() != b.get_object().size()) return false;
    for (const auto& m : a.get_object()) {
      const boost::json::value* other = b.get_object().if_contains(m.key());
      if (other == nullptr || !SameJson(m.value(), *other)) return false;
    }
    return true;
  }
  return a == b;
}

// Of the keywords that RandomSchema writes.
inline bool Obeys(const boost::json::value& schema, const boost::json::value& v) {
  namespace json = boost::json;
  if (schema.is_bool()) return schema.get_bool();
  const json::object& s = schema.get_object();
  auto number = [&](const char* k) { return s.at(k).to_number<double>(); };
  if (const json::value* type = s.if_contains("type")) {
    const json::array types = type->is_array() ? type->get_array() : json::array{*type};
    const bool integer = v.is_number() && std::floor(v.to_number<double>()) == v.to_number<double>();
    bool is = false;
    for (const json::value& t : types) {
      is |= t == "null"      ? v.is_null()
            : t == "boolean" ? v.is_bool()
            : t == "integer" ? integer
            : t == "number"  ? v.is_number()
            : t == "string"  ? v.is_string()
            : t == "array"   ? v.is_array()
                             : v.is_object();
    }
    if (!is) return false;
  }
  if (const json::value* c = s.if_contains("const"); c != nullptr && !SameJson(*c, v)) return false;
  if (const json::value* e = s.if_contains("enum")) {
    bool in = false;
    for (const json::value& one : e->get_array()) in = in || SameJson(one, v);
    if (!in) return false;
  }
  if (v.is_number()) {
    const double n = v.to_number<double>();
    if (s.contains("minimum") && n < number("minimum")) return false;
    if (s.contains("maximum") && n > number("maximum")) return false;
    if (s.contains("exclusiveMaximum") && n >= number("exclusiveMaximum")) return false;
    // Boost.JSON reads large numbers with a point inexactly.
    const bool exact = !v.is_double() || std::fabs(n) < 1e12;
    if (s.contains("multipleOf") && exact && std::fmod(n, number("multipleOf")) != 0) return false;
  }
  if (v.is_string()) {
    size_t length = 0;
    for (char c : v.get_string()) length += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (s.contains("minLength") && static_cast<double>(length) < number("minLength")) return false;
    if (s.contains("maxLength") && static_cast<double>(length) > number("maxLength")) return false;
  }
  if (v.is_string() && s.contains("pattern")) {
    const std::string text(v.get_string()), pattern(s.at("pattern").get_string());
    if (!std::regex_search(text, std::regex(pattern))) return false;
  }
  if (v.is_array()) {
    const json::array& items = v.get_array();
    const auto size = static_cast<double>(items.size());
    if (s.contains("minItems") && size < number("minItems")) return false;
    if (s.contains("maxItems") && size > number("maxItems")) return false;
    const size_t first = s.contains("prefixItems") ? s.at("prefixItems").get_array().size() : 0;
    bool contained = !s.contains("contains");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i < first && !Obeys(s.at("prefixItems").get_array()[i], items[i])) return false;
      if (i >= first && s.contains("items") && !Obeys(s.at("items"), items[i])) return false;
      contained = contained || Obeys(s.at("contains"), items[i]);
    }
    if (!contained) return false;
  }
  if (v.is_object()) {
    const json::object& o = v.get_object();
    if (s.contains("maxProperties") && static_cast<double>(o.size()) > number("maxProperties")) return false;
    if (s.contains("minProperties") && static_cast<double>(o.size()) < number("minProperties")) return false;
    if (s.contains("dependentRequired")) {
      for (const auto& d : s.at("dependentRequired").get_object()) {
        if (!o.contains(d.key())) continue;
        for (const json::value& r : d.value().get_array()) {
          if (!o.contains(r.get_string())) return false;
        }
      }
    }
    if (s.contains("required")) {
      for (const json::value& r : s.at("required").get_array()) {
        if (!o.contains(r.get_string())) return false;
      }
    }
    for (const auto& m : o) {
      const json::value* own =
          s.contains("properties") ? s.at("properties").get_object().if_contains(m.key()) : nullptr;
      if (own != nullptr && !Obeys(*own, m.value())) return false;
      if (own == nullptr && s.contains("additionalProperties") && !Obeys(s.at("additionalProperties"), m.value()))
        return false;
    }
  }
  auto count = [&](const char* k) {
    size_t n = 0;
    for (const json::value& one : s.at(k).get_array()) n += Obeys(one, v);
    return n;
  };
  if (s.contains("allOf") && count("allOf") != s.at("allOf").get_array().size()) return false;
  if (s.contains("anyOf") && count("anyOf") == 0) return false;
  if (s.contains("oneOf") && count("oneOf") != 1) return false;
  if (s.contains("not") && Obeys(s.at("not"), v)) return false;
  if (s.contains("if")) return Obeys(s.at(Obeys(s.at("if"), v) ? "then" : "else"), v);
  return true;
}

}  // namespace gyre::testing
