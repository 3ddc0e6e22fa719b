// Calls of tools in every form: the message is the same wherever the answer is cut.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <set>

#include "model/json_scanner.h"
#include "model/recorded_answer.h"
#include "model/tool_values.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

namespace json = boost::json;

AnswerFormat NoTemplate(std::string_view) { return {}; }

RecordedAnswer Recorded(const json::object& line) {
  const StatusOr<RecordedAnswer> answer = ReadRecordedAnswer(line, NoTemplate);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? *answer : RecordedAnswer();
}

// At every byte, every pair of bytes, and between all bytes. The number of cuts that failed. With a sanitizer, which
// makes it slow, the second place of a pair is one of a few.
int CheckEveryCut(const RecordedAnswer& answer, const json::object& expected, const std::string& id) {
  const auto differs = [&](const json::object& got, const std::string& how) {
    if (json::value(got) == json::value(expected)) return false;
    ADD_FAILURE() << id << ", " << how << "\n  " << json::serialize(expected) << "\n  " << json::serialize(got);
    return true;
  };
  if (differs(ParseAnswer(answer, [](size_t) { return false; }), "whole")) return 1;
  if (differs(ParseAnswer(answer, [](size_t) { return true; }), "each byte")) return 1;
  const size_t bytes = answer.bytes();
  for (size_t first = 1; first < bytes; ++first) {
    for (size_t second = first; second < bytes; second += testing::kSanitized ? 7 : 1) {
      const auto got = ParseAnswer(answer, [&](size_t byte) { return byte == first || byte == second; });
      if (differs(got, "cut at " + std::to_string(first) + " and " + std::to_string(second))) return 1;
    }
  }
  return 0;
}

TEST(ToolReader, ReadsAllSharedCasesHoweverTheyAreCut) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the cases are not there";
  std::ifstream in(testing::SharedData("answers/tool_calls.jsonl"));
  std::string line;
  int cases = 0, failed = 0;
  while (std::getline(in, line)) {
    if (++cases % 3 != 0 && testing::kSanitized) continue;
    const json::object recorded = json::parse(line).as_object();
    const json::object expected{{"message", recorded.at("message")}, {"finish_reason", recorded.at("finish_reason")}};
    failed += CheckEveryCut(Recorded(recorded), expected, std::string(recorded.at("id").as_string()));
  }
  EXPECT_GE(cases, 66);
  EXPECT_EQ(failed, 0);
}

constexpr char kTools[] = R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
       {"t": {"type": "string"}, "n": {"type": "integer"}, "x": {}, "u": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "g"}}])";

struct Case {
  const char *name, *format;
  const char* generated;  // JSON
  const char* message;    // JSON; content and reasoning_content are null, and tool_calls [] where they are absent
  bool cut = false;
  const char* begins = "before";
};

