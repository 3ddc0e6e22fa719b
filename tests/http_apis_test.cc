// Anthropic's and llama.cpp's routes over a real ring.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "coordinator/http/anthropic.h"
#include "coordinator/http/llama.h"
#include "coordinator/http/openai.h"
#include "fmt/format.h"
#include "model/weights.h"
#include "tests/testing/demo_runtime.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/tiny_model.h"

namespace gyre::http {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

class ApisTest : public gyre::testing::DemoRuntimeTest {
 protected:
  ApisTest() : api_(runtime_->service()) {
    api_.context.engine_stats = [] { return runtime_->engine().stats(); };
    AddAnthropicRoutes(api_.router, api_.context);
    AddLlamaRoutes(api_.router, api_.context);
  }
  ~ApisTest() override { EXPECT_TRUE(runtime_->engine().CheckIntegrity().ok()); }

  std::vector<std::pair<std::string, json::value>> Stream(const std::string& path, const std::string& body) {
    const auto exchange = api_.Post(path, body);
    EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    EXPECT_EQ(exchange->answer.content_type, "text/event-stream");
    std::vector<std::pair<std::string, json::value>> out;
    for (const SseMessage& message : Events(exchange->answer.body)) out.emplace_back(message.event, Json(message.data));
    return out;
  }

  ApiCaller api_;
};

constexpr char kMessages[] = "/v1/messages";

TEST_F(ApisTest, AMessageIsAnswered) {
  const json::value whole = api_.Get(kMessages, R"({"model":"demo","max_tokens":20,"temperature":0,
      "system":[{"type":"text","text":"Be short."}],
      "messages":[{"role":"user","content":[{"type":"text","text":"Tell me a story."}]}]})");
  EXPECT_EQ(At(whole, "/type"), "message");
  EXPECT_EQ(At(whole, "/role"), "assistant");
  EXPECT_EQ(At(whole, "/model"), "demo");
  EXPECT_EQ(At(whole, "/content/0/type"), "text");
  EXPECT_EQ(At(whole, "/stop_sequence"), "null");
  const std::string text = At(whole, "/content/0/text");
  EXPECT_GT(text.size(), 5u);
  const json::value counted = api_.Get("/v1/messages/count_tokens", R"({"model":"demo","system":"Be short.",
      "messages":[{"role":"user","content":"Tell me a story."}]})");
  EXPECT_EQ(std::stoi(At(counted, "/input_tokens")),
            std::stoi(At(whole, "/usage/input_tokens")) + std::stoi(At(whole, "/usage/cache_read_input_tokens")));

  const auto events = Stream(kMessages, R"({"model":"demo","max_tokens":20,"temperature":0,"stream":true,
      "system":"Be short.","messages":[{"role":"user","content":"Tell me a story."}]})");
  std::string streamed;
  std::vector<std::string> kinds;
  for (const auto& [name, data] : events) {
    EXPECT_EQ(name, At(data, "/type"));
    if (name == "content_block_delta") streamed += At(data, "/delta/text");
    if (kinds.empty() || kinds.back() != name) kinds.push_back(name);
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(kinds, (std::vector<std::string>{"message_start", "ping", "content_block_start", "content_block_delta",
                                             "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(At(events.front().second, "/message/usage/input_tokens"), At(counted, "/input_tokens"));
  const json::value& delta = events[events.size() - 2].second;
  EXPECT_EQ(At(delta, "/delta/stop_reason"), At(whole, "/stop_reason"));
  EXPECT_EQ(At(delta, "/usage/output_tokens"), At(whole, "/usage/output_tokens"));
}

TEST_F(ApisTest, AMessageSaysWhatEndedIt) {
  const char* asked = R"({"model":"demo","max_tokens":%s,"temperature":0,"stop_sequences":[%s],
      "messages":[{"role":"user","content":"Tell me a story."}]})";
  const auto ask = [&](const char* tokens, const char* stops) {
    char body[512];
    snprintf(body, sizeof body, asked, tokens, stops);
    return api_.Get(kMessages, body);
  };
  const json::value limited = ask("3", "");
  EXPECT_EQ(At(limited, "/stop_reason"), "max_tokens");
  EXPECT_EQ(At(limited, "/usage/output_tokens"), "3");
  const json::value stopped = ask("60", R"("e","zzzz")");
  EXPECT_EQ(At(stopped, "/stop_reason"), "stop_sequence");
  EXPECT_EQ(At(stopped, "/stop_sequence"), "e");
  EXPECT_EQ(At(stopped, "/content/0/text").find('e'), std::string::npos);
}

TEST_F(ApisTest, MessagesThatAreWrongAreRefusedByName) {
  struct Case {
    const char* body;
    int status;
    const char* word;
  };
  const Case cases[] = {
      {"{", 400, "JSON"},
      {R"({"model":"demo","max_tokens":5})", 400, "messages"},
      {R"({"model":"demo","messages":[{"role":"user","content":"a"}]})", 400, "max_tokens"},
      {R"({"model":"demo","max_tokens":"5","messages":[{"role":"user","content":"a"}]})", 400, "max_tokens"},
      {R"({"model":"demo","max_tokens":-1,"messages":[{"role":"user","content":"a"}]})", 400, "max_tokens"},
      {R"({"model":"none","max_tokens":5,"messages":[{"role":"user","content":"a"}]})", 404, "none"},
      {R"({"model":"demo","max_tokens":5,"messages":[]})", 400, "messages"},
      {R"({"model":"demo","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image"}]}]})", 400, "image"},
      {R"({"model":"demo","max_tokens":5,"messages":[{"role":"tool","content":"a"}]})", 400, "tool"},
      {R"({"model":"demo","max_tokens":5,"tools":[{"name":"x"}],"messages":[{"role":"user","content":"a"}]})", 422,
       "the chat template has no tools"},
      {R"({"model":"demo","max_tokens":5,"tools":[{}],"messages":[{"role":"user","content":"a"}]})", 400,
       "tools[0].name"},
      {R"({"model":"demo","max_tokens":5,"tools":[{"type":"computer_20250124","name":"x"}],
           "messages":[{"role":"user","content":"a"}]})",
       422, "tools[0].type"},
      {R"({"model":"demo","max_tokens":5,"unknown":1,"messages":[{"role":"user","content":"a"}]})", 400, "unknown"},
      {R"({"model":"demo","max_tokens":5,"temperature":-1,"messages":[{"role":"user","content":"a"}]})", 400,
       "temperature"},
  };
  for (const Case& c : cases) {
    const auto exchange = api_.Post(kMessages, c.body);
    EXPECT_EQ(exchange->answer.status, c.status) << c.body << exchange->answer.body;
    const json::value error = Json(exchange->answer.body);
    EXPECT_EQ(At(error, "/type"), "error");
    EXPECT_THAT(At(error, "/error/message"), HasSubstr(c.word));
  }
}

