// gyre grammar check as a process: texts in, whether they obey a grammar out, and what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "tests/testing/command.h"
#include "tests/testing/demo_model.h"

namespace gyre {
namespace {

namespace json = boost::json;
using std::string_literals::operator""s;
using testing::Ended;
using ::testing::HasSubstr;
using testing::TextFile;

// `output`: which of the two is wanted; the other one goes to nobody.
Ended Check(const std::string& input, const std::string& flags, const std::string& output = "2>&1") {
  const TextFile file(input);
  return testing::Shell("\"$gyre\" grammar check " + flags + " <" + file.path() + " " + output);
}
constexpr char kOnlyStdout[] = "2>/dev/null", kOnlyStderr[] = "2>&1 >/dev/null";

TEST(GrammarCheckTest, ATextObeysOrItIsToldWhereItStops) {
  const TextFile schema(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string","format":"date"}},
      "required":["a"],"additionalProperties":false})");
  const TextFile gbnf("root ::= \"yes\" | \"no\"");
  struct Case {
    std::string flags, text;
    int code;
    const char* says;
  };
  const Case cases[] = {
      {"--regex '[0-9]+'", "123", 0, "\"accepted\":[true]"},
      {"--regex '[0-9]+'", "123\n", 0, "\"accepted\":[true]"},  // the line feed of a terminal
      {"--regex '[0-9]+\\n'", "123\n", 0, "\"accepted\":[true]"},
      {"--regex '[0-9]+'", "123\n\n", 1, "stops being one of the grammar within \"\\n\" at byte 3"},
      {"--regex '[0-9]+'", "12x", 1, "stops being one of the grammar within \"x\" at byte 2"},
      {"--regex '[0-9]+'", "", 1, "the text may not end at byte 0"},
      {"--regex ''", "", 0, "\"accepted\":[true]"},
      {"--regex ''", "a", 1, "at byte 0"},
      {"--gbnf " + gbnf.path(), "yes", 0, "\"accepted\":[true]"},
      {"--gbnf " + gbnf.path(), "ye", 1, "the text may not end at byte 2"},
      {"--schema " + schema.path(), R"({"a": 1})", 0, "\"accepted\":[true]"},
      {"--schema " + schema.path(), R"({"b": "2026-01-31", "a": 1})", 0, "\"accepted\":[true]"},
      {"--ordered --schema " + schema.path(), R"({"b": "2026-01-31", "a": 1})", 1, "stops being one of the grammar"},
      {"--schema " + schema.path(), R"({"a": 1, "b": "soon"})", 1, "stops being one of the grammar"},
      {"--no-formats --schema " + schema.path(), R"({"a": 1, "b": "soon"})", 0, "\"accepted\":[true]"},
      {std::string(GYRE_DEMO_MODEL) + " --regex '(the ring )+'", "the ring the ring ", 0, "\"accepted\":[true]"},
      {std::string(GYRE_DEMO_MODEL) + " --regex '(the ring )+'", "the ring the king ", 1,
       "stops being one of the grammar"},
  };
  for (const Case& c : cases) {
    const Ended e = Check(c.text, c.flags);
    EXPECT_EQ(e.code, c.code) << c.flags << " " << c.text << ": " << e.text;
    EXPECT_THAT(e.text, HasSubstr(c.says)) << c.flags << " " << c.text;
  }
  const json::value result = json::parse(Check("5", "--regex '[0-9]+'", kOnlyStdout).text);
  EXPECT_GT(result.at("compile_ms").to_number<double>(), 0);
  EXPECT_EQ(result.at("mask_us").at("count"), 1);
}

TEST(GrammarCheckTest, AGrammarThatIsNoneIsRefusedInASentence) {
  const TextFile schema(R"({"type":"objekt"})"), no_json("{"), gbnf("root ::= x");
  for (const auto& [flags, says] : {
           std::pair("--regex '(a'"s, "not a regular expression: a group that does not end at byte 2"s),
           std::pair("--schema " + schema.path(), schema.path() + ": type at #: expected null, boolean, "),
           std::pair("--schema " + no_json.path(), no_json.path() + ": "),
           std::pair("--gbnf " + gbnf.path(), gbnf.path() + ": "),
           std::pair("--schema /nonexistent"s, "can't read /nonexistent"s),
       }) {
    const Ended e = Check("a", flags);
    EXPECT_EQ(e.code, 1) << flags << e.text;
    EXPECT_THAT(e.text, ::testing::StartsWith("gyre: ")) << flags;
    EXPECT_THAT(e.text, HasSubstr(says)) << flags;
  }
  for (const char* usage : {"", "--regex a --gbnf b", "--regex a --schema b", "--regexp a"}) {
    const Ended e = Check("a", usage);
    EXPECT_EQ(e.code, 2) << usage << e.text;
  }
  EXPECT_THAT(Check("a", "").text, HasSubstr("--schema FILE, --regex PATTERN, --gbnf FILE or --jsonl is needed"));
}

TEST(GrammarCheckTest, ManyLines) {
  const std::string input = R"({"pattern":"a+","texts":["a","aa","b",""]})"
                            "\n\n"
                            R"({"schema":{"enum":[1,"x"]},"texts":["1","\"x\"","2"]})"
                            "\n"
                            R"({"grammar":"root ::= [0-9]","texts":["5","55"]})"
                            "\n"
                            R"({"pattern":"(a","texts":["a"]})"
                            "\n"
                            R"({"pattern":"a"})";
  const Ended e = Check(input, "--jsonl", kOnlyStdout);
  ASSERT_EQ(e.code, 0) << e.text;
  std::vector<json::value> lines;
  for (size_t at = 0; at < e.text.size(); at = e.text.find('\n', at) + 1) {
    lines.push_back(json::parse(e.text.substr(at, e.text.find('\n', at) - at)));
  }
  ASSERT_EQ(lines.size(), 5u) << e.text;
  EXPECT_EQ(lines[0].at("accepted"), json::parse("[true,true,false,false]"));
  EXPECT_EQ(lines[1].at("accepted"), json::parse("[true,true,false]"));
  EXPECT_EQ(lines[2].at("accepted"), json::parse("[true,false]"));
  EXPECT_FALSE(lines[3].as_object().contains("accepted"));
  EXPECT_TRUE(lines[3].at("refused").is_string());
  EXPECT_EQ(lines[4].at("accepted"), json::array());
  const json::value summary = json::parse(Check(input, "--jsonl", kOnlyStderr).text);
  EXPECT_EQ(summary.at("lines"), 5);
  EXPECT_EQ(summary.at("refused"), 1);
  // A line without a grammar of its own has that of the flags.
  const Ended flags = Check(R"({"texts":["b"]})", "--jsonl --regex b", kOnlyStdout);
  EXPECT_EQ(flags.code, 0);
  EXPECT_THAT(flags.text, HasSubstr("\"accepted\":[true]"));
}

