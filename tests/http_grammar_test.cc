// Texts that obey a grammar, by every field of every API that asks for one: the demo model behind a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/testing/demo_runtime.h"
#include "tests/testing/http_api.h"
#include "tests/testing/live_server.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using http::At;
using http::Json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::LiveServer;

constexpr char kChat[] = "/v1/chat/completions", kText[] = "/v1/completions", kResponses[] = "/v1/responses",
               kMessages[] = "/v1/messages", kLlama[] = "/completion", kOllama[] = "/api/chat",
               kOllamaText[] = "/api/generate";

class HttpGrammarTest : public testing::DemoRuntimeTest {
 protected:
  // A request with these further fields; hot, so that only the grammar gives the answer its form. The white space that
  // a grammar allows fits the limit of tokens, whatever the seed is.
  static std::string Body(const std::string& path, const std::string& fields) {
    const std::string messages = R"("messages":[{"role":"user","content":"What is Gyre?"}],)";
    if (path == kText || path == kLlama)
      return R"({"prompt":"Gyre is","temperature":2,"top_k":0,"top_p":1,"max_tokens":300,"seed":7,)" + fields + "}";
    if (path == kResponses)
      return R"({"input":"What is Gyre?","temperature":2,"top_k":0,"max_output_tokens":300,)" + fields + "}";
    if (path == kOllama)
      return "{" + messages +
             R"("model":"demo","stream":false,"options":{"temperature":2,"num_predict":300,"seed":7},)" + fields + "}";
    if (path == kOllamaText)
      return R"({"model":"demo","prompt":"What is Gyre?","stream":false,"options":{"temperature":2,"num_predict":300,"seed":7},)" +
             fields + "}";
    return "{" + messages + R"("model":"demo","temperature":1,"top_k":0,"max_tokens":300,)" + fields + "}";
  }
  static std::string TextIn(const std::string& path, const std::string& body) {
    const auto answer = Json(body);
    if (path == kChat) return At(answer, "/choices/0/message/content");
    if (path == kText) return At(answer, "/choices/0/text");
    if (path == kResponses) return At(answer, "/output/0/content/0/text");
    if (path == kMessages) return At(answer, "/content/0/text");
    if (path == kLlama) return At(answer, "/content");
    return At(answer, path == kOllama ? "/message/content" : "/response");
  }
  HttpAnswer Ask(const std::string& path, const std::string& fields) {
    return server_.Ask("POST", path, Body(path, fields));
  }
  std::string Answer(const std::string& path, const std::string& fields) {
    const HttpAnswer answer = Ask(path, fields);
    EXPECT_EQ(answer.status, 200) << path << " " << fields << ": " << answer.body;
    return answer.status == 200 ? TextIn(path, answer.body) : "";
  }

  LiveServer server_{*runtime_};
};

TEST_F(HttpGrammarTest, EachFieldOfEachApiGivesTheAnswerItsForm) {
  const std::string schema = R"({"type":"object","properties":{"colour":{"enum":["red","blue"]}},
      "required":["colour"],"additionalProperties":false})";
  const std::string named =
      R"({"type":"json_schema","json_schema":{"name":"c","strict":true,"schema":)" + schema + "}}";
  const std::string beside = R"({"type":"json_schema","name":"c","schema":)" + schema + "}";
  const std::string json_text = R"x(\s*\{\s*"colour"\s*:\s*"(red|blue)"\s*\}\s*)x";
  const std::string gbnf = R"("root ::= \"red\" | \"blue\"")", choices = R"(["red","blue"])";
  struct Case {
    const char* path;
    std::string fields, expected;
  };
  const std::vector<Case> cases = {
      {kChat, "\"response_format\":" + named, json_text},
      {kChat, "\"response_format\":" + beside, json_text},
      {kChat, R"("response_format":{"type":"json_object","schema":)" + schema + "}", json_text},
      {kChat, R"x("response_format":{"type":"regex","pattern":"(red|blue)"})x", "red|blue"},
      {kChat, "\"json_schema\":" + schema, json_text},
      {kChat, "\"grammar\":" + gbnf, "red|blue"},
      {kChat, "\"guided_json\":" + schema, json_text},
      {kChat, R"x("guided_regex":"(red|blue)")x", "red|blue"},
      {kChat, "\"guided_choice\":" + choices, "red|blue"},
      {kChat, "\"guided_grammar\":" + gbnf, "red|blue"},
      {kChat, "\"structured_outputs\":{\"json\":" + schema + "}", json_text},
      {kChat, "\"structured_outputs\":{\"choice\":" + choices + "}", "red|blue"},
      {kChat, R"("structured_outputs":{"regex":"red|blue"})", "red|blue"},
      {kChat, "\"structured_outputs\":{\"grammar\":" + gbnf + "}", "red|blue"},
      {kChat, "\"structured_outputs\":{\"json\":" + schema + ",\"disable_any_whitespace\":true}",
       R"x(\{"colour":"(red|blue)"\})x"},
      {kText, "\"response_format\":" + named, json_text},
      {kText, "\"guided_choice\":" + choices, "red|blue"},
      {kResponses, "\"text\":{\"format\":" + beside + "}", json_text},
      {kMessages, "\"output_config\":{\"format\":" + beside + "}", json_text},
      {kMessages, "\"output_format\":" + beside, json_text},
      {kLlama, "\"grammar\":" + gbnf, "red|blue"},
      {kLlama, "\"json_schema\":" + schema, json_text},
      {kOllama, "\"format\":" + schema, json_text},
      {kOllamaText, "\"format\":" + schema, json_text},
  };
  for (const Case& c : cases) {
    const std::string text = Answer(c.path, c.fields);
    EXPECT_TRUE(std::regex_match(text, std::regex(c.expected))) << c.path << " " << c.fields << ": " << text;
  }
}