TEST_F(ApisTest, TheSystemMaySpeakWithinAConversation) {
  const auto tokens = [&](const std::string& messages) {
    return At(api_.Get("/v1/messages/count_tokens", R"({"model":"demo","messages":[)" + messages + "]}"),
              "/input_tokens");
  };
  const std::string said = R"({"role":"assistant","content":"b"})";
  EXPECT_EQ(tokens(R"({"role":"user","content":"a"},{"role":"system","content":[{"type":"text","text":"Stop."}]})"),
            tokens(R"({"role":"user","content":"a\nStop."})"));
  EXPECT_EQ(tokens(R"({"role":"user","content":"a"},)" + said + R"(,{"role":"system","content":"Stop."})"),
            tokens(R"({"role":"user","content":"a"},)" + said + R"(,{"role":"user","content":"Stop."})"));
}

TEST_F(ApisTest, OnlyEarlierThoughtsMayBeCleared) {
  const auto ask = [&](const std::string& edit) {
    return api_.Post(kMessages, R"({"model":"demo","max_tokens":1,"messages":[{"role":"user","content":"a"}],
        "context_management":{"edits":[)" +
                                    edit + "]}}");
  };
  EXPECT_EQ(ask(R"({"type":"clear_thinking_20251015","keep":"all"})")->answer.status, 200);
  const auto refused = ask(R"({"type":"clear_tool_uses_20250919"})");
  EXPECT_EQ(refused->answer.status, 400);
  EXPECT_THAT(refused->answer.body, HasSubstr("context_management.edits[0].type"));
}

// The line that Claude Code changes in every request (changing_lines.h).
TEST_F(ApisTest, ABillingLineDoesNotKeepTheCacheFromAPrompt) {
  const auto cached = [&](ApiCaller& api, const char* hash) {
    const json::value answer =
        api.Get(kMessages, fmt::format(R"({{"model":"demo","max_tokens":1,"system":[{{"type":"text","text":
        "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"}},{{"type":"text","text":
        "You answer questions about rings, and about what becomes of them when a worker is lost. Be short."}}],
        "messages":[{{"role":"user","content":"What is a ring?"}}]}})",
                                       hash));
    return std::stoi(At(answer, "/usage/cache_read_input_tokens"));
  };
  EXPECT_EQ(cached(api_, "36ee5"), 0);
  EXPECT_GT(cached(api_, "0aaa9"), 64);
  Service keeps(runtime_->model(), CallsOf(runtime_->engine()), runtime_->context(), {.keep_changing_lines = true});
  ApiCaller other(keeps);
  AddAnthropicRoutes(other.router, other.context);
  EXPECT_LE(cached(other, "8a3f1"), 32);
}

