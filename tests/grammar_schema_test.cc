// JSON Schemas as grammars: what they take, what they refuse, and that whatever masks let a text become obeys the
// schema.
#include "coordinator/grammar/json_schema.h"

#include <gmock/gmock.h>

#include <random>

#include "fmt/core.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_schema.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

bool Takes(const std::string& schema, std::string_view text, const JsonOptions& options = {}) {
  auto g = JsonSchemaGrammar(std::string_view(schema), options);
  if (!g.ok()) {
    ADD_FAILURE() << schema << ": " << g.status();
    return false;
  }
  return testing::Takes(testing::Compiled(std::move(g)).get(), text);
}

TEST(GrammarSchema, NumbersAreComparedByValue) {
  EXPECT_TRUE(Takes(R"({"type": "integer"})", "1.0"));
  EXPECT_FALSE(Takes(R"({"type": "integer"})", "1.5"));
  EXPECT_TRUE(Takes(R"({"const": 1.50})", "1.5"));
  EXPECT_TRUE(Takes(R"({"enum": [18446744073709551617]})", "18446744073709551617"));
  EXPECT_FALSE(Takes(R"({"enum": [18446744073709551617]})", "18446744073709551616"));
  EXPECT_TRUE(Takes(R"({"const": 0})", "-0.0"));
  const std::string range = R"({"type": "number", "minimum": -3.25, "exclusiveMaximum": 100})";
  for (const char* in : {"-3.25", "-3.250", "-3", "-0", "0.001", "7", "42.5", "99.999", "9"})
    EXPECT_TRUE(Takes(range, in)) << in;
  for (const char* out : {"-3.251", "-4", "-10", "100", "100.0", "1000", "01", "1.", "-"})
    EXPECT_FALSE(Takes(range, out)) << out;
  EXPECT_TRUE(Takes(R"({"multipleOf": 0.01})", "0.070"));
  EXPECT_FALSE(Takes(R"({"multipleOf": 0.01})", "0.075"));
  EXPECT_TRUE(Takes(R"({"multipleOf": 7, "minimum": 100})", "105"));
  EXPECT_FALSE(Takes(R"({"multipleOf": 7, "minimum": 100})", "98"));
}

