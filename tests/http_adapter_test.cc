// LoRA adapters as models of the HTTP APIs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/http/anthropic.h"
#include "coordinator/http/llama.h"
#include "coordinator/http/ollama.h"
#include "coordinator/http/score.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/openai_rig.h"
#include "tests/testing/tiny_model.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

class HttpAdapterTest : public OpenAiRig {
 protected:
  static void SetUpTestSuite() {
    const auto model = *OpenModel(GYRE_DEMO_MODEL);
    const gyre::testing::TinyModelFile law(gyre::testing::LoraGguf(*model, {.seed = 1})),
        pirate(gyre::testing::LoraGguf(*model, {.seed = 2}));
    OpenOptions open;
    open.adapters = {{"law", law.path()}, {"pirate", pirate.path()}};
    OpenRuntime(GYRE_DEMO_MODEL, open);
  }
  HttpAdapterTest() {
    AddScoreRoutes(api_.router, api_.context);
    AddLlamaRoutes(api_.router, api_.context);
    AddOllamaRoutes(api_.router, api_.context);
    AddAnthropicRoutes(api_.router, api_.context);
  }
  static std::string Expected(uint32_t adapter) {
    Question q = Continue("Once upon a time", 8);
    q.adapter = adapter;
    return Ask(std::move(q)).text;
  }
  static std::string Asks(const std::string& model, const std::string& more = "") {
    return R"({"model":")" + model + R"(","prompt":"Once upon a time","max_tokens":8,"temperature":0)" + more + "}";
  }
  std::string Text(const std::string& path, const std::string& body, const std::string& place) {
    return std::string(api_.Get(path, body).at_pointer(place).as_string());
  }
  std::string Refused(const std::string& path, const std::string& body, int status) {
    const auto exchange = api_.Post(path, body);
    EXPECT_EQ(exchange->answer.status, status) << body << exchange->answer.body;
    return At(Json(exchange->answer.body), "/error/message");
  }
};

TEST_F(HttpAdapterTest, AModelsNameChoosesTheAdapter) {
  const std::string texts[] = {Expected(0), Expected(1), Expected(2)};
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_NE(texts[1], texts[2]);
  const char* const text = "/choices/0/text";
  EXPECT_EQ(Text("/v1/completions", Asks("demo"), text), texts[0]);
  EXPECT_EQ(Text("/v1/completions", Asks("law"), text), texts[1]);
  EXPECT_EQ(Text("/v1/completions", Asks("pirate"), text), texts[2]);
  EXPECT_EQ(Text("/v1/completions", Asks("pirate"), "/model"), "pirate");
  EXPECT_EQ(Text("/v1/completions", Asks("demo", R"(,"lora":"law")"), text), texts[1]);
  EXPECT_EQ(Text("/v1/completions", Asks("law", R"(,"lora":[])"), text), texts[1]);
  EXPECT_EQ(Text("/v1/completions", Asks("demo", R"(,"lora":[{"id":0,"scale":0.0},{"id":1,"scale":1.0}])"), text),
            texts[2]);
  EXPECT_EQ(Text("/v1/completions", Asks("law", R"(,"lora":[{"id":0,"scale":0},{"id":1,"scale":0}])"), text), texts[0]);
  // Other servers' routes.
  EXPECT_EQ(Text("/completion", R"({"prompt":"Once upon a time","n_predict":8,"temperature":0,"lora":[{"id":1}]})",
                 "/content"),
            texts[2]);
  EXPECT_EQ(
      Text("/completion", R"({"prompt":"Once upon a time","n_predict":8,"temperature":0,"model":"law"})", "/content"),
      texts[1]);
  EXPECT_EQ(Text("/api/generate",
                 R"({"model":"pirate:latest","prompt":"Once upon a time","raw":true,"stream":false,
                     "options":{"num_predict":8,"temperature":0}})",
                 "/response"),
            texts[2]);
  // Chats, scores and vectors.
  const auto chat = [&](const std::string& path, const std::string& model, const std::string& place) {
    return Text(path, R"({"model":")" + model + R"(","max_tokens":12,"temperature":0,
                       "messages":[{"role":"user","content":"What is a ring?"}]})",
                place);
  };
  EXPECT_NE(chat("/v1/chat/completions", "law", "/choices/0/message/content"),
            chat("/v1/chat/completions", "demo", "/choices/0/message/content"));
  EXPECT_EQ(chat("/v1/messages", "law", "/content/0/text"),
            chat("/v1/chat/completions", "law", "/choices/0/message/content"));
  const auto number = [&](const std::string& path, const std::string& body, const std::string& place) {
    return api_.Get(path, body).at_pointer(place).to_number<double>();
  };
  const auto score = [&](const std::string& model) {
    return number("/v1/score", R"({"model":")" + model + R"(","input":"Once upon a time"})", "/data/0/sum");
  };
  EXPECT_NE(score("demo"), score("law"));
  const auto vector = [&](const std::string& model) {
    return number("/v1/embeddings", R"({"model":")" + model + R"(","input":"Once upon"})", "/data/0/embedding/0");
  };
  EXPECT_NE(vector("demo"), vector("pirate"));
  const auto ollama = [&](const std::string& model) {
    return number("/api/embed", R"({"model":")" + model + R"(","input":"Once upon"})", "/embeddings/0/0");
  };
  EXPECT_NE(ollama("demo"), ollama("pirate"));
}

TEST_F(HttpAdapterTest, AdaptersAreListed) {
  const auto get = [&](const std::string& path) { return Json(api_.Call("GET", path, "")->answer.body); };
  const json::value list = get("/v1/models");
  ASSERT_EQ(list.at("data").as_array().size(), 4u);  // the model has two names
  EXPECT_FALSE(list.at_pointer("/data/0").as_object().contains("parent"));
  EXPECT_EQ(At(list, "/data/2/id"), "law");
  EXPECT_EQ(At(list, "/data/2/parent"), "demo");
  EXPECT_EQ(At(get("/v1/models/pirate"), "/parent"), "demo");
  EXPECT_EQ(At(get("/api/tags"), "/models/3/name"), "pirate:latest");
}

TEST_F(HttpAdapterTest, WhatIsNotThereIsRefused) {
  EXPECT_THAT(Refused("/v1/completions", Asks("sailor"), 404), HasSubstr("demo, other, law, pirate"));
  EXPECT_THAT(Refused("/v1/completions", Asks("demo", R"(,"lora":"sailor")"), 400), HasSubstr("no adapter"));
  for (const char* lora :
       {"7", "{}", R"([{"id":2}])", R"([{"id":-1}])", R"([{"id":0,"scale":0.5}])", R"([{"id":0},{"id":1}])",
        R"(["law"])", R"([{"scale":1}])", R"([{"id":0,"scale":"1"}])", R"([{"id":0,"more":1}])"}) {
    EXPECT_THAT(Refused("/v1/completions", Asks("demo", std::string(R"(,"lora":)") + lora), 400),
                HasSubstr("lora must be the name of an adapter"))
        << lora;
  }
}

}  // namespace
}  // namespace gyre::http