TEST_F(ApisTest, AClientThatLeavesEndsItsMessage) {
  const auto before = runtime_->engine().stats();
  const auto exchange = api_.Call("POST", kMessages, R"({"model":"demo","max_tokens":100000,"stream":true,
      "messages":[{"role":"user","content":"Tell me a story."}]})",
                                  [](FakeExchange& x) { x.leave_after_writes = 2; });
  EXPECT_LE(exchange->writes, 2);
  for (int i = 0; i < 400; ++i) {
    const auto now = runtime_->engine().stats();
    if (now.cancelled > before.cancelled && now.sequences.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "the request goes on";
}

TEST_F(ApisTest, AnErrorWithinAMessageIsItsLastEvent) {
  testing::FakeEngine engine;
  Service service(runtime_->model(), engine.Calls(), 256);
  ApiCaller api(service);
  AddAnthropicRoutes(api.router, api.context);
  std::thread answers([&engine] {
    while (engine.requests().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine.Send(1, TokenEvent{.token = 5, .text = "Half"});
    engine.Send(1, Failed{Unavailable("the ring is gone")});
  });
  const auto exchange = api.Call("POST", kMessages, R"({"model":"demo","max_tokens":9,"stream":true,
      "messages":[{"role":"user","content":"Hi"}]})");
  answers.join();
  const auto events = Events(exchange->answer.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().event, "error");
  EXPECT_EQ(At(Json(events.back().data), "/error/type"), "overloaded_error");
  EXPECT_THAT(exchange->answer.body, HasSubstr("Half"));
}

TEST_F(ApisTest, AnEngineThatStopsIsSaidByEveryRoute) {
  for (const auto& [path, body] : {std::pair{kMessages, R"({"model":"demo","max_tokens":9,
                                                 "messages":[{"role":"user","content":"Hi"}]})"},
                                   std::pair{"/completion", R"({"prompt":"Hi"})"}}) {
    testing::FakeEngine engine;
    Service service(runtime_->model(), engine.Calls(), 256);
    ApiCaller api(service);
    AddAnthropicRoutes(api.router, api.context);
    AddLlamaRoutes(api.router, api.context);
    std::thread answers([&engine] {
      while (engine.requests().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      engine.Send(1, TokenEvent{.token = 5, .text = "Half"});
      engine.Send(1, Cancelled{});
    });
    const auto exchange = api.Call("POST", path, body);
    answers.join();
    EXPECT_EQ(exchange->answers, 1) << path;
    EXPECT_EQ(exchange->answer.status, 503) << path;
    EXPECT_THAT(exchange->answer.body, HasSubstr("the server stops")) << path;
  }
}

// A template's limit is no full queue: the same question would pass it again.
TEST_F(ApisTest, ATemplateThatMakesTooMuchIsUnprocessable) {
  std::ifstream in(GYRE_DEMO_MODEL, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string own(runtime_->model().chat_template());
  std::string endless = "{% for a in range(900000000) %}{% endfor %}";
  ASSERT_GE(own.size(), endless.size());
  endless.resize(own.size(), ' ');
  bytes.replace(bytes.find(own), own.size(), endless);
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  const testing::TinyModelFile file(std::vector<std::byte>(first, first + bytes.size()));
  const auto model = OpenModel(file.path());
  ASSERT_TRUE(model.ok()) << model.status();
  testing::FakeEngine engine;
  Service service(**model, engine.Calls(), 256);
  ApiCaller api(service);
  AddAnthropicRoutes(api.router, api.context);
  AddLlamaRoutes(api.router, api.context);
  const std::string messages = R"("messages":[{"role":"user","content":"Hi"}])";
  for (const auto& [path, more] :
       {std::pair{kMessages, R"(,"model":"demo","max_tokens":9})"},
        std::pair{"/v1/messages/count_tokens", R"(,"model":"demo"})"}, std::pair{"/apply-template", "}"}}) {
    const auto exchange = api.Post(path, "{" + messages + more);
    EXPECT_EQ(exchange->answer.status, 422) << path << exchange->answer.body;
    EXPECT_THAT(exchange->answer.body, HasSubstr("the template makes more than")) << path;
    EXPECT_TRUE(exchange->answer.headers.empty()) << path << ": it is not to be tried again";
  }
}

TEST_F(ApisTest, LlamaCompletionStreamsWhatItAnswersWhole) {
  const json::value whole =
      api_.Get("/completion", R"({"prompt":"Once upon a time","n_predict":16,"temperature":0,"return_tokens":true})");
  EXPECT_EQ(At(whole, "/stop"), "true");
  EXPECT_EQ(At(whole, "/tokens_predicted"), std::to_string(whole.at("tokens").as_array().size()));
  EXPECT_EQ(At(whole, "/stop_type"), At(whole, "/tokens_predicted") == "16" ? "limit" : "eos");
  EXPECT_EQ(At(whole, "/timings/predicted_n"), At(whole, "/tokens_predicted"));
  const auto events = Stream(
      "/completion", R"({"prompt":"Once upon a time","n_predict":16,"temperature":0,"stream":true,"n_probs":2})");
  std::string text;
  for (const auto& [name, data] : events) {
    EXPECT_EQ(name, "");
    text += At(data, "/content");
  }
  EXPECT_EQ(text, At(whole, "/content"));
  EXPECT_EQ(At(events.back().second, "/stop"), "true");
  const json::value& first = events.front().second;
  EXPECT_EQ(At(first, "/completion_probabilities/0/top_logprobs/0/id"), At(first, "/tokens/0"));  // greedy

  const json::value ids = api_.Get("/tokenize", R"({"content":" upon a time"})");
  const json::value parts = api_.Get("/completion", R"({"prompt":["Once",)" + json::serialize(ids.at("tokens").at(0)) +
                                                        R"(],"n_predict":1,"temperature":0})");
  EXPECT_EQ(At(parts, "/tokens_predicted"), "1");
}

TEST_F(ApisTest, LlamaRefusesWhatItDoesNotKnow) {
  struct Case {
    const char* body;
    int status;
    const char* word;
  };
  const Case cases[] = {
      {R"({})", 400, "prompt"},
      {R"({"prompt":5})", 400, "prompt"},
      {R"({"prompt":["a",-1]})", 400, "prompt"},
      {R"({"prompt":"a","grammar":"root ::= x"})", 400, "rule"},
      {R"({"prompt":"a","mirostat":2})", 400, "mirostat"},
      {R"({"prompt":"a","n_probs":50})", 400, "n_probs"},
      {R"({"prompt":"a","n_cmpl":2})", 400, "n_cmpl is not supported: there is one answer"},
      {R"({"prompt":"a","n_cmpl":0})", 400, "n_cmpl is not supported: there is one answer"},
      {R"({"prompt":"a","n":3})", 400, "n is not supported: there is one answer"},
      {R"({"prompt":"a","n_cmpl":1.5})", 400, "n_cmpl must be a whole number"},
      {R"({"prompt":"a","n_cmpl":"2"})", 400, "n_cmpl must be a whole number"},
      {R"({"prompt":"a","logit_bias":[["a",1]]})", 400, "logit_bias"},
      {R"({"prompt":"a","logit_bias":{"999999999":1}})", 400, "999999999"},
  };
  for (const Case& c : cases) {
    const auto exchange = api_.Post("/completion", c.body);
    EXPECT_EQ(exchange->answer.status, c.status) << c.body << exchange->answer.body;
    EXPECT_THAT(exchange->answer.body, HasSubstr(c.word));
  }
  const json::value fine = api_.Get("/completion", R"({"prompt":"a","n_predict":1,"mirostat":0,"typical_p":1.0,
      "cache_prompt":true,"samplers":null,"logit_bias":[[5,false],[6,1.5]],"n_cmpl":1,"n":1})");
  EXPECT_EQ(At(fine, "/tokens_predicted"), "1");
}

TEST_F(ApisTest, LlamaTakesItsOwnDefaultsBack) {
  json::object body =
      Json(api_.Call("GET", "/props", "")->answer.body).at("default_generation_settings").at("params").as_object();
  body["prompt"] = "a";
  body["n_predict"] = 1;
  EXPECT_EQ(At(api_.Get("/completion", json::serialize(body)), "/tokens_predicted"), "1");
  // Those that another server names.
  EXPECT_EQ(
      At(api_.Get("/completion", R"({"prompt":"a","n_predict":1,"max_tokens":1,"seed":4294967295,"top_n_sigma":-1.0,
      "grammar":"","grammar_lazy":false,"grammar_triggers":[],"preserved_tokens":[],"lora":[],"t_max_predict_ms":0,
      "chat_format":"Content-only","reasoning_format":"none","reasoning_in_content":false,"thinking_forced_open":false,
      "samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"],
      "speculative.n_max":16,"speculative.p_min":0.75,"timings_per_token":false,"post_sampling_probs":false,
      "logit_bias":[],"n_probs":0,"min_keep":0,"stop":[],"response_fields":[],"typical_p":1.0,"mirostat":0,
      "mirostat_tau":5.0,"dry_sequence_breakers":["\\n"]})"),
         "/tokens_predicted"),
      "1");
  EXPECT_EQ(At(api_.Get("/completion", R"({"prompt":"a","n_predict":0})"), "/tokens_predicted"), "0");
}

