// A template is an unauthenticated peer's program: its steps, its memory and its nesting end where they should, at
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "model/jinja/template.h"
#include "tests/testing/cpu_time.h"
#include "tests/testing/largest_allocation.h"

namespace gyre {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr size_t kMaxBytes = 1 << 20;
constexpr uint64_t kMaxSteps = 200'000;

std::string RenderLimited(const std::string& source, const std::string& variables = "{}",
                          uint64_t max_steps = kMaxSteps) {
  const auto t = jinja::Template::Parse(source);
  if (!t.ok()) return "parse: " + Message(t.status());
  jinja::RenderOptions options;
  options.max_bytes = kMaxBytes;
  options.max_steps = max_steps;
  const auto text = t->Render(boost::json::parse(variables).as_object(), options);
  return text.ok() ? *text : "error: " + Message(text.status());
}

// ns.a holds itself twice at each of `depth` levels: 2^depth ends of `innermost` in a few hundred bytes.
std::string SharedLists(int depth, const std::string& innermost, const std::string& then) {
  return "{% set ns = namespace(a=" + innermost + ", b=" + innermost + ") %}{% for i in range(" +
         std::to_string(depth) + ") %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}" + then;
}

class SharedListsTest : public ::testing::TestWithParam<int> {};

TEST_P(SharedListsTest, WhateverWalksThemEndsWithinTheLimits) {
  for (const std::string innermost : {"[]", "'x'", "{'k': 'v'}"}) {
    for (const std::string then : {
             "{{ ns.a }}",
             "{{ ns.a | tojson }}",
             "{{ ns.a | tojson(indent=2) }}",
             "{{ ns.a | string | length }}",
             "{{ ns.a ~ '' }}",
             "{{ ns.a == ns.b }}",
             "{{ ns.a != ns.b }}",
             "{{ ns.a in [ns.b] }}",
             "{{ ns.a is eq(ns.b) }}",
             "{{ [ns.a].index(ns.b) }}",
             "{{ [ns.a] | join }}",
             "{{ '%s' | format(ns.a) }}",
             "{{ '{}'.format(ns.a) }}",
             "{{ {'k': ns.a}[(ns.a,)] }}",
             "{{ [(ns.a,)] | unique }}",
             "{% if ns.a < ns.b %}{% endif %}",
             "{% for x in ['', ''] %}{{ loop.changed(ns.a if loop.first else ns.b) }}{% endfor %}",
             "{{ raise_exception(ns.a) }}",
         }) {
      if (then.find('<') != std::string::npos && innermost[0] == '{') continue;  // dicts have no order
      SCOPED_TRACE(SharedLists(GetParam(), innermost, then));
      std::string got;
      const auto begin = testing::ThreadSeconds();
      const size_t largest =
          testing::LargestAllocation([&] { got = RenderLimited(SharedLists(GetParam(), innermost, then)); });
      EXPECT_THAT(got, AnyOf(HasSubstr("error: the template takes more than 200000 steps"),
                             HasSubstr("error: the template makes more than 1048576 bytes")));
      EXPECT_LE(largest, 4 * kMaxBytes);
      EXPECT_LT(testing::ThreadSeconds() - begin, 5.0);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Depths, SharedListsTest, ::testing::Values(19, 40, 60));

// Each makes more than 10,486 bytes: a hundred of them must pass 1 MiB. s: 20,000 letters; l: 1,000 numbers; d: 1,000
// keys; o: 1,000 objects.
const char* const kMakers[] = {"s[1:]",
                               "s[::-1]",
                               "s[::2]",
                               "s + ''",
                               "s ~ ''",
                               "s * 1",
                               "s | replace('a', 'b')",
                               "s.replace('', 'b')",
                               "s.replace('a', 'bb', 1)",
                               "s | upper",
                               "s.lower()",
                               "s | capitalize",
                               "s | title",
                               "s.title()",
                               "s | trim",
                               "s.strip('x')",
                               "s.split('aaaaaaaaaa')",
                               "s.split('x')",
                               "s.split()",
                               "s.rsplit('aaaaaaaaaa')",
                               "s.rsplit()",
                               "s.splitlines()",
                               "s[:1000] | list",
                               "s | reverse",
                               "s | escape",
                               "s | indent",
                               "s | center(30000)",
                               "s.zfill(30000)",
                               "s.ljust(30000)",
                               "'' | indent(s)",
                               "('a\n' * 1000) | indent('0123456789')",
                               "s.rjust(30000)",
                               "'%s' | format(s)",
                               "'%s' % s",
                               "'%9999s%999s' % (1, 2)",
                               "s | format",
                               "'{}'.format(s)",
                               "s.format()",
                               "[s] | join",
                               "l | join(s[:100])",
                               "s | truncate(19990)",
                               "s.removeprefix('b')",
                               "s.removesuffix('b')",
                               "[s] | tojson",
                               "[s] | string",
                               "{s: 1}",
                               "dict(d)",
                               "d.copy()",
                               "namespace(d)",
                               "d.items()",
                               "d.keys()",
                               "d.values()",
                               "d | items",
                               "d | list",
                               "d | dictsort",
                               "l[1:]",
                               "l + [1]",
                               "l * 1",
                               "l | list",
                               "l | reverse",
                               "l | sort",
                               "l | unique",
                               "l | map('string')",
                               "o | map(attribute='k')",
                               "l | select",
                               "l | reject('none')",
                               "o | selectattr('k')",
                               "o | rejectattr('x')",
                               "l | batch(2)",
                               "l | slice(2)",
                               "l | slice(1000)",
                               "o | groupby('k')",
                               "range(1000)",
                               "l | tojson(indent=9)",
                               "o | string",
                               "o | tojson(separators=(s[:20], s[:9]))"};

TEST(JinjaLimitsTest, WhatIsMadeIsChargedFor) {
  boost::json::array l, o;
  boost::json::object d;
  for (int i = 0; i < 1000; ++i) {
    l.emplace_back(i);
    o.push_back(boost::json::object{{"k", i}});
    d[std::to_string(i)] = i;
  }
  const std::string variables =
      boost::json::serialize(boost::json::object{{"s", std::string(20000, 'a')}, {"l", l}, {"d", d}, {"o", o}});
  for (const std::string maker : kMakers) {
    const std::string once = "{% set x = " + maker + " %}";
    EXPECT_EQ(RenderLimited(once, variables, 5'000'000), "") << maker;
    EXPECT_EQ(RenderLimited("{% for i in range(100) %}" + once + "{% endfor %}", variables, 50'000'000),
              "error: the template makes more than 1048576 bytes")
        << maker;
  }
  // Statements.
  for (const std::string body :
       {"{{ s }}", "{% set x %}{{ s }}{% endset %}", "{% for x in s %}{% endfor %}",
        "{% for x in l if x is number %}{% endfor %}", "{% filter upper %}{{ s }}{% endfilter %}"}) {
    EXPECT_EQ(RenderLimited("{% for i in range(100) %}" + body + "{% endfor %}", variables, 50'000'000),
              "error: the template makes more than 1048576 bytes")
        << body;
  }
}

TEST(JinjaLimitsTest, TextsThatAreSearchedAndComparedCountAsSteps) {
  const std::string variables = boost::json::serialize(
      boost::json::object{{"s", std::string(1'000'000, 'a')}, {"p", std::string(300'000, 'a') + "b"}});
  for (const std::string search : {"p in s", "s.find(p)", "s.rfind(p)", "s.count(p)", "s.split(p)", "s.rsplit(p)",
                                   "s | replace(p, '')", "s is in(p)", "p is in(s)"}) {
    const double begin = testing::ThreadSeconds();
    const std::string got =
        RenderLimited("{% for i in range(1000) %}{% set x = " + search + " %}{% endfor %}", variables);
    EXPECT_THAT(got, HasSubstr("error: the template ")) << search;
    EXPECT_LT(testing::ThreadSeconds() - begin, 5.0) << search;
  }
  for (const std::string walk : {"s == s ~ ''", "s | length", "s[5]", "s[-5]", "s[5:6]", "s.isalpha()",
                                 "s.startswith('b')", "s is lower", "s | int", "s | wordcount", "{'a': 1}[s]"}) {
    const std::string got =
        RenderLimited("{% for i in range(100000) %}{% set x = " + walk + " %}{% endfor %}", variables);
    EXPECT_THAT(got, HasSubstr("error: the template ")) << walk;
  }
}

TEST(JinjaLimitsTest, OneCharacterOfALongTextTakesNoMemoryOfItsSize) {
  const std::string variables = boost::json::serialize(boost::json::object{{"s", std::string(900'000, 'a')}});
  for (const std::string walk : {"s[5]", "s[-5]", "s[1:3]", "s.split('b', 1) | length", "s | truncate(5)",
                                 "s.strip('b') | length", "s | trim | length"}) {
    const auto t = jinja::Template::Parse("{{ " + walk + " }}");
    ASSERT_TRUE(t.ok());
    const auto parsed = boost::json::parse(variables).as_object();
    const size_t largest = testing::LargestAllocation([&] { EXPECT_TRUE(t->Render(parsed, {}).ok()) << walk; });
    EXPECT_LE(largest, 2'000'000) << walk;
  }
}

TEST(JinjaLimitsTest, NoExpressionNestsDeeperThanTheStackHolds) {
  for (const std::string link :
       {"+ 1", "~ a", "* 2", "or a", "and a", "| abs", ".b", "[0]", "(1)", "if a", "is b", "| abs(x=a)"}) {
    std::string chain = "{{ a";
    for (int i = 0; i < 200000; ++i) chain += " " + link;
    EXPECT_THAT(RenderLimited(chain + " }}"), HasSubstr("parse: line 1: an expression of more than 1000 parts"))
        << link;
  }
}

TEST(JinjaLimitsTest, NoValueNestsDeeperThanTheStackHolds) {
  const std::string begin = "{% set ns = namespace(a=1) %}{% for i in range(20000) %}", end = "{% endfor %}";
  for (const std::string deeper :
       {"{% set ns.a = [ns.a] %}", "{% set ns.a = (ns.a,) %}", "{% set ns.a = {'k': ns.a} %}",
        "{% set ns.a = dict(k=ns.a) %}", "{% set ns.a = {'k': ns.a}.get %}", "{% set ns.a = [ns.a].index %}",
        "{% set ns.a = [ns.a, 1] | reverse %}", "{% for x in [ns.a] %}{% set ns.a = loop %}{% endfor %}",
        "{% for x in [ns.a] %}{% set ns.a = loop.cycle %}{% endfor %}"}) {
    EXPECT_EQ(RenderLimited(begin + deeper + end), "error: a value is nested more than 200 deep") << deeper;
  }
  // These two change after they are made, so that any depth is possible, and circles are.
  for (const std::string deeper :
       {"{% set ns.a = namespace(a=ns.a) %}",
        "{% for x in [1] %}{% set y = loop.changed(ns.a) %}{% set ns.a = loop %}{% endfor %}"}) {
    EXPECT_THAT(RenderLimited(begin + deeper + end, "{}", 5'000'000), AnyOf("", HasSubstr("bytes"))) << deeper;
  }
  EXPECT_EQ(RenderLimited("{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = [ns] %}{{ ns == ns }}"), "True");
  EXPECT_EQ(RenderLimited("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"),
            "error: a value is nested more than 200 deep");
  EXPECT_EQ(RenderLimited("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}"),
            "error: tojson: a value is nested more than 200 deep");
  EXPECT_EQ(RenderLimited("{% for x in [1] %}{{ loop.changed(loop) }}{% endfor %}"), "True");
  EXPECT_EQ(RenderLimited("{% set ns = namespace() %}{% for x in [1] recursive %}{% set ns.l = loop %}"
                          "{{ raise_exception('stop') }}{% endfor %}"),
            "error: stop");
}

}  // namespace
}  // namespace gyre
