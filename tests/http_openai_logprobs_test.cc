// Log-probabilities in OpenAI's routes are the engine's, and belong to the text beside them.
#include <gtest/gtest.h>

#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

using OpenAiLogprobsTest = OpenAiRig;

// The bytes that the entries stand for.
std::string TextOf(const json::array& entries) {
  std::string text;
  for (const json::value& entry : entries) {
    if (entry.at("bytes").is_null()) continue;
    for (const json::value& byte : entry.at("bytes").as_array()) text += static_cast<char>(byte.as_int64());
  }
  return text;
}

TEST_F(OpenAiLogprobsTest, AChatHasThoseOfItsText) {
  Question question = Greedy("What is Gyre?");
  question.logprobs = 3;
  const Said said = Ask(question);
  const json::value answer = api_.Get(kChat, With("\"logprobs\":true,\"top_logprobs\":3"));
  const json::array& content = answer.at("choices").at(0).at("logprobs").at("content").as_array();
  EXPECT_EQ(TextOf(content), said.text);
  ASSERT_EQ(content.size() + 1, said.events.size());  // the end-of-generation token is no part of the text
  for (size_t i = 0; i < content.size(); ++i) {
    EXPECT_EQ(content[i].at("logprob").to_number<float>(), said.events[i].logprob);
    const json::array& top = content[i].at("top_logprobs").as_array();
    ASSERT_EQ(top.size(), 3u);
    EXPECT_EQ(At(content[i], "/token"), At(top[0], "/token"));  // greedy
    for (size_t j = 0; j < 3; ++j) EXPECT_EQ(top[j].at("logprob").to_number<float>(), said.events[i].top[j].logprob);
  }
  const json::value none = api_.Get(kChat, With("\"logprobs\":true"));
  EXPECT_EQ(At(none, "/choices/0/logprobs/content/0/top_logprobs"), "[]");

  json::array streamed;
  for (const json::value& chunk : api_.Stream(kChat, With(R"("logprobs":true,"top_logprobs":3,"stream":true)"))) {
    const json::value& choice = chunk.at("choices").at(0);
    if (choice.at("logprobs").is_null()) continue;
    const json::array& some = choice.at("logprobs").at("content").as_array();
    EXPECT_EQ(TextOf(some), At(choice, "/delta/content"));
    streamed.insert(streamed.end(), some.begin(), some.end());
  }
  EXPECT_EQ(streamed, content);
}

TEST_F(OpenAiLogprobsTest, WhatAStopStringTakesBackIsNotSaid) {
  const std::string whole = Ask(Greedy("What is Gyre?")).text;
  const std::string stop = whole.substr(10, 9);
  const std::string text = whole.substr(0, whole.find(stop));
  json::object body;
  for (const bool stream : {false, true}) {
    const std::string fields = "\"logprobs\":true,\"stop\":\"" + stop + "\"";
    json::array entries;
    if (stream) {
      for (const json::value& chunk : api_.Stream(kChat, With(fields + ",\"stream\":true"))) {
        const json::value& logprobs = chunk.at("choices").at(0).at("logprobs");
        if (logprobs.is_null()) continue;
        const json::array& some = logprobs.at("content").as_array();
        entries.insert(entries.end(), some.begin(), some.end());
      }
    } else {
      entries = api_.Get(kChat, With(fields)).at("choices").at(0).at("logprobs").at("content").as_array();
    }
    const std::string covered = TextOf(entries);
    EXPECT_EQ(covered.substr(0, text.size()), text) << stream;
    EXPECT_LT(covered.size(), text.size() + 9) << stream;  // the last token may reach into the stop string
  }
}

TEST_F(OpenAiLogprobsTest, ACompletionHasListsAndOffsets) {
  Question question = Continue("Lily and Tom", 6);
  question.logprobs = 2;
  question.prompt_logprobs = 2;
  const Said said = Ask(question);
  const std::string fields = R"({"prompt":"Lily and Tom","temperature":0,"max_tokens":6,"logprobs":2,"echo":)";
  for (const bool echo : {false, true}) {
    const json::value whole = api_.Get(kComplete, fields + (echo ? "true}" : "false}"));
    const json::value& lists = whole.at("choices").at(0).at("logprobs");
    const std::string text = At(whole, "/choices/0/text");
    const json::array& tokens = lists.at("tokens").as_array();
    const size_t prompt = echo ? said.prompt.size() : 0;
    ASSERT_EQ(tokens.size(), prompt + 6);
    for (const char* name : {"token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(lists.at(name).as_array().size(), tokens.size()) << name;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto offset = static_cast<size_t>(lists.at("text_offset").at(i).as_int64());
      const std::string token(tokens[i].as_string());
      EXPECT_EQ(text.substr(offset, token.size()), token) << i;
      const json::value& logprob = lists.at("token_logprobs").at(i);
      if (echo && i == 0) {
        EXPECT_TRUE(logprob.is_null());
        EXPECT_TRUE(lists.at("top_logprobs").at(i).is_null());
        continue;
      }
      const float expected = i < prompt ? said.scores[i - 1].logprob : said.events[i - prompt].logprob;
      EXPECT_EQ(logprob.to_number<float>(), expected) << i;
      const json::object& top = lists.at("top_logprobs").at(i).as_object();
      EXPECT_GE(top.size(), 2u);
      EXPECT_LE(top.size(), 3u);
      EXPECT_EQ(top.at(token).to_number<float>(), expected);
    }
    // The stream's lists, one after the other.
    json::array streamed[2];
    for (const json::value& chunk : api_.Stream(kComplete, fields + (echo ? "true" : "false") + ",\"stream\":true}")) {
      const json::value& some = chunk.at("choices").at(0).at("logprobs");
      for (int k = 0; k < 2; ++k) {
        const json::array& list = some.at(k == 0 ? "tokens" : "text_offset").as_array();
        streamed[k].insert(streamed[k].end(), list.begin(), list.end());
      }
    }
    EXPECT_EQ(streamed[0], tokens);
    EXPECT_EQ(streamed[1], lists.at("text_offset").as_array());
  }
  // Scoring alone.
  const json::value scored =
      api_.Get(kComplete, R"({"prompt":"Lily and Tom","max_tokens":0,"logprobs":0,"echo":true})");
  EXPECT_EQ(scored.at("choices").at(0).at("logprobs").at("tokens").as_array().size(), said.prompt.size());
  EXPECT_EQ(At(scored, "/usage/completion_tokens"), "0");
}

}  // namespace
}  // namespace gyre::http