TEST_F(ApisTest, WhoeverForbidsAllTokensIsTold) {
  json::array all;
  for (int i = 0; i < runtime_->model().spec().vocab; ++i) all.push_back(json::array({i, false}));
  json::object body{{"prompt", "a"}, {"n_predict", 2}, {"logit_bias", all}};
  const auto exchange = api_.Post("/completion", json::serialize(body));
  EXPECT_EQ(exchange->answer.status, 400);
  EXPECT_THAT(exchange->answer.body, HasSubstr("logit_bias"));
  const auto large = api_.Post("/completion", R"({"prompt":"a","logit_bias":[[5,1e308]]})");
  EXPECT_THAT(large->answer.body, HasSubstr("logit_bias.5 is 1e+308")) << large->answer.body;
}

// The answer goes on where the last message ends, as if the model had written that itself.
TEST_F(ApisTest, AnAnswerThatIsBegunIsContinued) {
  const auto ask = [&](const std::string& begun, int n) {
    return api_.Get(kMessages, R"({"model":"claude-sonnet-4-5","max_tokens":)" + std::to_string(n) +
                                   R"(,"temperature":0,
      "messages":[{"role":"user","content":"Tell me a story."})" +
                                   begun + "]}");
  };
  const std::string whole = At(ask("", 24), "/content/0/text");
  const std::string begun = whole.substr(0, whole.find(' ', 8));
  const json::value rest = ask(R"(,{"role":"assistant","content":")" + begun + R"("})", 24);
  EXPECT_EQ((begun + At(rest, "/content/0/text")).substr(0, whole.size()), whole);
  EXPECT_EQ(At(ask("", 0), "/usage/output_tokens"), "0");
  EXPECT_EQ(At(ask("", 0), "/stop_reason"), "max_tokens");
}