// No number goes on for ever, but each has the digits that its limits have.
TEST(GrammarSchema, NumbersHaveAnEnd) {
  const std::string nines(40, '9');
  EXPECT_TRUE(Takes("{}", "18446744073709551615"));
  EXPECT_TRUE(Takes("{}", "0.30000000000000004"));
  EXPECT_TRUE(Takes("{}", "-1.7976931348623157e+30"));
  for (const char* schema : {"{}", R"({"type": "integer"})", R"({"type": "number", "minimum": 5})",
                             R"({"multipleOf": 3})", R"({"multipleOf": 0.5})", R"({"not": {"multipleOf": 7}})"}) {
    EXPECT_FALSE(Takes(schema, nines)) << schema;
    EXPECT_FALSE(Takes(schema, "9." + std::string(30, '0'))) << schema;
  }
  // What readers with doubles take for another number.
  EXPECT_FALSE(Takes(R"({"exclusiveMinimum": 1})", "1.00000000000000001"));
  EXPECT_FALSE(Takes(R"({"not": {"type": "integer"}})", "46783480497402822335.5"));
  EXPECT_TRUE(Takes(R"({"minimum": 0, "maximum": 1})", "0.12345678901234"));
  EXPECT_TRUE(Takes(R"({"maximum": 90})", "-122.419415500000"));
  EXPECT_TRUE(Takes(R"({"minimum": 1})", "123456789012345678.0"));
  EXPECT_TRUE(Takes(R"({"type": "integer"})", "10.00"));
  // 9076609472394435 is a multiple of 3, and what they make of it is none.
  for (const char* schema : {R"({"multipleOf": 3})", R"({"multipleOf": 3, "type": "integer"})",
                             R"({"oneOf": [{"multipleOf": 3.0}, {"type": "string"}]})"}) {
    EXPECT_FALSE(Takes(schema, "-9076609472394435")) << schema;
    EXPECT_FALSE(Takes(schema, "-9076609472394435.0")) << schema;
    EXPECT_TRUE(Takes(schema, "-907660947239442")) << schema;
  }
  EXPECT_FALSE(Takes(R"({"not": {"multipleOf": 5}})", "9007199254740996"));
  EXPECT_FALSE(Takes(R"({"not": {"multipleOf": 0.125}})", "999999999999999.101"));
  EXPECT_TRUE(Takes(R"({"multipleOf": 3, "minimum": 9007199254740990})", "9007199254740993"));
  EXPECT_TRUE(Takes(R"({"multipleOf": 1})", "9007199254740993"));
  for (const char* schema :
       {R"({"not": {"const": 1}})", R"({"not": {"type": "integer"}})", R"({"not": {"multipleOf": 1}})",
        R"({"not": {"const": 1}, "minimum": 0.0000000000000000000000001})"}) {
    for (size_t zeros = 0; zeros < 30; ++zeros) {
      EXPECT_FALSE(Takes(schema, zeros == 0 ? "1" : "1." + std::string(zeros, '0'))) << schema << zeros;
    }
  }
  EXPECT_FALSE(Takes(R"({"const": 1})", "1." + std::string(30, '0')));
  EXPECT_FALSE(Takes(R"({"const": 1.5})", "1.5" + std::string(30, '0')));
  EXPECT_TRUE(Takes("{\"minimum\": " + nines + "}", nines));
  EXPECT_TRUE(Takes("{\"type\": \"integer\", \"maximum\": -" + nines + "}", "-" + nines));
  EXPECT_TRUE(Takes("{\"const\": " + nines + "}", nines));
  EXPECT_TRUE(Takes(R"({"minimum": 0.0000000000000000000012})", "0.0000000000000000000012"));
}

TEST(GrammarSchema, StringsInAllTheirWritings) {
  const std::string s = R"({"type": "string", "pattern": "^[a-zé]+$", "maxLength": 3})";
  EXPECT_TRUE(Takes(s, R"("aé")"));
  EXPECT_TRUE(Takes(s, R"("\u0061\u00e9b")"));
  EXPECT_FALSE(Takes(s, R"("abcd")"));
  EXPECT_FALSE(Takes(s, R"("A")"));
  EXPECT_TRUE(Takes(R"({"maxLength": 1})", R"("\ud83d\ude42")"));
  EXPECT_FALSE(Takes(R"({"type": "string"})", R"("\ud83d")"));
  EXPECT_FALSE(Takes(R"({"type": "string"})", "\"\n\""));
}

TEST(GrammarSchema, Formats) {
  auto is = [](const char* format, const std::string& text) {
    return Takes(fmt::format(R"({{"format": "{}"}})", format), "\"" + text + "\"");
  };
  EXPECT_TRUE(is("date", "2024-02-29"));
  EXPECT_FALSE(is("date", "2023-02-29"));
  EXPECT_FALSE(is("date", "2024-04-31"));
  EXPECT_TRUE(is("date-time", "1990-12-31T15:59:60-08:00"));
  EXPECT_FALSE(is("date-time", "1990-12-31T15:59:60+08:00"));
  EXPECT_TRUE(is("ipv6", "::ffff:192.168.0.1"));
  EXPECT_FALSE(is("ipv6", "1::2::3"));
  EXPECT_TRUE(is("uuid", "123e4567-e89b-12d3-a456-426614174000"));
  EXPECT_TRUE(is("duration", "P1Y2M3DT4H5M6S"));
  EXPECT_FALSE(is("duration", "P1Y3D"));
  EXPECT_TRUE(is("uri", "https://example.org/a?b#c"));
  EXPECT_FALSE(is("uri", "//example.org"));
  EXPECT_TRUE(is("no-such-format", "anything"));
  EXPECT_TRUE(Takes(R"({"format": "date"})", R"("x")", {.formats = false}));
}

