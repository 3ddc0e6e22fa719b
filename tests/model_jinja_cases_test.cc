// The template engine against Jinja2 3.1.6 as transformers sets it up: each filter, test, method, global and statement,
// with its arguments. tests/cases/jinja.jsonl has the variables in its first line, then a template in each, with
// Jinja2's text, or with "error" where Jinja2 fails, or where Gyre refuses by name what Jinja2 knows (words of the
// message).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>

#include "model/jinja/template.h"

namespace gyre {
namespace {

namespace json = boost::json;

StatusOr<std::string> RenderCase(const std::string& source, const json::object& variables) {
  GYRE_ASSIGN_OR_RETURN(const auto t, jinja::Template::Parse(source));
  jinja::RenderOptions options;
  options.now.tm_year = 126;
  options.now.tm_mon = 10;
  options.now.tm_mday = 21;
  options.now.tm_hour = 10;
  options.now.tm_min = 5;
  return t.Render(variables, options);
}

TEST(JinjaCasesTest, TextsAreThoseOfJinja2) {
  std::ifstream in(GYRE_TEST_CASES "/jinja.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const json::object variables = json::parse(line).as_object();
  int cases = 0;
  for (; std::getline(in, line); ++cases) {
    const json::object row = json::parse(line).as_object();
    const std::string source(row.at("template").as_string());
    const auto text = RenderCase(source, variables);
    if (const json::value* error = row.if_contains("error")) {
      EXPECT_FALSE(text.ok()) << source << " gives " << *text;
      EXPECT_THAT(Message(text.status()), ::testing::HasSubstr(std::string(error->as_string()))) << source;
    } else {
      ASSERT_TRUE(text.ok()) << source << ": " << text.status();
      EXPECT_EQ(*text, std::string(row.at("text").as_string())) << source;
    }
  }
  EXPECT_GT(cases, 400);
}

TEST(JinjaCasesTest, UnknownArgumentsAreRefusedByName) {
  const auto error = [](const char* source) { return Message(RenderCase(source, {}).status()); };
  EXPECT_EQ(error("{{ [] | tojson(foo=1) }}"), "the filter 'tojson' has no argument foo, or it is given twice");
  EXPECT_EQ(error("{{ 'a' | replace('b') }}"), "the filter 'replace' needs the argument new");
  EXPECT_EQ(error("{{ 1 is odd(2) }}"), "the test 'odd' takes at most 0 arguments, not 1");
  EXPECT_EQ(error("{{ 'a'.strip(chars='b') }}"), "strip has no argument chars, or it is given twice");
  EXPECT_EQ(error("{{ range(1, 2, 3, 4) }}"), "range takes at most 3 arguments, not 4");
  EXPECT_EQ(error("{% macro f(a) %}{% endmacro %}{{ f(1, b=2) }}"),
            "the macro f has no argument b, or it is given twice");
}

}  // namespace
}  // namespace gyre
