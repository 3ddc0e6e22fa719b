// Calls by a grammar: what it lets through is read as calls whose arguments obey the tools' schemas, in every form.
#include "coordinator/grammar/tool_calls.h"

#include <gmock/gmock.h>

#include <random>

#include "model/marked_text.h"
#include "model/tool_reader.h"
#include "tests/testing/call_texts.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_schema.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

using testing::CallsOf;
using testing::CallVocabulary;
using testing::FunctionsOf;
using testing::MadeCalls;
using testing::ReadBack;
using testing::ReadCalls;

// False: the text has no end.
bool Draw(CompiledGrammar* g, const CallVocabulary& vocabulary, std::mt19937* random, GrammarState state,
          std::vector<TokenId>* tokens) {
  const StatusOr<bool> drawn = testing::DrawText(g, vocabulary, random, state, tokens);
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  return drawn.ok() && *drawn;
}

// The number of calls that were read. Their arguments obey the schemas.
size_t CheckCalls(const ToolFormat& tools, const json::object& schemas, const ReadCalls& read,
                  const std::string& text) {
  const std::string wrong = testing::WrongCalls(schemas, read);
  EXPECT_EQ(wrong, "") << tools.name << ": " << text;
  return wrong.empty() ? read.calls.size() : 0;
}

const json::object& Usual() {
  static const json::object kSchemas = json::parse(R"({
      "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "1", "true"]},
          "days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["city", "days"]},
      "get": {"type": "object", "properties": {}},
      "any.thing": {"type": "object"},
      "nested-1": {"type": "object", "properties": {"when": {"type": "object", "properties": {"day": {"type": "string", "maxLength": 5},
          "a b": {"type": "boolean"}}, "required": ["day"], "additionalProperties": {"type": "number"}},
          "note": {"type": ["string", "null"], "maxLength": 8}, "list": {"type": "array", "items": {"type": "string", "maxLength": 3},
          "maxItems": 3}}, "required": ["note"]}})")
                                           .as_object();
  return kSchemas;
}

TEST(GrammarToolCalls, RequiredCallsOfEveryFormAreReadAndObeyTheirSchemas) {
  for (const ToolFormat& tools : ToolFormats()) {
    const AnswerFormat format = AnswerFormatOf(tools, "");
    const CallVocabulary vocabulary(format);
    const DeclaredTools declared = DeclareTools(FunctionsOf(Usual()));
    std::mt19937 random(7);
    for (const bool parallel : {true, false}) {
      ToolCalls calls = CallsOf(Usual());
      calls.required = true;
      calls.parallel = parallel;
      const auto g = MadeCalls(calls, format, vocabulary.trie());
      ASSERT_TRUE(g.ok()) << tools.name << ": " << g.status();
      size_t most = 0, texts = 0;
      constexpr size_t kTexts = testing::kSanitized ? 60 : 120;
      for (size_t i = 0; i < kTexts; ++i) {
        std::vector<TokenId> tokens;
        if (!Draw(g->get(), vocabulary, &random, (*g)->start(), &tokens)) continue;
        const std::string text = vocabulary.TextOf(tokens);
        const ReadCalls read = ReadBack(format, declared, vocabulary, tokens);
        EXPECT_THAT(read.content, ::testing::MatchesRegex("[ \n\r\t]*")) << tools.name << ": " << text;
        EXPECT_GE(read.calls.size(), 1u) << tools.name << ": " << text;
        const size_t n = CheckCalls(tools, Usual(), read, text);
        if (HasFailure()) return;
        most = std::max(most, n);
        ++texts;
      }
      EXPECT_GE(texts, kTexts / 4) << tools.name;
      if (parallel && tools.text.many) {
        EXPECT_GT(most, 1u) << tools.name;
      } else {
        EXPECT_EQ(most, 1u) << tools.name;
      }
    }
  }
}

