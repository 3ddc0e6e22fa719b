// A reasoning model's thoughts stand beside its answer in OpenAI's routes.
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/http/openai.h"
#include "model/weights.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/tiny_model.h"

namespace gyre::http {
namespace {

// A template that knows reasoning.
constexpr char kTemplate[] = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}{# </think> #}";

class OpenAiReasoningTest : public ::testing::Test {
 protected:
  OpenAiReasoningTest() : file_(gyre::testing::DemoModelWithTemplate(kTemplate)), model_(*OpenModel(file_.path())) {
    AddOpenAiRoutes(api_.router, api_.context);
  }
  // The client's view of an answer with these tokens.
  std::string Call(const char* path, const std::string& body, const std::vector<std::string>& says) {
    const uint64_t n = engine_.requests().size() + 1;
    std::thread thread([&] {
      while (engine_.requests().size() < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const std::string& text : says) engine_.Send(n, TokenEvent{.token = 65, .text = text, .logprob = -1});
      const auto count = static_cast<uint32_t>(says.size());
      engine_.Send(n, Finished{.usage = {.prompt_tokens = 4, .cached_tokens = 0, .generated_tokens = count}});
    });
    const auto exchange = api_.Post(path, body);
    thread.join();
    EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    return exchange->answer.body;
  }

  gyre::testing::TinyModelFile file_;
  std::shared_ptr<const Model> model_;
  gyre::testing::FakeEngine engine_;
  Service service_{*model_, engine_.Calls(), 100};
  ApiCaller api_{service_};
};

const std::vector<std::string> kSays = {"<think>", "\nWhy", " not?\n", "</think>", "\n\n", "Bec", "ause."};

TEST_F(OpenAiReasoningTest, AChatHasItBesideTheContent) {
  const std::string fields = R"({"messages":[{"role":"user","content":"Hi"}])";
  const auto whole = Json(Call(kChat, fields + "}", kSays));
  EXPECT_EQ(At(whole, "/choices/0/message/reasoning_content"), "Why not?");
  EXPECT_EQ(At(whole, "/choices/0/message/content"), "Because.");
  EXPECT_EQ(At(whole, "/usage/completion_tokens"), "7");
  EXPECT_EQ(At(whole, "/usage/completion_tokens_details/reasoning_tokens"), "5");
  std::string reasoning, content;
  for (const SseMessage& message : Events(Call(kChat, fields + ",\"stream\":true}", kSays))) {
    if (message.data == "[DONE]") continue;
    const auto delta = Json(message.data).at("choices").at(0).at("delta").as_object();
    if (const auto* text = delta.if_contains("reasoning_content")) {
      EXPECT_TRUE(content.empty());
      reasoning += text->as_string();
    }
    if (const auto* text = delta.if_contains("content")) content += text->as_string();
  }
  EXPECT_EQ(reasoning, "Why not?");
  EXPECT_EQ(content, "Because.");
  // Never ended.
  const auto cut = Json(Call(kChat, fields + "}", {"<think>", "Why"}));
  EXPECT_EQ(At(cut, "/choices/0/message/reasoning_content"), "Why");
  EXPECT_EQ(At(cut, "/choices/0/message/content"), "");
  EXPECT_EQ(At(cut, "/usage/completion_tokens_details/reasoning_tokens"), "2");

  api_.context.split_reasoning = false;
  const auto one = Json(Call(kChat, fields + "}", kSays));
  EXPECT_EQ(At(one, "/choices/0/message/content"), "<think>\nWhy not?\n</think>\n\nBecause.");
  EXPECT_EQ(At(one, "/choices/0/message/reasoning_content"), "(absent)");
}

TEST_F(OpenAiReasoningTest, LogprobsAreThoseOfTheContent) {
  // Token 65 has one byte, so each byte of the content has one entry.
  const std::vector<std::string> says = {"<think>", "x", "</think>", "A", "A"};
  const auto whole = Json(Call(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"logprobs":true})", says));
  EXPECT_EQ(At(whole, "/choices/0/message/content"), "AA");
  EXPECT_EQ(whole.at("choices").at(0).at("logprobs").at("content").as_array().size(), 2u);
}

TEST_F(OpenAiReasoningTest, AResponseHasAnItemOfItsOwnForIt) {
  const auto whole = Json(Call("/v1/responses", R"({"input":"Hi"})", kSays));
  EXPECT_EQ(At(whole, "/output/0/type"), "reasoning");
  EXPECT_EQ(At(whole, "/output/0/content/0/text"), "Why not?");
  EXPECT_EQ(At(whole, "/output/1/type"), "message");
  EXPECT_EQ(At(whole, "/output/1/content/0/text"), "Because.");
  EXPECT_EQ(At(whole, "/usage/output_tokens_details/reasoning_tokens"), "5");
  std::vector<std::string> types;
  const std::vector<SseMessage> events = Events(Call("/v1/responses", R"({"input":"Hi","stream":true})", kSays));
  for (size_t i = 0; i < events.size(); ++i) {
    if (types.empty() || types.back() != events[i].event) types.push_back(events[i].event);
    EXPECT_EQ(At(Json(events[i].data), "/sequence_number"), std::to_string(i));
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
                       "response.content_part.done", "response.output_item.done", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                       "response.content_part.done", "response.output_item.done", "response.completed"}));
  const auto end = Json(events.back().data);
  for (const char* path : {"/output/0/content", "/output/1/content", "/usage"}) {
    EXPECT_EQ(At(end, std::string("/response") + path), At(whole, path));
  }
}

}  // namespace
}  // namespace gyre::http