TEST(GrammarSchema, MembersComeInOrderUnlessThereIsNone) {
  const std::string s = R"({"type": "object", "properties": {"b": {}, "a": {}}, "required": ["z"]})";
  EXPECT_TRUE(Takes(s, R"({"b":1,"a":2,"z":3,"y":4})"));
  EXPECT_TRUE(Takes(s, R"({"a":2,"y":4,"z":3})"));
  EXPECT_FALSE(Takes(s, R"({"a":2,"b":1,"z":3})"));
  EXPECT_TRUE(Takes(s, R"({"z":3,"a":2,"b":1})", {.any_order = true}));
  EXPECT_FALSE(Takes(s, R"({"z":3,"a":2,"a":1})", {.any_order = true}));
  EXPECT_FALSE(Takes(s, R"({"b":1,"a":2})"));
  EXPECT_TRUE(Takes(s, "{\"b\" : 1,\n \"z\":\t{}}"));
  EXPECT_FALSE(Takes(s, "{\"b\" : 1, \"z\":{}}", {.compact = true}));
  EXPECT_FALSE(Takes(s, "{\"b\":1,\n\n\n\"z\":{}}"));
}

TEST(GrammarSchema, ApplicatorsMeanWhatTheySay) {
  const std::string one = R"({"oneOf": [{"multipleOf": 2, "type": "integer"}, {"multipleOf": 3, "type": "integer"}]})";
  EXPECT_TRUE(Takes(one, "4"));
  EXPECT_TRUE(Takes(one, "9"));
  EXPECT_FALSE(Takes(one, "6"));
  EXPECT_FALSE(Takes(one, "5"));
  const std::string condition = R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {}},
      "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}})";
  EXPECT_TRUE(Takes(condition, R"({"kind":"a","x":1})"));
  EXPECT_FALSE(Takes(condition, R"({"kind":"a"})"));
  EXPECT_TRUE(Takes(condition, R"({"kind":"b"})"));
  const std::string evaluated =
      R"({"anyOf": [{"properties": {"a": true}, "required": ["a"]}, {"properties": {"b": true}}],
      "unevaluatedProperties": false})";
  EXPECT_TRUE(Takes(evaluated, R"({"a":1,"b":2})"));
  EXPECT_FALSE(Takes(evaluated, R"({"c":1})"));
  const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["v"],
      "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "additionalProperties": false}}})";
  EXPECT_TRUE(Takes(tree, R"({"v":1,"next":{"v":2,"next":{"v":3}}})"));
  EXPECT_FALSE(Takes(tree, R"({"v":1,"next":{"next":{"v":3}}})"));
  EXPECT_TRUE(Takes(R"({"contains": {"const": 1}, "minContains": 2, "maxContains": 2})", "[1,2,1]"));
  EXPECT_FALSE(Takes(R"({"contains": {"const": 1}, "minContains": 2, "maxContains": 2})", "[1,1,1]"));
  EXPECT_TRUE(Takes(R"({"items": {"enum": [1, 2, 3]}, "uniqueItems": true, "minItems": 2})", "[3,1]"));
  EXPECT_FALSE(Takes(R"({"items": {"enum": [1, 2, 3]}, "uniqueItems": true, "minItems": 2})", "[3,3.0]"));
  EXPECT_TRUE(
      Takes(R"({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true})", "2"));
  EXPECT_FALSE(
      Takes(R"({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true})", "1"));
}