TEST(GrammarToolCalls, RandomSchemasAreObeyedInEveryForm) {
  std::mt19937 random(11);
  size_t made = 0, calls_read = 0;
  constexpr int kSchemas = gyre::testing::kSanitized ? 4 : 40;
  for (int i = 0; i < kSchemas; ++i) {
    json::object schema{{"type", "object"}, {"properties", json::object()}, {"required", json::array()}};
    for (const char* name : {"a", "b", "c"}) {
      schema["properties"].as_object()[name] = gyre::testing::RandomSchema(&random, 2);
      if (random() % 2 == 0) schema["required"].as_array().emplace_back(name);
    }
    const json::object schemas{{"f", schema}};
    for (const ToolFormat& tools : ToolFormats()) {
      const AnswerFormat format = AnswerFormatOf(tools, "");
      const CallVocabulary vocabulary(format);
      ToolCalls calls = CallsOf(schemas);
      calls.required = true;
      calls.parallel = false;
      const auto g = MadeCalls(calls, format, vocabulary.trie());
      if (!g.ok()) continue;
      ++made;
      for (int k = 0; k < 4; ++k) {
        std::vector<TokenId> tokens;
        if (!Draw(g->get(), vocabulary, &random, (*g)->start(), &tokens)) continue;
        const std::string text = vocabulary.TextOf(tokens);
        const ReadCalls read = ReadBack(format, DeclareTools(FunctionsOf(schemas)), vocabulary, tokens);
        calls_read += CheckCalls(tools, schemas, read, text);
        EXPECT_EQ(read.calls.size(), 1u) << tools.name << ": " << text;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(made, kSchemas * 10u);
  EXPECT_GT(calls_read, kSchemas * 30u);
}

// Without a call that must come any text goes, and where a call begins it obeys its schema.
TEST(GrammarToolCalls, InAnyTextCallsObeyTheirSchemas) {
  for (const ToolFormat& tools : ToolFormats()) {
    const AnswerFormat format = AnswerFormatOf(tools, "");
    const CallVocabulary vocabulary(format);
    const DeclaredTools declared = DeclareTools(FunctionsOf(Usual()));
    for (const bool parallel : {true, false}) {
      ToolCalls calls = CallsOf(Usual());
      calls.parallel = parallel;
      const auto g = MadeCalls(calls, format, vocabulary.trie());
      ASSERT_TRUE(g.ok()) << tools.name << ": " << g.status();
      std::mt19937 random(5);
      size_t read_calls = 0;
      constexpr size_t kTexts = testing::kSanitized ? 8 : 40;
      for (size_t i = 0; i < kTexts; ++i) {
        // The text goes on with what a call begins with, as a model's would.
        std::string begins;
        const bool whole = tools.form == ToolForm::kLlamaJson || tools.form == ToolForm::kPythonic;
        if (tools.form != ToolForm::kHarmony && tools.form != ToolForm::kRecipient)
          begins = whole ? "" : "Well \xC3\xA9 ";
        if (tools.form == ToolForm::kRecipient) begins = "all\nHello";
        std::string opening =
            tools.form == ToolForm::kRecipient ? ">>>get" : std::string(tools.text.begin) + tools.text.before;
        if (whole) opening = tools.form == ToolForm::kPythonic ? "[get(" : "{";
        std::vector<TokenId> tokens = vocabulary.Tokens(begins + opening);
        GrammarState state = (*g)->start();
        for (const TokenId id : tokens) state = *(*g)->Advance(state, id);
        ASSERT_FALSE(state.dead()) << tools.name << ": " << begins << opening;
        if (!Draw(g->get(), vocabulary, &random, state, &tokens)) continue;
        const std::string text = vocabulary.TextOf(tokens);
        const ReadCalls read = ReadBack(format, declared, vocabulary, tokens);
        read_calls += CheckCalls(tools, Usual(), read, text);
        EXPECT_GE(read.calls.size(), 1u) << tools.name << ": " << text;
        if (!parallel) EXPECT_EQ(read.calls.size(), 1u) << tools.name << ": " << text;
        if (HasFailure()) return;
      }
      EXPECT_GE(read_calls, kTexts / 4) << tools.name;
    }
  }
}

// Masks of texts in which a call may begin, and of values between tags, are those that trying each token gives.
TEST(GrammarToolCalls, MasksAreThoseOfTryingEachToken) {
  const json::object schemas = json::parse(R"({"f": {"type": "object", "properties": {
      "t": {"type": "string", "maxLength": 90}, "u": {"type": ["string", "null"], "maxLength": 60},
      "w": {"type": "string", "pattern": "^(?:\\S+ ){0,40}\\S+$"}, "o": {"type": "object", "properties": {"ab": {"type": "null"},
      "abc": {"type": "null"}, "characters": {"type": "null"}}, "additionalProperties": {"type": "string"}}}}})")
                                   .as_object();
  std::mt19937 random(3);
  for (const char* name :
       {"xml_parameters", "glm_args", "minimax", "json_in_tags", "functionary_v3_2", "deepseek_dsml"}) {
    const ToolFormat& tools = *ToolFormatNamed(name);
    const CallVocabulary vocabulary(AnswerFormatOf(tools, ""));
    const auto g = *MadeCalls(CallsOf(schemas), AnswerFormatOf(tools, ""), vocabulary.trie());
    for (const char* parameter : {"", "t", "u", "w", "o"}) {
      std::string text = tools.form == ToolForm::kRecipient ? "all\n" : "Well";
      if (*parameter != '\0' && *tools.text.key != '\0') {
        text += std::string(tools.text.begin) + tools.text.before + "f" + tools.text.after + tools.text.key +
                parameter + tools.text.value;
        const bool object = *parameter == 'o';
        if (tools.text.value == std::string("\" string=\"")) text += object ? "false\">" : "true\">";
        if (object) text += "{\"";
      }
      std::vector<TokenId> tokens = vocabulary.Tokens(text);
      GrammarState state = g->start();
      for (const TokenId id : tokens) state = *g->Advance(state, id);
      for (int step = 0; step < 60; ++step) {
        ASSERT_FALSE(state.dead()) << name << ": " << vocabulary.TextOf(tokens);
        const auto mask = g->Mask(state);
        ASSERT_TRUE(mask.ok()) << mask.status();
        std::vector<TokenId> ids;
        for (TokenId id = 0; id < vocabulary.end(); ++id) {
          if (vocabulary.trie()->piece(id).empty()) continue;
          const bool allowed = gyre::testing::Allows(**mask, id);
          ASSERT_EQ(allowed, !g->Advance(state, vocabulary.trie()->piece(id))->dead())
              << name << ": " << vocabulary.TextOf(tokens) << "\n<" << vocabulary.trie()->piece(id) << ">";
          const char first = vocabulary.trie()->piece(id)[0];
          if (allowed && (random() % 40 == 0 || first == 'a' || first == ' ' || first == '<' || first == '/'))
            ids.push_back(id);
        }
        if (ids.empty()) break;
        tokens.push_back(ids[random() % ids.size()]);
        state = *g->Advance(state, tokens.back());
      }
    }
  }
}

