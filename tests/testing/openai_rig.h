// OpenAI's routes over a real ring of the demo model, and the engine's answers without them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/http/openai.h"
#include "tests/testing/demo_runtime.h"
#include "tests/testing/http_api.h"

namespace gyre::http {

namespace json = boost::json;

class OpenAiRig : public gyre::testing::DemoRuntimeTest {
 protected:
  OpenAiRig() : api_(runtime_->service()) { AddOpenAiRoutes(api_.router, api_.context); }
  ~OpenAiRig() override { EXPECT_TRUE(runtime_->engine().CheckIntegrity().ok()); }

  struct Said {
    std::string text;
    std::vector<TokenId> prompt, ids;
    std::vector<TokenEvent> events;
    std::vector<PromptTokenEvent> scores;
    std::vector<float> embedding;
    Finished end;
  };
  // The engine's answer to the question, without HTTP.
  static Said Ask(Question question) {
    auto request = runtime_->service().MakeRequest(std::move(question));
    EXPECT_TRUE(request.ok()) << request.status();
    Said said;
    said.prompt = request->prompt;
    const Status status = runtime_->service().Run(*std::move(request),
                                                  [&](const Event& event) {
                                                    if (const auto* token = std::get_if<TokenEvent>(&event)) {
                                                      said.text += token->text;
                                                      said.ids.push_back(token->token);
                                                      said.events.push_back(*token);
                                                    }
                                                    if (const auto* score = std::get_if<PromptTokenEvent>(&event))
                                                      said.scores.push_back(*score);
                                                    if (const auto* embedding = std::get_if<EmbeddingEvent>(&event))
                                                      said.embedding = embedding->values;
                                                    if (const auto* finished = std::get_if<Finished>(&event)) {
                                                      said.text += finished->text;
                                                      said.end = *finished;
                                                    }
                                                  },
                                                  {});
    EXPECT_TRUE(status.ok()) << status;
    return said;
  }
  static Question Greedy(std::string_view text) {
    Question question;
    ChatInput chat;
    json::object message;
    message["role"] = "user";
    message["content"] = text;
    chat.conversation.messages.push_back(std::move(message));
    question.input = std::move(chat);
    question.sampling = {.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0};
    return question;
  }
  static Question Continue(std::string text, uint32_t n) {
    Question question;
    question.input = TextInput{.text = std::move(text), .parse_special = true};
    question.sampling = {.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0};
    question.max_new_tokens = n;
    return question;
  }
  static std::string Ids(const std::vector<TokenId>& ids) { return json::serialize(json::value_from(ids)); }

  ApiCaller api_;
};

// A greedy question, with more fields.
inline constexpr char kQuestion[] =
    R"({"model":"demo","temperature":0,"messages":[{"role":"user","content":"What is Gyre?"}])";
inline std::string With(const std::string& more) { return kQuestion + ("," + more) + "}"; }

}  // namespace gyre::http
