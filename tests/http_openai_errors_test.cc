// Requests that OpenAI's routes refuse, with their errors; and failures of the engine or the client in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/http/llama.h"
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
      {R"("messages":[])", 400, "messages"},
      {R"("messages":[7])", 400, "messages[0]"},
      {R"("messages":[{"content":"x"}])", 400, "messages[0].role"},
      {R"("messages":[{"role":"user"}])", 400, "messages[0].content"},
      {R"("messages":[{"role":"user","content":7}])", 400, "messages[0].content"},
      {R"("messages":[{"role":"critic","content":"x"}])", 400, "messages[0].role"},
      {R"("messages":[{"role":"user","content":"x","tool_call_id":"a"}])", 400, "messages[0].tool_call_id"},
      {R"("messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"a"}]}])", 400,
       "messages[0].tool_calls[0].function"},
      {R"("messages":[{"role":"user","content":"x","weight":1}])", 400, "messages[0].weight"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])", 400,
       "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", 400, "messages[0].content[0].text"},
      {R"(F,"model":"nobody")", 404, "model"},
      {R"(F,"model":7)", 400, "model"},
      {R"(F,"temperature":-1)", 400, "temperature"},
      {R"(F,"temperature":"hot")", 400, "temperature"},
      {R"(F,"top_p":1.5)", 400, "top_p"},
      {R"(F,"n":0)", 400, "n"},
      {R"(F,"n":129)", 400, "n"},
      {R"(F,"max_tokens":-2)", 400, "max_tokens"},
      {R"(F,"max_tokens":1,"max_completion_tokens":2)", 400, "max_tokens"},
      {R"(F,"stop":7)", 400, "stop"},
      {R"(F,"stop":[7])", 400, "stop"},
      {R"(F,"seed":1.5)", 400, "seed"},
      {R"(F,"logit_bias":{"x":1})", 400, "logit_bias"},
      {R"(F,"logit_bias":{"1024":1})", 400, "logit_bias"},
      {R"(F,"logit_bias":{"5":101})", 400, "logit_bias.5"},
      {R"(F,"logit_bias":{"5":1,"05":3})", 400, "logit_bias"},
      {R"(F,"logit_bias":[[5,1],[5,2]])", 400, "logit_bias"},
      {R"(F,"stop_token_ids":[1024])", 400, "stop_token_ids"},
      {R"(F,"skip_special_tokens":false)", 400, "skip_special_tokens"},
      {R"(F,"samplers":["temperature","top_k","top_p","min_p"])", 400, "samplers"},
      {R"(F,"typical_p":0.5)", 400, "typical_p"},
      {R"(F,"web_search_options":{})", 400, "web_search_options"},
      {R"(F,"continue_final_message":true,"add_generation_prompt":true)", 400, "continue_final_message"},
      {R"(F,"presence_penalty":3)", 400, "presence_penalty"},
      {R"(F,"min_tokens":-1)", 400, "min_tokens"},
      {R"(F,"priority":1000)", 400, "priority"},
      {R"(F,"stream_options":{"include_usage":true})", 400, "stream_options"},
      {R"(F,"stream":true,"stream_options":{"x":true})", 400, "stream_options.x"},
      {R"(F,"tools":[{"type":"function"}])", 400, "tools[0].function"},
      {R"(F,"tools":[{"type":"function","function":{"name":"a b"}}])", 400, "tools[0].function.name"},
      {R"(F,"tools":[{"type":"web_search"}])", 422, "tools[0].type"},
      {R"(F,"tool_choice":"required")", 400, "tool_choice"},
      {R"(F,"functions":[{}])", 400, "functions"},
      {R"(F,"response_format":{"type":"xml"})", 400, "response_format.type"},
      {R"(F,"modalities":["text","audio"])", 400, "modalities"},
      {R"(F,"audio":{"voice":"a"})", 400, "audio"},
      {R"(F,"store":true)", 400, "store"},
      {R"(F,"no_such_field":1)", 400, "no_such_field"},
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
  // What was found and what is expected, also of numbers that no integer or float holds.
  for (const auto& [field, says] : std::vector<std::pair<std::string, std::string>>{
           {"\"temperature\":-1e-9", "temperature is -1e-09; it may be 0 to 100"},
           {"\"temperature\":1e400", "temperature is beyond the range of floats; it may be 0 to 100"},
           {"\"top_p\":1.5", "top_p is 1.5; it may be 0 to 1"},
           {"\"max_tokens\":-2", "max_tokens is -2; it may be -1 to 4294967295"},
           {"\"max_tokens\":-0.5", "max_tokens must be a whole number"},
           {"\"top_k\":18446744073709551615", "top_k is 18446744073709551615; it may be -1 to 2147483647"},
           {"\"top_k\":18446744073709551616", "top_k is a number of more than 64 bits; it may be -1 to 2147483647"},
           {"\"seed\":1" + std::string(400, '0'),
            "seed is a number of more than 64 bits; it may be -9223372036854775"}}) {
    const auto wrong = api_.Post(kChat, "{" + fine + "," + field + "}");
    EXPECT_EQ(wrong->answer.status, 400) << field;
    EXPECT_THAT(At(Json(wrong->answer.body), "/error/message"), ::testing::StartsWith(says)) << field;
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

// What clients send back as another server gave it, and what asks for nothing.
TEST_F(OpenAiErrorsTest, EmptyValuesAskForNothing) {
  for (const char* more :
       {R"("tools":[],"functions":[],"tool_choice":"auto","logit_bias":{},"stop":[],"metadata":{},"audio":{})",
        R"("logprobs":false,"top_logprobs":0,"stream_options":{"include_usage":false},"stop":"","modalities":[])",
        R"("max_tokens":-1,"response_format":{"type":"text"},"grammar":"","lora":[],"t_max_predict_ms":0)",
        R"("cache_prompt":true,"keep_alive":"5m","id_slot":-1,"n_keep":0,"verbosity":"low","min_tokens":0)",
        R"("samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"])",
        R"("mirostat":0,"typical_p":1.0,"xtc_probability":0,"dry_multiplier":0,"dynatemp_range":0,"top_n_sigma":-1)",
        R"("skip_special_tokens":true,"stop_token_ids":[],"repeat_penalty":1.1,"repeat_last_n":64)",
        R"("speculative.n_max":16,"reasoning_format":"auto","chat_template_kwargs":{},"reasoning_effort":"")"}) {
    const auto chat = CallBeside(
        kChat,
        std::string(R"({"messages":[{"role":"user","content":"Hi","name":""},{"role":"assistant","content":"x",
          "tool_calls":[],"function_call":null,"audio":null,"refusal":null,"annotations":[],"reasoning":"",
          "reasoning_content":""},{"role":"user","content":"a"}],)") +
            more + "}",
        [&](uint64_t n) { engine_.Send(n, Finished{}); });
    EXPECT_EQ(chat->answer.status, 200) << more << chat->answer.body;
  }
  for (const char* more :
       {R"("suffix":"")", R"("best_of":0)", R"("echo":false,"logit_bias":{})", R"("max_tokens":0)"}) {
    const auto text = CallBeside(kComplete, std::string(R"({"prompt":"a",)") + more + "}",
                                 [&](uint64_t n) { engine_.Send(n, Finished{}); });
    EXPECT_EQ(text->answer.status, 200) << more << text->answer.body;
  }
}

