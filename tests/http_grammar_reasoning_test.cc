// Answers that obey a grammar behind a model's thoughts, in all APIs, streamed and whole: the grammar begins where they
// end. A model that thinks what the test wants, behind a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/testing/calling_model.h"
#include "tests/testing/demo_runtime.h"
#include "tests/testing/http_api.h"
#include "tests/testing/live_server.h"
#include "tests/testing/tiny_model.h"

namespace gyre::grammar_reasoning_test {
namespace {

namespace json = boost::json;
using http::At;
using http::Json;
using testing::LiveServer;

constexpr char kChat[] = "/v1/chat/completions", kResponses[] = "/v1/responses", kMessages[] = "/v1/messages",
               kOllama[] = "/api/chat";

struct Answered {
  std::string reasoning, content, finish;
  bool mixed = false;  // reasoning came behind content
  void Add(bool thinks, const json::value& text) {
    mixed |= thinks && !content.empty();
    (thinks ? reasoning : content) += text.as_string();
  }
};

void TakeChat(const json::object& message, Answered* out) {
  for (const auto& [field, thinks] : {std::pair("reasoning_content", true), {"content", false}}) {
    const json::value* text = message.if_contains(field);
    if (text != nullptr && text->is_string()) out->Add(thinks, *text);
  }
}

Answered ReadChat(const std::string& body, bool stream) {
  Answered out;
  if (!stream) {
    const json::value answer = Json(body);
    TakeChat(answer.at_pointer("/choices/0/message").as_object(), &out);
    out.finish = At(answer, "/choices/0/finish_reason");
    return out;
  }
  for (const auto& event : http::Events(body)) {
    if (event.data == "[DONE]") continue;
    const json::value chunk = Json(event.data);
    TakeChat(chunk.at_pointer("/choices/0/delta").as_object(), &out);
    if (At(chunk, "/choices/0/finish_reason") != "null") out.finish = At(chunk, "/choices/0/finish_reason");
  }
  return out;
}

Answered ReadResponse(const std::string& body, bool stream) {
  Answered out;
  if (!stream) {
    const json::value answer = Json(body);
    for (const json::value& item : answer.at("output").as_array()) {
      out.Add(At(item, "/type") == "reasoning", item.at_pointer("/content/0/text"));
    }
    out.finish = At(answer, "/status");
    return out;
  }
  for (const auto& event : http::Events(body)) {
    const json::value data = Json(event.data);
    if (event.event.ends_with("_text.delta")) out.Add(event.event == "response.reasoning_text.delta", data.at("delta"));
    if (event.event == "response.completed") out.finish = At(data, "/response/status");
  }
  return out;
}

Answered ReadMessage(const std::string& body, bool stream) {
  Answered out;
  if (!stream) {
    const json::value answer = Json(body);
    for (const json::value& block : answer.at("content").as_array()) {
      const bool thinks = At(block, "/type") == "thinking";
      out.Add(thinks, block.at(thinks ? "thinking" : "text"));
    }
    out.finish = At(answer, "/stop_reason");
    return out;
  }
  for (const auto& event : http::Events(body)) {
    const json::value data = Json(event.data);
    const std::string type = At(data, "/delta/type");
    if (type == "thinking_delta") out.Add(true, data.at_pointer("/delta/thinking"));
    if (type == "text_delta") out.Add(false, data.at_pointer("/delta/text"));
    if (event.event == "message_delta") out.finish = At(data, "/delta/stop_reason");
  }
  return out;
}

Answered ReadOllama(const std::string& body) {
  Answered out;
  const json::value answer = Json(body);
  if (const auto* thought = answer.at("message").as_object().if_contains("thinking")) out.Add(true, *thought);
  out.Add(false, answer.at_pointer("/message/content"));
  out.finish = At(answer, "/done_reason");
  return out;
}

class HttpGrammarReasoningTest : public ::testing::Test {
 protected:
  // A server of a model that writes `text` behind its first token, with which a prompt ends: behind `end`. `other`:
  // what it writes behind one of these tokens if it may not write that. Its markers of reasoning are control tokens, or
  // text.
  void Serve(const std::string& end, const std::vector<std::string>& text, bool control_tokens,
             const std::vector<std::string>& other = {}) {
    testing::ScriptedModelOptions options{
        .chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}" + end + text.front() + "{# </think> #}",
        .controls = {"<|go|>"},
        .texts = {text}};
    if (!other.empty()) options.texts.push_back(other);
    if (control_tokens) options.controls.insert(options.controls.end(), {"<think>", "</think>"});
    Close();
    file_ = std::make_unique<testing::TinyModelFile>(testing::ScriptedModel(options));
    RuntimeOptions runtime;
    runtime.model = file_->path();
    runtime.threads = 1;
    runtime.quiet = true;
    auto opened = Runtime::Open(runtime);
    ASSERT_TRUE(opened.ok()) << opened.status();
    runtime_ = *std::move(opened);
    server_ = std::make_unique<LiveServer>(*runtime_);
  }
  void Close() {
    server_.reset();
    runtime_.reset();
  }
  Answered Ask(const std::string& path, const std::string& format, bool stream, int seed) const {
    const std::string messages = R"({"messages":[{"role":"user","content":"Hi"}],)",
                      streams = stream ? R"("stream":true,)" : R"("stream":false,)";
    std::string body = messages + streams + R"("model":"demo","temperature":1,"max_tokens":3000,)" +
                       fmt::format(R"("seed":{},)", seed);
    if (path == kChat) body += R"("response_format":)" + format + "}";
    if (path == kMessages) body += R"("output_config":{"format":)" + format + "}}";
    if (path == kResponses)
      body = R"({"input":"Hi",)" + streams + R"("max_output_tokens":3000,"text":{"format":)" + format + "}}";
    if (path == kOllama)
      body = messages + streams +
             fmt::format(R"("model":"demo","options":{{"num_predict":3000,"seed":{}}},"format":{}}})", seed,
                         json::serialize(Json(format).at("schema")));
    const testing::HttpAnswer answer = server_->Ask("POST", path, body);
    EXPECT_EQ(answer.status, 200) << path << " " << body << ": " << answer.body;
    if (answer.status != 200) return {};
    if (path == kChat) return ReadChat(answer.body, stream);
    if (path == kResponses) return ReadResponse(answer.body, stream);
    return path == kMessages ? ReadMessage(answer.body, stream) : ReadOllama(answer.body);
  }
  // Every API answers with these thoughts and with a content of this form.
  void ExpectAnswers(const std::string& format, const std::string& thoughts, const std::string& content,
                     std::vector<std::string> paths = {kChat, kResponses, kMessages}) const {
    for (const std::string& path : paths) {
      for (const bool stream : {false, true}) {
        if (stream && path == kOllama) continue;
        for (int seed = 1; seed < 4; ++seed) {
          const Answered got = Ask(path, format, stream, seed);
          SCOPED_TRACE(path + (stream ? " streamed: " : ": ") + got.reasoning + " | " + got.content);
          EXPECT_EQ(got.reasoning, thoughts);
          EXPECT_TRUE(std::regex_match(got.content, std::regex(content)));
          EXPECT_THAT(got.finish, ::testing::AnyOf("stop", "completed", "end_turn"));
          EXPECT_FALSE(got.mixed);
        }
      }
    }
  }

