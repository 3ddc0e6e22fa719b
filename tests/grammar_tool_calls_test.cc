// Calls by a grammar: what it lets through is read as calls whose arguments obey the tools' schemas, in every form.
#include "coordinator/grammar/tool_calls.h"

#include <gmock/gmock.h>

#include <random>

#include "model/marked_text.h"
#include "model/tool_reader.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_schema.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

// A form's control tokens, then all bytes, then the end.
class Vocabulary {
 public:
  explicit Vocabulary(const AnswerFormat& format) : controls_(format.controls.size()) {
    std::vector<std::string> pieces;
    for (const auto& control : format.controls) pieces.push_back(MarkedControl(control.text));
    for (int b = 0; b < 256; ++b) {
      const char c = static_cast<char>(b);
      pieces.push_back(c == kMarkBegin || c == kMarkEnd ? std::string() : std::string(1, c));
    }
    pieces.emplace_back();
    end_ = static_cast<TokenId>(pieces.size() - 1);
    trie_ = std::make_shared<TokenTrie>(std::move(pieces), std::vector<TokenId>{end_});
  }
  const std::shared_ptr<const TokenTrie>& trie() const { return trie_; }
  TokenId end() const { return end_; }
  bool control(TokenId id) const { return static_cast<size_t>(id) < controls_; }
  TokenId byte(char c) const { return static_cast<TokenId>(controls_ + static_cast<uint8_t>(c)); }

 private:
  const size_t controls_;
  TokenId end_ = 0;
  std::shared_ptr<const TokenTrie> trie_;
};

bool Allows(const TokenMask& mask, TokenId id) {
  return (mask.words[static_cast<size_t>(id) / 64] >> (static_cast<size_t>(id) % 64) & 1) != 0;
}

// Draws a text from the masks behind `tokens`: any token that may come, but often one that ends something, and soon,
// once the text is long. False: it has no end after 3,000 tokens.
bool Draw(CompiledGrammar* g, const Vocabulary& vocabulary, std::mt19937* random, GrammarState state,
          std::vector<TokenId>* tokens) {
  for (int step = 0; step < 3000; ++step) {
    const auto mask = g->Mask(state);
    if (!mask.ok()) {
      ADD_FAILURE() << mask.status();
      return false;
    }
    if (Allows(**mask, vocabulary.end()) && (step > 400 || (*random)() % 4 == 0)) return true;
    std::vector<TokenId> ids;
    if ((*random)() % 4 != 0 || step > 300) {
      for (const char c : std::string_view("\"'}])<>/,\n0a ")) {
        if (Allows(**mask, vocabulary.byte(c))) ids.push_back(vocabulary.byte(c));
      }
    }
    const bool any = ids.empty();
    for (TokenId id = 0; any && id < vocabulary.end(); ++id) {
      if (Allows(**mask, id)) ids.push_back(id);
    }
    if (ids.empty()) return true;  // only the end
    tokens->push_back(ids[(*random)() % ids.size()]);
    state = *g->Advance(state, tokens->back());
    EXPECT_FALSE(state.dead());
  }
  return false;
}

std::string TextOf(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId id : tokens) text += vocabulary.trie()->piece(id);
  return text;
}

struct Read {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // with their arguments
  size_t complete = 0;
};

Read ReadBack(const AnswerFormat& format, const DeclaredTools& tools, const Vocabulary& vocabulary,
              const std::vector<TokenId>& tokens) {
  ToolReader reader(format, tools, {.names_may_repeat = true});
  Read out;
  const auto take = [&out](const std::vector<AnswerDelta>& deltas) {
    for (const AnswerDelta& delta : deltas) {
      switch (delta.kind) {
        case AnswerDelta::Kind::kCall: out.calls.emplace_back(delta.text, ""); break;
        case AnswerDelta::Kind::kArguments: out.calls.back().second += delta.text; break;
        case AnswerDelta::Kind::kCallEnd: ++out.complete; break;
        case AnswerDelta::Kind::kReasoning: break;
        default: out.content += delta.text;
      }
    }
  };
  for (const TokenId id : tokens) take(reader.Push(id, vocabulary.control(id) ? "" : vocabulary.trie()->piece(id)));
  take(reader.Finish("", false));
  return out;
}

