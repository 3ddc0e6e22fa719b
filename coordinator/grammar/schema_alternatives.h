// What a JSON Schema asks for, without applicators: a list of alternatives, each a plain list of limits for each type.
// A goal is a set of schemas to obey and of schemas to break; schema_tableau.h takes it apart.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/grammar/budget.h"
#include "coordinator/grammar/schema_document.h"

namespace gyre::grammar {

using Goal = std::vector<int32_t>;  // rising; s + 1: obey the schema s; -(s + 1): break it. Empty: any value
using GoalId = uint32_t;
inline constexpr GoalId kAnyValue = 0;
inline int32_t Obeyed(SchemaId s) { return s + 1; }
inline int32_t BrokenOf(SchemaId s) { return -(s + 1); }
inline SchemaId SchemaOf(int32_t literal) { return (literal < 0 ? -literal : literal) - 1; }

enum JsonType : uint8_t {
  kNullType = 1,
  kBoolType = 2,
  kNumberType = 4,
  kStringType = 8,
  kArrayType = 16,
  kObjectType = 32,
  kAllTypes = 63
};

struct NumberLimits {
  struct Bound {
    Decimal value;
    bool exclusive;
  };
  std::optional<Bound> low, high;
  std::vector<Decimal> multiples, no_multiples;
  bool integer = false, no_integer = false;
  // In draft 4 the writing decides: 1.0 is no integer. no_point: an integer of draft 4; point: none of draft 4.
  bool no_point = false, point = false;
  bool none() const {
    return !low && !high && multiples.empty() && no_multiples.empty() && !integer && !no_integer && !point;
  }
};

struct StringLimits {
  struct Match {
    std::string text;  // of the pattern, or the format's name
    bool format, matches;
    SchemaId schema;  // which has it
  };
  std::vector<Match> matches;
  uint64_t min = 0, max = UINT64_MAX;  // code points
};

struct ArrayLimits {
  struct Items {
    std::vector<Goal> first;  // of the first items
    Goal rest;                // of the others
  };
  struct Contains {
    Goal goal;
    uint64_t min, max;
    size_t from;  // index
    SchemaId schema;
  };
  std::vector<Items> items;
  std::map<size_t, Goal> at;  // more goals of single items
  std::vector<Contains> contains;
  uint64_t min = 0, max = UINT64_MAX;
  std::optional<SchemaId> unique;
};

struct ObjectLimits {
  struct Members {
    std::vector<std::pair<std::string, Goal>> names;
    std::vector<std::pair<std::string, Goal>> patterns;
    Goal rest;
    SchemaId schema;
  };
  std::vector<Members> members;
  std::map<std::string, Goal> at;     // more goals of single members
  std::vector<std::string> required;  // in the order of the schema
  std::set<std::string> forbidden;
  std::vector<std::pair<Goal, SchemaId>> names;
  uint64_t min = 0, max = UINT64_MAX;
  SchemaId counted = 0;  // the schema with min
};

// One way to reach a goal. Limits of a type hold for values of that type.
struct Alternative {
  uint8_t types = kAllTypes;
  std::optional<std::vector<const JsonTree*>> among;  // one of these values
  std::vector<const JsonTree*> except;
  NumberLimits number;
  StringLimits string;
  ArrayLimits array;
  ObjectLimits object;
};

struct SchemaOptions {
  bool formats = true;  // the known formats are obeyed; else they are annotations
};

// Not thread-safe.
class SchemaAlternatives {
 public:
  // Whether a text matches a pattern or has a format: nothing, if it is unknown.
  using Matcher = std::function<StatusOr<bool>(const StringLimits::Match&, std::string_view text)>;
  SchemaAlternatives(SchemaDocument* document, const SchemaOptions& options, Budget* budget, Matcher matcher)
      : document_(*document), options_(options), budget_(*budget), matcher_(std::move(matcher)) {
    Id({});
  }

  GoalId Id(Goal goal);
  GoalId Root();
  const Goal& goal(GoalId id) const { return *goals_[id]; }
  // Errors: a keyword that can't be obeyed, with its pointer; a bound. The pointer lives as long as this.
  StatusOr<const std::vector<Alternative>*> Of(GoalId goal);
  // Whether a value reaches the goal.
  StatusOr<bool> Reaches(const JsonTree& value, GoalId goal);
  StatusOr<bool> Reaches(const JsonTree& value, const Alternative& a);
  // False only where no value reaches the goal.
  bool Possible(GoalId goal);
  // Of the member of this name.
  StatusOr<Goal> MemberGoal(const ObjectLimits& limits, const std::string& name);
  Goal ItemGoal(const ArrayLimits& limits, size_t index) const;
  // The goal of both.
  static Goal Both(const Goal& a, const Goal& b);
  SchemaDocument& document() { return document_; }
  const SchemaOptions& options() const { return options_; }
  Budget& budget() { return budget_; }

 private:
  SchemaDocument& document_;
  const SchemaOptions options_;
  Budget& budget_;
  const Matcher matcher_;
  std::map<Goal, GoalId> ids_;
  std::vector<const Goal*> goals_;
  absl::flat_hash_map<GoalId, std::unique_ptr<std::vector<Alternative>>> made_;
  absl::flat_hash_map<GoalId, bool> possible_;
  std::set<GoalId> looking_;
  size_t depth_ = 0;
};

}  // namespace gyre::grammar
