// gyre parse-answer as a process: lines in, messages out, and what is wrong with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/command.h"
#include "tests/testing/demo_model.h"

namespace gyre {
namespace {

namespace json = boost::json;
using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using testing::TextFile;

constexpr char kTools[] = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
    "properties":{"a":{"type":"integer"}}}}}])";

std::string Line(std::string fields) {
  std::string out = "{" + fields + "}";
  std::erase(out, '\n');
  return out;
}

Ended Parse(const std::string& input, const std::string& flags) {
  const TextFile file(input);
  return testing::Shell("\"$gyre\" parse-answer " + flags + " <" + file.path());
}

std::vector<json::value> Lines(const std::string& text) {
  std::vector<json::value> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out.push_back(json::parse(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

TEST(ParseAnswerTest, OneAnswer) {
  // Over several lines: without --jsonl all of stdin is one object.
  const Ended e =
      Parse("{\"id\": 7,\n \"format\": \"json_in_tags\",\n \"generated\": \"<think>hm</think>It rings.\"}\n", "");
  ASSERT_EQ(e.code, 0) << e.text;
  EXPECT_EQ(json::parse(e.text), json::parse(R"({"id":7,"message":{"content":"It rings.","reasoning_content":"hm",
      "tool_calls":[]},"finish_reason":"stop"})"));
  for (const char* bad : {"", "{", "[]", "7", "{} x"}) {
    const Ended wrong = Parse(bad, "");
    EXPECT_EQ(wrong.code, 1) << bad << wrong.text;
    EXPECT_THAT(wrong.text, HasSubstr("expected a JSON object")) << bad;
  }
}

TEST(ParseAnswerTest, ManyLines) {
  const std::string call =
      R"("generated":"Look.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>")";
  const std::string format = R"("format":"json_in_tags",)";
  const std::string input =
      Line(R"("id":"a",)" + format + kTools + "," + call) + "\n\n" +  // an empty line is none
      Line(R"("id":"b",)" + format + kTools + R"(,"tool_choice":"none",)" + call) + "\n" +
      Line(R"("id":"c",)" + format + call) + "\n" +
      Line(format + kTools +
           R"(,"ended_by":"length","generated":"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"")") +
      "\n" + "{\n" + Line(R"("id":"d","generated":5)") + "\n" + Line(R"("format":"none","generated":"x")") + "\n" +
      Line(R"("begins":"later","generated":"x")") + "\n" + Line(R"("ended_by":"me","generated":"x")") + "\n" +
      Line(R"("generated":[{"control":1}])");  // the last line has no end
  const Ended e = Parse(input, "--jsonl");
  ASSERT_EQ(e.code, 0) << "a wrong line is told in its place: " << e.text;
  const auto lines = Lines(e.text);
  ASSERT_EQ(lines.size(), 10u) << e.text;
  EXPECT_EQ(lines[0].at("id"), "a");
  EXPECT_EQ(lines[0].at("finish_reason"), "tool_calls");
  EXPECT_EQ(lines[0].at("message").at("content"), "Look.");
  EXPECT_EQ(lines[0].at("message").at("tool_calls"), json::parse(R"([{"name":"f","arguments":{"a":1}}])"));
  for (const size_t without : {1u, 2u}) {
    EXPECT_EQ(lines[without].at("finish_reason"), "stop");
    EXPECT_THAT(std::string(lines[without].at("message").at("content").as_string()), HasSubstr("<tool_call>{\"name\""));
  }
  EXPECT_EQ(lines[3].at("finish_reason"), "length");
  EXPECT_EQ(lines[3].at("message").at("unfinished"), json::parse(R"({"name":"f","arguments_so_far":"{\"a\""})"));
  const char* const says[] = {"expected a JSON object",
                              "generated must",
                              "format none is not known",
                              "begins is later; it may be before, in_reasoning or in_content",
                              "ended_by is me; it may be stop or length",
                              "generated must have texts and objects {\"control\": NAME}"};
  for (size_t i = 0; i < std::size(says); ++i) {
    ASSERT_TRUE(lines[4 + i].as_object().contains("error")) << lines[4 + i];
    EXPECT_THAT(std::string(lines[4 + i].at("error").as_string()), HasSubstr(says[i]));
  }
  // However it is cut, the message is the same.
  const Ended cut = Parse(input, "--jsonl --bytewise");
  EXPECT_EQ(cut.code, 0);
  EXPECT_EQ(cut.text, e.text);
}

TEST(ParseAnswerTest, TheFormatComesFromATemplateOrAModel) {
  const TextFile chat(
      "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}{{ tools | tojson }}<tool_call>\n{\"name\"");
  const std::string line =
      Line(std::string(kTools) + R"(,"generated":"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>")");
  const Ended named = Parse(line, "--template " + chat.path());
  ASSERT_EQ(named.code, 0) << named.text;
  EXPECT_EQ(json::parse(named.text).at("finish_reason"), "tool_calls");
  // The demo model's template has no tools, so its calls are content.
  const Ended model = Parse(line, std::string("--template ") + GYRE_DEMO_MODEL);
  ASSERT_EQ(model.code, 0) << model.text;
  EXPECT_EQ(json::parse(model.text).at("finish_reason"), "stop");

  const TextFile broken("{% for %}");
  const Ended wrong = Parse(line, "--template " + broken.path());
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.text, HasSubstr(broken.path()));
  EXPECT_NE(Parse(line, "--template /nonexistent.jinja").code, 0);
  EXPECT_EQ(Parse(line, "--bytwise").code, 2);
  EXPECT_THAT(Parse(line, "--bytwise").text, HasSubstr("--bytewise"));
}

}  // namespace
}  // namespace gyre
