// Calls of tools that must come, in all APIs: the demo model, as hot as it gets, behind a real server. What it calls
// with obeys the tools' schemas, by a reading of them that shares nothing with the grammars.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/testing/demo_model.h"
#include "tests/testing/demo_runtime.h"
#include "tests/testing/http_api.h"
#include "tests/testing/live_server.h"
#include "tests/testing/small_schema.h"
#include "tests/testing/tiny_model.h"

namespace gyre::tool_grammar_test {
namespace {

namespace json = boost::json;
using http::At;
using http::Json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::LiveServer;

constexpr char kChat[] = "/v1/chat/completions", kResponses[] = "/v1/responses", kMessages[] = "/v1/messages";

const json::object& Schemas() {
  static const json::object kSchemas = json::parse(R"({
    "get_weather": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["city", "days"], "additionalProperties": false},
    "plan": {"type": "object", "properties": {"steps": {"type": "array", "items": {"type": "object", "properties":
        {"what": {"type": "string", "maxLength": 4}, "done": {"type": "boolean"}}, "required": ["done"],
        "additionalProperties": false}, "minItems": 1, "maxItems": 2}, "note": {"type": ["string", "null"], "maxLength": 3}},
        "required": ["note"], "additionalProperties": false}})")
                                           .as_object();
  return kSchemas;
}

// The calls of an answer, with their arguments.
struct Answered {
  std::vector<std::pair<std::string, std::string>> calls;
  std::string content, finish;
  bool cut() const { return finish == "length" || finish == "max_tokens" || finish == "incomplete"; }
};

void TakeChat(const json::value& message, Answered* out) {
  if (const json::value* content = message.as_object().if_contains("content");
      content != nullptr && content->is_string()) {
    out->content += content->get_string();
  }
  const json::value* calls = message.as_object().if_contains("tool_calls");
  if (calls == nullptr) return;
  for (const json::value& call : calls->as_array()) {
    const json::object& function = call.at("function").as_object();
    if (const json::value* name = function.if_contains("name")) {
      EXPECT_EQ(At(call, "/type"), "function");
      out->calls.emplace_back(name->as_string(), "");
    }
    if (const json::value* index = call.as_object().if_contains("index")) {
      EXPECT_EQ(index->as_int64(), static_cast<int64_t>(out->calls.size()) - 1);
    }
    out->calls.back().second += function.at("arguments").as_string();
  }
}

Answered ReadChat(const std::string& body, bool stream) {
  Answered out;
  if (!stream) {
    const json::value answer = Json(body);
    TakeChat(answer.at_pointer("/choices/0/message"), &out);
    out.finish = At(answer, "/choices/0/finish_reason");
    return out;
  }
  for (const auto& event : http::Events(body)) {
    if (event.data == "[DONE]") continue;
    const json::value chunk = Json(event.data);
    TakeChat(chunk.at_pointer("/choices/0/delta"), &out);
    if (At(chunk, "/choices/0/finish_reason") != "null") out.finish = At(chunk, "/choices/0/finish_reason");
  }
  return out;
}

Answered ReadResponse(const std::string& body, bool stream) {
  Answered out;
  std::string deltas;
  json::value answer;
  if (!stream) answer = Json(body);
  for (const auto& event : stream ? http::Events(body) : std::vector<http::SseMessage>()) {
    if (event.event == "response.function_call_arguments.delta") deltas += At(Json(event.data), "/delta");
    if (event.event == "response.completed" || event.event == "response.incomplete") {
      answer = Json(event.data).at("response");
    }
  }
  std::string all;
  for (const json::value& item : answer.at("output").as_array()) {
    if (At(item, "/type") == "message") out.content += At(item, "/content/0/text");
    if (At(item, "/type") != "function_call") continue;
    out.calls.emplace_back(At(item, "/name"), At(item, "/arguments"));
    all += out.calls.back().second;
  }
  if (stream) EXPECT_EQ(deltas, all);
  out.finish = At(answer, "/status");
  return out;
}

Answered ReadMessage(const std::string& body, bool stream) {
  Answered out;
  if (!stream) {
    const json::value answer = Json(body);
    for (const json::value& block : answer.at("content").as_array()) {
      if (At(block, "/type") == "text") out.content += At(block, "/text");
      if (At(block, "/type") == "tool_use")
        out.calls.emplace_back(At(block, "/name"), json::serialize(block.at("input")));
    }
    out.finish = At(answer, "/stop_reason");
    return out;
  }
  for (const auto& event : http::Events(body)) {
    const json::value data = Json(event.data);
    if (At(data, "/content_block/type") == "tool_use") out.calls.emplace_back(At(data, "/content_block/name"), "");
    if (At(data, "/delta/type") == "input_json_delta") out.calls.back().second += At(data, "/delta/partial_json");
    if (At(data, "/delta/type") == "text_delta") out.content += At(data, "/delta/text");
    if (event.event == "message_delta") out.finish = At(data, "/delta/stop_reason");
  }
  return out;
}