TEST(GrammarToolCalls, ParametersComeInAnyOrderAndEachOnce) {
  const json::object schemas = json::parse(R"({"f": {"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["a", "b"]}})")
                                   .as_object();
  ToolCalls calls = CallsOf(schemas);
  calls.required = true;
  const auto g = *MadeCalls(calls, AnswerFormatOf(*ToolFormatNamed("json_in_tags"), ""));
  const auto takes = [&](const std::string& arguments) {
    return gyre::testing::Takes(g.get(),
                                "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>");
  };
  EXPECT_TRUE(takes(R"({"a": 1, "b": true, "c": null})"));
  EXPECT_TRUE(takes(R"({"c": null, "b": true, "a": 1})"));
  EXPECT_TRUE(takes(R"({"b":false,"a":-3})"));
  EXPECT_FALSE(takes(R"({"a": 1, "b": true, "a": 2})"));
  EXPECT_FALSE(takes(R"({"a": 1, "c": null})"));
  EXPECT_FALSE(takes(R"({"a": 1, "b": true, "d": 2})")) << "it is not declared";
  EXPECT_FALSE(takes(R"({"a": "1", "b": true})"));
}

// Above 64 the bits would be too many: the schema's order.
TEST(GrammarToolCalls, ManyParametersHaveTheOrderOfTheSchema) {
  json::object properties;
  std::string forward = "{", backward = "}";
  for (int i = 0; i < 65; ++i) {
    const std::string name = "p" + std::to_string(i), member = "\"" + name + "\": 1";
    properties[name] = json::object{{"type", "integer"}};
    forward += (i > 0 ? ", " : "") + member;
    backward = (i < 64 ? ", " : "") + member + backward;
  }
  const auto takes = [&](size_t drop, const std::string& arguments) {
    json::object some = properties;
    for (size_t i = 0; i < drop; ++i) some.erase("p64");
    ToolCalls calls = CallsOf({{"f", json::object{{"type", "object"}, {"properties", some}}}});
    calls.required = true;
    const auto g = *MadeCalls(calls, AnswerFormatOf(*ToolFormatNamed("functionary_v3_1"), ""));
    return gyre::testing::Takes(g.get(), "<function=f>" + arguments + "</function>");
  };
  EXPECT_TRUE(takes(0, forward + "}"));
  backward.erase(0, 2);
  EXPECT_FALSE(takes(0, "{" + backward));
  EXPECT_TRUE(takes(1, "{" + backward.substr(backward.find(", ") + 2)));
}

