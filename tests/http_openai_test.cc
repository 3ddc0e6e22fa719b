// OpenAI's routes over a real ring: what they answer is what the engine says.
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

using OpenAiTest = OpenAiRig;

TEST_F(OpenAiTest, AChatAnswersWhatTheEngineSays) {
  const Said said = Ask(Greedy("What is Gyre?"));
  const json::value answer = api_.Get(kChat, With("\"return_token_ids\":true"));
  EXPECT_EQ(At(answer, "/id"), "chatcmpl-r1");
  EXPECT_EQ(At(answer, "/object"), "chat.completion");
  EXPECT_EQ(At(answer, "/model"), "demo");
  EXPECT_EQ(At(answer, "/system_fingerprint"), "gyre-9.9");
  EXPECT_TRUE(answer.at("created").is_int64());
  EXPECT_EQ(At(answer, "/choices/0/index"), "0");
  EXPECT_EQ(At(answer, "/choices/0/message/role"), "assistant");
  EXPECT_EQ(At(answer, "/choices/0/message/content"), said.text);
  EXPECT_EQ(At(answer, "/choices/0/message/refusal"), "null");
  EXPECT_EQ(At(answer, "/choices/0/logprobs"), "null");
  EXPECT_EQ(At(answer, "/choices/0/finish_reason"), "stop");
  EXPECT_EQ(At(answer, "/choices/0/token_ids"), Ids(said.ids));
  EXPECT_EQ(At(answer, "/prompt_token_ids"), Ids(said.prompt));
  EXPECT_EQ(At(answer, "/usage/prompt_tokens"), std::to_string(said.prompt.size()));
  EXPECT_EQ(At(answer, "/usage/completion_tokens"), std::to_string(said.ids.size()));
  EXPECT_EQ(At(answer, "/usage/prompt_tokens_details/cached_tokens"), "0");  // less than a block
  EXPECT_EQ(At(answer, "/usage/total_tokens"), std::to_string(said.prompt.size() + said.ids.size()));
}