json::array FunctionsOf(const json::object& schemas) {
  json::array out;
  for (const auto& [name, schema] : schemas) {
    out.push_back(
        json::object{{"type", "function"}, {"function", json::object{{"name", name}, {"parameters", schema}}}});
  }
  return out;
}

ToolCalls CallsOf(const json::object& schemas, bool strict = true) {
  ToolCalls calls;
  for (const auto& [name, schema] : schemas) {
    calls.tools.push_back({.name = std::string(name), .parameters = json::serialize(schema), .strict = strict});
  }
  return calls;
}

StatusOr<std::shared_ptr<CompiledGrammar>> Made(const ToolCalls& calls, const AnswerFormat& format,
                                                std::shared_ptr<const TokenTrie> trie = nullptr) {
  GYRE_ASSIGN_OR_RETURN(const Source source, ToolCallSource(calls, format));
  GYRE_ASSIGN_OR_RETURN(Grammar grammar, ReadSource(source));
  return CompiledGrammar::Make(std::move(grammar), std::move(trie));
}

// The number of calls that were read. Their arguments obey the schemas.
size_t CheckCalls(const ToolFormat& tools, const json::object& schemas, const Read& read, const std::string& text) {
  EXPECT_EQ(read.complete, read.calls.size()) << tools.name << ": " << text;
  for (const auto& [name, arguments] : read.calls) {
    const json::value* schema = schemas.if_contains(name);
    boost::system::error_code error;
    const json::value value = json::parse(arguments, error);
    EXPECT_TRUE(schema != nullptr && !error && value.is_object()) << tools.name << ": " << arguments << "\n" << text;
    if (schema == nullptr || error || !value.is_object()) return 0;
    EXPECT_TRUE(gyre::testing::Obeys(*schema, value)) << tools.name << ": " << arguments << "\n"
                                                      << json::serialize(*schema) << "\n"
                                                      << text;
  }
  return read.calls.size();
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
    const Vocabulary vocabulary(format);
    const DeclaredTools declared = DeclareTools(FunctionsOf(Usual()));
    std::mt19937 random(7);
    for (const bool parallel : {true, false}) {
      ToolCalls calls = CallsOf(Usual());
      calls.required = true;
      calls.parallel = parallel;
      const auto g = Made(calls, format, vocabulary.trie());
      ASSERT_TRUE(g.ok()) << tools.name << ": " << g.status();
      size_t most = 0, texts = 0;
      constexpr size_t kTexts = testing::kSanitized ? 60 : 120;
      for (size_t i = 0; i < kTexts; ++i) {
        std::vector<TokenId> tokens;
        if (!Draw(g->get(), vocabulary, &random, (*g)->start(), &tokens)) continue;
        const std::string text = TextOf(vocabulary, tokens);
        const Read read = ReadBack(format, declared, vocabulary, tokens);
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
  for (int i = 0; i < 40; ++i) {
    json::object schema{{"type", "object"}, {"properties", json::object()}, {"required", json::array()}};
    for (const char* name : {"a", "b", "c"}) {
      schema["properties"].as_object()[name] = gyre::testing::RandomSchema(&random, 2);
      if (random() % 2 == 0) schema["required"].as_array().emplace_back(name);
    }
    const json::object schemas{{"f", schema}};
    for (const ToolFormat& tools : ToolFormats()) {
      const AnswerFormat format = AnswerFormatOf(tools, "");
      const Vocabulary vocabulary(format);
      ToolCalls calls = CallsOf(schemas);
      calls.required = true;
      calls.parallel = false;
      const auto g = Made(calls, format, vocabulary.trie());
      if (!g.ok()) continue;
      ++made;
      for (int k = 0; k < 4; ++k) {
        std::vector<TokenId> tokens;
        if (!Draw(g->get(), vocabulary, &random, (*g)->start(), &tokens)) continue;
        const std::string text = TextOf(vocabulary, tokens);
        const Read read = ReadBack(format, DeclareTools(FunctionsOf(schemas)), vocabulary, tokens);
        calls_read += CheckCalls(tools, schemas, read, text);
        EXPECT_EQ(read.calls.size(), 1u) << tools.name << ": " << text;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(made, 400u);
  EXPECT_GT(calls_read, 1200u);
}

// Without a call that must come any text goes, and where a call begins it obeys its schema.
TEST(GrammarToolCalls, InAnyTextCallsObeyTheirSchemas) {
  for (const ToolFormat& tools : ToolFormats()) {
    const AnswerFormat format = AnswerFormatOf(tools, "");
    const Vocabulary vocabulary(format);
    const DeclaredTools declared = DeclareTools(FunctionsOf(Usual()));
    for (const bool parallel : {true, false}) {
      ToolCalls calls = CallsOf(Usual());
      calls.parallel = parallel;
      const auto g = Made(calls, format, vocabulary.trie());
      ASSERT_TRUE(g.ok()) << tools.name << ": " << g.status();
      std::mt19937 random(5);
      size_t read_calls = 0;
      constexpr size_t kTexts = testing::kSanitized ? 16 : 40;
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
        for (size_t from = opening.find(CallText::kMayBe); from != std::string::npos;
             from = opening.find(CallText::kMayBe)) {
          opening.erase(from, opening.find(CallText::kMayBe, from + 1) + 1 - from);
        }
        std::vector<TokenId> tokens;
        GrammarState state = (*g)->start();
        const auto push = [&](std::string_view text) {
          while (!text.empty()) {
            TokenId id = vocabulary.byte(text[0]);
            size_t size = 1;
            for (const auto& control : format.controls) {
              if (text.starts_with(control.text)) id = control.id, size = control.text.size();
            }
            if (text[0] == CallText::kMaySpace || text[0] == CallText::kIndex)
              id = vocabulary.byte(text[0] == CallText::kIndex ? '0' : ' ');
            state = *(*g)->Advance(state, id);
            ASSERT_FALSE(state.dead()) << tools.name << ": " << text;
            tokens.push_back(id);
            text.remove_prefix(size);
          }
        };
        push(begins);
        push(opening);
        if (!Draw(g->get(), vocabulary, &random, state, &tokens)) continue;
        const std::string text = TextOf(vocabulary, tokens);
        const Read read = ReadBack(format, declared, vocabulary, tokens);
        read_calls += CheckCalls(tools, Usual(), read, text);
        EXPECT_GE(read.calls.size(), 1u) << tools.name << ": " << text;
        if (!parallel) EXPECT_EQ(read.calls.size(), 1u) << tools.name << ": " << text;
        if (HasFailure()) return;
      }
      EXPECT_GE(read_calls, kTexts / 4) << tools.name;
    }
  }
}

TEST(GrammarToolCalls, ParametersComeInAnyOrderAndEachOnce) {
  const json::object schemas = json::parse(R"({"f": {"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["a", "b"]}})")
                                   .as_object();
  ToolCalls calls = CallsOf(schemas);
  calls.required = true;
  const auto g = *Made(calls, AnswerFormatOf(*ToolFormatNamed("json_in_tags"), ""));
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
    const auto g = *Made(calls, AnswerFormatOf(*ToolFormatNamed("functionary_v3_1"), ""));
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
    const auto g = Made(calls, format);
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
  const auto g = *Made(calls, AnswerFormatOf(*ToolFormatNamed("xml_parameters"), ""));
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
  for (const char* text : {"1", "null", "None", "[1]", "{}", " 1"}) EXPECT_FALSE(takes("u", text)) << text;
}

TEST(GrammarToolCalls, AnAnswerWithoutACallHasItsForm) {
  const json::object schemas{{"f", json::object{{"type", "object"}, {"properties", json::object()}}}};
  ToolCalls calls = CallsOf(schemas);
  calls.answer = Source{.kind = SourceKind::kJsonSchema, .text = R"({"enum": ["yes", "no"]})"};
  const auto takes = [&](const char* form, const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += part.starts_with("<|") ? MarkedControl(part) : part;
    return gyre::testing::Takes(Made(calls, AnswerFormatOf(*ToolFormatNamed(form), ""))->get(), text);
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
    const auto g = Made(calls, format);
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