const Case kCases[] = {
    {"json", "json_in_tags",
     R"j(["A\n<tool_call> {\"arguments\": {\"t\": \"</tool_call>\"}, \"name\": \"f\"} </tool_call>\nB "])j",
     R"j({"content": "A\nB", "tool_calls": [{"name": "f", "arguments": {"t": "</tool_call>"}}]})j"},
    {"an unknown tool", "json_in_tags", R"j(["<tool_call>{\"name\": \"h\", \"arguments\": {}}</tool_call> \n"])j",
     R"j({"content": "<tool_call>{\"name\": \"h\", \"arguments\": {}}</tool_call> \n"})j"},
    {"a call behind a wrong one", "json_in_tags",
     R"j(["<tool_call>{\"name\": g}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"])j",
     R"j({"content": "<tool_call>{\"name\": g}</tool_call>", "tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"arguments that are no object", "json_in_tags",
     R"j(["<tool_call>{\"name\": \"g\", \"arguments\": []}</tool_call>"])j",
     R"j({"content": "<tool_call>{\"name\": \"g\", \"arguments\": []}</tool_call>"})j"},
    {"a name twice", "json_in_tags",
     R"j(["<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1, \"n\": 2}}</tool_call>"])j",
     R"j({"content": "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1, \"n\": 2}}</tool_call>"})j"},
    {"no JSON", "json_in_tags", R"j(["<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 01}}</tool_call>"])j",
     R"j({"content": "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 01}}</tool_call>"})j"},
    {"the end marker is missing", "json_in_tags", R"j(["<tool_call>{\"name\": \"g\", \"arguments\": {}}\n</tool"])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"ended within the arguments", "json_in_tags", R"j(["<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"a"])j",
     R"j({"content": "<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"a"})j"},
    {"cut within the arguments", "json_in_tags", R"j(["<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"a"])j",
     R"j({"unfinished": {"name": "f", "arguments_so_far": "{\"t\": \"a"}})j", true},
    {"cut before the name", "json_in_tags", R"j(["x <tool_call>{\"name\": \"f"])j",
     R"j({"content": "x <tool_call>{\"name\": \"f"})j", true},
    {"within reasoning", "json_in_tags",
     R"j(["<think>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\n</think> \nx"])j",
     R"j({"reasoning_content": "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", "content": "x"})j"},
    {"a list in tags", "nemotron_list",
     R"j(["<TOOLCALL>[{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {\"n\": 1}}]</TOOLCALL>"])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"n": 1}}]})j"},
    {"XML", "xml_parameters",
     R"j(["<tool_call>\n<function=f>\n<parameter=t>\n</parameter>\nx\n\n</parameter>\n<parameter=n>\n7\n</parameter>\n<parameter=x>\n{\"a\": [None]}\n</parameter>\n<parameter=u>\nNone\n</parameter>\n</function>\n</tool_call>"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "</parameter>\nx\n", "n": 7, "x": "{\"a\": [None]}", "u": null}}]})j"},
    {"XML in other tags", "seed_xml",
     R"j(["<seed:think>a</seed:think><seed:tool_call><function=f><parameter=t>\"1\"</parameter></function></seed:tool_call>"])j",
     R"j({"reasoning_content": "a", "tool_calls": [{"name": "f", "arguments": {"t": "\"1\""}}]})j"},
    {"XML that is cut in a value", "xml_parameters",
     R"j(["<tool_call><function=f><parameter=n>\n1\n</parameter><parameter=t>\na\n</para"])j",
     R"j({"unfinished": {"name": "f", "arguments_known": {"n": 1}, "arguments_begun": {"t": "a\n</para"}}})j", true},
    {"XML that is cut in a number", "xml_parameters", R"j(["<tool_call><function=f><parameter=n>\n1"])j",
     R"j({"unfinished": {"name": "f", "arguments_known": {}, "arguments_begun": {"n": "1"}}})j", true},
    {"XML of an unknown tool", "xml_parameters", R"j(["<tool_call>\n<function=h>\n</function>\n</tool_call>"])j",
     R"j({"content": "<tool_call>\n<function=h>\n</function>\n</tool_call>"})j"},
    {"keys and values", "glm_args",
     R"j(["<tool_call>f<arg_key>t</arg_key><arg_value> 1 </arg_value><arg_key>n</arg_key>\n<arg_value>2</arg_value></tool_call>"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": " 1 ", "n": 2}}]})j"},
    {"Llama's", "llama_json", R"j([" {\"name\": \"f\", \"parameters\": {\"n\": 1}} \n"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"n": 1}}]})j"},
    {"Llama's, and more text", "llama_json", R"j(["{\"name\": \"g\", \"parameters\": {}} and so on"])j",
     R"j({"content": "{\"name\": \"g\", \"parameters\": {}} and so on"})j"},
    {"Llama's, not at the beginning", "llama_json", R"j(["See {\"name\": \"g\", \"parameters\": {}}"])j",
     R"j({"content": "See {\"name\": \"g\", \"parameters\": {}}"})j"},
    {"Python's", "pythonic",
     R"j(["[f(t='a\\'\\u00e9\\n', n=-1_0, x={'k': (1, 2.), \"l\": [True, None]}, u='a' \"b\"), g()]"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "a'\u00e9\n", "n": -10, "x": {"k": [1, 2.0], "l": [true, null]}, "u": "ab"}}, {"name": "g", "arguments": {}}]})j"},
    {"Python's without brackets", "pythonic", R"j(["g()"])j", R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"Python's of an unknown tool", "pythonic", R"j(["[g(), h()]"])j", R"j({"content": "[g(), h()]"})j"},
    {"Python's with a place", "pythonic", R"j(["[f(1)]"])j", R"j({"content": "[f(1)]"})j"},
    {"a text", "pythonic", R"j(["Hello (all)"])j", R"j({"content": "Hello (all)"})j"},
    {"Python's in tags", "lfm2",
     R"j(["I. ", {"control": "<|tool_call_start|>"}, "[f(t=\"]\")]", {"control": "<|tool_call_end|>"}, "II."])j",
     R"j({"content": "I.II.", "tool_calls": [{"name": "f", "arguments": {"t": "]"}}]})j"},
    {"Python's in lines", "olmo3", R"j(["<function_calls>\nf(n=1)\ng()\n</function_calls>"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]})j"},
    {"Mistral's list", "mistral_list", R"j([{"control": "[TOOL_CALLS]"}, "[{\"name\": \"g\", \"arguments\": {}}]"])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"Mistral's arguments", "mistral_args",
     R"j(["a ", {"control": "[TOOL_CALLS]"}, "g", {"control": "[ARGS]"}, "{}", {"control": "[TOOL_CALLS]"}, "f", {"control": "[ARGS]"}, "{\"t\": \"[ARGS]\"}"])j",
     R"j({"content": "a", "tool_calls": [{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"t": "[ARGS]"}}]})j"},
    {"Mistral's that is wrong", "mistral_args",
     R"j(["a ", {"control": "[TOOL_CALLS]"}, "h", {"control": "[ARGS]"}, "{}"])j",
     R"j({"content": "a [TOOL_CALLS]h[ARGS]{}"})j"},
    {"gpt-oss", "harmony",
     R"j([{"control": "<|channel|>"}, "analysis", {"control": "<|message|>"}, "A <|end|> B", {"control": "<|end|>"}, {"control": "<|start|>"}, "assistant", {"control": "<|channel|>"}, "commentary to=functions.f ", {"control": "<|constrain|>"}, "json", {"control": "<|message|>"}, "{\"t\": \"<|call|>\"}"])j",
     R"j({"reasoning_content": "A <|end|> B", "tool_calls": [{"name": "f", "arguments": {"t": "<|call|>"}}]})j"},
    {"gpt-oss, two calls", "harmony",
     R"j([{"control": "<|channel|>"}, "commentary to=functions.g", {"control": "<|message|>"}, {"control": "<|end|>"}, {"control": "<|start|>"}, "assistant", {"control": "<|channel|>"}, "commentary to=functions.f", {"control": "<|message|>"}, "{\"n\": 1}", {"control": "<|call|>"}])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"n": 1}}]})j"},
    {"gpt-oss, an unknown tool", "harmony",
     R"j([{"control": "<|channel|>"}, "commentary to=functions.h", {"control": "<|message|>"}, "{}", {"control": "<|call|>"}])j",
     R"j({"content": "<|channel|>commentary to=functions.h<|message|>{}<|call|>"})j"},
    {"DeepSeek's", "deepseek_v3_1",
     R"j([{"control": "<｜tool▁calls▁begin｜>"}, {"control": "<｜tool▁call▁begin｜>"}, "g", {"control": "<｜tool▁sep｜>"}, {"control": "<｜tool▁call▁end｜>"}, {"control": "<｜tool▁calls▁end｜>"}])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"DeepSeek's in a fence", "deepseek_v3",
     R"j([{"control": "<｜tool▁calls▁begin｜>"}, {"control": "<｜tool▁call▁begin｜>"}, "function", {"control": "<｜tool▁sep｜>"}, "f\n```json\n{\"t\": \"```\"}\n```", {"control": "<｜tool▁call▁end｜>"}, {"control": "<｜tool▁calls▁end｜>"}])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "```"}}]})j"},
    {"DeepSeek's tags", "deepseek_dsml",
     R"j(["<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"t\" string=\"true\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "1", "x": [1]}}]})j"},
    {"MiniMax's", "minimax",
     R"j(["<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"t\">a\n</parameter>\n</invoke>\n</minimax:tool_call>\nx"])j",
     R"j({"content": "\nx", "tool_calls": [{"name": "f", "arguments": {"t": "a\n"}}]})j"},
    {"Kimi's", "kimi",
     R"j([{"control": "<|tool_calls_section_begin|>"}, {"control": "<|tool_call_begin|>"}, "functions.f:3", {"control": "<|tool_call_argument_begin|>"}, "{\"n\": 1}", {"control": "<|tool_call_end|>"}, {"control": "<|tool_calls_section_end|>"}])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"n": 1}}]})j"},
    {"Kimi's that is wrong", "kimi",
     R"j([{"control": "<|tool_calls_section_begin|>"}, {"control": "<|tool_call_begin|>"}, "functions.f:3", {"control": "<|tool_call_argument_begin|>"}, "{n}", {"control": "<|tool_call_end|>"}, {"control": "<|tool_calls_section_end|>"}])j",
     R"j({"content": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{n}<|tool_call_end|><|tool_calls_section_end|>"})j"},
    {"Gemma's", "gemma4",
     R"j([{"control": "<|tool_call>"}, "call:f{t:", {"control": "<|\"|>"}, "a, b:}", {"control": "<|\"|>"}, ",x:{k:[1,", {"control": "<|\"|>"}, "é", {"control": "<|\"|>"}, ",true]},n:3}", {"control": "<tool_call|>"}])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "a, b:}", "x": {"k": [1, "é", true]}, "n": 3}}]})j"},
    {"Gemma's that is cut", "gemma4",
     R"j([{"control": "<|tool_call>"}, "call:f{n:3,t:", {"control": "<|\"|>"}, "On"])j",
     R"j({"unfinished": {"name": "f", "arguments_known": {"n": 3}, "arguments_begun": {"t": "On"}}})j", true},
    {"FunctionGemma's", "function_gemma",
     R"j([{"control": "<start_function_call>"}, "call:f{t:", {"control": "<escape>"}, "x", {"control": "<escape>"}, "}", {"control": "<end_function_call>"}])j",
     R"j({"tool_calls": [{"name": "f", "arguments": {"t": "x"}}]})j"},
    {"Granite's", "granite_list", R"j([{"control": "<|tool_call|>"}, "[{\"name\": \"g\", \"arguments\": {}}]"])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"Cohere's", "cohere_action",
     R"j([{"control": "<|START_ACTION|>"}, "[{\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {}}]", {"control": "<|END_ACTION|>"}])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"Phi's", "phi4_call",
     R"j([{"control": "<|tool_call|>"}, "[{\"name\": \"g\", \"arguments\": {}}]", {"control": "<|/tool_call|>"}])j",
     R"j({"tool_calls": [{"name": "g", "arguments": {}}]})j"},
    {"Functionary's tags", "functionary_v3_1", R"j(["a <function=f>{\"n\": 1}</function>"])j",
     R"j({"content": "a", "tool_calls": [{"name": "f", "arguments": {"n": 1}}]})j"},
    {"Functionary's recipients", "functionary_v3_2", R"j(["all\nA >>> B >>>none\n>>>f\n{\"n\": 1}>>>g\n{}"])j",
     R"j({"content": "A >>> B >>>none", "tool_calls": [{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]})j"},
};

