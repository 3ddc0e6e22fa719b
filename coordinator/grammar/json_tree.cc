#include "coordinator/grammar/json_tree.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>

namespace gyre::grammar {
namespace {

namespace json = boost::json;

// Boost's values would round numbers.
struct TreeHandler {
  static constexpr size_t max_object_size = size_t(-1), max_array_size = size_t(-1), max_key_size = size_t(-1),
                          max_string_size = size_t(-1);
  JsonTree root;
  std::vector<JsonTree*> open;
  std::string key, text;
  bool too_large = false;

  JsonTree* Add(JsonKind kind) {
    JsonTree* at = &root;
    if (!open.empty()) {
      JsonTree* parent = open.back();
      if (parent->Is(JsonKind::kArray)) {
        at = &parent->items.emplace_back();
      } else {
        parent->members.push_back({std::move(key), JsonTree()});
        at = &parent->members.back().second;
        key.clear();
      }
    }
    at->kind = kind;
    return at;
  }
  bool Number(json::string_view last) {
    JsonTree* at = Add(JsonKind::kNumber);
    text += std::string_view(last.data(), last.size());
    const std::optional<Decimal> number = Decimal::Read(text);
    too_large = too_large || !number.has_value();
    at->number = number.value_or(Decimal());
    at->text.swap(text);
    text.clear();
    return true;
  }
  bool Part(std::string* to, json::string_view part) { return to->append(part.data(), part.size()), true; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return open.push_back(Add(JsonKind::kObject)), true; }
  bool on_object_end(size_t, json::error_code&) {
    // Of members with one name the last counts.
    std::vector<JsonMember>& members = open.back()->members;
    absl::flat_hash_map<std::string_view, size_t> last;
    for (size_t i = 0; i < members.size(); ++i) last[members[i].first] = i;
    if (last.size() < members.size()) {
      std::vector<JsonMember> kept;
      for (size_t i = 0; i < members.size(); ++i) {
        if (last[members[i].first] == i) kept.push_back({members[i].first, members[i].second});
      }
      members = std::move(kept);
    }
    return open.pop_back(), true;
  }
  bool on_array_begin(json::error_code&) { return open.push_back(Add(JsonKind::kArray)), true; }
  bool on_array_end(size_t, json::error_code&) { return open.pop_back(), true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) { return Part(&key, part); }
  bool on_key(json::string_view part, size_t, json::error_code&) { return Part(&key, part); }
  bool on_string_part(json::string_view part, size_t, json::error_code&) { return Part(&text, part); }
  bool on_string(json::string_view part, size_t, json::error_code&) {
    Part(&text, part);
    Add(JsonKind::kString)->text.swap(text);
    return text.clear(), true;
  }
  bool on_number_part(json::string_view part, json::error_code&) { return Part(&text, part); }
  bool on_int64(int64_t, json::string_view last, json::error_code&) { return Number(last); }
  bool on_uint64(uint64_t, json::string_view last, json::error_code&) { return Number(last); }
  bool on_double(double, json::string_view last, json::error_code&) { return Number(last); }
  bool on_bool(bool b, json::error_code&) { return Add(b ? JsonKind::kTrue : JsonKind::kFalse), true; }
  bool on_null(json::error_code&) { return Add(JsonKind::kNull), true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

const JsonTree* JsonTree::Find(std::string_view name) const {
  for (size_t i = members.size(); i-- > 0;) {
    if (members[i].first == name) return &members[i].second;
  }
  return nullptr;
}

bool Equal(const JsonTree& a, const JsonTree& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case JsonKind::kNumber: return a.number == b.number;
    case JsonKind::kString: return a.text == b.text;
    case JsonKind::kArray: return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), Equal);
    case JsonKind::kObject: {
      if (a.members.size() != b.members.size()) return false;
      for (const auto& [name, value] : a.members) {
        const JsonTree* other = b.Find(name);
        if (other == nullptr || !Equal(value, *other)) return false;
      }
      return true;
    }
    default: return true;
  }
}

StatusOr<JsonTree> ReadJson(std::string_view text, size_t nesting) {
  json::parse_options options;
  options.max_depth = nesting;
  json::basic_parser<TreeHandler> parser(options);
  json::error_code error;
  const size_t read = parser.write_some(false, text.data(), text.size(), error);
  if (!error && text.find_first_not_of(" \t\r\n", read) != std::string_view::npos) error = json::error::extra_data;
  if (error == json::error::too_deep)
    return ResourceExhausted("grammar: the bound of {} values in values is passed", nesting);
  if (error) return InvalidArgument("not JSON: {} at byte {}", error.message(), read);
  if (parser.handler().too_large) {
    return ResourceExhausted("grammar: the bound of 1000 digits of a number is passed");
  }
  return std::move(parser.handler().root);
}

}  // namespace gyre::grammar
