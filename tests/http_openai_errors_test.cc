// Requests that OpenAI's routes refuse, with their errors; and failures of the engine or the client in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/http/openai.h"
#include "model/weights.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/tiny_model.h"

namespace gyre::http {
namespace {

namespace json = boost::json;
using gyre::testing::FakeEngine;
using ::testing::HasSubstr;
using ::testing::Not;

class OpenAiErrorsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = OpenModel(GYRE_DEMO_MODEL);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
  }
  OpenAiErrorsTest() : service_(*model_, engine_.Calls(), 100), api_(service_) {
    AddOpenAiRoutes(api_.router, api_.context);
  }
  // Runs `work` beside the call, as the engine's thread does, for the request that is the nth.
  std::unique_ptr<FakeExchange> CallBeside(const char* path, const std::string& body,
                                           std::function<void(uint64_t n)> work,
                                           const std::function<void(FakeExchange&)>& prepare = {}) {
    const uint64_t n = engine_.requests().size() + 1;
    std::thread thread([&] {
      while (engine_.requests().size() < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      work(n);
    });
    auto exchange = api_.Call("POST", path, body, prepare);
    thread.join();
    return exchange;
  }

  static inline std::shared_ptr<const Model> model_;
  FakeEngine engine_;
  Service service_;
  ApiCaller api_;
};

struct Case {
  const char* body;
  int status;
  const char* param;
};

TEST_F(OpenAiErrorsTest, AChatThatCannotBeAnsweredIsRefusedByName) {
  const std::string fine = R"("messages":[{"role":"user","content":"Hi"}])";
  const Case cases[] = {
      {"\"n\":1", 400, "messages"},
      {R"("messages":{})", 400, "messages"},
      {R"("messages":[])", 422, "messages"},
      {R"("messages":[7])", 400, "messages[0]"},
      {R"("messages":[{"content":"x"}])", 400, "messages[0].role"},
      {R"("messages":[{"role":"user"}])", 400, "messages[0].content"},
      {R"("messages":[{"role":"user","content":7}])", 400, "messages[0].content"},
      {R"("messages":[{"role":"tool","content":"x","tool_call_id":"a"}])", 422, "messages[0].role"},
      {R"("messages":[{"role":"assistant","content":"x","tool_calls":[]}])", 422, "messages[0].tool_calls"},
      {R"("messages":[{"role":"user","content":"x","weight":1}])", 422, "messages[0].weight"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])", 422,
       "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", 400, "messages[0].content[0].text"},
      {R"(F,"model":"gpt-4")", 404, "model"},
      {R"(F,"model":7)", 400, "model"},
      {R"(F,"temperature":-1)", 422, "temperature"},
      {R"(F,"temperature":"hot")", 400, "temperature"},
      {R"(F,"top_p":1.5)", 422, "top_p"},
      {R"(F,"n":0)", 422, "n"},
      {R"(F,"n":129)", 422, "n"},
      {R"(F,"max_tokens":0)", 422, "max_tokens"},
      {R"(F,"max_tokens":1,"max_completion_tokens":2)", 422, "max_tokens"},
      {R"(F,"stop":7)", 400, "stop"},
      {R"(F,"stop":[7])", 400, "stop"},
      {R"(F,"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", 422, "stop"},
      {R"(F,"seed":1.5)", 400, "seed"},
      {R"(F,"logit_bias":{"x":1})", 422, "logit_bias"},
      {R"(F,"logit_bias":{"1024":1})", 422, "logit_bias"},
      {R"(F,"logit_bias":{"5":101})", 422, "logit_bias.5"},
      {R"(F,"presence_penalty":3)", 422, "presence_penalty"},
      {R"(F,"min_tokens":3)", 422, "min_tokens"},
      {R"(F,"priority":1000)", 422, "priority"},
      {R"(F,"stream_options":{"include_usage":true})", 422, "stream_options"},
      {R"(F,"stream":true,"stream_options":{"x":true})", 422, "stream_options.x"},
      {R"(F,"tools":[{"type":"function"}])", 422, "tools"},
      {R"(F,"tool_choice":"auto")", 422, "tool_choice"},
      {R"(F,"functions":[{}])", 422, "functions"},
      {R"(F,"response_format":{"type":"json_object"})", 422, "response_format.type"},
      {R"(F,"modalities":["text","audio"])", 422, "modalities"},
      {R"(F,"audio":{})", 422, "audio"},
      {R"(F,"store":true)", 422, "store"},
      {R"(F,"no_such_field":1)", 422, "no_such_field"},
      {R"(F,"chat_template_kwargs":[])", 400, "chat_template_kwargs"},
  };
  for (const Case& c : cases) {
    std::string body = std::string("{") + c.body + "}";
    if (const size_t at = body.find("{F"); at == 0) body.replace(1, 1, fine);
    const auto exchange = api_.Post(kChat, body);
    EXPECT_EQ(exchange->answer.status, c.status) << body << exchange->answer.body;
    const json::value answer = Json(exchange->answer.body);
    EXPECT_EQ(At(answer, "/error/param"), c.param) << body;
    EXPECT_EQ(At(answer, "/error/type"), "invalid_request_error");
    EXPECT_THAT(At(answer, "/error/message"), ::testing::Not("")) << body;
  }
  EXPECT_EQ(api_.Post(kChat, "{")->answer.status, 400);
  const auto stop = api_.Post(kChat, "{" + fine + ",\"stop\":[\"" + std::string(4097, 'x') + "\"]}");
  EXPECT_EQ(At(Json(stop->answer.body), "/error/param"), "stop");
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(OpenAiErrorsTest, WhatChangesNothingIsTaken) {
  const auto exchange = CallBeside(kChat, R"({"messages":[{"role":"user","content":"Hi","name":null}],"model":"other",
      "user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","parallel_tool_calls":true,"tools":[],
      "tool_choice":"none","function_call":"none","response_format":{"type":"text"},"modalities":["text"],"logprobs":null,
      "safety_identifier":"x","prompt_cache_key":"y","chat_template_kwargs":{"enable_thinking":false}})",
                                   [&](uint64_t n) { engine_.Send(n, Finished{}); });
  EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
  EXPECT_EQ(At(Json(exchange->answer.body), "/model"), "other");
}