json::object Line(const Case& c) {
  return {{"format", c.format},
          {"begins", c.begins},
          {"tools", json::parse(kTools)},
          {"generated", json::parse(c.generated)},
          {"ended_by", c.cut ? "length" : "stop"}};
}

TEST(ToolReader, ReadsEveryFormHoweverItIsCut) {
  std::set<std::string> forms;
  for (const Case& c : kCases) {
    json::object message = json::parse(c.message).as_object();
    for (const char* field : {"content", "reasoning_content"}) message.emplace(field, nullptr);
    message.emplace("tool_calls", json::array());
    const bool called = !message["tool_calls"].as_array().empty();
    const json::object expected{{"message", message},
                                {"finish_reason", c.cut    ? "length"
                                                  : called ? "tool_calls"
                                                           : "stop"}};
    EXPECT_EQ(CheckEveryCut(Recorded(Line(c)), expected, c.name), 0);
    forms.insert(c.format);
  }
  for (const ToolFormat& format : ToolFormats()) EXPECT_EQ(forms.count(format.name), 1u) << format.name;
}

// Every marker of every form at every place, and what is left of a call at every end: nothing fails, and no text is
// lost.
TEST(ToolReader, KeepsWhatIsNoCall) {
  for (const Case& c : kCases) {
    const RecordedAnswer whole = Recorded(Line(c));
    std::string text;
    for (const RecordedAnswer::Part& part : whole.parts) text += part.text;
    RecordedAnswer answer = whole;
    answer.tools.clear();
    answer.parts = {{.text = text}};
    answer.format.open.clear();
    answer.format.close.clear();
    if (answer.format.channels) continue;
    EXPECT_EQ(ParseAnswer(answer, [](size_t) { return true; }).at("message").at("content"), json::value(text))
        << c.name;
  }
}