TEST_F(OpenAiTest, AStreamSaysTheSameInPieces) {
  const Said said = Ask(Greedy("What is Gyre?"));
  const auto chunks = api_.Stream(kChat, With(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_GE(chunks.size(), 4u);
  EXPECT_EQ(At(chunks[0], "/choices/0/delta"), R"({"role":"assistant","content":"","refusal":null})");
  std::string text;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(At(chunks[i], "/id"), "chatcmpl-r1");
    EXPECT_EQ(At(chunks[i], "/object"), "chat.completion.chunk");
    EXPECT_EQ(At(chunks[i], "/model"), "demo");
    if (i + 1 == chunks.size()) break;
    EXPECT_EQ(At(chunks[i], "/usage"), "null");
    EXPECT_EQ(At(chunks[i], "/choices/0/finish_reason"), i + 2 == chunks.size() ? "stop" : "null");
    if (i > 0 && i + 2 < chunks.size()) text += At(chunks[i], "/choices/0/delta/content");
  }
  EXPECT_EQ(text, said.text);
  EXPECT_EQ(At(chunks[chunks.size() - 2], "/choices/0/delta"), "{}");
  EXPECT_EQ(At(chunks.back(), "/choices"), "[]");
  EXPECT_EQ(At(chunks.back(), "/usage/completion_tokens"), std::to_string(said.ids.size()));
  EXPECT_EQ(At(chunks.back(), "/usage/prompt_tokens"), std::to_string(said.prompt.size()));
  for (const json::value& chunk : api_.Stream(kChat, With("\"stream\":true"))) {
    EXPECT_EQ(At(chunk, "/usage"), "(absent)");
  }
}

TEST_F(OpenAiTest, EveryEventOfAStreamHasItsIds) {
  const Said said = Ask(Greedy("What is Gyre?"));
  const auto chunks = api_.Stream(kChat, With(R"("stream":true,"return_token_ids":true)"));
  EXPECT_EQ(At(chunks[0], "/prompt_token_ids"), Ids(said.prompt));
  std::vector<TokenId> ids;
  for (const json::value& chunk : chunks) {
    for (const json::value& id : chunk.at("choices").at(0).at("token_ids").as_array()) {
      ids.push_back(static_cast<TokenId>(id.as_int64()));
    }
  }
  EXPECT_EQ(ids, said.ids);
}

TEST_F(OpenAiTest, ChoicesDifferBySeedAndCountThePromptOnce) {
  const std::string hot =
      R"({"messages":[{"role":"user","content":"Tell me a story."}],"seed":5,"n":3,"max_tokens":12})";
  const json::value three = api_.Get(kChat, hot);
  ASSERT_EQ(three.at("choices").as_array().size(), 3u);
  EXPECT_NE(At(three, "/choices/0/message/content"), At(three, "/choices/1/message/content"));
  EXPECT_EQ(api_.Get(kChat, hot).at("choices"), three.at("choices"));
  Question question = Greedy("Tell me a story.");
  question.max_new_tokens = 12;
  for (uint64_t i = 0; i < 3; ++i) {
    question.sampling = {.penalty_last_n = -1, .seed = 5 + i};
    EXPECT_EQ(At(three, "/choices/" + std::to_string(i) + "/message/content"), Ask(question).text);
  }
  EXPECT_EQ(At(three, "/choices/2/finish_reason"), "length");
  EXPECT_EQ(At(three, "/usage/completion_tokens"), "36");
  EXPECT_EQ(At(three, "/usage/prompt_tokens"), std::to_string(Ask(question).prompt.size()));

  std::string streamed[3];
  const auto chunks = api_.Stream(kChat, hot.substr(0, hot.size() - 1) + ",\"stream\":true}");
  for (const json::value& chunk : chunks) {
    const json::value& choice = chunk.at("choices").at(0);
    const auto* content = choice.at("delta").as_object().if_contains("content");
    if (content) streamed[choice.at("index").as_int64()] += content->as_string();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(streamed[i], At(three, "/choices/" + std::to_string(i) + "/message/content"));
  }
}

TEST_F(OpenAiTest, WithoutASeedAnswersDiffer) {
  const std::string body = R"({"messages":[{"role":"user","content":"Tell me a story."}],"max_tokens":24})";
  EXPECT_NE(At(api_.Get(kChat, body), "/choices/0/message/content"),
            At(api_.Get(kChat, body), "/choices/0/message/content"));
}

TEST_F(OpenAiTest, AStopStringEndsTheTextBeforeIt) {
  const std::string whole = Ask(Greedy("What is Gyre?")).text;
  ASSERT_GT(whole.size(), 20u);
  const std::string stop = whole.substr(10, 3);
  const std::string text = whole.substr(0, whole.find(stop));
  for (const std::string& field : {"\"stop\":\"" + stop + "\"", "\"stop\":[\"\\u0001\",\"" + stop + "\"]"}) {
    const json::value answer = api_.Get(kChat, With(field));
    EXPECT_EQ(At(answer, "/choices/0/message/content"), text);
    EXPECT_EQ(At(answer, "/choices/0/finish_reason"), "stop");
    std::string streamed;
    for (const json::value& chunk : api_.Stream(kChat, With(field + ",\"stream\":true"))) {
      const auto* content = chunk.at("choices").at(0).at("delta").as_object().if_contains("content");
      if (content) streamed += content->as_string();
    }
    EXPECT_EQ(streamed, text);
  }
}

TEST_F(OpenAiTest, LengthIsLimitedByEitherName) {
  for (const char* field :
       {"\"max_tokens\":3", "\"max_completion_tokens\":3", "\"max_tokens\":3,\"max_completion_tokens\":3"}) {
    const json::value answer = api_.Get(kChat, With(field));
    EXPECT_EQ(At(answer, "/choices/0/finish_reason"), "length");
    EXPECT_EQ(At(answer, "/usage/completion_tokens"), "3");
  }
  // Otherwise the context ends it.
  const json::value all = api_.Get(kComplete, R"({"prompt":"a","ignore_eos":true,"temperature":0})");
  EXPECT_EQ(At(all, "/choices/0/finish_reason"), "length");
  EXPECT_EQ(all.at("usage").at("total_tokens").as_int64(), runtime_->context());
}

TEST_F(OpenAiTest, SamplingFieldsReachTheEngine) {
  const Said plain = Ask(Greedy("What is Gyre?"));
  const std::string first = std::to_string(plain.ids[0]);
  const json::value banned =
      api_.Get(kChat, With("\"return_token_ids\":true,\"max_tokens\":1,\"logit_bias\":{\"" + first + "\":-100}"));
  EXPECT_NE(At(banned, "/choices/0/token_ids/0"), first);
  const json::value forced = api_.Get(
      kChat, With("\"return_token_ids\":true,\"max_tokens\":3,\"ignore_eos\":true,\"logit_bias\":{\"7\":100}"));
  EXPECT_EQ(At(forced, "/choices/0/token_ids"), "[7,7,7]");
  // One candidate is left: the greedy text, at any temperature.
  for (const char* filter : {"\"top_k\":1", "\"top_p\":0", "\"min_p\":1"}) {
    const json::value one =
        api_.Get(kChat, std::string(R"({"messages":[{"role":"user","content":"What is Gyre?"}],"temperature":2,)") +
                            filter + "}");
    EXPECT_EQ(At(one, "/choices/0/message/content"), plain.text) << filter;
  }
  const auto with = [&](const char* penalty) {
    return At(
        api_.Get(kComplete, std::string(R"({"prompt":"a a a a","temperature":0,"max_tokens":40,)") + penalty + "}"),
        "/choices/0/text");
  };
  for (const char* name : {"presence_penalty", "frequency_penalty", "repetition_penalty"}) {
    EXPECT_NE(with((std::string("\"") + name + "\":2").c_str()), with("\"top_p\":1")) << name;
  }
}

TEST_F(OpenAiTest, ContentMayComeInParts) {
  const std::string text = At(api_.Get(kChat, With("\"n\":1")), "/choices/0/message/content");
  const json::value parts = api_.Get(kChat, R"({"temperature":0,"messages":[{"role":"user","content":[
      {"type":"text","text":"What is "},{"type":"text","text":"Gyre?"}]}]})");
  EXPECT_EQ(At(parts, "/choices/0/message/content"), text);
  const auto ids = [&](const char* role) {
    return At(api_.Get(kChat,
                       std::string(R"({"temperature":0,"max_tokens":1,"return_token_ids":true,"messages":[{"role":")") +
                           role + R"(","content":"Be brief."},{"role":"user","content":"Hi"},)" +
                           R"({"role":"assistant","content":null,"refusal":null,"annotations":[]}]})"),
              "/prompt_token_ids");
  };
  EXPECT_EQ(ids("developer"), ids("system"));
}

