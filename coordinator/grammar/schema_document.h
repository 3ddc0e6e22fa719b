// A JSON Schema as a set of numbered schemas, and what its references name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "coordinator/grammar/json_tree.h"

namespace gyre::grammar {

using SchemaId = int32_t;

// Immutable once read, but for the numbers that references give to schemas under unknown keywords. Not thread-safe.
class SchemaDocument {
 public:
  enum class Draft : uint8_t { k4, k6, k7, k2019, k2020, kUnsaid };  // kUnsaid: read as 2020-12

  // Keeps the tree. kInvalidArgument: what is no schema, with its pointer.
  static StatusOr<SchemaDocument> Read(JsonTree tree);

  SchemaId root() const { return 0; }
  const JsonTree& tree(SchemaId s) const { return *schemas_[static_cast<size_t>(s)].tree; }
  const std::string& pointer(SchemaId s) const { return schemas_[static_cast<size_t>(s)].pointer; }
  Draft draft(SchemaId s) const { return schemas_[static_cast<size_t>(s)].draft; }
  bool BeforeDraft2019(SchemaId s) const { return draft(s) <= Draft::k7; }
  // Whether a part of it is of draft 4, in which the writing of a number says whether it is an integer: 1.0 is none.
  bool any_draft4() const { return any_draft4_; }
  // Whether a keyword says something of a value, by the draft of s. Without $schema "dependencies" does, as it may be
  // meant as it once was.
  bool Says(SchemaId s, std::string_view keyword) const;
  // Whether the form of a schema shows that it takes every value, or none.
  bool TakesAll(SchemaId s) const;
  bool TakesNone(SchemaId s) const { return tree(s).Is(JsonKind::kFalse); }
  // The schema that is the value of a keyword of s, or an item or member of it.
  SchemaId Sub(SchemaId s, const JsonTree& tree, std::string_view steps);
  // What $ref, $dynamicRef or $recursiveRef names. kUnimplemented: a document that isn't here, or a reference whose
  // meaning depends on the way to it; kInvalidArgument: nothing has the name.
  StatusOr<SchemaId> Follow(SchemaId s, std::string_view keyword, const std::string& reference);
  // An error about a keyword of s: "KEYWORD at POINTER: WHY".
  Status Refused(SchemaId s, std::string_view keyword, std::string_view why) const;

 private:
  struct Schema {
    const JsonTree* tree;
    std::string pointer;  // of the document
    size_t resource;
    Draft draft;
  };
  struct Resource {
    std::string uri;
    SchemaId root;
    absl::flat_hash_map<std::string, SchemaId> anchors;
    absl::flat_hash_map<std::string, SchemaId> dynamic_anchors;
    bool recursive = false;  // it has $recursiveAnchor
  };

  SchemaDocument() = default;
  SchemaId Add(const JsonTree& tree, std::string pointer, size_t resource, Draft draft);
  void Index(SchemaId s);

  std::unique_ptr<const JsonTree> root_;
  bool any_draft4_ = false;
  std::vector<Schema> schemas_;
  std::vector<Resource> resources_;
  absl::flat_hash_map<std::string, size_t> by_uri_;
  absl::flat_hash_map<const JsonTree*, SchemaId> ids_;
};

}  // namespace gyre::grammar