bool Fits(const ToolCalls& calls, const json::object& call) {
  const auto tool = std::find_if(calls.tools.begin(), calls.tools.end(), [&](const ToolCalls::Tool& t) {
    return call.at("name") == json::string_view(t.name);
  });
  return gyre::testing::Obeys(json::parse(tool->parameters), call.at("arguments"));
}

TEST(GrammarToolCalls, TakesWhatModelsWrite) {
  size_t taken = 0;
  for (const json::object& line : gyre::testing::SharedCases("tool_calls.jsonl")) {
    const std::string id(line.at("id").as_string());
    const std::string generated = json::serialize(line.at("generated"));
    const json::value* written = line.at("message").as_object().if_contains("tool_calls");
    const bool calls_there = written != nullptr && written->is_array() && !written->get_array().empty();
    if (!calls_there || line.at("ended_by") != "stop" || generated.find("think") != std::string::npos ||
        generated.find("THINK") != std::string::npos || line.at("format") == "llama_builtin") {
      continue;
    }
    const ToolFormat& tools = *ToolFormatNamed(std::string(line.at("format").as_string()));
    const AnswerFormat format = AnswerFormatOf(tools, "");
    ToolCalls calls;
    for (const json::value& tool : line.at("tools").as_array()) {
      const json::object& function =
          tool.as_object().contains("function") ? tool.at("function").as_object() : tool.as_object();
      calls.tools.push_back({.name = std::string(function.at("name").as_string()),
                             .parameters = json::serialize(function.at("parameters")),
                             .strict = true});
    }
    if (!std::all_of(written->get_array().begin(), written->get_array().end(),
                     [&](const json::value& call) { return Fits(calls, call.as_object()); })) {
      continue;
    }
    const auto g = MadeCalls(calls, format);
    ASSERT_TRUE(g.ok()) << id << ": " << g.status();
    std::string text;
    for (const json::value& part : line.at("generated").as_array()) {
      text += part.is_string() ? std::string(part.get_string())
                               : MarkedControl(std::string(part.at("control").as_string()));
    }
    for (const char* end : {"<|call|>", "<|return|>"}) {
      if (text.ends_with(MarkedControl(end))) text.resize(text.size() - MarkedControl(end).size());
    }
    EXPECT_TRUE(gyre::testing::Takes(g->get(), text)) << id << " " << tools.name << ": " << text;
    ++taken;
  }
  EXPECT_TRUE(taken == 0 || taken > 25) << taken;
  if (taken == 0) GTEST_SKIP() << "no ../shared beside the checkout: the cases are not there";
}