TEST_F(OpenAiTest, CompletionsTakeAllFormsOfPrompts) {
  const Said one = Ask(Continue("Lily and Tom", 8)), two = Ask(Continue("A dog", 8));
  const std::string more = R"(,"temperature":0,"max_tokens":8,"return_token_ids":true})";
  const json::value text = api_.Get(kComplete, R"({"prompt":"Lily and Tom")" + more);
  EXPECT_EQ(At(text, "/object"), "text_completion");
  EXPECT_EQ(At(text, "/choices/0/text"), one.text);
  EXPECT_EQ(At(text, "/choices/0/logprobs"), "null");
  EXPECT_EQ(At(text, "/choices/0/finish_reason"), "length");
  EXPECT_EQ(At(text, "/choices/0/prompt_token_ids"), Ids(one.prompt));
  EXPECT_EQ(At(text, "/usage/completion_tokens"), "8");
  EXPECT_EQ(At(api_.Get(kComplete, "{\"prompt\":" + Ids(one.prompt) + more), "/choices/0/text"), one.text);
  for (const std::string& list :
       {std::string(R"(["Lily and Tom","A dog"])"), "[" + Ids(one.prompt) + "," + Ids(two.prompt) + "]"}) {
    const json::value both = api_.Get(kComplete, "{\"n\":2,\"prompt\":" + list + more);
    ASSERT_EQ(both.at("choices").as_array().size(), 4u);
    EXPECT_EQ(At(both, "/choices/1/text"), one.text);
    EXPECT_EQ(At(both, "/choices/2/text"), two.text);
    EXPECT_EQ(At(both, "/choices/3/index"), "3");
    EXPECT_EQ(At(both, "/usage/prompt_tokens"), std::to_string(one.prompt.size() + two.prompt.size()));
    EXPECT_EQ(At(both, "/usage/completion_tokens"), "32");
  }
}

TEST_F(OpenAiTest, ACompletionStreamsItsEcho) {
  const Said one = Ask(Continue("Lily and Tom", 8));
  const std::string echo = R"(,"temperature":0,"max_tokens":8,"echo":true)";
  EXPECT_EQ(At(api_.Get(kComplete, R"({"prompt":"Lily and Tom")" + echo + "}"), "/choices/0/text"),
            "Lily and Tom" + one.text);
  EXPECT_EQ(At(api_.Get(kComplete, "{\"prompt\":" + Ids(one.prompt) + echo + "}"), "/choices/0/text"),
            "Lily and Tom" + one.text);
  const auto chunks = api_.Stream(
      kComplete, R"({"prompt":"Lily and Tom","stream":true,"stream_options":{"include_usage":true})" + echo + "}");
  std::string text;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(At(chunks[i], "/object"), "text_completion");
    EXPECT_EQ(At(chunks[i], "/choices/0/finish_reason"), i + 2 == chunks.size() ? "length" : "null");
    text += At(chunks[i], "/choices/0/text");
  }
  EXPECT_EQ(text, "Lily and Tom" + one.text);
  EXPECT_EQ(At(chunks.back(), "/usage/completion_tokens"), "8");
  const json::value none = api_.Get(kComplete, R"({"prompt":"Lily","echo":true,"max_tokens":0})");
  EXPECT_EQ(At(none, "/choices/0/text"), "Lily");
  EXPECT_EQ(At(none, "/usage/completion_tokens"), "0");
}