TEST_F(HttpGrammarTest, WhatMustComeNeedsNoAnswerUnlessTheRequestSaysSo) {
  const std::string fields = R"x("guided_regex":"The colour of this is (red|blue)")x";
  const auto forced = [] { return runtime_->engine().stats().forced_tokens; };
  const uint64_t before = forced();
  EXPECT_THAT(Answer(kChat, fields + ",\"jump_ahead\":false"),
              ::testing::MatchesRegex("The colour of this is (red|blue)"));
  EXPECT_THAT(Answer(kChat, fields + ",\"logit_bias\":{\"5\":1}"), ::testing::MatchesRegex("The colour of this is .*"));
  EXPECT_EQ(forced(), before);
  EXPECT_THAT(Answer(kChat, fields), ::testing::MatchesRegex("The colour of this is (red|blue)"));
  EXPECT_GE(forced(), before + 3);
}

TEST_F(HttpGrammarTest, AnyObjectIsAnObject) {
  for (const auto& [path, fields] :
       {std::pair{kChat, R"("response_format":{"type":"json_object"})"}, std::pair{kOllama, R"("format":"json")"},
        std::pair{kChat, R"("structured_outputs":{"json_object":true})"}}) {
    EXPECT_THAT(Answer(path, fields), ::testing::MatchesRegex("[ \n\t]*\\{(.|\n)*"));
  }
}

TEST_F(HttpGrammarTest, ChoicesStreamsAndLogProbabilitiesGoWithIt) {
  const std::string fields = R"("guided_regex":"[a-c]{4}","n":3,"logprobs":true,"top_logprobs":2)";
  const HttpAnswer whole = Ask(kChat, fields);
  ASSERT_EQ(whole.status, 200) << whole.body;
  for (const char* choice : {"/choices/0", "/choices/1", "/choices/2"}) {
    EXPECT_THAT(At(Json(whole.body), std::string(choice) + "/message/content"), ::testing::MatchesRegex("[a-c]{4}"));
    EXPECT_NE(At(Json(whole.body), std::string(choice) + "/logprobs/content/0/logprob"), "(absent)");
  }
  const HttpAnswer stream = Ask(kChat, R"("guided_regex":"[a-c]{4}","stream":true)");
  ASSERT_EQ(stream.status, 200) << stream.body;
  std::string text;
  for (const auto& message : http::Events(stream.body)) {
    if (message.data == "[DONE]") continue;
    const std::string delta = At(Json(message.data), "/choices/0/delta/content");
    if (delta != "(absent)" && delta != "null") text += delta;
  }
  EXPECT_THAT(text, ::testing::MatchesRegex("[a-c]{4}"));
}

