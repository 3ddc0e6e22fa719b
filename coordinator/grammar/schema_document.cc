#include "coordinator/grammar/schema_document.h"
#include "base/hex.h"

#include <algorithm>
#include <memory>

namespace gyre::grammar {
namespace {

using Draft = SchemaDocument::Draft;

// The parts of a URI, each with its delimiter. Source: RFC 3986, section 3 and 5.2.
struct Uri {
  std::string scheme, authority, path, query;
};

Uri Split(std::string_view text) {
  Uri u;
  const size_t colon = text.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && text[colon] == ':') {
    u.scheme = text.substr(0, colon + 1);
    text.remove_prefix(colon + 1);
  }
  if (text.substr(0, 2) == "//") {
    const size_t end = std::min(text.find_first_of("/?", 2), text.size());
    u.authority = text.substr(0, end);
    text.remove_prefix(end);
  }
  const size_t query = std::min(text.find('?'), text.size());
  u.path = text.substr(0, query);
  u.query = text.substr(query);
  return u;
}

std::string WithoutDots(std::string_view path) {
  std::vector<std::string_view> kept;
  size_t at = 0;
  while (at <= path.size()) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const bool last = end == path.size();
    if (part == "..") {
      if (kept.size() > 1) kept.pop_back();
      if (last) kept.push_back("");
    } else if (part == ".") {
      if (last) kept.push_back("");
    } else {
      kept.push_back(part);
    }
    at = end + 1;
  }
  std::string out;
  for (size_t i = 0; i < kept.size(); ++i) out.append(i == 0 ? "" : "/").append(kept[i]);
  return out;
}

// The reference without its fragment, against a base.
std::string Resolve(const std::string& base, std::string_view reference) {
  if (reference.empty()) return base;
  const Uri r = Split(reference);
  Uri u = Split(base);
  if (!r.scheme.empty()) {
    u = r;
    if (u.path.substr(0, 1) == "/") u.path = WithoutDots(u.path);
  } else if (!r.authority.empty()) {
    u.authority = r.authority, u.path = WithoutDots(r.path), u.query = r.query;
  } else if (!r.path.empty()) {
    if (r.path[0] == '/') {
      u.path = WithoutDots(r.path);
    } else {
      const size_t slash = u.path.rfind('/');
      const std::string folder =
          slash == std::string::npos ? (u.authority.empty() ? "" : "/") : u.path.substr(0, slash + 1);
      u.path = WithoutDots(folder + r.path);
    }
    u.query = r.query;
  } else if (!r.query.empty()) {
    u.query = r.query;
  }
  return u.scheme + u.authority + u.path + u.query;
}

