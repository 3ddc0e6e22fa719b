// Requests whose answers obey a JSON Schema, for rings of the demo model, and a plain reading of what they write.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "client/target.h"
#include "tests/testing/small_schema.h"

namespace gyre::testing {

// Free text, numbers, and values that are forced from their first letter on.
inline constexpr char kListSchema[] = R"({"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "string", "pattern": "^-?[1-9][0-9]?$"},
                   "kind": {"enum": ["a worker", "a coordinator", "another machine"]}},
    "required": ["name", "n", "kind"], "additionalProperties": false}})";

// What came of one.
struct SchemaText {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason reason = FinishReason::kLength;
  Usage usage;
  int finished = 0;
};

// REQUIRES: the target has a tokenizer.
inline Request AskForList(Target& target, uint64_t seed) {
  Request r;
  const auto prompt = target.Encode("What is Gyre?", {.add_special = true});
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  if (prompt.ok()) r.prompt = *prompt;
  r.sampling = {.temperature = 0.7f, .seed = seed};
  r.max_new_tokens = 1500;
  r.grammar_source = grammar::Source{.kind = grammar::SourceKind::kJsonSchema, .text = kListSchema};
  return r;
}

// Runs it to its end. on_token: called with the number of tokens so far.
inline SchemaText RunForText(Target& target, const Request& request, const std::function<void(size_t)>& on_token = {}) {
  SchemaText out;
  const Status status = target.Run(request, [&](const Event& event) {
    if (const auto* t = std::get_if<TokenEvent>(&event)) {
      out.tokens.push_back(t->token);
      out.text += t->text;
      if (on_token) on_token(out.tokens.size());
    } else if (const auto* f = std::get_if<Finished>(&event)) {
      out.text += f->text;
      out.reason = f->reason;
      out.usage = f->usage;
      ++out.finished;
    }
  });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// Whether it is a whole text of the schema, by a reading that shares nothing with the grammars.
inline ::testing::AssertionResult IsAList(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  if (error) return ::testing::AssertionFailure() << error.message() << ": " << text;
  if (!Obeys(boost::json::parse(kListSchema), value))
    return ::testing::AssertionFailure() << "it is another text: " << text;
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult IsAList(const SchemaText& came) {
  if (came.finished != 1) return ::testing::AssertionFailure() << "it ended " << came.finished << " times";
  if (came.reason != FinishReason::kStop) return ::testing::AssertionFailure() << "it was cut: " << came.text;
  return IsAList(came.text);
}

}  // namespace gyre::testing
