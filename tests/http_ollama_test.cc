// ollama's routes over a real ring.
#include <gmock/gmock.h>

#include <thread>

#include "coordinator/http/ollama.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

constexpr char kOllamaChat[] = "/api/chat", kGenerate[] = "/api/generate";

class OllamaTest : public OpenAiRig {
 protected:
  OllamaTest() { AddOllamaRoutes(api_.router, api_.context); }

  // The objects of a stream, one a line.
  std::vector<json::value> Lines(const std::string& path, const std::string& body) {
    const auto exchange = api_.Post(path, body);
    EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    EXPECT_EQ(exchange->answer.content_type, "application/x-ndjson");
    std::vector<json::value> out;
    std::string_view rest = exchange->answer.body;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos) {
        ADD_FAILURE() << "no line: " << rest;
        break;
      }
      out.push_back(Json(rest.substr(0, end)));
      rest.remove_prefix(end + 1);
    }
    return out;
  }
  void Refused(const std::string& path, const std::string& body, int status, const char* word) {
    const auto exchange = api_.Post(path, body);
    EXPECT_EQ(exchange->answer.status, status) << body << exchange->answer.body;
    const json::value answer = Json(exchange->answer.body);
    ASSERT_TRUE(answer.is_object() && answer.get_object().size() == 1) << exchange->answer.body;
    EXPECT_THAT(At(answer, "/error"), HasSubstr(word)) << body;
  }
};

TEST_F(OllamaTest, AChatStreamsWhatTheEngineSays) {
  Question question = Greedy("What is Gyre?");
  question.max_new_tokens = 12;
  const Said said = Ask(question);
  const std::string body = R"({"model":"demo","messages":[{"role":"user","content":"What is Gyre?"}],
      "options":{"temperature":0,"num_predict":12,"num_ctx":4096,"mirostat":0},"keep_alive":"5m")";
  const std::vector<json::value> parts = Lines(kOllamaChat, body + "}");
  ASSERT_GT(parts.size(), 1u);
  std::string text;
  for (const json::value& part : parts) {
    EXPECT_EQ(At(part, "/model"), "demo");
    EXPECT_EQ(At(part, "/message/role"), "assistant");
    EXPECT_EQ(At(part, "/done"), &part == &parts.back() ? "true" : "false");
    text += At(part, "/message/content");
  }
  EXPECT_EQ(text, said.text);
  const json::value whole = api_.Get(kOllamaChat, body + R"(,"stream":false})");
  EXPECT_EQ(At(whole, "/message/content"), said.text);
  for (const json::value* end : {&whole, &parts.back()}) {
    EXPECT_EQ(At(*end, "/done"), "true");
    EXPECT_EQ(At(*end, "/done_reason"), said.end.reason == FinishReason::kStop ? "stop" : "length");
    EXPECT_EQ(At(*end, "/prompt_eval_count"), std::to_string(said.prompt.size()));
    EXPECT_EQ(At(*end, "/eval_count"), std::to_string(said.ids.size()));
    EXPECT_GT(std::stoll(At(*end, "/total_duration")), 0);
  }
}

TEST_F(OllamaTest, APromptIsAChatOrRaw) {
  const std::string tail = R"(,"stream":false,"options":{"temperature":0,"num_predict":8}})";
  const json::value chat = api_.Get(kGenerate, R"({"model":"demo:latest","prompt":"What is Gyre?")" + tail);
  Question question = Greedy("What is Gyre?");
  question.max_new_tokens = 8;
  const Said said = Ask(question);
  EXPECT_EQ(At(chat, "/response"), said.text);
  std::vector<TokenId> all = said.prompt;
  all.insert(all.end(), said.ids.begin(), said.ids.end());
  EXPECT_EQ(At(chat, "/context"), Ids(all));
  const json::value raw = api_.Get(kGenerate, R"({"model":"demo","raw":true,"prompt":"Once upon a time")" + tail);
  EXPECT_EQ(At(raw, "/response"), Ask(Continue("Once upon a time", 8)).text);
  // The next prompt goes on behind an earlier answer.
  const json::value next = api_.Get(kGenerate, R"({"model":"demo","prompt":"And then?","context":)" + Ids(all) + tail);
  EXPECT_GT(std::stoul(At(next, "/prompt_eval_count")), all.size());
  EXPECT_EQ(At(next, "/context").substr(0, Ids(all).size() - 1), Ids(all).substr(0, Ids(all).size() - 1));
}

TEST_F(OllamaTest, WhoAsksForNothingLoadsTheModel) {
  for (const auto& [path, body] :
       {std::pair(kGenerate, R"({"model":"demo"})"), std::pair(kGenerate, R"({"model":"demo","prompt":""})"),
        std::pair(kOllamaChat, R"({"model":"demo","messages":[]})")}) {
    const json::value loaded = api_.Get(path, body);
    EXPECT_EQ(At(loaded, "/done"), "true");
    EXPECT_EQ(At(loaded, "/done_reason"), "load");
  }
}