std::string Unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexValue(text[i + 1]) >= 0 && HexValue(text[i + 2]) >= 0) {
      out += static_cast<char>(HexValue(text[i + 1]) * 16 + HexValue(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string PointerStep(std::string_view name) {
  std::string out = "/";
  for (char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

std::string FromPointerStep(std::string_view step) {
  std::string out;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '~' && i + 1 < step.size()) {
      out += step[++i] == '1' ? '/' : '~';
    } else {
      out += step[i];
    }
  }
  return out;
}

Draft DraftOf(const std::string& schema, Draft otherwise) {
  auto has = [&](std::string_view part) { return schema.find(part) != std::string::npos; };
  if (!has("json-schema.org")) return otherwise;
  if (has("draft-04") || has("draft-03")) return Draft::k4;
  if (has("draft-06")) return Draft::k6;
  if (has("draft-07")) return Draft::k7;
  if (has("2019-09")) return Draft::k2019;
  if (has("2020-12")) return Draft::k2020;
  return otherwise;
}

// Keywords whose value is a schema, a list of schemas (or one), or an object of them.
constexpr std::string_view kSchemas[] = {"additionalItems",
                                         "additionalProperties",
                                         "contains",
                                         "contentSchema",
                                         "else",
                                         "if",
                                         "items",
                                         "not",
                                         "propertyNames",
                                         "then",
                                         "unevaluatedItems",
                                         "unevaluatedProperties"};
constexpr std::string_view kLists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
constexpr std::string_view kObjects[] = {"$defs",        "definitions",       "dependentSchemas",
                                         "dependencies", "patternProperties", "properties"};

// Keywords that say something of a value, and in which drafts.
struct Keyword {
  std::string_view name;
  Draft first = Draft::k4, last = Draft::kUnsaid;
};
constexpr Keyword kKeywords[] = {{"$ref"},
                                 {"$dynamicRef", Draft::k2020},
                                 {"$recursiveRef", Draft::k2019, Draft::k2019},
                                 {"additionalItems"},
                                 {"additionalProperties"},
                                 {"allOf"},
                                 {"anyOf"},
                                 {"const", Draft::k6},
                                 {"contains", Draft::k6},
                                 {"dependencies", Draft::k4, Draft::k7},
                                 {"dependentRequired", Draft::k2019},
                                 {"dependentSchemas", Draft::k2019},
                                 {"enum"},
                                 {"exclusiveMaximum"},
                                 {"exclusiveMinimum"},
                                 {"format"},
                                 {"if", Draft::k7},
                                 {"items"},
                                 {"maxItems"},
                                 {"maxLength"},
                                 {"maxProperties"},
                                 {"maximum"},
                                 {"minItems"},
                                 {"minLength"},
                                 {"minProperties"},
                                 {"minimum"},
                                 {"multipleOf"},
                                 {"not"},
                                 {"oneOf"},
                                 {"pattern"},
                                 {"patternProperties"},
                                 {"prefixItems", Draft::k2020},
                                 {"properties"},
                                 {"propertyNames", Draft::k6},
                                 {"required"},
                                 {"type"},
                                 {"unevaluatedItems", Draft::k2019},
                                 {"unevaluatedProperties", Draft::k2019},
                                 {"uniqueItems"}};

}  // namespace

bool SchemaDocument::Says(SchemaId s, std::string_view keyword) const {
  const auto found =
      std::find_if(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& k) { return k.name == keyword; });
  if (found == std::end(kKeywords) || draft(s) < found->first) return false;
  return draft(s) <= found->last || (draft(s) == Draft::kUnsaid && keyword == "dependencies");
}

bool SchemaDocument::TakesAll(SchemaId s) const {
  const auto says = [&](const JsonMember& m) { return Says(s, m.first); };
  return tree(s).Is(JsonKind::kTrue) ||
         (tree(s).Is(JsonKind::kObject) && std::none_of(tree(s).members.begin(), tree(s).members.end(), says));
}

StatusOr<SchemaDocument> SchemaDocument::Read(JsonTree tree) {
  SchemaDocument d;
  d.root_ = std::make_unique<const JsonTree>(std::move(tree));
  if (!d.root_->IsBool() && !d.root_->Is(JsonKind::kObject)) {
    return InvalidArgument("not a schema: expected an object, true or false");
  }
  d.resources_.push_back({.uri = "", .root = 0, .anchors = {}, .dynamic_anchors = {}});
  d.by_uri_[""] = 0;
  d.Add(*d.root_, "", 0, Draft::kUnsaid);
  for (size_t s = 0; s < d.schemas_.size(); ++s) d.Index(static_cast<SchemaId>(s));
  return d;
}

SchemaId SchemaDocument::Add(const JsonTree& tree, std::string pointer, size_t resource, Draft draft) {
  const auto [at, fresh] = ids_.emplace(&tree, static_cast<SchemaId>(schemas_.size()));
  if (fresh) schemas_.push_back({&tree, std::move(pointer), resource, draft});
  return at->second;
}

// Finds the schema's names, and numbers the schemas right below it.
void SchemaDocument::Index(SchemaId id) {
  Schema s = schemas_[static_cast<size_t>(id)];
  const JsonTree& tree = *s.tree;
  if (!tree.Is(JsonKind::kObject)) return;
  auto text = [&](std::string_view name) -> const std::string* {
    const JsonTree* value = tree.Find(name);
    return value != nullptr && value->Is(JsonKind::kString) ? &value->text : nullptr;
  };
  if (const std::string* draft = text("$schema")) s.draft = DraftOf(*draft, s.draft);
  any_draft4_ |= s.draft == Draft::k4;
  const bool old = s.draft <= Draft::k7;
  const std::string* name = text(s.draft == Draft::k4 ? "id" : "$id");
  if (name != nullptr && !(old && tree.Find("$ref") != nullptr)) {
    const size_t hash = std::min(name->find('#'), name->size());
    if (hash > 0 || name->empty()) {
      const std::string uri = Resolve(resources_[s.resource].uri, name->substr(0, hash));
      if (id == 0) {
        resources_[0].uri = uri;
        by_uri_[uri] = 0;
      } else if (!name->empty()) {
        s.resource = resources_.size();
        resources_.push_back({.uri = uri, .root = id, .anchors = {}, .dynamic_anchors = {}});
        by_uri_.emplace(uri, s.resource);
      }
    }
    if (hash + 1 < name->size()) resources_[s.resource].anchors.emplace(name->substr(hash + 1), id);
  }
  if (const std::string* anchor = text("$anchor")) resources_[s.resource].anchors.emplace(*anchor, id);
  if (const std::string* anchor = text("$dynamicAnchor")) {
    resources_[s.resource].anchors.emplace(*anchor, id);
    resources_[s.resource].dynamic_anchors.emplace(*anchor, id);
  }
  if (const JsonTree* recursive = tree.Find("$recursiveAnchor");
      recursive != nullptr && recursive->Is(JsonKind::kTrue) && resources_[s.resource].root == id) {
    resources_[s.resource].recursive = true;
  }
  schemas_[static_cast<size_t>(id)] = s;
  auto below = [&](const JsonTree& t, std::string pointer) {
    if (t.IsBool() || t.Is(JsonKind::kObject)) Add(t, std::move(pointer), s.resource, s.draft);
  };
  for (const auto& [keyword, value] : tree.members) {
    const std::string pointer = s.pointer + PointerStep(keyword);
    if (std::find(std::begin(kSchemas), std::end(kSchemas), keyword) != std::end(kSchemas)) below(value, pointer);
    if (value.Is(JsonKind::kArray) && std::find(std::begin(kLists), std::end(kLists), keyword) != std::end(kLists)) {
      for (size_t i = 0; i < value.items.size(); ++i) below(value.items[i], pointer + fmt::format("/{}", i));
    }
    if (value.Is(JsonKind::kObject) &&
        std::find(std::begin(kObjects), std::end(kObjects), keyword) != std::end(kObjects)) {
      for (const auto& [member, schema] : value.members) below(schema, pointer + PointerStep(member));
    }
  }
}

SchemaId SchemaDocument::Sub(SchemaId s, const JsonTree& tree, std::string_view steps) {
  const auto known = ids_.find(&tree);
  if (known != ids_.end()) return known->second;
  const Schema& of = schemas_[static_cast<size_t>(s)];
  return Add(tree, of.pointer + std::string(steps), of.resource, of.draft);
}

StatusOr<SchemaId> SchemaDocument::Follow(SchemaId s, std::string_view keyword, const std::string& reference) {
  const size_t hash = std::min(reference.find('#'), reference.size());
  const size_t from = schemas_[static_cast<size_t>(s)].resource;
  const std::string uri = Resolve(resources_[from].uri, std::string_view(reference).substr(0, hash));
  size_t resource = from;
  if (hash > 0) {
    const auto at = by_uri_.find(uri);
    if (at == by_uri_.end()) {
      return Unimplemented("{} at {}: {} is not in this document", keyword, "#" + pointer(s), reference);
    }
    resource = at->second;
  }
  const std::string fragment = hash < reference.size() ? Unescaped(reference.substr(hash + 1)) : "";
  if (!fragment.empty() && fragment[0] != '/') {
    const auto at = resources_[resource].anchors.find(fragment);
    if (at == resources_[resource].anchors.end()) {
      return InvalidArgument("{} at {}: nothing has the name {}", keyword, "#" + pointer(s), reference);
    }
    if (keyword == "$dynamicRef" && resources_[resource].dynamic_anchors.contains(fragment)) {
      // The outermost one on the way counts: with one only, that is it.
      size_t others = 0;
      for (const Resource& r : resources_) others += r.dynamic_anchors.contains(fragment);
      if (others > 1)
        return Unimplemented("$dynamicRef at {}: {} depends on the way to it", "#" + pointer(s), reference);
    }
    return at->second;
  }
  // With several resources that have $recursiveAnchor, the outermost one on the way is meant.
  if (keyword == "$recursiveRef" && resources_[resource].recursive &&
      std::count_if(resources_.begin(), resources_.end(), [](const Resource& r) { return r.recursive; }) > 1) {
    return Unimplemented("$recursiveRef at {}: {} depends on the way to it", "#" + pointer(s), reference);
  }
  const JsonTree* at = schemas_[static_cast<size_t>(resources_[resource].root)].tree;
  std::string where = pointer(resources_[resource].root);
  size_t inner = resource;
  for (size_t i = 0; i < fragment.size();) {
    const size_t end = std::min(fragment.find('/', i + 1), fragment.size());
    const std::string step = FromPointerStep(std::string_view(fragment).substr(i + 1, end - i - 1));
    const JsonTree* next = nullptr;
    if (at->Is(JsonKind::kArray)) {
      size_t index = 0;
      const bool digits = !step.empty() && step.size() < 9 && step.find_first_not_of("0123456789") == std::string::npos;
      for (char c : step) index = index * 10 + static_cast<size_t>(c - '0');
      if (digits && index < at->items.size()) next = &at->items[index];
    } else {
      next = at->Find(step);
    }
    if (next == nullptr || step.size() > fragment.size()) {
      return InvalidArgument("{} at {}: nothing has the name {}", keyword, "#" + pointer(s), reference);
    }
    at = next;
    where += PointerStep(step);
    if (const auto known = ids_.find(at); known != ids_.end())
      inner = schemas_[static_cast<size_t>(known->second)].resource;
    i = end;
  }
  if (!at->IsBool() && !at->Is(JsonKind::kObject)) {
    return InvalidArgument("{} at {}: {} is no schema", keyword, "#" + pointer(s), reference);
  }
  const size_t before = schemas_.size();
  const SchemaId found = Add(*at, where, inner, draft(s));
  for (size_t added = before; added < schemas_.size(); ++added) Index(static_cast<SchemaId>(added));
  return found;
}

Status SchemaDocument::Refused(SchemaId s, std::string_view keyword, std::string_view why) const {
  return Unimplemented("{} at {}: {}", keyword, "#" + pointer(s) + PointerStep(keyword), why);
}

}  // namespace gyre::grammar