class HttpToolGrammarTest : public testing::DemoRuntimeTest {
 protected:
  static void SetUpTestSuite() {
    // The form of Hermes and Qwen.
    file_ = new testing::TinyModelFile(testing::DemoModelWithTemplate(
        "{%if tools%}{{tools|tojson}}{%endif%}{%for m in messages%}{{m.role}}: {{m.content}}"
        "{%if m.tool_calls%}<tool_call>{{m.tool_calls[0].function|tojson}}</tool_call>{%endif%}\n{%endfor%}"));
    OpenRuntime(file_->path());
  }
  static void TearDownTestSuite() {
    DemoRuntimeTest::TearDownTestSuite();
    delete file_;
  }

  // The tools in the shape of an API.
  static std::string Tools(const std::string& path, bool strict = false) {
    json::array tools;
    for (const auto& [name, schema] : Schemas()) {
      json::object tool{{"name", name}, {path == kMessages ? "input_schema" : "parameters", schema}};
      if (strict) tool["strict"] = true;
      if (path == kChat) tool = {{"function", tool}};
      if (path != kMessages) tool["type"] = "function";
      tools.push_back(std::move(tool));
    }
    return "\"tools\":" + json::serialize(tools);
  }
  HttpAnswer Ask(const std::string& path, const std::string& fields, bool strict = false) {
    std::string body = R"({"model":"demo","top_k":0,"top_p":1,)" + Tools(path, strict) + fields + ",";
    const std::string messages = R"("messages":[{"role":"user","content":"Plan."}])";
    if (path == kChat) body += R"("temperature":2,"max_tokens":600,)" + messages;
    if (path == kResponses) body += R"("temperature":2,"max_output_tokens":600,"input":"Plan.")";
    if (path == kMessages) body += R"("temperature":1,"max_tokens":600,)" + messages;
    return server_.Ask("POST", path, body + "}");
  }
  Answered Answer(const std::string& path, const std::string& fields, bool stream, bool strict = false) {
    const HttpAnswer answer = Ask(path, fields + (stream ? ",\"stream\":true" : ""), strict);
    EXPECT_EQ(answer.status, 200) << path << fields << answer.body;
    if (answer.status != 200) return {};
    if (path == kChat) return ReadChat(answer.body, stream);
    return path == kResponses ? ReadResponse(answer.body, stream) : ReadMessage(answer.body, stream);
  }
  // Whether every call is whole and obeys its schema. A call that the limit of tokens cut is not whole.
  static void Check(const Answered& answer, const std::string& what) {
    for (size_t i = 0; i < answer.calls.size(); ++i) {
      const auto& [name, arguments] = answer.calls[i];
      if (answer.cut() && i + 1 == answer.calls.size()) continue;
      ASSERT_TRUE(Schemas().contains(name)) << what << name;
      boost::system::error_code error;
      const json::value value = json::parse(arguments, error);
      ASSERT_TRUE(!error && value.is_object()) << what << arguments;
      EXPECT_TRUE(testing::Obeys(Schemas().at(name), value)) << what << arguments;
    }
  }

  static inline testing::TinyModelFile* file_ = nullptr;
  LiveServer server_{*runtime_};
};

TEST_F(HttpToolGrammarTest, ACallThatMustComeComesAndObeysItsSchema) {
  struct Case {
    const char *path, *fields;
    const char* only;  // "": any tool
    bool one;
  };
  const Case cases[] = {
      {kChat, R"(,"tool_choice":"required")", "", false},
      {kChat, R"(,"tool_choice":"required","parallel_tool_calls":false)", "", true},
      {kChat, R"(,"tool_choice":{"type":"function","function":{"name":"plan"}},"parallel_tool_calls":false)", "plan",
       true},
      {kChat,
       R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"get_weather"}}]}})",
       "get_weather", false},
      {kResponses, R"(,"tool_choice":"required","parallel_tool_calls":false)", "", true},
      {kResponses, R"(,"tool_choice":{"type":"function","name":"get_weather"})", "get_weather", false},
      {kResponses,
       R"(,"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"plan"}]})",
       "plan", false},
      {kMessages, R"(,"tool_choice":{"type":"any"})", "", false},
      {kMessages, R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})", "", true},
      {kMessages, R"(,"tool_choice":{"type":"tool","name":"plan","disable_parallel_tool_use":true})", "plan", true},
  };
  std::map<std::string, int> called;
  for (const Case& c : cases) {
    for (const bool stream : {false, true}) {
      for (int seed = 1; seed <= 3; ++seed) {
        const std::string fields = c.fields + (",\"seed\":" + std::to_string(seed));
        const Answered answer = Answer(c.path, fields, stream);
        const std::string what = std::string(c.path) + fields + (stream ? " streamed: " : ": ");
        ASSERT_GE(answer.calls.size(), 1u) << what << answer.content;
        EXPECT_EQ(answer.content, "") << what;
        if (c.one) EXPECT_EQ(answer.calls.size(), 1u) << what;
        Check(answer, what);
        for (const auto& [name, arguments] : answer.calls) {
          if (*c.only != '\0') EXPECT_EQ(name, c.only) << what;
          ++called[name];
        }
        if (c.one) EXPECT_THAT(answer.finish, AnyOf("tool_calls", "completed", "tool_use")) << what;
      }
    }
  }
  EXPECT_GT(called["plan"], 5);
  EXPECT_GT(called["get_weather"], 5);
}

