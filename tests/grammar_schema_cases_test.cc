// JSON Schema: the cases beside the checkout. docs/grammar.md has the counts.
#include <gmock/gmock.h>

#include <map>

#include "coordinator/grammar/json_schema.h"
#include "fmt/core.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/sanitized.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;

// Formats are obeyed but in those tests of the suite that take them as annotations.
TEST(GrammarSchemaCases, Suite) {
  const auto cases = testing::SharedCases("suite.jsonl");
  if (cases.empty()) GTEST_SKIP() << "the JSON Schema suite is not beside this checkout";
  size_t refused = 0;
  std::map<std::string, size_t> reasons;
  for (const auto& c : cases) {
    const std::string id(c.at("id").as_string());
    const JsonOptions options{.formats = c.at("kind").as_string() == "format"};
    auto g = JsonSchemaGrammar(json::serialize(c.at("schema")), options);
    if (!g.ok()) {
      if (absl::IsInvalidArgument(g.status()) && g.status().message() == "no value obeys the schema") {
        EXPECT_FALSE(c.at("valid").as_bool()) << id;
        continue;
      }
      ++refused;
      ++reasons[std::string(g.status().message().substr(0, g.status().message().find(' ')))];
      EXPECT_TRUE(absl::IsUnimplemented(g.status())) << id << ": " << g.status();
      continue;
    }
    const auto compiled = testing::Compiled(std::move(g));
    ASSERT_NE(compiled, nullptr) << id;
    EXPECT_EQ(testing::Takes(compiled.get(), c.at("text").as_string()), c.at("valid").as_bool())
        << id << " " << c.at("schema") << " " << c.at("text");
  }
  fmt::print("suite: {} tests, {} of refused schemas\n", cases.size(), refused);
  for (const auto& [reason, count] : reasons) fmt::print("  {}: {}\n", reason, count);
  EXPECT_LE(refused, cases.size() / 4);
}

TEST(GrammarSchemaCases, RealSchemas) {
  auto cases = testing::SharedCases("schemas.jsonl");
  if (testing::kSanitized) cases.resize(cases.size() / 4);
  if (cases.empty()) GTEST_SKIP() << "the real schemas are not beside this checkout";
  size_t compiled = 0, valid = 0, wrongly_refused = 0;
  for (const auto& c : cases) {
    const std::string id(c.at("id").as_string());
    auto g = JsonSchemaGrammar(json::serialize(c.at("schema")), {.any_order = true});
    if (!g.ok()) {
      fmt::print("  {}: {}\n", id, std::string(g.status().message()));
      continue;
    }
    const auto made = testing::Compiled(std::move(g));
    ASSERT_NE(made, nullptr) << id;
    ++compiled;
    for (const auto& t : c.at("tests").as_array()) {
      const json::object& test = t.as_object();
      const bool takes = testing::Takes(made.get(), test.at("text").as_string());
      if (!test.at("valid").as_bool()) {
        EXPECT_FALSE(takes) << id << " takes " << test.at("text");
        continue;
      }
      ++valid;
      if (takes) continue;
      ++wrongly_refused;
      const std::string text(test.at("text").as_string());
      auto state = made->start();
      size_t at = 0;
      for (; at < text.size(); ++at) {
        const auto next = made->Advance(state, text.substr(at, 1));
        if (!next.ok() || next->dead()) break;
        state = *next;
      }
      fmt::print("  {} refuses a valid text: {} <here> {}\n", id,
                 text.substr(at > 120 ? at - 120 : 0, std::min<size_t>(at, 120)), text.substr(at, 60));
    }
  }
  fmt::print("real schemas: {} of {} compiled, {} of {} valid texts refused\n", compiled, cases.size(), wrongly_refused,
             valid);
  EXPECT_GE(compiled * 100, cases.size() * 88);
  EXPECT_LE(wrongly_refused * 500, valid);
}

}  // namespace
}  // namespace gyre::grammar