TEST_F(OpenAiTest, ModelsAreListedByTheirNames) {
  const json::value list = Json(api_.Call("GET", "/v1/models", "")->answer.body);
  EXPECT_EQ(Json(api_.Call("GET", "/v1/models/other", "")->answer.body), list.at("data").at(1));
  const auto unknown = api_.Call("GET", "/v1/models/a/b", "");
  EXPECT_EQ(unknown->answer.status, 404);
  EXPECT_EQ(At(Json(unknown->answer.body), "/error/code"), "model_not_found");
  EXPECT_EQ(At(list, "/object"), "list");
  // The hash is the one of `gyre inspect`.
  const std::string hash = fmt::format("{:016x}", api_.context.service.model().content_hash());
  EXPECT_EQ(
      At(list, "/data/0"),
      R"({"id":"demo","object":"model","created":1234,"owned_by":"gyre","max_model_len":1024,)"
      R"("hash":")" +
          hash +
          R"(","meta":{"n_vocab":1024,"n_ctx_train":1024},)"
          R"("default_sampling":{"temperature":8E-1,"top_k":40,"top_p":9.5E-1,"min_p":5E-2,"repetition_penalty":1E0,)"
          R"("frequency_penalty":0E0,"presence_penalty":0E0}})");
  EXPECT_EQ(At(list, "/data/1/id"), "other");
}

TEST_F(OpenAiTest, ASaltHasItsOwnPrefixCache) {
  const auto cached = [&](const char* more) {
    return api_
        .Get(kComplete, std::string(R"({"prompt":"Once upon a time there was a little dog who had a red ball. )"
                                    R"(One day the dog and the ball","max_tokens":1)") +
                            more + "}")
        .at("usage")
        .at("prompt_tokens_details")
        .at("cached_tokens")
        .as_int64();
  };
  EXPECT_EQ(cached(R"(,"cache_salt":"a")"), 0);
  EXPECT_GE(cached(R"(,"cache_salt":"a")"), 16);
  EXPECT_EQ(cached(R"(,"cache_salt":"b")"), 0);
  EXPECT_EQ(cached(""), 0);
}

TEST_F(OpenAiTest, AClientThatLeavesGetsItsRequestCancelled) {
  const uint64_t before = runtime_->engine().stats().cancelled;
  const uint64_t generated = runtime_->engine().stats().tokens_generated;
  const auto exchange = api_.Call("POST", kComplete, R"({"prompt":"a","ignore_eos":true,"n":2,"stream":true})",
                                  [](FakeExchange& x) { x.leave_after_writes = 3; });
  EXPECT_EQ(exchange->writes, 3);
  const auto stats = [] { return runtime_->engine().stats(); };
  const auto all_back = [&](uint64_t cancelled) {
    EngineStats now = stats();
    for (int i = 0; i < 10'000 && now.scheduler.memory[kPageGroup].available < now.scheduler.memory[kPageGroup].units;
         ++i) {
      usleep(1000);
      now = stats();
    }
    EXPECT_EQ(now.cancelled, cancelled);
    EXPECT_EQ(now.scheduler.decode, 0u);
    EXPECT_EQ(now.scheduler.memory[kPageGroup].available, now.scheduler.memory[kPageGroup].units);
  };
  all_back(before + 2);
  // Another thread leaves while the whole answer is generated.
  std::thread leaver;
  const auto whole = api_.Call("POST", kComplete, R"({"prompt":"a","ignore_eos":true,"n":2})", [&](FakeExchange& x) {
    leaver = std::thread([&x, &stats] {
      while (stats().scheduler.decode == 0) usleep(1000);
      x.Leave();
    });
  });
  leaver.join();
  EXPECT_EQ(whole->answers, 0);
  all_back(before + 4);
  EXPECT_LT(stats().tokens_generated - generated, 1000u);  // of 4,000
}

}  // namespace
}  // namespace gyre::http