TEST_F(OpenAiErrorsTest, ACompletionThatCannotBeAnsweredIsRefusedByName) {
  const Case cases[] = {
      {"{}", 400, "prompt"},
      {R"({"prompt":7})", 400, "prompt"},
      {R"({"prompt":[]})", 422, "prompt"},
      {R"({"prompt":[[]]})", 422, "prompt"},
      {R"({"prompt":[1,"x"]})", 400, "prompt"},
      {R"({"prompt":["x",1]})", 400, "prompt"},
      {R"({"prompt":[1024]})", 422, "prompt"},
      {R"({"prompt":[-1]})", 422, "prompt"},
      {R"({"prompt":[1.5]})", 400, "prompt"},
      {R"({"prompt":["a","b"],"n":65})", 422, "n"},
      {R"({"prompt":"a","best_of":2})", 422, "best_of"},
      {R"({"prompt":"a","suffix":"b"})", 422, "suffix"},
      {R"({"prompt":"a","max_completion_tokens":1})", 422, "max_completion_tokens"},
  };
  for (const Case& c : cases) {
    const auto exchange = api_.Post(kComplete, c.body);
    EXPECT_EQ(exchange->answer.status, c.status) << c.body << exchange->answer.body;
    EXPECT_EQ(At(Json(exchange->answer.body), "/error/param"), c.param) << c.body;
  }
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(OpenAiErrorsTest, APromptLongerThanTheContextIsRefusedWithTheNumbers) {
  std::string ids = "1";
  for (int i = 0; i < 100; ++i) ids += ",1";
  const auto exchange = api_.Post(kComplete, "{\"prompt\":[" + ids + "]}");
  EXPECT_EQ(exchange->answer.status, 400);
  const json::value answer = Json(exchange->answer.body);
  EXPECT_EQ(At(answer, "/error/code"), "context_length_exceeded");
  EXPECT_THAT(At(answer, "/error/message"), HasSubstr("101 tokens, the context holds 100"));
  engine_.refusal = OutOfRange("the prompt has 50 tokens, the KV cache holds 40");  // the engine's own limit
  EXPECT_EQ(At(Json(api_.Post(kComplete, R"({"prompt":"a"})")->answer.body), "/error/code"), "context_length_exceeded");
}

TEST_F(OpenAiErrorsTest, AFullQueueIsSaidWithRetryAfter) {
  engine_.refusal = ResourceExhausted("the queue is full");
  const auto full = api_.Post(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})");
  EXPECT_EQ(full->answer.status, 429);
  EXPECT_EQ(full->answer.headers.at(0).first, "retry-after");
  engine_.refusal = Unavailable("no ring");
  EXPECT_EQ(api_.Post(kComplete, R"({"prompt":"a"})")->answer.status, 503);
}

