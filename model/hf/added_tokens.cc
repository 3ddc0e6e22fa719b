#include "model/hf/added_tokens.h"

#include <charconv>
#include <set>

#include "model/hf/json.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr int64_t kMostIds = int64_t{1} << 24;
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kLists[] = {"additional_special_tokens", "extra_special_tokens"};

AddedToken FromObject(const json::object& o) {
  AddedToken t;
  t.content = Text(o.if_contains("content"));
  t.special = Flag(o, "special");
  t.rule = {.strip_left = Flag(o, "lstrip"),
            .strip_right = Flag(o, "rstrip"),
            .whole_word = Flag(o, "single_word"),
            .normalized = Flag(o, "normalized", !t.special)};
  return t;
}

// Calls fn for each value of the lists of special tokens; one may be an object of tokens by name.
template <typename Fn>
void ForEachListed(const json::object& settings, Fn fn) {
  for (const char* key : kLists) {
    const json::value* v = settings.if_contains(key);
    if (v == nullptr) continue;
    if (const json::array* several = v->if_array()) {
      for (const json::value& one : *several) fn(one);
    } else if (const json::object* named = v->if_object()) {
      for (const auto& one : *named) fn(one.value());
    }
  }
}

std::set<std::string> ContentsOf(const json::object& tokenizer) {
  std::set<std::string> out;
  const json::array* added = Array(tokenizer, "added_tokens");
  for (size_t i = 0; added != nullptr && i < added->size(); ++i) {
    if (const json::object* o = (*added)[i].if_object()) out.insert(Text(o->if_contains("content")));
  }
  return out;
}

}  // namespace

std::string SpecialText(const json::object& settings, const char* key) {
  const json::value* v = settings.if_contains(key);
  if (v != nullptr && v->is_object()) v = v->get_object().if_contains("content");
  return Text(v);
}

StatusOr<std::vector<AddedToken>> ReadAddedTokens(const json::object& tokenizer, const json::object& settings) {
  std::vector<AddedToken> out;
  const json::array* added = Array(tokenizer, "added_tokens");
  for (size_t i = 0; added != nullptr && i < added->size(); ++i) {
    const json::object* o = (*added)[i].if_object();
    const json::value* id = o != nullptr ? o->if_contains("id") : nullptr;
    if (id == nullptr) continue;
    AddedToken t = FromObject(*o);
    if (!id->is_int64() || id->get_int64() < 0 || id->get_int64() >= kMostIds)
      return DataLoss("the id of {} is {}", Printable(t.content), Printable(json::serialize(*id)));
    t.id = id->get_int64();
    out.push_back(std::move(t));
  }
  const json::object* more = Object(settings, "added_tokens_decoder");
  if (more == nullptr) return out;
  std::map<std::string, size_t> places;
  std::map<int64_t, size_t> ids;
  for (size_t i = 0; i < out.size(); ++i) {
    places.emplace(out[i].content, i);
    ids.emplace(out[i].id, i);
  }
  for (const auto& item : *more) {
    const json::object* o = item.value().if_object();
    if (o == nullptr) return DataLoss("added_tokens_decoder: {} is no token", Printable(json::serialize(item.value())));
    AddedToken t = FromObject(*o);
    const std::string_view key(item.key().data(), item.key().size());
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), t.id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || t.id < 0 || t.id >= kMostIds)
      return DataLoss("added_tokens_decoder: the id of {} is {}", Printable(t.content), Printable(std::string(key)));
    if (t.content.empty()) continue;
    if (const auto it = places.find(t.content); it != places.end()) {
      t.id = out[it->second].id;  // its place in tokenizer.json holds, and what is said of it here
      out[it->second] = std::move(t);
    } else if (const auto taken = ids.find(t.id); taken != ids.end()) {
      return DataLoss("added_tokens_decoder: {} has the id {}, which is that of {}", Printable(t.content), t.id,
                      Printable(out[taken->second].content));
    } else {
      places.emplace(t.content, out.size());
      ids.emplace(t.id, out.size());
      out.push_back(std::move(t));
    }
  }
  return out;
}

std::vector<AddedToken> NamedSpecialTokens(const json::object& settings) {
  std::vector<AddedToken> out;
  auto add = [&](const json::value& v) {
    AddedToken t;
    if (const json::object* o = v.if_object()) {
      t = FromObject(*o);
      t.rule.normalized = Flag(*o, "normalized");
    } else {
      t.content = Text(&v);
    }
    t.special = true;
    if (!t.content.empty()) out.push_back(std::move(t));
  };
  for (const char* key : kNames) {
    if (const json::value* v = settings.if_contains(key)) add(*v);
  }
  ForEachListed(settings, add);
  return out;
}

void MergeOldFiles(const json::object& tokenizer, const json::object& special_tokens_map,
                   const json::object& added_tokens, json::object* settings) {
  if (settings->if_contains("added_tokens_decoder") != nullptr) return;
  for (const auto& item : special_tokens_map) {
    if (!item.value().is_null()) (*settings)[item.key()] = item.value();
  }
  if (added_tokens.empty()) return;
  std::set<std::string> special;
  for (const AddedToken& t : NamedSpecialTokens(*settings)) special.insert(t.content);
  const std::set<std::string> known = ContentsOf(tokenizer);
  json::object decoder;
  for (const auto& item : added_tokens) {
    const std::string content(item.key().data(), item.key().size());
    if (known.contains(content)) continue;
    const bool is_special = special.count(content) > 0;
    decoder[json::serialize(item.value())] = {
        {"content", item.key()}, {"special", is_special}, {"normalized", !is_special}};
  }
  (*settings)["added_tokens_decoder"] = std::move(decoder);
}

}  // namespace gyre