// A stop string in the middle of a text that must go on: the answer ends there and is whole, as far as it goes.
TEST_F(HttpGrammarTest, AStopStringEndsTheAnswerWithinItsForm) {
  const std::string pattern = R"x("\\{\"colour\": \"(red|blue)\", \"n\": [1-9]{3}\\}")x";
  const std::string
      regex = "\"guided_regex\":" + pattern,
      format = R"("output_config":{"format":{"type":"regex","pattern":)" + pattern + "}}",
      gbnf =
          R"x("grammar":"root ::= \"{\\\"colour\\\": \\\"\" (\"red\" | \"blue\") \"\\\", \\\"n\\\": \" [1-9]{3} \"}\"")x";
  const std::string cut = R"x(\{"colour": "(red|blue))x", stop = R"("\", \"n")";
  struct Case {
    const char* path;
    std::string fields;
    const char *reason, *expected, *word;
  };
  const Case cases[] = {
      {kChat, regex + R"(,"stop":)" + stop, "/choices/0/finish_reason", "stop", ""},
      {kText, regex + R"(,"stop":["none",)" + stop + "]", "/choices/0/finish_reason", "stop", ""},
      {kMessages, format + R"(,"stop_sequences":[)" + stop + "]", "/stop_reason", "stop_sequence", "/stop_sequence"},
      {kLlama, gbnf + R"(,"stop":[)" + stop + "]", "/stop_type", "word", "/stopping_word"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.path);
    const HttpAnswer whole = Ask(c.path, c.fields);
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_TRUE(std::regex_match(TextIn(c.path, whole.body), std::regex(cut))) << whole.body;
    EXPECT_EQ(At(Json(whole.body), c.reason), c.expected);
    if (*c.word != '\0') EXPECT_EQ(At(Json(whole.body), c.word), "\", \"n");
    const HttpAnswer stream = Ask(c.path, c.fields + ",\"stream\":true");
    ASSERT_EQ(stream.status, 200) << stream.body;
    std::string text, reason;
    for (const auto& message : http::Events(stream.body)) {
      if (message.data == "[DONE]") continue;
      const auto chunk = Json(message.data);
      for (const char* at : {"/choices/0/delta/content", "/choices/0/text", "/delta/text", "/content"}) {
        if (const std::string piece = At(chunk, at); piece != "(absent)" && piece != "null") text += piece;
      }
      for (const std::string& at : {std::string(c.reason), "/delta" + std::string(c.reason)}) {
        if (At(chunk, at) == c.expected) reason = c.expected;
      }
    }
    EXPECT_TRUE(std::regex_match(text, std::regex(cut))) << stream.body;
    EXPECT_EQ(reason, c.expected) << stream.body;
  }
  // It is no stop string where it does not stand in the text: the end is the grammar's.
  const HttpAnswer other = Ask(kMessages, format + R"(,"stop_sequences":["green"])");
  EXPECT_TRUE(std::regex_match(TextIn(kMessages, other.body), std::regex(cut + R"x(", "n": [1-9]{3}\})x")));
  EXPECT_EQ(At(Json(other.body), "/stop_reason"), "end_turn");
}

TEST_F(HttpGrammarTest, WhatCannotBeObeyedIsRefusedByName) {
  struct Case {
    std::string fields;
    int status;
    const char* word;
  };
  const Case cases[] = {
      {R"("response_format":{"type":"xml"})", 400, "json_schema or regex"},
      {R"("response_format":{"type":"json_schema"})", 400, "response_format.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})", 400,
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"regex"})", 400, "response_format.pattern"},
      {R"("guided_regex":"a","guided_choice":["a"])", 400, "more than one grammar"},
      {R"x("guided_regex":"(a")x", 400, "regular expression"},
      {R"("grammar":"root ::= x")", 400, "x"},
      {R"("guided_choice":[])", 400, "choice"},
      {R"("guided_json":{"type":"array","uniqueItems":true})", 422, "uniqueItems"},
      {R"("guided_json":{"type":"object","properties":{"a":{"$ref":"https://x.test/s"}},"required":["a"]})", 422,
       "#/properties/a"},
      {R"("structured_outputs":{"structural_tag":{"a":1}})", 400, "structural_tag"},
      {R"("guided_regex":"a*","ignore_eos":true)", 400, "ignore_end"},
  };
  for (const Case& c : cases) {
    const HttpAnswer answer = Ask(kChat, c.fields);
    EXPECT_EQ(answer.status, c.status) << c.fields << ": " << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(c.word));
  }
}

// Sources that take long, or are too large, end with an answer or with the name of the bound, and soon.
TEST_F(HttpGrammarTest, AHostileSourceIsGivenUpSoon) {
  std::string pattern = "(";
  for (int i = 0; i < 12; ++i) pattern += "(a{1,900}b?){1,900}";
  const auto start = Clock::now();
  EXPECT_THAT(Ask(kChat, R"("guided_regex":")" + pattern + ")c\"").status, AnyOf(200, 422));
  const HttpAnswer large = Ask(kChat, R"("guided_json":{"enum":[")" + std::string(2 << 20, 'a') + "\"]}");
  EXPECT_EQ(large.status, 422) << large.body.substr(0, 300);
  EXPECT_THAT(large.body, HasSubstr("bytes"));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(testing::kSanitized ? 60 : 20));
  EXPECT_EQ(server_.Ask("GET", "/health").status, 200);
}

}  // namespace
}  // namespace gyre