TEST_F(OpenAiErrorsTest, AFailureBeforeTheFirstEventHasAStatusOfItsOwn) {
  for (const char* stream : {"true", "false"}) {
    const auto exchange = CallBeside(kComplete, std::string(R"({"prompt":"a","stream":)") + stream + "}",
                                     [&](uint64_t n) { engine_.Send(n, Failed{DeadlineExceeded("too late")}); });
    EXPECT_EQ(exchange->answer.status, 503) << stream;
    EXPECT_FALSE(exchange->streamed);
    EXPECT_EQ(At(Json(exchange->answer.body), "/error/message"), "too late");
  }
}

TEST_F(OpenAiErrorsTest, AFailureInTheMiddleOfAStreamIsItsLastEvent) {
  FakeExchange* stream = nullptr;
  const auto exchange = CallBeside(
      kChat, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"n":2})",
      [&](uint64_t) {
        while (engine_.requests().size() < 2) std::this_thread::yield();
        engine_.Send(1, TokenEvent{.token = 5, .text = "a\"\n"});
        while (!stream->streamed) std::this_thread::yield();
        engine_.Send(2, Failed{Internal("a stage failed")});
        engine_.Send(1, TokenEvent{.token = 5, .text = "late"});
      },
      [&](FakeExchange& begun) { stream = &begun; });
  EXPECT_EQ(exchange->answer.status, 200);
  const std::vector<SseMessage> events = Events(exchange->answer.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(At(Json(events[2].data), "/choices/0/delta/content"), "a\"\n");
  EXPECT_EQ(At(Json(events.back().data), "/error/message"), "a stage failed");
  EXPECT_EQ(At(Json(events.back().data), "/error/type"), "server_error");
  EXPECT_TRUE(engine_.cancelled(1));
}

TEST_F(OpenAiErrorsTest, AChoiceThatFailsCancelsTheOthersAtOnce) {
  FakeExchange* stream = nullptr;
  CallBeside(
      kChat, R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"n":3})",
      [&](uint64_t) {
        while (engine_.requests().size() < 3) std::this_thread::yield();
        engine_.Send(1, TokenEvent{.token = 5, .text = "a"});
        while (!stream->streamed) std::this_thread::yield();
        stream->blocked = true;  // the client takes nothing, not even the error
        engine_.Send(2, Failed{Internal("a stage failed")});
        for (int i = 0; i < 4000 && !engine_.cancelled(3); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_TRUE(engine_.cancelled(1));
        EXPECT_TRUE(engine_.cancelled(3));
        stream->blocked = false;
      },
      [&](FakeExchange& begun) { stream = &begun; });
}

TEST_F(OpenAiErrorsTest, AStreamThatWaitsSendsComments) {
  api_.context.stream_ping = std::chrono::milliseconds(2);
  const auto exchange = CallBeside(kComplete, R"({"prompt":"a","stream":true})", [&](uint64_t n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    engine_.Send(n, TokenEvent{.token = 5, .text = "x"});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    engine_.Send(n, Failed{Internal("a stage failed")});
  });
  EXPECT_TRUE(exchange->streamed);
  EXPECT_EQ(exchange->answer.body.substr(0, 2), ": ");
  const std::vector<SseMessage> events = Events(exchange->answer.body);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(At(Json(events[0].data), "/choices/0/text"), "x");
  EXPECT_EQ(At(Json(events[1].data), "/error/message"), "a stage failed");
  EXPECT_GE(exchange->writes, 2);
}

TEST_F(OpenAiErrorsTest, OneWriteCarriesAllThatIsThere) {
  const auto exchange = CallBeside(kComplete, R"({"prompt":"a","stream":true})", [&](uint64_t) {
    for (int i = 0; i < 1000; ++i) engine_.Send(1, TokenEvent{.token = 5, .text = "x"});
    engine_.Send(1, Finished{.reason = FinishReason::kLength, .text = "y"});
  });
  std::string text;
  const auto events = Events(exchange->answer.body);
  for (const SseMessage& event : events) {
    if (event.data != "[DONE]") text += At(Json(event.data), "/choices/0/text");
  }
  EXPECT_EQ(text, std::string(1000, 'x') + "y");
  EXPECT_LT(exchange->writes, 500);
}