TEST_F(ApisTest, LlamaTokensAndTemplates) {
  const json::value ids = api_.Get("/tokenize", R"({"content":"Grüße 😀","with_pieces":true})");
  json::array plain;
  for (const json::value& token : ids.at("tokens").as_array()) plain.push_back(token.at("id"));
  json::object body;
  body["tokens"] = std::move(plain);
  EXPECT_EQ(At(api_.Get("/detokenize", json::serialize(body)), "/content"), "Grüße 😀");
  EXPECT_EQ(api_.Post("/detokenize", R"({"tokens":[99999999]})")->answer.status, 400);
  // The prompt is the chat's: null is no text, parts are one text.
  const json::value texts = api_.Get("/apply-template", R"({"messages":[{"role":"user","content":"ab"},
      {"role":"assistant","content":""},{"role":"user","content":"c"}]})");
  const json::value parts = api_.Get("/apply-template", R"({"messages":[{"role":"user","content":[
      {"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":null},
      {"role":"user","content":"c"}]})");
  EXPECT_EQ(texts, parts);
  const json::value prompt = api_.Get("/apply-template", R"({"messages":[{"role":"user","content":"Hello there"}]})");
  EXPECT_THAT(At(prompt, "/prompt"), HasSubstr("Hello there"));
  const auto props = api_.Call("GET", "/props", "");
  EXPECT_EQ(At(Json(props->answer.body), "/model_path"), "demo.gguf");
  EXPECT_EQ(At(Json(props->answer.body), "/total_slots"), "64");
  EXPECT_THAT(props->answer.body, HasSubstr(R"("temperature":0.8,)")) << "a number as a person writes it";
  EXPECT_THAT(props->answer.body, HasSubstr(R"("min_p":0.05,)"));
  EXPECT_TRUE(Json(api_.Call("GET", "/slots", "")->answer.body).is_array());
}