std::vector<AnswerDelta> Deltas(const char* format, const std::vector<std::string>& texts, bool cut = false) {
  ToolReader reader(AnswerFormatOf(*ToolFormatNamed(format), ""), DeclareTools(json::parse(kTools)));
  std::vector<AnswerDelta> all;
  for (const std::string& text : texts) {
    for (AnswerDelta& delta : reader.Push(-1, text)) all.push_back(std::move(delta));
  }
  for (AnswerDelta& delta : reader.Finish("", cut)) all.push_back(std::move(delta));
  return all;
}

using Kind = AnswerDelta::Kind;

TEST(ToolReader, ALongCallComesAsItIsWritten) {
  const std::string half(ToolReader::kHeldCall, 'a');
  for (const bool wrong : {false, true}) {
    const std::string end = wrong ? "\n\"}}" : "\"}}";
    const auto deltas = Deltas("json_in_tags", {"<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"", half, "b",
                                                end, "</tool_call>", "c"});
    ASSERT_GE(deltas.size(), 4u);
    EXPECT_EQ(deltas[0], (AnswerDelta{Kind::kCall, "f"}));
    EXPECT_EQ(deltas[1], (AnswerDelta{Kind::kArguments, "{\"t\": \"" + half}));
    EXPECT_EQ(deltas[2], (AnswerDelta{Kind::kArguments, "b"}));
    std::string arguments;
    for (const AnswerDelta& delta : deltas) {
      if (delta.kind == Kind::kArguments) arguments += delta.text;
    }
    // What is wrong is what the model wrote, up to the end of the call.
    EXPECT_EQ(arguments, "{\"t\": \"" + half + "b" + (wrong ? end : "\"}"));
    EXPECT_EQ(deltas[deltas.size() - 2].kind, Kind::kCallEnd);
    // All of it at once gives the same.
    const auto once = Deltas("json_in_tags", {"<tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"" + half + "b" +
                                              end + "</tool_call>c"});
    ASSERT_EQ(once.size(), 4u);
    EXPECT_EQ(once[1], (AnswerDelta{Kind::kArguments, arguments}));
    EXPECT_EQ(deltas.back(), (AnswerDelta{Kind::kContent, "c"}));
  }
  const auto values =
      Deltas("xml_parameters", {"<tool_call><function=f><parameter=t>", half, "\"", "</parameter>"}, true);
  ASSERT_EQ(values.size(), 4u);
  EXPECT_EQ(values[1], (AnswerDelta{Kind::kArguments, "{\"t\": \"" + half}));
  EXPECT_EQ(values[2], (AnswerDelta{Kind::kArguments, "\\\""}));
}