// A keyword of another draft says nothing, obeyed or broken.
TEST(GrammarSchema, KeywordsMeanWhatTheirDraftSays) {
  const auto in = [](const char* draft, const std::string& schema) {
    const bool old = std::string_view(draft).starts_with("draft-0");
    return fmt::format(R"({{"$schema": "{}json-schema.org/{}/schema{}", {})", old ? "http://" : "https://",
                       old ? draft : fmt::format("draft/{}", draft), old ? "#" : "", schema.substr(1));
  };
  const char* const all[] = {"draft-04", "draft-06", "draft-07", "2019-09", "2020-12"};
  struct Case {
    const char* schema;
    const char* text;
    bool taken[5];  // by the drafts
  };
  const Case cases[] = {
      {R"({"type": "integer"})", "1.0", {false, true, true, true, true}},
      {R"({"type": "integer", "enum": [1, 2]})", "1.0", {false, true, true, true, true}},
      {R"({"type": ["integer", "string"]})", "1", {true, true, true, true, true}},
      {R"({"not": {"type": "integer"}})", "1.0", {true, false, false, false, false}},
      {R"({"not": {"type": "integer"}})", "1", {false, false, false, false, false}},
      {R"({"not": {"type": "integer"}})", "1.5", {true, true, true, true, true}},
      {R"({"not": {"type": "integer"}, "enum": [1, 2.5, "a"]})", "1.0", {true, false, false, false, false}},
      {R"({"not": {"type": "integer"}, "enum": [1, 2.5, "a"]})", "1", {false, false, false, false, false}},
      {R"({"not": {"type": "integer"}, "enum": [1, 2.5, "a"]})", "2.5", {true, true, true, true, true}},
      {R"({"not": {"type": "integer"}, "minimum": 3, "maximum": 3})", "3.0", {true, false, false, false, false}},
      {R"({"type": "number", "not": {"not": {"type": "integer"}}})", "1.0", {false, true, true, true, true}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]})",
       "7.0",
       {true, false, false, false, false}},
      {R"({"items": {"type": "integer", "enum": [1, 2]}, "uniqueItems": true, "type": "array"})",
       "[1.0]",
       {false, true, true, true, true}},
      {R"({"items": {"type": "integer"}, "enum": [[1]]})", "[1.0]", {false, true, true, true, true}},
      {R"({"items": {"type": "integer"}, "enum": [[1]]})", "[1]", {true, true, true, true, true}},
      {R"({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}})",
       R"(["a", 1])",
       {false, false, false, false, true}},
      {R"({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}})",
       "[1, 1]",
       {true, true, true, true, false}},
      {R"({"const": 1})", "2", {true, false, false, false, false}},
      {R"({"contains": {"type": "null"}})", "[1]", {true, false, false, false, false}},
      {R"({"contains": {"type": "null"}, "minContains": 2})", "[null]", {true, true, true, false, false}},
      {R"({"propertyNames": {"maxLength": 1}})", R"({"ab": 1})", {true, false, false, false, false}},
      {R"({"if": {"type": "null"}, "else": {"type": "string"}})", "1", {true, true, false, false, false}},
      {R"({"dependentRequired": {"a": ["b"]}})", R"({"a": 1})", {true, true, true, false, false}},
      {R"({"dependencies": {"a": ["b"]}})", R"({"a": 1})", {false, false, false, true, true}},
      {R"({"unevaluatedItems": false})", "[1]", {true, true, true, false, false}},
      {R"({"items": {"type": "string"}, "$ref": "#/definitions/d", "definitions": {"d": {}}})",
       "[1]",
       {true, true, true, false, false}},
      {R"({"type": "object", "not": {"required": ["a"], "const": 1}})", R"({"a": 1})", {false, true, true, true, true}},
      {R"({"type": "array", "not": {"minItems": 1, "contains": {"type": "null"}}})",
       "[1]",
       {false, true, true, true, true}},
  };
  for (const Case& c : cases) {
    for (size_t draft = 0; draft < 5; ++draft) {
      EXPECT_EQ(Takes(in(all[draft], c.schema), c.text), c.taken[draft])
          << all[draft] << " " << c.schema << " " << c.text;
    }
  }
  // "contains" counts for "unevaluatedItems" since 2020-12.
  EXPECT_FALSE(Takes(in("2019-09", R"({"contains": {"const": 1}, "unevaluatedItems": false})"), "[1]"));
  const std::string recursive = R"({"type": "object", "additionalProperties": {"$recursiveRef": "#"}})";
  EXPECT_FALSE(Takes(in("2019-09", recursive), R"({"a": {"b": 1}})"));
  EXPECT_TRUE(Takes(in("2020-12", recursive), R"({"a": 1})"));
  EXPECT_FALSE(Takes(in("2019-09", R"({"$recursiveAnchor": true, "items": {"$recursiveRef": "#"}, "maxItems": 1})"),
                     "[[1, 2]]"));
}

