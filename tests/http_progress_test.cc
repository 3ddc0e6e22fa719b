// What a client sees while its prompt is computed, and what becomes of the prompt when it leaves.
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/http/anthropic.h"
#include "coordinator/http/llama.h"
#include "coordinator/http/openai.h"
#include "model/weights.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"

namespace gyre::http {
namespace {

constexpr char kMessagesPath[] = "/v1/messages";

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() {
    AddOpenAiRoutes(api_.router, api_.context);
    AddAnthropicRoutes(api_.router, api_.context);
    AddLlamaRoutes(api_.router, api_.context);
  }
  // Runs `work` beside the call, as the engine's thread does.
  std::unique_ptr<FakeExchange> CallBeside(const char* path, const std::string& body,
                                           const std::function<void(FakeExchange&)>& work) {
    FakeExchange* exchange = nullptr;
    const size_t before = engine_.requests().size();
    std::thread thread([&] {
      while (engine_.requests().size() == before) std::this_thread::yield();
      work(*exchange);
    });
    auto done = api_.Call("POST", path, body, [&](FakeExchange& begun) { exchange = &begun; });
    thread.join();
    return done;
  }

  std::shared_ptr<const Model> model_ = *OpenModel(GYRE_DEMO_MODEL);
  gyre::testing::FakeEngine engine_;
  Service service_{*model_, engine_.Calls(), 200};
  ApiCaller api_{service_};
};

TEST_F(ProgressTest, AStreamThatAsksForItHasItInChunks) {
  const std::pair<const char*, const char*> calls[] = {{kChat, R"("messages":[{"role":"user","content":"Hi"}])"},
                                                       {kComplete, R"("prompt":"Hi")"},
                                                       {"/completion", R"("prompt":"Hi")"}};
  for (const auto& [path, body] : calls) {
    SCOPED_TRACE(path);
    const auto n = static_cast<uint64_t>(engine_.requests().size() + 1);
    const auto exchange =
        CallBeside(path, std::string("{\"stream\":true,\"return_progress\":true,") + body + "}", [&](FakeExchange&) {
          for (const uint32_t processed : {48u, 90u}) {
            engine_.Send(n, PromptProgress{.total = 90,
                                           .cached = 16,
                                           .processed = processed,
                                           .time = std::chrono::milliseconds(2 * processed)});
          }
          engine_.Send(n, TokenEvent{.token = 5, .text = "x"});
          engine_.Send(n, Finished{});
        });
    EXPECT_TRUE(engine_.requests().back().progress);
    std::vector<std::string> seen;
    size_t first_text = 0, at = 0;
    for (const SseMessage& event : Events(exchange->answer.body)) {
      ++at;
      if (event.data == "[DONE]") continue;
      const auto chunk = Json(event.data);
      if (chunk.as_object().contains("prompt_progress")) {
        EXPECT_EQ(first_text, 0u) << "all of it comes before the text";
        if (path == std::string_view("/completion")) {
          EXPECT_EQ(At(chunk, "/content"), "");
          EXPECT_EQ(At(chunk, "/stop"), "false");
        } else {
          EXPECT_EQ(At(chunk, "/choices/0/index"), "0");
          EXPECT_EQ(At(chunk, "/choices/0/finish_reason"), "null");
        }
        seen.push_back(At(chunk, "/prompt_progress"));
      } else if (event.data.find("\"x\"") != std::string::npos) {
        first_text = at;
      }
    }
    EXPECT_GT(first_text, 0u);
    EXPECT_EQ(seen, (std::vector<std::string>{R"({"total":90,"cache":16,"processed":48,"time_ms":96})",
                                              R"({"total":90,"cache":16,"processed":90,"time_ms":180})"}));
  }
}

TEST_F(ProgressTest, NobodyElseIsToldOfIt) {
  for (const char* more :
       {"", ",\"return_progress\":true", ",\"stream\":true", ",\"stream\":true,\"return_progress\":false"}) {
    const auto n = static_cast<uint64_t>(engine_.requests().size() + 1);
    CallBeside(kChat, std::string(R"({"messages":[{"role":"user","content":"Hi"}])") + more + "}",
               [&](FakeExchange&) { engine_.Send(n, Finished{}); });
    EXPECT_FALSE(engine_.requests().back().progress) << more;
  }
}

TEST_F(ProgressTest, AMessageThatTakesAWhileHasPings) {
  api_.context.stream_ping = std::chrono::milliseconds(2);
  const auto exchange = CallBeside(
      kMessagesPath, R"({"model":"demo","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hi"}]})",
      [&](FakeExchange& asked) {
        while (asked.writes < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        engine_.Send(1, TokenEvent{.token = 5, .text = "x"});
        engine_.Send(1, Finished{});
      });
  std::vector<std::string> kinds;
  for (const SseMessage& event : Events(exchange->answer.body)) {
    EXPECT_EQ(At(Json(event.data), "/type"), event.event);
    kinds.push_back(event.event);
  }
  ASSERT_GE(kinds.size(), 5u);
  EXPECT_EQ(kinds[0], "message_start");
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(kinds[i], "ping") << "the first belongs to the beginning";
  EXPECT_EQ(kinds.back(), "message_stop");
}

// Before the first event, while the prompt is computed.
TEST_F(ProgressTest, AClientThatLeavesEndsItsPrompt) {
  const std::pair<const char*, const char*> calls[] = {
      {kChat, R"({"messages":[{"role":"user","content":"Hi"}]})"},
      {kChat, R"({"stream":true,"messages":[{"role":"user","content":"Hi"}]})"},
      {"/v1/responses", R"({"stream":true,"input":"Hi"})"},
      {kMessagesPath, R"({"model":"demo","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]})"},
      {kMessagesPath, R"({"model":"demo","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hi"}]})"}};
  uint64_t n = 0;
  for (const auto& [path, body] : calls) {
    CallBeside(path, body, [](FakeExchange& asked) { asked.Leave(); });
    EXPECT_TRUE(engine_.cancelled(++n)) << path << body;
  }
}

}  // namespace
}  // namespace gyre::http