TEST_F(OpenAiErrorsTest, StopsEndsAndLimitsReachTheEngine) {
  std::string stops = "\"0\"";
  for (int i = 1; i < 64; ++i) stops += ",\"" + std::to_string(i) + "\"";
  CallBeside(kComplete,
             R"({"prompt":"a","min_tokens":3,"stop_token_ids":[7,8],"logit_bias":{"5":false},"stop":[)" + stops + "]}",
             [&](uint64_t n) { engine_.Send(n, Finished{}); });
  ASSERT_EQ(engine_.requests().size(), 1u);
  const Request request = engine_.requests().front();
  EXPECT_EQ(request.min_new_tokens, 3u);
  EXPECT_EQ(request.stop_ids, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(request.stops.size(), 64u);
  const auto more = api_.Post(kComplete, R"({"prompt":"a","stop":["a",)" + stops + "]}");
  EXPECT_EQ(At(Json(more->answer.body), "/error/param"), "stop");
}

// Programs ask for a maker's model by its name, whatever server they are pointed at.
TEST_F(OpenAiErrorsTest, NamesOfHostedModelsMeanThisOne) {
  const auto status = [&](const char* name) {
    const std::string body = std::string(R"({"prompt":"a","model":")") + name + "\"}";
    if (!api_.context.Serves(name)) return api_.Post(kComplete, body)->answer.status;
    return CallBeside(kComplete, body, [&](uint64_t n) { engine_.Send(n, Finished{}); })->answer.status;
  };
  for (const char* name : {"gpt-4o", "claude-sonnet-4-5", "o3-mini", "text-embedding-3-small"})
    EXPECT_EQ(status(name), 200);
  for (const char* name : {"nobody", "ogre", "gpt4"}) EXPECT_EQ(status(name), 404) << name;
  api_.context.other_names = OtherNames::kNone;
  EXPECT_EQ(status("gpt-4o"), 404);
  api_.context.other_names = OtherNames::kAny;
  EXPECT_EQ(status("nobody"), 200);
}

TEST_F(OpenAiErrorsTest, AnAnswerThatIsNoStreamWaitsForARingOnlySoLong) {
  api_.context.ring_wait = std::chrono::milliseconds(20);
  Status ready = Unavailable("workers are missing");
  api_.context.ready = [&] { return ready; };
  const auto waits = [&](uint64_t n) { engine_.Send(n, Waiting{Unavailable("lost")}); };
  for (const auto& [path, body] :
       {std::pair(kComplete, R"({"prompt":"a"})"), std::pair(kChat, R"({"messages":[{"role":"user","content":"Hi"}]})"),
        std::pair("/v1/embeddings", R"({"input":"a"})")}) {
    const auto late = CallBeside(path, body, waits);
    EXPECT_EQ(late->answer.status, 503) << path << late->answer.body;
    EXPECT_THAT(late->answer.body, HasSubstr("s after a loss no ring serves: workers are missing; try again later"));
    ASSERT_FALSE(late->answer.headers.empty());
    EXPECT_EQ(late->answer.headers.front().first, "retry-after");
  }
  EXPECT_TRUE(engine_.cancelled(1));
  // With a ring again the answer may take its time.
  ready = absl::OkStatus();
  const auto fine = CallBeside(kComplete, R"({"prompt":"a"})", [&](uint64_t n) {
    waits(n);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    engine_.Send(n, Finished{});
  });
  EXPECT_EQ(fine->answer.status, 200) << fine->answer.body;
}

TEST_F(OpenAiErrorsTest, APromptOfAnyLengthIsTooLongInTheSameWay) {
  for (const size_t bytes : {size_t{1000}, size_t{4000000}, size_t{7000000}}) {
    const std::string text(bytes, 'a');
    for (const auto& [path, body] :
         {std::pair(kComplete, "{\"prompt\":\"" + text + "\"}"),
          std::pair(kChat, "{\"messages\":[{\"role\":\"user\",\"content\":\"" + text + "\"}]}")}) {
      const auto exchange = api_.Post(path, body);
      EXPECT_EQ(exchange->answer.status, 400) << path << bytes;
      EXPECT_EQ(At(Json(exchange->answer.body), "/error/code"), "context_length_exceeded") << path << bytes;
    }
  }
}

TEST_F(OpenAiErrorsTest, ACompletionThatCannotBeAnsweredIsRefusedByName) {
  const Case cases[] = {
      {"{}", 400, "prompt"},
      {R"({"prompt":7})", 400, "prompt"},
      {R"({"prompt":[]})", 400, "prompt"},
      {R"({"prompt":[[]]})", 400, "prompt"},
      {R"({"prompt":[1,"x"]})", 400, "prompt"},
      {R"({"prompt":["x",1]})", 400, "prompt"},
      {R"({"prompt":[1024]})", 400, "prompt"},
      {R"({"prompt":[-1]})", 400, "prompt"},
      {R"({"prompt":[1.5]})", 400, "prompt"},
      {R"({"prompt":["a","b"],"n":65})", 400, "n"},
      {R"({"prompt":"a","best_of":2})", 400, "best_of"},
      {R"({"prompt":"a","suffix":"b"})", 400, "suffix"},
      {R"({"prompt":"a","max_completion_tokens":1})", 400, "max_completion_tokens"},
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
  EXPECT_EQ(full->answer.status, 503);
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
  AddLlamaRoutes(api.router, api.context);
  for (const auto& [path, body] :
       {std::pair(kChat, R"({"messages":[{"role":"user","content":"Hi"}]})"),
        std::pair(kComplete, R"({"prompt":"Hi"})"),
        std::pair(kComplete, R"({"prompt":[1,2],"max_tokens":2,"echo":true,"stream":true})"),
        std::pair("/tokenize", R"({"content":"a"})"), std::pair("/detokenize", R"({"tokens":[1]})"),
        std::pair("/completion", R"({"prompt":["a",1]})")}) {
    const auto refused = api.Post(path, body);
    EXPECT_EQ(refused->answer.status, 422) << refused->answer.body;
    EXPECT_THAT(refused->answer.body, HasSubstr("has no tokenizer"));
    EXPECT_THAT(refused->answer.body, Not(HasSubstr(file.path())));
  }
}

}  // namespace
}  // namespace gyre::http
