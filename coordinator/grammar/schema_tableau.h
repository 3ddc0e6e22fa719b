// How a goal of JSON Schemas becomes alternatives: as in a tableau, what is asked for together goes into one
// alternative, what may be one or the other makes two. So allOf, anyOf, oneOf, not, if, dependent and unevaluated
// keywords and references all end in the same few limits, and mean what they say.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/grammar/schema_alternatives.h"

namespace gyre::grammar {

// Takes one goal apart. Not thread-safe.
class SchemaTableau {
 public:
  // out: gets the alternatives.
  SchemaTableau(SchemaAlternatives* alternatives, std::vector<Alternative>* out)
      : alternatives_(*alternatives), document_(alternatives->document()), budget_(alternatives->budget()), out_(out) {}

  // Errors as SchemaAlternatives::Of.
  Status TakeApart(const Goal& goal);

 private:
  struct Evaluated {  // by the keywords beside and below an "unevaluated" one
    std::vector<std::string> names, patterns;
    bool all_members = false, all_items = false, contains = false;
    size_t items = 0;
  };
  struct Open {  // a schema that an alternative has still to obey
    SchemaId schema;
    uint32_t watchers;  // bit k: what it evaluates counts for watched[k]
  };
  struct Choice {  // a keyword that can be obeyed in several ways
    SchemaId schema;
    uint32_t watchers;
    const std::string* keyword;
    const JsonTree* value;
  };
  struct Work {
    Alternative a;
    std::vector<Open> obey;
    std::vector<Choice> choices;
    std::vector<SchemaId> to_break;
    std::set<std::pair<int32_t, uint32_t>> seen;
    struct Watched {
      SchemaId schema;
      uint32_t bit;
      bool members;  // "unevaluatedProperties", else "unevaluatedItems"
      const JsonTree* value;
      Evaluated evaluated;
    };
    std::vector<Watched> watched;
  };

  Status Expand(Work work);
  Status Obey(SchemaId s, uint32_t watchers, Work* work, bool* dead);
  Status ObeyKeyword(SchemaId s, const std::string& keyword, const JsonTree& value, uint32_t watchers, Work* work);
  // Each way goes on as a work of its own.
  Status Choose(const Choice& choice, Work work);
  Status ChooseSome(const Choice& choice, size_t from, bool one, Work work);
  Status Break(SchemaId s, Work work);
  Status BreakKeyword(SchemaId s, const std::string& keyword, const JsonTree& value, const Work& work);
  Status Finish(Work work);
  Status Prune(Alternative* a);
  StatusOr<bool> NumberLimit(SchemaId s, const std::string& keyword, const JsonTree& value, bool broken,
                             NumberLimits* limits);
  StatusOr<uint64_t> Count(SchemaId s, const std::string& keyword, const JsonTree& value) const;
  StatusOr<ArrayLimits::Contains> ContainsOf(SchemaId s, const JsonTree& value);
  // The first schemas of "prefixItems", or of "items" as a list.
  const JsonTree* FirstItems(SchemaId s) const;
  // Whether no value obeys both.
  bool NeverBoth(SchemaId a, SchemaId b);
  SchemaId Sub(SchemaId s, const std::string& keyword, const JsonTree& tree, const std::string& step = "");
  bool Asserted(const std::string& format) const;

  SchemaAlternatives& alternatives_;
  SchemaDocument& document_;
  Budget& budget_;
  std::vector<Alternative>* const out_;
};

}  // namespace gyre::grammar