TEST_F(OpenAiErrorsTest, ASlowClientHoldsItsSequenceBack) {
  Service service(*model_, engine_.Calls(), 100, {.streams = {.stream_bytes = 20'000}});
  ApiCaller api(service);
  AddOpenAiRoutes(api.router, api.context);
  FakeExchange* client = nullptr;
  int sent = 0;
  std::thread engine([&] {
    while (engine_.requests().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (; !engine_.held(1) && sent < 10'000; ++sent) {
      engine_.Send(1, TokenEvent{.token = 5, .text = std::string(1000, 'x')});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the route gets to its next write
    }
    EXPECT_TRUE(engine_.held(1));
    client->blocked = false;
    while (engine_.held(1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine_.Send(1, Finished{});
  });
  const auto exchange = api.Call("POST", kComplete, R"({"prompt":"a","stream":true})", [&](FakeExchange& x) {
    x.blocked = true;
    client = &x;
  });
  engine.join();
  size_t bytes = 0;
  for (const SseMessage& event : Events(exchange->answer.body)) {
    if (event.data != "[DONE]") bytes += At(Json(event.data), "/choices/0/text").size();
  }
  EXPECT_EQ(bytes, sent * 1000u);  // nothing is lost
  EXPECT_FALSE(engine_.cancelled(1));
}

TEST_F(OpenAiErrorsTest, WhoAsksReachesTheEngine) {
  api_.caller.tenant = 77;
  for (const char* path : {kChat, kComplete, "/v1/responses", "/v1/embeddings"}) {
    const char* body = path == std::string(kChat)       ? R"({"messages":[{"role":"user","content":"Hi"}],"priority":3)"
                       : path == std::string(kComplete) ? R"({"prompt":"Hi","priority":3)"
                                                        : R"({"input":"Hi","priority":3)";
    for (const char* salt : {"}", ",\"cache_salt\":\"a\"}", ",\"cache_salt\":\"b\"}"}) {
      CallBeside(path, std::string(body) + salt, [&](uint64_t n) { engine_.Send(n, Finished{}); });
      EXPECT_EQ(engine_.requests().back().tenant, 77u) << path;
      EXPECT_EQ(engine_.requests().back().priority, 3) << path;
    }
    const std::vector<Request> requests = engine_.requests();
    const size_t n = requests.size();
    EXPECT_EQ(requests[n - 3].cache_salt, 0u);
    EXPECT_NE(requests[n - 2].cache_salt, 0u);
    EXPECT_NE(requests[n - 2].cache_salt, requests[n - 1].cache_salt);
  }
}

TEST_F(OpenAiErrorsTest, AClientThatLeavesCancels) {
  for (const char* stream : {"true", "false"}) {
    const uint64_t first = engine_.requests().size() + 1;
    FakeExchange* left = nullptr;
    const auto exchange = CallBeside(
        kComplete, std::string(R"({"prompt":"a","stream":)") + stream + "}",
        [&](uint64_t n) {
          engine_.Send(n, TokenEvent{.token = 5, .text = "x"});
          left->Leave();
        },
        [&](FakeExchange& x) { left = &x; });
    EXPECT_TRUE(engine_.cancelled(first)) << stream;
  }
}

// Requests that need a tokenizer are refused; ids are taken. No client learns the file's path.
TEST_F(OpenAiErrorsTest, AModelWithoutTokenizerTakesIdsOnly) {
  const gyre::testing::TinyModelFile file(gyre::testing::TinyOptions{});
  const auto model = OpenModel(file.path());
  ASSERT_TRUE(model.ok()) << model.status();
  Service service(**model, engine_.Calls(), 100);
  ApiCaller api(service);
  AddOpenAiRoutes(api.router, api.context);
  for (const auto& [path, body] : {std::pair(kChat, R"({"messages":[{"role":"user","content":"Hi"}]})"),
                                   std::pair(kComplete, R"({"prompt":"Hi"})")}) {
    const auto refused = api.Post(path, body);
    EXPECT_EQ(refused->answer.status, 422) << refused->answer.body;
    EXPECT_THAT(refused->answer.body, HasSubstr("has no tokenizer"));
    EXPECT_THAT(refused->answer.body, Not(HasSubstr(file.path())));
  }
}

}  // namespace
}  // namespace gyre::http