TEST(ToolReader, ContentComesAtOnceBesideCalls) {
  EXPECT_EQ(Deltas("json_in_tags", {"One <t", "wo", " ", "x"}),
            (std::vector<AnswerDelta>{{Kind::kContent, "One"}, {Kind::kContent, " <two"}, {Kind::kContent, " x"}}));
}

// Each template's own text says which form its family has.
TEST(ToolFormats, AreFoundByWhatTheTemplateWrites) {
  const std::pair<const char*, const char*> kTemplates[] = {
      {"<tool_call>\n{\"name\": ", "json_in_tags"},
      {"<tool_call> <function= <parameter=", "xml_parameters"},
      {"<tool_call> <arg_key>", "glm_args"},
      {"[TOOL_CALLS] [ARGS]", "mistral_args"},
      {"[TOOL_CALLS]", "mistral_list"},
      {"<｜tool▁calls▁begin｜> ```json", "deepseek_v3"},
      {"<｜tool▁calls▁begin｜>", "deepseek_v3_1"},
      {"<|tool_call|>", "granite_list"},
      {"<|tool|> <|/tool|>", "phi4_call"},
      {"<|start_header_id|>ipython<|end_header_id|>", "llama_json"},
      {"<|start_header_id|>ipython<|end_header_id|> <|python_start|>", "pythonic"},
      {"<|channel|> <|message|>", "harmony"},
      {">>>all", "functionary_v3_2"},
      {"<function= </function>", "functionary_v3_1"},
  };
  for (const auto& [written, name] : kTemplates) {
    const ToolFormat* found = ToolFormatOf(written);
    ASSERT_NE(found, nullptr) << written;
    EXPECT_STREQ(found->name, name);
  }
  EXPECT_EQ(ToolFormatOf("{{ messages }}"), nullptr);
}

TEST(JsonScanner, IsJson) {
  for (const char* text : {"1", " -0.5e+3 ", "[]", "[1,2]", R"({"a": {"b": [null, true, false]}})", R"("a\u00e9\n")"}) {
    EXPECT_TRUE(IsJson(text)) << text;
  }
  for (const char* text : {"", "01", "1.", "+1", ".5", "[1,]", "{a: 1}", R"({"a": 1, "a": 2})", "nul", "1 2", "\"\n\"",
                           R"("\x")", "[1}", "{]", "-", "1e"}) {
    EXPECT_FALSE(IsJson(text)) << text;
  }
}

}  // namespace
}  // namespace gyre