// With --context-shift `length` means that the request's own limit is reached, and the usage tells what happened.
TEST(ContextShiftTest, AFullContextIsTold) {
  RuntimeOptions options;
  options.model = GYRE_DEMO_MODEL;
  options.threads = 1;
  options.quiet = true;
  options.ctx = 32;
  options.context_shift = true;
  const auto runtime = Runtime::Open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ApiCaller api((*runtime)->service());
  AddOpenAiRoutes(api.router, api.context);
  AddLlamaRoutes(api.router, api.context);
  json::value answer = api.Get("/v1/completions", R"({"model":"demo","prompt":"Once","max_tokens":90,"temperature":0,
      "ignore_eos":true})");
  EXPECT_EQ(At(answer, "/choices/0/finish_reason"), "length");
  EXPECT_EQ(At(answer, "/usage/completion_tokens"), "90");
  EXPECT_GE(std::stoi(At(answer, "/usage/context_shifts")), 3);
  const auto chunks = api.Stream("/v1/completions", R"({"model":"demo","prompt":"Once","max_tokens":90,"temperature":0,
      "ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(At(chunks.back(), "/usage/context_shifts"), At(answer, "/usage/context_shifts"));
  // A stop string may lie across a shift: the token that fills the context is followed by one that begins after it.
  const int room = 32 - std::stoi(At(answer, "/usage/prompt_tokens"));
  const auto text = [&](int tokens, const std::string& stop) {
    return api.Get("/v1/completions", fmt::format(R"({{"model":"demo","prompt":"Once","max_tokens":{},"seed":3,
        "temperature":1.5,"top_p":1,"min_p":0,"ignore_eos":true,"stop":{}}})",
                                                  tokens, stop));
  };
  const std::string until = At(text(room + 1, "[]"), "/choices/0/text"), whole = At(text(90, "[]"), "/choices/0/text");
  ASSERT_GT(until.size(), 8u);
  const std::string across = whole.substr(until.size() - 5, 10);
  ASSERT_EQ(whole.find(across), until.size() - 5) << "the text repeats itself: another seed is needed";
  const json::value stopped = text(90, json::serialize(json::value(across)));
  EXPECT_EQ(At(stopped, "/choices/0/text"), whole.substr(0, until.size() - 5));
  EXPECT_EQ(At(stopped, "/choices/0/finish_reason"), "stop");
  EXPECT_EQ(At(stopped, "/usage/context_shifts"), "1");
  // Without a limit of its own a request has four contexts.
  answer = api.Get("/v1/completions", R"({"model":"demo","prompt":"Once","temperature":0,"ignore_eos":true})");
  EXPECT_EQ(At(answer, "/usage/completion_tokens"), "128");
  answer = api.Get("/completion", R"({"prompt":"Once","n_predict":60,"temperature":0,"ignore_eos":true})");
  EXPECT_EQ(At(answer, "/truncated"), "true");
  answer = api.Get("/completion", R"({"prompt":"Once","n_predict":4,"temperature":0})");
  EXPECT_EQ(At(answer, "/truncated"), "false");
  EXPECT_EQ(
      api.Post("/v1/completions", R"({"model":"demo","prompt":")" + std::string(200, 'x') + R"("})")->answer.status,
      400);
}

}  // namespace
}  // namespace gyre::http