TEST_F(OllamaTest, WhatIsWrongIsSaidInTheFormOfThisApi) {
  Refused(kOllamaChat, "{", 400, "JSON");
  Refused(kOllamaChat, R"({"messages":[]})", 400, "model");
  Refused(kOllamaChat, R"({"model":"none","messages":[]})", 404, "none");
  Refused(kOllamaChat, R"({"model":"demo","messages":[{"role":"bot","content":"x"}]})", 400, "role");
  Refused(kOllamaChat, R"({"model":"demo","messages":[{"role":"user","content":"x","images":["aGk="]}]})", 400,
          "images");
  Refused(kOllamaChat, R"({"model":"demo","messages":[{"role":"user","content":"x"}],"format":"xml"})", 400, "format");
  Refused(kOllamaChat, R"({"model":"demo","tools":[{}]})", 400, "tools");
  Refused(kGenerate, R"({"model":"demo","prompt":"x","template":"{{ .Prompt }}"})", 400, "template");
  Refused(kGenerate, R"({"model":"demo","prompt":"x","suffix":"y"})", 400, "suffix");
  Refused(kGenerate, R"({"model":"demo","prompt":"x","options":{"temperature":-1}})", 400, "options.temperature");
  Refused(kGenerate, R"({"model":"demo","prompt":"x","options":{"mirostat":2}})", 400, "options.mirostat");
  Refused(kGenerate, R"({"model":"demo","prompt":"x","options":{"nonsense":2}})", 400, "options.nonsense");
  Refused("/api/show", R"({"model":"none"})", 404, "none");
  Refused("/api/embed", R"({"model":"demo","input":7})", 400, "input");
  // What is empty asks for nothing.
  const json::value fine =
      api_.Get(kGenerate, R"({"model":"demo","prompt":"x","format":"","template":"","suffix":"","images":[],
      "context":[],"system":"","think":false,"stream":false,"options":{"num_predict":0,"stop":[]}})");
  EXPECT_EQ(At(fine, "/eval_count"), "0");
}

TEST_F(OllamaTest, TheModelIsDescribed) {
  const json::value tags = Json(api_.Call("GET", "/api/tags", "")->answer.body);
  EXPECT_EQ(At(tags, "/models/0/name"), "demo:latest");
  EXPECT_GT(std::stoull(At(tags, "/models/0/size")), 1000u);
  EXPECT_EQ(At(tags, "/models/0/details/format"), "gguf");
  const json::value shown = api_.Get("/api/show", R"({"name":"demo"})");
  EXPECT_EQ(At(shown, "/capabilities/0"), "completion");
  EXPECT_EQ(At(shown, "/details/family"), At(shown, "/model_info/general.architecture"));
  EXPECT_EQ(At(Json(api_.Call("GET", "/api/ps", "")->answer.body), "/models/0/model"), "demo:latest");
  EXPECT_EQ(At(Json(api_.Call("GET", "/api/version", "")->answer.body), "/gyre"), "9.9");
}

TEST_F(OllamaTest, TextsBecomeVectors) {
  const json::value two = api_.Get("/api/embed", R"({"model":"demo","input":["A cat","A dog"]})");
  ASSERT_EQ(two.at("embeddings").as_array().size(), 2u);
  const json::value one = api_.Get("/api/embeddings", R"({"model":"demo","prompt":"A cat"})");
  EXPECT_EQ(one.at("embedding"), two.at("embeddings").at(0));
  // A text that is too long is cut, unless the client wants an error.
  const std::string text(size_t{runtime_->context()} * 20, 'a');
  EXPECT_EQ(api_.Get("/api/embed", R"({"model":"demo","input":")" + text + "\"}").at("embeddings").as_array().size(),
            1u);
  Refused("/api/embed", R"({"model":"demo","truncate":false,"input":")" + text + "\"}", 400, "context");
  EXPECT_TRUE(api_.Get("/api/embed", R"({"model":"demo","input":""})").at("embeddings").as_array().empty());
}

TEST_F(OllamaTest, AStreamThatFailsOrWaitsSaysSo) {
  testing::FakeEngine engine;
  Service service(runtime_->model(), engine.Calls(), 100);
  ApiCaller api(service);
  AddOllamaRoutes(api.router, api.context);
  std::thread answers;
  const auto exchange = api.Call("POST", kGenerate, R"({"model":"demo","prompt":"x"})", [&](FakeExchange& waiting) {
    answers = std::thread([&engine, &waiting] {
      const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
      while (engine.requests().empty()) pause();
      engine.Send(1, Waiting{Unavailable("lost")});
      // A stream that fails before its first line is answered with an error's status in place of a line.
      while (waiting.writes == 0) pause();
      engine.Send(1, TokenEvent{.token = 5, .text = "Half"});
      engine.Send(1, Failed{Internal("broken")});
    });
  });
  answers.join();
  const std::string& body = exchange->answer.body;
  EXPECT_EQ(At(Json(body.substr(0, body.find('\n'))), "/response"), "") << "a sign of life: " << body;
  EXPECT_THAT(body, HasSubstr("Half"));
  EXPECT_THAT(body, ::testing::EndsWith("{\"error\":\"broken\"}\n"));
}

}  // namespace
}  // namespace gyre::http