TEST(GrammarToolCalls, ValuesBetweenTagsEndWithTheirTag) {
  const json::object schemas = json::parse(R"({"f": {"type": "object", "properties": {"t": {"type": "string"},
      "o": {"type": "object", "additionalProperties": {"type": "string"}}, "u": {"type": ["string", "boolean"]}}}})")
                                   .as_object();
  ToolCalls calls = CallsOf(schemas);
  calls.required = true;
  const auto g = *MadeCalls(calls, AnswerFormatOf(*ToolFormatNamed("xml_parameters"), ""));
  const auto takes = [&](const std::string& name, const std::string& value) {
    return gyre::testing::Takes(g.get(), "<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + value +
                                             "\n</parameter>\n</function>\n</tool_call>");
  };
  for (const char* text :
       {"", "a", "<b>{\"1\"}</b>\n\n", "true", "1", "</parameter", "</Parameter>", "<parameter=t>"}) {
    EXPECT_TRUE(takes("t", text)) << text;
  }
  EXPECT_FALSE(takes("t", "a </parameter> b"));
  EXPECT_TRUE(takes("o", R"({"a": "<b>", "c": "</parameter"})"));
  EXPECT_FALSE(takes("o", R"({"a": "x</parameter>\n<parameter=t>\ny"})"));
  EXPECT_FALSE(takes("o", "a"));
  // What would be read as JSON is JSON of the schema.
  for (const char* text : {"hello", "truest", "\"1\"", "true", "True", "\"true\""})
    EXPECT_TRUE(takes("u", text)) << text;
  // A text may begin as a number.
  for (const char* text :
       {"2022-07-25T14:30:00Z", "192.168.1.100", "123e4567-e89b", "-", "-a", "1.", "01", "1e", "1 a"})
    EXPECT_TRUE(takes("u", text)) << text;
  for (const char* text : {"1", "-1.5", "0", "1e5", "2E-7", "1 ", "null", "None", "[1]", "{}", " 1"})
    EXPECT_FALSE(takes("u", text)) << text;
}

// A schema that allows further parameters allows any names that a form can write.
TEST(GrammarToolCalls, NamesThatAreNotDeclaredHaveAnyCharacters) {
  const json::object schemas =
      json::parse(
          R"({"f": {"type": "object", "properties": {"t": {"type": "integer"}}, "additionalProperties": true}})")
          .as_object();
  ToolCalls calls = CallsOf(schemas);
  calls.required = true;
  for (const char* name : {"xml_parameters", "glm_args", "minimax", "deepseek_dsml"}) {
    const ToolFormat& tools = *ToolFormatNamed(name);
    const AnswerFormat format = AnswerFormatOf(tools, "");
    const CallVocabulary vocabulary(format);
    const auto g = *MadeCalls(calls, format, vocabulary.trie());
    for (const char* parameter : {"$schema", "my-alias", "a b ", "t.", "<a"}) {
      std::string text = std::string(tools.text.begin) + tools.text.before + "f" + tools.text.after + tools.text.key +
                         parameter + tools.text.value;
      if (tools.text.value == std::string("\" string=\"")) text += "true\">";
      text += "x y" + std::string(tools.text.value_end) + tools.text.behind + tools.text.end;
      const std::vector<TokenId> tokens = vocabulary.Tokens(text);
      EXPECT_TRUE(gyre::testing::Takes(g.get(), vocabulary.TextOf(tokens))) << name << ": " << text;
      const ReadCalls read = ReadBack(format, DeclareTools(FunctionsOf(schemas)), vocabulary, tokens);
      ASSERT_EQ(read.calls.size(), 1u) << name << ": " << text;
      EXPECT_EQ(json::parse(read.calls[0].second), (json::object{{parameter, "x y"}})) << name;
    }
  }
}

// A parameter is a text by the definition that its schema names, too.
TEST(GrammarToolCalls, ADefinitionSaysWhatIsAText) {
  const json::object schemas = json::parse(R"({"f": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Id"},
      "b": {"allOf": [{"$ref": "#/$defs/Id"}], "description": "d"}, "c": {"$ref": "#/$defs/Loop"}, "d": {"$ref": "#/$defs/No"}},
      "$defs": {"Id": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}, "No": {"type": "integer"}}}})")
                                   .as_object();
  const DeclaredTools declared = DeclareTools(FunctionsOf(schemas));
  EXPECT_EQ(declared.at("f"), (std::set<std::string, std::less<>>{"a", "b"}));
  json::object known = schemas;
  known.at("f").at("properties").as_object().erase("c");
  ToolCalls calls = CallsOf(known);
  calls.required = true;
  const auto g = *MadeCalls(calls, AnswerFormatOf(*ToolFormatNamed("minimax"), ""));
  const auto takes = [&](const std::string& name, const std::string& value) {
    return gyre::testing::Takes(g.get(), "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"" + name + "\">" +
                                             value + "</parameter>\n</invoke>\n</minimax:tool_call>");
  };
  for (const char* name : {"a", "b"}) EXPECT_TRUE(takes(name, "1234567890")) << name;
  EXPECT_TRUE(takes("d", "12"));
  EXPECT_FALSE(takes("d", "x"));
}