TEST_F(HttpToolGrammarTest, AStreamHasWhatTheWholeAnswerHas) {
  for (const char* path : {kChat, kMessages}) {
    const std::string required =
        path == kChat ? R"(,"tool_choice":"required","seed":5)" : R"(,"tool_choice":{"type":"any"},"seed":5)";
    const Answered whole = Answer(path, required, false), stream = Answer(path, required, true);
    ASSERT_EQ(whole.calls.size(), stream.calls.size());
    EXPECT_EQ(whole.finish, stream.finish);
    for (size_t i = 0; i < whole.calls.size() && !whole.cut(); ++i) {
      EXPECT_EQ(whole.calls[i].first, stream.calls[i].first);
      EXPECT_EQ(Json(whole.calls[i].second), Json(stream.calls[i].second));
    }
  }
}

// A tool that is strict leaves the answer to the model; so does a form of the answer beside tools.
TEST_F(HttpToolGrammarTest, StrictToolsAndFormsOfAnswersGoTogether) {
  const Answered text = Answer(kChat, R"(,"seed":3)", false, true);
  Check(text, "strict");
  EXPECT_FALSE(text.content.empty() && text.calls.empty());
  const std::string schema =
      R"({"type":"object","properties":{"yes":{"type":"boolean"}},"required":["yes"],"additionalProperties":false})";
  for (int seed = 1; seed <= 6; ++seed) {
    const std::string fields = R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" +
                               schema + R"(}},"seed":)" + std::to_string(seed);
    const Answered answer = Answer(kChat, fields, false, seed % 2 == 0);
    if (answer.cut()) continue;
    Check(answer, fields);
    if (answer.calls.empty()) {
      EXPECT_TRUE(testing::Obeys(Json(schema), Json(answer.content))) << answer.content;
    } else {
      EXPECT_EQ(answer.content, "");
    }
  }
}

// Without parallel calls the engine stops behind the first one, whatever the model would say then.
TEST_F(HttpToolGrammarTest, TheTextEndsBehindTheOneCall) {
  const std::string says =
      R"x(,"guided_regex":"Well <tool_call>\\{\"name\": \"plan\", \"arguments\": \\{\\}\\}</tool_call> y{40}")x";
  for (const bool stream : {false, true}) {
    const Answered one = Answer(kChat, says + R"(,"parallel_tool_calls":false)", stream);
    EXPECT_EQ(one.content, "Well");
    EXPECT_EQ(one.calls, (std::vector<std::pair<std::string, std::string>>{{"plan", "{}"}}));
    EXPECT_EQ(one.finish, "tool_calls");
    EXPECT_THAT(Answer(kChat, says, stream).content, HasSubstr("yyyyyyyyyyyy"));
  }
  const auto tokens = [&](const std::string& fields) {
    return Json(Ask(kChat, says + fields).body).at_pointer("/usage/completion_tokens").as_int64();
  };
  EXPECT_LT(tokens(R"(,"parallel_tool_calls":false)") + 5, tokens(""));
}

TEST_F(HttpToolGrammarTest, WhatCannotBeObeyedIsRefusedByName) {
  const auto refused = [&](const std::string& tool, const std::string& fields, int status, const std::string& says) {
    const HttpAnswer answer =
        server_.Ask("POST", kChat,
                    R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":)" + tool +
                        "}]" + fields + "}");
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(says));
  };
  const std::string unique =
      R"({"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}})";
  refused(unique, "", 422, "uniqueItems at #/properties/a");
  refused(unique, R"(,"tool_choice":"required")", 422, "tool f");
  refused(R"({"name":"f","parameters":{"type":"string"}})", R"(,"tool_choice":"required")", 400, "no object");
  refused(R"({"name":"f","strict":true})", R"(,"guided_regex":"a")", 422, "beside tools");
  refused(R"({"name":"f"})", R"(,"tool_choice":"required","ignore_eos":true)", 400, "ignore_end");
}

}  // namespace
}  // namespace gyre::tool_grammar_test
