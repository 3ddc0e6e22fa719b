// A grammar: rules whose bodies are expressions over bytes and calls of rules. It may be ambiguous and recursive on
// either side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/grammar/expressions.h"

namespace gyre::grammar {

// Built by one of the readers (regex.h, gbnf.h, choices.h, json_schema.h) and given to CompiledGrammar. Not
// thread-safe.
class Grammar {
 public:
  explicit Grammar(const Bounds& bounds = {}) : expressions_(std::make_unique<Expressions>(bounds)) {
    expressions_->budget().Begin(true);
  }

  Expressions& expressions() { return *expressions_; }
  Budget& budget() { return expressions_->budget(); }
  RuleId AddRule() {
    bodies_.push_back(kNothing);
    budget().Count("rules", bodies_.size(), budget().bounds().rules);
    return static_cast<RuleId>(bodies_.size() - 1);
  }
  void SetBody(RuleId rule, ExprId body) { bodies_[rule] = body; }
  void SetRoot(RuleId rule) { root_ = rule; }
  ExprId body(RuleId rule) const { return bodies_[rule]; }
  RuleId root() const { return root_; }
  size_t rules() const { return bodies_.size(); }
  // Whether a rule takes the empty text. After Finish.
  bool Nullable(RuleId rule) const { return nullable_[rule]; }

  // Drops what never ends, so that every text that the rest begins can be ended. kInvalidArgument: no text is left;
  // kResourceExhausted: a bound is passed, by name.
  Status Finish();

 private:
  void FindProductive();
  void FindNullable();

  std::unique_ptr<Expressions> expressions_;
  std::vector<ExprId> bodies_;
  std::vector<bool> nullable_;
  RuleId root_ = 0;
};

}  // namespace gyre::grammar