// A marker that overlaps itself begins a call where it comes first, as it does for the reader.
TEST(GrammarToolCalls, TheFirstMarkerEndsAText) {
  const json::object schemas{{"f", json::object{{"type", "object"}, {"properties", json::object()}}}};
  const auto g = *MadeCalls(CallsOf(schemas), AnswerFormatOf(*ToolFormatNamed("functionary_v3_2"), ""));
  EXPECT_TRUE(gyre::testing::Takes(g.get(), "all\nHello >> you>>>f\n{}>>>all\n>"));
  EXPECT_FALSE(gyre::testing::Takes(g.get(), "all\nHello>>>>f\n{}"));
}

TEST(GrammarToolCalls, AnAnswerWithoutACallHasItsForm) {
  const json::object schemas{{"f", json::object{{"type", "object"}, {"properties", json::object()}}}};
  ToolCalls calls = CallsOf(schemas);
  calls.answer = Source{.kind = SourceKind::kJsonSchema, .text = R"({"enum": ["yes", "no"]})"};
  const auto takes = [&](const char* form, const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += part.starts_with("<|") ? MarkedControl(part) : part;
    return gyre::testing::Takes(MadeCalls(calls, AnswerFormatOf(*ToolFormatNamed(form), ""))->get(), text);
  };
  EXPECT_TRUE(takes("json_in_tags", {" \"no\""}));
  EXPECT_TRUE(takes("json_in_tags", {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"}));
  EXPECT_FALSE(takes("json_in_tags", {"Well, \"no\""}));
  EXPECT_TRUE(takes("llama_json", {"\"no\""}));
  EXPECT_TRUE(takes("llama_json", {"{\"name\": \"f\", \"parameters\": {}}"}));
  EXPECT_TRUE(takes("functionary_v3_2", {"all\n\"no\""}));
  EXPECT_FALSE(takes("functionary_v3_2", {"all\nno"}));
  const std::vector<std::string> thought = {"<|channel|>", "analysis",  "<|message|>", "Hm",
                                            "<|end|>",     "<|start|>", "assistant"};
  const std::vector<std::string> said = {"<|channel|>", "final", "<|message|>", "\"yes\""};
  std::vector<std::string> both = thought;
  both.insert(both.end(), said.begin(), said.end());
  for (const bool tools : {true, false}) {
    if (!tools) calls.tools.clear();
    EXPECT_TRUE(takes("harmony", said));
    EXPECT_TRUE(takes("harmony", both));
    EXPECT_FALSE(takes("harmony", thought));
    EXPECT_FALSE(takes("harmony", {"<|channel|>", "analysis", "<|message|>", "Hm"})) << "no answer";
    EXPECT_FALSE(takes("harmony", {"<|channel|>", "final", "<|message|>", "yes"}));
    EXPECT_FALSE(takes("harmony", {"\"yes\""}));
  }
}

TEST(GrammarToolCalls, WhatCannotBeObeyedIsNamed) {
  const AnswerFormat format = AnswerFormatOf(*ToolFormatNamed("xml_parameters"), "");
  const auto refused = [&](const char* schema, absl::StatusCode code, const char* says) {
    ToolCalls calls = CallsOf({{"f", json::parse(schema)}});
    calls.required = true;
    const auto g = MadeCalls(calls, format);
    EXPECT_EQ(g.status().code(), code) << schema;
    EXPECT_THAT(Message(g.status()), HasSubstr(says));
  };
  refused(R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})",
          absl::StatusCode::kUnimplemented, "uniqueItems");
  refused(R"({"type": "object", "properties": {"a>b": {}}})", absl::StatusCode::kUnimplemented, "a>b");
  refused(R"({"type": "string"})", absl::StatusCode::kInvalidArgument, "tool f");
  refused(R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", absl::StatusCode::kInvalidArgument,
          "f");
  EXPECT_TRUE(absl::IsUnimplemented(ToolCallSource({}, AnswerFormat()).status()));
  for (const char* text :
       {"", "{}", "[1]", R"({"format":"none","required":true,"parallel":true,"begins":0,"controls":[],"tools":[]})",
        R"({"format":1})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadSource({.kind = SourceKind::kToolCalls, .text = text}).status())) << text;
  }
}

}  // namespace
}  // namespace gyre::grammar