  std::unique_ptr<testing::TinyModelFile> file_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<LiveServer> server_;
};

constexpr char kSchema[] = R"({"type":"json_schema","name":"c","schema":{"type":"object","properties":
    {"ok":{"type":"boolean"},"colour":{"enum":["red","blue"]}},"required":["ok","colour"],"additionalProperties":false}})";
constexpr char kJson[] = R"x(\s*\{\s*"ok"\s*:\s*(true|false)\s*,\s*"colour"\s*:\s*"(red|blue)"\s*\}\s*)x";
constexpr char kPattern[] = R"x({"type":"regex","pattern":"(yes|no): [a-c]{3}"})x";
constexpr char kWords[] = "(yes|no): [a-c]{3}";

TEST_F(HttpGrammarReasoningTest, TheGrammarBeginsBehindThoughtsThatThePromptBegan) {
  Serve("", {"<think>", "\nWhy", " not {\"x\": 1", "}?\n", "</think>", "\n\n"}, true);
  ExpectAnswers(kSchema, "Why not {\"x\": 1}?", kJson, {kChat, kResponses, kMessages, kOllama});
  // White space behind the marker is none of the answer's, so a grammar need not allow it.
  ExpectAnswers(kPattern, "Why not {\"x\": 1}?", kWords);
}

TEST_F(HttpGrammarReasoningTest, TheGrammarBeginsBehindThoughtsThatTheModelBegins) {
  Serve("", {"<|go|>", "<think>", "\nWhy", " not?\n", "</think>", "\n\n"}, true);
  ExpectAnswers(kSchema, "Why not?", kJson, {kChat, kResponses, kMessages, kOllama});
  ExpectAnswers(kPattern, "Why not?", kWords);
}

// What the model would write is no thought, and nothing that the grammar takes.
TEST_F(HttpGrammarReasoningTest, WithoutThoughtsTheGrammarBeginsAtOnce) {
  Serve("", {"<|go|>", "Why", " not?"}, true, {"<|go|>", "n"});
  ExpectAnswers(kPattern, "", "no: [a-c]{3}");
}

// The marker may be text, in tokens that do not know of it.
TEST_F(HttpGrammarReasoningTest, AMarkerOfSeveralTokensEndsThoughts) {
  Serve("<think", {">", "Why", " not </t?", "</thi", "nk", ">\n"}, false);
  ExpectAnswers(kSchema, "Why not </t?", kJson);
  ExpectAnswers(kPattern, "Why not </t?", kWords);
}

// A token that completes the marker may go on behind it: it comes only where the grammar takes the rest.
TEST_F(HttpGrammarReasoningTest, WhatATokenHasBehindTheMarkerObeysTheGrammar) {
  Serve("<think", {">", "Why", "</think", ">\nno", "body"}, false);
  ExpectAnswers(kPattern, "Why", "no: [a-c]{3}");
  Serve("<think", {">", "Why", "</think", ">\nnever"}, false, {"</think", ">\ny"});
  ExpectAnswers(kPattern, "Why", "yes: [a-c]{3}");
}

// An answer that ended in thoughts would obey no grammar.
TEST_F(HttpGrammarReasoningTest, AnAnswerDoesNotEndInThoughts) {
  Serve("", {"<think>", "Why", " not?"}, true, {" not?", "</think>"});
  ExpectAnswers(kSchema, "Why not?", kJson);
  Serve("<think", {">", "Why", " not?"}, false, {" not?", "</think>"});
  ExpectAnswers(kPattern, "Why not?", kWords);
}

}  // namespace
}  // namespace gyre::grammar_reasoning_test
