// The template engine: grammar, white space, scopes, filters, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "model/jinja/template.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

std::string Render(std::string_view source, const std::string& variables = "{}") {
  const auto t = jinja::Template::Parse(source);
  if (!t.ok()) return "parse: " + Message(t.status());
  jinja::RenderOptions options;
  options.now.tm_year = 126;
  options.now.tm_mon = 10;
  options.now.tm_mday = 21;
  const auto text = t->Render(boost::json::parse(variables).as_object(), options);
  return text.ok() ? *text : "error: " + Message(text.status());
}

TEST(JinjaTest, ExpressionsFollowJinjasRanks) {
  EXPECT_EQ(Render("{{ 1 + 2 * 3 ** 2 }}"), "19");
  EXPECT_EQ(Render("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }}"), "3 -4 2 3.5 3.0");
  EXPECT_EQ(Render("{{ 'a' ~ 1 + 2 }}"), "error: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(Render("{{ 'a' ~ 1 ~ none ~ true }}"), "a1NoneTrue");
  EXPECT_EQ(Render("{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ not 1 == 2 }}"), "True False True");
  EXPECT_EQ(Render("{{ 'x' if false }}|{{ 'x' if true else 'y' }}|{{ 1 and 0 or 5 }}"), "|x|5");
  EXPECT_EQ(Render("{{ -2 | abs }} {{ (-2) | abs }} {{ 2 in [1, 2] }} {{ 'b' not in 'abc' }}"), "2 2 True False");
  EXPECT_EQ(Render("{{ [1, 2.0, 'a\\n', none, {'k': (1,)}] }}"), "[1, 2.0, 'a\\n', None, {'k': (1,)}]");
  EXPECT_EQ(Render("{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abcdef'[1:4] }}{{ 'abc'[::-1] }}{{ [1,2,3][:-1] }}{{ 'abc'[5] }}"),
            "bcbcdcba[1, 2]");
  EXPECT_EQ(Render("{{ x.y.z }}", R"({"x": {}})"), "error: 'y' is undefined");
  EXPECT_EQ(Render("{{ x.y }}|{{ nothing }}|{{ nothing is defined }}", R"({"x": {}})"), "||False");
  EXPECT_EQ(Render("{{ 1e16 }} {{ 0.1 }} {{ 2.0 }} {{ 1e-5 }} {{ 123456789.5 }}"), "1e+16 0.1 2.0 1e-05 123456789.5");
  EXPECT_EQ(Render("{{ 9223372036854775807 + 1 }}"), "error: a number is too large");
  EXPECT_EQ(Render("{{ 'a' 'b' \"c\" }}{{ '\\u00e9\\x41' }}"),
            "abc\xC3\xA9"
            "A");
}

TEST(JinjaTest, WhiteSpaceIsThatOfChatTemplates) {
  EXPECT_EQ(Render("a\n{% if true %}\nb\n{% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Render("a\n   {% if true %}   x{% endif %}"), "a\n   x");
  EXPECT_EQ(Render("a  {% if true %}x{% endif %}"), "a  x");
  EXPECT_EQ(Render("a \n {%- if true -%} \n x {%- endif %}"), "ax");
  EXPECT_EQ(Render("a\n  {%+ if true %}x{% endif +%}\nb"), "a\n  x\nb");
  EXPECT_EQ(Render("{{ 1 }}\nb"), "1\nb");
  EXPECT_EQ(Render("a {{- 1 -}} b"), "a1b");
  EXPECT_EQ(Render("a\n  {# note #}\nb"), "a\nb");
  EXPECT_EQ(Render("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
  EXPECT_EQ(Render("a\r\nb"), "a\nb");
}

TEST(JinjaTest, LoopsHaveTheirVariablesAndScopes) {
  EXPECT_EQ(
      Render("{% for x in 'abc' %}{{ loop.index }}{{ loop.revindex0 }}{{ x }}{{ ',' if not loop.last }}{% endfor %}"),
      "12a,21b,30c");
  EXPECT_EQ(Render("{% for x in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(Render("{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{{ loop.length }}{% endfor %}"), "b1");
  EXPECT_EQ(Render("{% set n = 1 %}{% for x in [1, 2] %}{% set n = n + x %}{{ n }}{% endfor %}{{ n }}"), "231");
  EXPECT_EQ(Render("{% set ns = namespace(n=1) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}"),
            "4");
  EXPECT_EQ(Render("{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x "
                   "}}{% endfor %}"),
            "13");
  EXPECT_EQ(Render("{% for x in [1,2] %}{{ loop.previtem }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }} {% "
                   "endfor %}"),
            "Truea 1Falseb ");
  EXPECT_EQ(Render("{% for x in [1,1,2] %}{{ loop.changed(x) }} {% endfor %}"), "True False True ");
  EXPECT_EQ(Render("{% for x in [[1,[2]],3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif "
                   "%}{% endfor %}"),
            "(1(2))3");
}

TEST(JinjaTest, MacrosAndBlocks) {
  EXPECT_EQ(Render("{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, b=3) }} {{ m() }}"),
            "1-2 1-3 -2");
  EXPECT_EQ(Render("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(Render("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}"), "<x>");
  EXPECT_EQ(Render("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set y | upper %}b{% endset %}{{ y }}"), "a1B");
  EXPECT_EQ(Render("{% filter upper | trim %} a {% endfilter %}"), "A");
  EXPECT_EQ(Render("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}"), "3");
  EXPECT_EQ(Render("{% set a, b = 1, 2 %}{{ b }}{{ a }}"), "21");
  EXPECT_EQ(Render("{% generation %}x{% endgeneration %}"), "x");
}

TEST(JinjaTest, FiltersTestsAndMethods) {
  EXPECT_EQ(Render("{{ x | tojson }}", R"({"x": {"b": [1, 2.0, null, true, "\u00e9<'\u0007"], "a": {}}})"),
            "{\"b\": [1, 2.0, null, true, \"\xC3\xA9<'\\u0007\"], \"a\": {}}");
  EXPECT_EQ(Render("{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
  EXPECT_EQ(Render("{{ ' \u3000a ' | trim }}|{{ '--a-' | trim('-') }}", "{}"), "a|a");
  EXPECT_EQ(Render("{{ '  a b  c '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}"),
            "['a', 'b', 'c']['a', 'b,c']['a,b', 'c']");
  EXPECT_EQ(Render("{{ 'aXbX'.replace('X', '-', 1) }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'Abc'.lower().title() }}"),
            "a-bX True Abc");
  EXPECT_EQ(Render("{{ [3,1,2] | sort | join('-') }} {{ ['b', 'A'] | sort | list }} {{ [1,1,2] | unique | list }}"),
            "1-2-3 ['A', 'b'] [1, 2]");
  EXPECT_EQ(Render("{{ x | selectattr('a', 'equalto', 1) | map(attribute='b') | list }}",
                   R"({"x": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]})"),
            "[2]");
  EXPECT_EQ(Render("{{ [1,2,3] | select('odd') | list }}{{ [0,1] | reject | list }}{{ ['a'] | map('upper') | first }}"),
            "[1, 3][0]A");
  EXPECT_EQ(Render("{{ nothing | default('d') }}{{ '' | d('e', true) }}{{ 'caf\xC3\xA9' | length }}{{ 'x' | int(7) "
                   "}}{{ '12' | int + 1 }}"),
            "de4713");
  EXPECT_EQ(Render("{{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 'a' is string }} {{ {} is mapping }} {{ none is none }} "
                   "{{ 1 is not defined }}"),
            "True True True True True False");
  EXPECT_EQ(Render("{{ {'get': 1}.get('x', 'y') }}{{ {'a': 1}.get('b') }}{{ {'items': 1}['items'] }}"), "yNone1");
  EXPECT_EQ(Render("{{ 'a\nb' | indent(2) }}|{{ '%s=%03d' | format('x', 7) }}|{{ '%.1f%%' % 2.25 }}"),
            "a\n  b|x=007|2.2%");
  EXPECT_EQ(Render("{{ {'b': 1, 'A': 2} | dictsort }}{{ [1,2,3] | sum }}{{ [1,2,3] | max }}{{ 2.5 | round }}"),
            "[('A', 2), ('b', 1)]632.0");
  EXPECT_EQ(Render("{{ range(3) | list }}{{ range(1, 7, 3) | list }}{{ dict(a=1) }}"), "[0, 1, 2][1, 4]{'a': 1}");
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y') }}"), "21 Nov 2026");
}

TEST(JinjaTest, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(Render("{{ raise_exception('no!') }}"), "error: no!");
  EXPECT_THAT(Render("a\n{% if x %}"), HasSubstr("parse: line 2: expected {% endif %}"));
  EXPECT_THAT(Render("{{ 1 + }}"), HasSubstr("parse: line 1"));
  EXPECT_THAT(Render("{% endfor %}"), HasSubstr("endfor"));
  EXPECT_THAT(Render("{% include 'x' %}"), HasSubstr("'include' is not known"));
  EXPECT_THAT(Render("{{ 'x"), HasSubstr("parse:"));
  EXPECT_THAT(Render("{{ x | nosuch }}"), HasSubstr("'nosuch' is not known"));
  EXPECT_THAT(Render("{{ 'a'.nosuch() }}"), HasSubstr("'nosuch' is undefined"));
  EXPECT_THAT(Render("{% break %}"), HasSubstr("stands in no loop"));
  EXPECT_THAT(Render("{{ 1 // 0 }}"), HasSubstr("division by zero"));
  EXPECT_THAT(Render("{{ }}"), HasSubstr("parse:"));
}

TEST(JinjaTest, NothingGoesOnForEver) {
  EXPECT_THAT(Render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
              HasSubstr("error: the template "));
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deep"));
  EXPECT_THAT(Render("{{ 'a' * 10000000000 }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ range(10000000000) | length }}"), HasSubstr("bytes"));
  EXPECT_THAT(
      Render("{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
      HasSubstr("bytes"));
  EXPECT_THAT(Render(std::string(100000, '(')), HasSubstr("("));
  EXPECT_THAT(Render("{{ " + std::string(100000, '(') + "1"), HasSubstr("deep"));
  EXPECT_THAT(Render("{{ " + std::string(100000, '-') + "1 }}"), HasSubstr("deep"));
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += "{% if true %}";
  EXPECT_THAT(Render(nested), HasSubstr("deep"));
  EXPECT_THAT(Render("{{ 'a'.replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb') | length }}"), HasSubstr("61"));
}

}  // namespace
}  // namespace gyre