// The same grammars as flags of the commands that generate.
TEST(GrammarFlagsTest, RunAndChatWriteTextsOfThem) {
  const TextFile schema(R"({"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],
      "additionalProperties":false})");
  const TextFile gbnf("root ::= \"yes\" | \"no\"");
  const std::pair<std::string, const char*> cases[] = {
      {"--json-schema " + schema.path(), "[ \n\r\t]*\\{[ \n\r\t]*\"a\"[ \n\r\t]*:[ \n\r\t]*\"[xy]\"[ \n\r\t]*\\}\n"},
      {"--compact-json --json-schema " + schema.path(), "\\{\"a\":\"[xy]\"\\}\n"},
      {"--regex 'a{3}b?'", "aaab?\n"},
      {"--no-jump-ahead --regex 'The colour is (red|blue)'", "The colour is (red|blue)\n"},
      {"--grammar " + gbnf.path(), "(yes|no)\n"},
      {"--choice red --choice blue", "(red|blue)\n"}};
  for (const auto& [flags, expected] : cases) {
    const Ended ran = testing::Shell("\"$gyre\" run " + std::string(GYRE_DEMO_MODEL) +
                                     " 'What is Gyre?' --temp 2 --seed 3 " + flags + " 2>/dev/null");
    EXPECT_EQ(ran.code, 0) << flags;
    EXPECT_THAT(ran.text, ::testing::MatchesRegex(expected)) << flags;
  }
  const Ended chat = testing::Shell("echo 'What is Gyre?' | \"$gyre\" chat " + std::string(GYRE_DEMO_MODEL) +
                                    " --regex '<<(red|blue)>>' 2>/dev/null");
  EXPECT_THAT(chat.text, ::testing::ContainsRegex("<<(red|blue)>>"));
  for (const char* wrong :
       {"--regex '(a'", "--regex a --choice b", "--json-schema '{\"uniqueItems\":true,\"type\":\"array\"}'"}) {
    const Ended ran =
        testing::Shell("\"$gyre\" run " + std::string(GYRE_DEMO_MODEL) + " x " + wrong + " 2>&1 >/dev/null");
    EXPECT_NE(ran.code, 0) << wrong << ran.text;
  }
}

TEST(GrammarCheckTest, AWrongLineIsNamed) {
  for (const auto& [line, says] : {
           std::pair("{", "line 2: "),
           std::pair(R"({"texts":["a"]})", "line 2: expected \"schema\", \"pattern\", \"grammar\" or \"tools\""),
           std::pair(R"({"pattern":5})", "line 2: expected a text as \"pattern\""),
           std::pair(R"({"pattern":"a","texts":[5]})", "line 2: expected a list of texts as \"texts\""),
           std::pair(R"({"pattern":"a","texts":"a"})", "line 2: expected a list of texts as \"texts\""),
           std::pair("[]", "line 2: "),
       }) {
    const Ended e = Check(std::string(R"({"pattern":"a","texts":["a"]})") + "\n" + line + "\n", "--jsonl");
    EXPECT_EQ(e.code, 1) << line << e.text;
    EXPECT_THAT(e.text, HasSubstr(says)) << line;
    EXPECT_THAT(e.text, HasSubstr("\"accepted\":[true]")) << "what came before it is answered";
  }
}

}  // namespace
}  // namespace gyre