TEST(GrammarSchema, RefusesByKeywordAndPointer) {
  for (
      const auto& [schema, reason] : std::vector<std::pair<std::string, std::string>>{
          {R"({"properties": {"a": {"uniqueItems": true}}})", "uniqueItems at #/properties/a/uniqueItems"},
          {R"({"$ref": "https://example.org/other"})", "$ref at #"},
          {R"({"items": {"$ref": "#/nowhere"}})", "$ref at #/items"},
          {R"({"dependencies": {"a": ["b"]}})", "dependencies at #/dependencies"},
          {R"({"minProperties": 3})", "minProperties at #"},
          {R"({"not": {"additionalProperties": {"type": "null"}}})", "additionalProperties at #/not"},
          {R"({"not": {"enum": 5}})", "enum at #/not"},
          {R"({"not": {"dependencies": {"a": ["b"]}}})", "dependencies at #/not/dependencies"},
          {R"({"$schema": "https://json-schema.org/draft/2019-09/schema", "$id": "http://a.org/a", "$recursiveAnchor": true,
              "items": {"$id": "b", "$recursiveAnchor": true, "items": {"$recursiveRef": "#"}}})",
           "$recursiveRef at #/items/items"},
          {R"s({"pattern": "(?=x)"})s", "lookahead"},
          {R"({"format": "hostname"})", "hostname"},
          {R"({"type": "thing"})", "type at #"},
          {R"({"type": "object", "required": ["a"], "properties": {"a": false}})", "no value obeys"},
          {R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}})",
           "no value obeys"},
          {"[]", "not a schema"},
          {"{", "not JSON"}}) {
    const auto g = JsonSchemaGrammar(std::string_view(schema));
    ASSERT_FALSE(g.ok()) << schema;
    EXPECT_THAT(std::string(g.status().message()), HasSubstr(reason)) << schema;
  }
}

TEST(GrammarSchema, HostileSchemasAreRefusedInTimeByTheBound) {
  std::string exponential = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 40; ++i) {
    exponential += fmt::format(
        R"("d{}": {{"anyOf": [{{"properties": {{"a{}": {{}}}}, "$ref": "#/$defs/d{}"}}, {{"required": ["b{}"], "$ref": "#/$defs/d{}"}}]}},)",
        i, i, i + 1, i, i + 1);
  }
  exponential += R"("d40": true}})";
  std::string wide = R"({"oneOf": [)";
  for (int i = 0; i < 300; ++i)
    wide += fmt::format(R"({{"properties": {{"a{}": {{"type": "string"}}, "b{}": {{"maximum": 3}}}}}},)", i, i);
  wide += "{}]}";
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += R"({"items": )";
  nested += "true" + std::string(5000, '}');
  for (
      const std::string& schema :
      {exponential, wide, deep, nested, "{\"const\": \"" + std::string(2 << 20, 'x') + "\"}",
       std::string(
           R"s({"type": "string", "pattern": "^(?:(?:[a-z]{1,900}x?){1,900}y?){1,900}$", "minLength": 700, "not": {"pattern": "(?:q[a-z]{300}|r.{299})z"}})s"),
       std::string(
           R"({"type": "integer", "multipleOf": 99999999999999997, "minimum": 3, "maximum": 99999999999999996})"),
       std::string("{\"minimum\": 1e999999999}")}) {
    const auto began = std::chrono::steady_clock::now();
    const auto g = JsonSchemaGrammar(std::string_view(schema));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10)) << schema.substr(0, 60);
    if (g.ok()) continue;  // it was no match
    EXPECT_THAT(std::string(g.status().message()),
                ::testing::AnyOf(HasSubstr("bound"), HasSubstr("opposite"), HasSubstr("no value")))
        << schema.substr(0, 60);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(JsonSchemaGrammar(std::string_view(exponential)).status()));
}

// The masks of strings whose length and pattern are bounded are those that trying each token gives, far from the bounds
// and near them.
TEST(GrammarSchema, MasksOfBoundedStrings) {
  std::vector<std::string> longer = {"ab", "a b ", "  ", "\\n", "\\u00", "é", "\xC3", "\xE2\x82", "x\"", "\",", "a\"}"};
  for (const size_t n : {8, 16, 31, 32, 33, 40, 64})
    longer.insert(longer.end(), {std::string(n, 'a'), std::string(n, ' ')});
  const auto trie = testing::SmallVocabulary(longer);
  for (
      const char* schema :
      {R"({"type": "string", "maxLength": 60, "pattern": "^[ab ]*$"})",
       R"({"type": "string", "maxLength": 110, "pattern": "^b[\\s\\S]{0,75}$"})",
       R"({"type": "string", "maxLength": 50, "pattern": "^(?:\\S+\\s+){0,9}\\S+$"})",
       R"({"type": "string", "maxLength": 90, "pattern": "^a[\\s\\S]{0,60}b$"})",
       R"({"type": "string", "minLength": 3, "maxLength": 45, "pattern": "^(?:[ab ]{2,3}){3,}$"})",
       R"({"type": "string", "maxLength": 70, "pattern": "(?:x[ab]{40,45}|a*)$"})",
       R"({"type": "string", "maxLength": 70, "not": {"pattern": "ab"}})",
       R"({"type": "string", "minLength": 2, "maxLength": 60, "pattern": "^(?:\\S+\\s+){0,50}\\S+$", "not": {"pattern": "aa|é"}})",
       R"({"type": "string", "maxLength": 40, "allOf": [{"pattern": "a"}, {"pattern": "b"}]})"}) {
    const auto g = testing::Compiled(JsonSchemaGrammar(std::string_view(schema)), trie);
    ASSERT_NE(g, nullptr) << schema;
    std::mt19937 random(5);
    for (int walk = 0; walk < 4; ++walk) {
      GrammarState state = g->start();
      std::string text;
      for (int step = 0; step < 70; ++step) {
        const auto mask = g->Mask(state);
        ASSERT_TRUE(mask.ok()) << schema << "\n" << text << "\n" << mask.status();
        std::vector<TokenId> ids;
        for (TokenId id = 0; id < trie->size(); ++id) {
          const bool allowed = ((*mask)->words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
          if (trie->piece(id).empty()) continue;
          ASSERT_EQ(allowed, !g->Advance(state, trie->piece(id))->dead()) << schema << "\n"
                                                                          << text << "\n<" << trie->piece(id) << ">";
          const char first = trie->piece(id)[0];
          if (allowed && (first != '"' || step < 3) &&
              (first == 'a' || first == 'b' || first == ' ' || random() % 40 == 0)) {
            ids.push_back(id);
          }
          if (allowed && step < 3) ids.push_back(id);
        }
        if (ids.empty()) break;
        const TokenId id = ids[random() % ids.size()];
        state = *g->Advance(state, id);
        text += trie->piece(id);
      }
    }
  }
}

// Texts drawn at random by masks alone: each obeys the schema, by a reading that shares nothing with the grammar.
TEST(GrammarSchema, WhateverMasksAllowObeysTheSchema) {
  const auto trie = testing::SmallVocabulary(
      {"{\"",  "\":",          "\",",    "\"}",    "\"a\"",     "\"name",      "null",   "true", "1.",   ".0",
       "[[",   "]]",           "],",     "},",     "{}",        "[]",          "abc",    "é",    "\xC3", "\\u00",
       "\\\"", "12",           "-1",     "  ",     "\": ",      ", \"",        "\"c\"",  "2.5",  "id\"", "\"x\"",
       "[1,",  "{\"k\":true}", "\"a\":", "\"b\":", "\"name\":", "\"é\\\"x\":", "\"id\":"});
  const TokenId names = trie->size() - 6;  // the five last ones, before the end
  std::mt19937 random(7);
  size_t schemas = 0, texts = 0, refused = 0, unfinished = 0;
  constexpr int kRounds = testing::kSanitized ? 150 : 600;
  for (int round = 0; round < kRounds; ++round) {
    const json::value schema = testing::RandomSchema(&random, 3);
    auto g = JsonSchemaGrammar(std::string_view(json::serialize(schema)), {.any_order = round % 2 == 0});
    if (!g.ok()) {
      ++refused;
      EXPECT_FALSE(absl::IsInternal(g.status()));
      continue;
    }
    const auto made = testing::Compiled(std::move(g), trie);
    ASSERT_NE(made, nullptr) << schema;
    ++schemas;
    for (int n = 0; n < 6; ++n) {
      GrammarState state = made->start();
      std::string text;
      for (int step = 0;; ++step) {
        const auto mask = made->Mask(state);
        ASSERT_TRUE(mask.ok()) << schema << "\n" << text << "\n" << mask.status();
        std::vector<TokenId> ids;
        for (TokenId id = 0; id < trie->size(); ++id) {
          if (((*mask)->words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
        }
        if (round % 7 == 0 && step < 30) {
          for (TokenId id = 0; id < trie->size(); ++id) {
            if (trie->piece(id).empty()) continue;
            const bool allowed = ((*mask)->words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
            ASSERT_EQ(allowed, !made->Advance(state, trie->piece(id))->dead()) << schema << "\n"
                                                                               << text << "\n"
                                                                               << trie->piece(id);
          }
        }
        TokenId id = ids[random() % ids.size()];
        if (step > 15 &&
            random() % 4 != 0) {  // towards the end: of a string, of an array, of an object, or a name that is listed
          auto has = [&](TokenId wanted) { return std::binary_search(ids.begin(), ids.end(), wanted); };
          const bool in_string = has('z') && has('#');
          const TokenId name = names + static_cast<TokenId>(random() % 5);
          const std::vector<TokenId> closing = {'"', in_string ? '"' : name, ']', '}', trie->ends()[0]};
          for (const TokenId wanted : closing) {
            if (has(wanted) && !(in_string && wanted != '"')) id = wanted;
          }
        }
        state = *made->Advance(state, id);
        ASSERT_FALSE(state.dead());
        if (state.ended()) break;
        text += trie->piece(id);
        if (step == 3000) break;
      }
      if (!state.ended()) {
        ++unfinished;  // chance alone went on
        continue;
      }
      ++texts;
      json::error_code error;
      const json::value value = json::parse(text, error);
      ASSERT_FALSE(error) << schema << "\n" << text;
      EXPECT_TRUE(testing::Obeys(schema, value)) << schema << "\n" << text;
    }
  }
  fmt::print("{} schemas, {} texts, {} unfinished, {} refused\n", schemas, texts, unfinished, refused);
  EXPECT_LT(unfinished * 50, texts);
  EXPECT_GT(schemas, kRounds * 2u / 3);
}

}  // namespace
}  // namespace gyre::grammar
