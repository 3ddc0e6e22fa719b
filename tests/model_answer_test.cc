// Reasoning and tool calls in the format of each family: the pieces are the same wherever tokens cut the answer.
#include <gtest/gtest.h>

#include "model/answer_splitter.h"
#include "model/chat_template.h"
#include "model/utf8.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"

namespace gyre {
namespace {

using Piece = AnswerSplitter::Piece;
using Begins = AnswerFormat::Begins;

struct Parts {
  std::string reasoning, content;
  bool operator==(const Parts&) const = default;
};
void PrintTo(const Parts& parts, std::ostream* out) { *out << "[" << parts.reasoning << "][" << parts.content << "]"; }

// Byte-level BPE without merges: ids 0 to 255 are bytes; then come these control tokens.
std::shared_ptr<const Tokenizer> TokenizerWith(const std::vector<std::string>& controls) {
  std::vector<std::string> pieces;
  std::vector<int32_t> types(256, 1);
  char32_t other = 256;  // bytes that are no visible characters have others from here on, as in GPT-2
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    AppendUtf8(visible ? static_cast<char32_t>(byte) : other++, &pieces.emplace_back());
  }
  for (const std::string& control : controls) {
    pieces.push_back(control);
    types.push_back(3);
  }
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", pieces);
  w.Strings("tokenizer.ggml.merges", {});
  w.Numbers<int32_t>("tokenizer.ggml.token_type", 5, types);
  const auto tokenizer = TokenizerFromBytes(w.Finish());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.Encode(text, {.add_special = false, .parse_special = true});
}

// `answer`: events, each with tokens whose text comes with the last one of them.
Parts Split(const AnswerFormat& format, const Tokenizer& tokenizer, const std::vector<std::vector<TokenId>>& answer) {
  AnswerSplitter splitter(format);
  Parts parts;
  const auto add = [&](const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      (piece.reasoning ? parts.reasoning : parts.content) += piece.text;
    }
  };
  for (const std::vector<TokenId>& event : answer) {
    std::string text;
    for (const TokenId id : event) text += tokenizer.Piece(id);
    add(splitter.Push(event.back(), text));
  }
  add(splitter.Finish(""));
  return parts;
}

// All of the answer at once, but for its control tokens; each byte alone; and cut in two at every byte.
void CheckEveryCut(const AnswerFormat& format, const Tokenizer& tokenizer, const std::string& answer,
                   const Parts& expected) {
  const std::vector<TokenId> ids = Encode(tokenizer, answer);
  for (size_t cut = 0; cut <= ids.size() + 1; ++cut) {
    std::vector<std::vector<TokenId>> events;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool alone = cut > ids.size();
      // The text before a control token may come with it.
      const bool fresh = events.empty() || i == cut || alone || events.back().back() >= 256;
      if (fresh) events.emplace_back();
      events.back().push_back(ids[i]);
    }
    ASSERT_EQ(Split(format, tokenizer, events), expected) << answer << " cut at " << cut;
  }
}

struct Family {
  const char* name;
  std::string prompt;                 // how the template begins an answer
  std::vector<std::string> controls;  // control tokens of the family's vocabulary
  std::string written;                // markers in the template
  std::string answer;
  Parts parts;
};

const Family kFamilies[] = {
    {"qwen3",
     "<|im_start|>assistant\n",
     {"<|im_start|>", "<|im_end|>"},
     "<think> </think> <tool_call>",
     "<think>\nWhy? <b>\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     {"Why? <b>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"}},
    {"qwen3.5",
     "<|im_start|>assistant\n<think>\n",
     {"<|im_start|>", "<|im_end|>"},
     "<think> </think> <tool_call>",
     "So.\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
     {"So.", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"}},
    {"gpt-oss",
     "<|start|>assistant",
     {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"},
     "<|channel|> <|message|>",
     "<|channel|>analysis<|message|> Need the time. <|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>",
     {"Need the time.", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>"}},
    {"gpt-oss final",
     "<|start|>assistant",
     {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"},
     "<|channel|> <|message|>",
     "<|channel|>analysis<|message|>Hm < 3 <|end|><|start|>assistant<|channel|>final<|message|>It is < 3.\n<|end|>",
     {"Hm < 3", "It is < 3.\n"}},
    {"gpt-oss preamble and recipient first",
     "<|start|>assistant",
     {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"},
     "<|channel|> <|message|>",
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary"
     "<|message|>{}<|call|>",
     {"", "I look. to=functions.f<|channel|>commentary<|message|>{}<|call|>"}},
    {"gpt-oss in analysis",
     "<|start|>assistant<|channel|>analysis<|message|>",
     {"<|start|>", "<|end|>", "<|message|>", "<|channel|>"},
     "<|channel|> <|message|>",
     "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes",
     {"Hm.", "Yes"}},
    {"gpt-oss without a header",
     "<|start|>assistant",
     {"<|start|>", "<|end|>", "<|message|>", "<|channel|>"},
     "<|channel|> <|message|>",
     " Plain <| text",
     {"", " Plain <| text"}},
    {"gpt-oss as text",
     "<|start|>assistant",
     {},
     "<|channel|> <|message|>",
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>",
     {"A", "B"}},
    {"gemma4",
     "<|turn>model\n",
     {"<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"},
     "<channel|> <|tool_call>",
     "<|channel>thought\nThe user\nasks.\n<channel|><|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>",
     {"The user\nasks.", "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>"}},
    {"gemma4 without thoughts",
     "<|turn>model\n<|channel>thought\n<channel|>",
     {"<|turn>", "<turn|>", "<|channel>", "<channel|>"},
     "<channel|>",
     "Hello <b>",
     {"", "Hello <b>"}},
    {"gemma4, empty thoughts",
     "<|turn>model\n",
     {"<|turn>", "<turn|>", "<|channel>", "<channel|>"},
     "<channel|>",
     "<|channel>thought\n<channel|>Hello",
     {"", "Hello"}},
    {"mistral3",
     "[/INST]",
     {"[INST]", "[/INST]", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"},
     "[THINK] [/THINK] [TOOL_CALLS]",
     "[THINK]Deep [ thought[/THINK]So:[TOOL_CALLS]f[ARGS]{\"a\":1}",
     {"Deep [ thought", "So:[TOOL_CALLS]f[ARGS]{\"a\":1}"}},
    {"deepseek3",
     "<｜Assistant｜></think>",
     {"<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
      "<｜tool▁call▁end｜>"},
     "</think> <｜tool▁calls▁begin｜>",
     "I ask.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {"", "I ask.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"}},
    {"deepseek3.2",
     "<｜Assistant｜><think>",
     {"<｜Assistant｜>", "｜DSML｜"},
     "</think> <｜DSML｜function_calls>",
     "Hm</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke "
     "name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     {"Hm", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"}},
    {"kimi",
     "<|im_assistant|>assistant<|im_middle|>",
     {"<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
      "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
     "<think> </think> <|tool_calls_section_begin|>",
     "<think>a</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     {"a",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_calls_section_end|>"}},
    {"glm4",
     "<|assistant|>",
     {"<|assistant|>", "<|user|>"},
     "<think> </think> <tool_call>",
     "\n<think>Hm</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
     {"Hm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"}},
    {"minimax-m2",
     "]~b]ai\n<think>\n",
     {"]~b]", "[e~["},
     "<think> </think> <minimax:tool_call>",
     "Hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>",
     {"Hm", "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>"}},
    {"seed-oss",
     "<seed:bos>assistant\n",
     {"<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"},
     "<seed:think> </seed:think> <seed:tool_call>",
     "<seed:think>Hm <seed</seed:think>\n<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>",
     {"Hm <seed", "<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>"}},
    {"lfm2",
     "<|im_start|>assistant\n",
     {"<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"},
     "<|tool_call_start|>",
     "Wait: <|tool_call_start|>[f(a=\"1\")]<|tool_call_end|> < ok",
     {"", "Wait: <|tool_call_start|>[f(a=\"1\")]<|tool_call_end|> < ok"}},
    {"granite",
     "<|start_of_role|>assistant<|end_of_role|>",
     {"<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"},
     "<|tool_call|>",
     "<|tool_call|>[{\"name\": \"f\"}]",
     {"", "<|tool_call|>[{\"name\": \"f\"}]"}},
    {"olmo3",
     "<|im_start|>assistant\n<think>",
     {"<|im_start|>", "<|im_end|>"},
     "<think> </think> <function_calls>",
     "Hm</think>\n\n<function_calls>f(a=1)</function_calls>",
     {"Hm", "<function_calls>f(a=1)</function_calls>"}},
    {"nemotron",
     "<SPECIAL_11>Assistant\n<think>\n",
     {"<SPECIAL_11>"},
     "<think> </think> <TOOLCALL>",
     "Hm\n</think>\n\n<TOOLCALL>[{\"name\": \"f\"}]</TOOLCALL>",
     {"Hm", "<TOOLCALL>[{\"name\": \"f\"}]</TOOLCALL>"}},
    {"command",
     "<|CHATBOT_TOKEN|>",
     {"<|CHATBOT_TOKEN|>", "<|START_THINKING|>", "<|END_THINKING|>"},
     "<|START_THINKING|> <|END_THINKING|>",
     "<|START_THINKING|>Hm <|<|END_THINKING|>Yes",
     {"Hm <|", "Yes"}},
    {"openthinker",
     "<|im_start|>assistant\n",
     {"<|im_start|>"},
     "<|begin_of_thought|> <|end_of_thought|>",
     "<|begin_of_thought|>\n\nHm\n\n<|end_of_thought|>\n\nYes",
     {"Hm", "Yes"}},
    {"llama3.1",
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     {"<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"},
     "<|python_tag|>",
     "<|python_tag|>f.call(a=\"1\")",
     {"", "<|python_tag|>f.call(a=\"1\")"}},
    // Answers that are not as they should be.
    {"ends in the reasoning", "A: ", {}, "</think>", "<think>never ends </thin", {"never ends </thin", ""}},
    {"ends in a marker", "A: ", {}, "</think>", "<thin", {"", "<thin"}},
    {"reasoning that is not at the beginning",
     "A: ",
     {},
     "</think>",
     "no <think> here</think>",
     {"", "no <think> here</think>"}},
    {"closed twice",
     "A: <think>",
     {},
     "</think>",
     "Why?\n\nSo.\n</think>\n\nBecause. </think> <think>",
     {"Why?\n\nSo.", "Because. </think> <think>"}},
    {"nothing", "A: <think>", {}, "</think>", "", {"", ""}},
    {"space", "A: ", {}, "</think>", " leading space stays", {"", " leading space stays"}},
    {"no reasoning", "A: ", {}, "</think>", "  <think></think>x", {"", "x"}},
    {"a call that is cut",
     "A: ",
     {"[TOOL_CALLS]", "[ARGS]"},
     "[TOOL_CALLS]",
     "[TOOL_CALLS]f[ARGS]{\"a",
     {"", "[TOOL_CALLS]f[ARGS]{\"a"}},
    {"markers of another family",
     "A: ",
     {"[THINK]", "[/THINK]", "<|im_end|>"},
     "</think>",
     "[THINK]x[/THINK] <seed:think>y</seed:think>",
     {"", "x <seed:think>y</seed:think>"}},
};

TEST(Answer, IsSplitAlikeHoweverTheTokensCutIt) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.name);
    const auto tokenizer = TokenizerWith(family.controls);
    const AnswerFormat format =
        FindAnswerFormat("{# " + family.written + " #}", *tokenizer, Encode(*tokenizer, family.prompt));
    EXPECT_TRUE(format.marked());
    CheckEveryCut(format, *tokenizer, family.answer, family.parts);
  }
}

// Each family's markers of calls, as its template and its vocabulary have them: none of them is lost as a token without
// text, and a call ends where the family says.
TEST(Answer, CallsKeepTheMarkersOfTheirFamily) {
  struct Call {
    const char *open, *close;
    std::vector<std::string> inner;
  };
  const Call calls[] = {
      {"<｜tool▁calls▁begin｜>",
       "<｜tool▁calls▁end｜>",
       {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}},
      {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", {"｜DSML｜"}},
      {"<|tool_calls_section_begin|>",
       "<|tool_calls_section_end|>",
       {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"}},
      {"<|tool_call>", "<tool_call|>", {"<|\"|>"}},
      {"<minimax:tool_call>", "</minimax:tool_call>", {}},
      {"<seed:tool_call>", "</seed:tool_call>", {}},
      {"<|tool_call_start|>", "<|tool_call_end|>", {}},
      {"[TOOL_CALLS]", "", {"[ARGS]", "[CALL_ID]"}},
      {"<TOOLCALL>", "</TOOLCALL>", {}},
      {"<function_calls>", "</function_calls>", {}},
      {"<tool_call>", "</tool_call>", {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
      {"<|tool_call|>", "", {}},
      {"<|python_tag|>", "", {}},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.open);
    std::vector<std::string> controls = {call.open};
    if (*call.close != 0) controls.emplace_back(call.close);
    controls.insert(controls.end(), call.inner.begin(), call.inner.end());
    const auto tokenizer = TokenizerWith(controls);
    std::string written = call.open;
    for (const std::string& inner : call.inner) written += " " + inner;
    const AnswerFormat format = FindAnswerFormat("{# " + written + " #}", *tokenizer, {});
    EXPECT_EQ(format.call_open, call.open);
    EXPECT_EQ(format.call_close, call.close);
    std::vector<std::string> known;
    for (const AnswerFormat::Control& control : format.controls) known.push_back(control.text);
    EXPECT_EQ(known, controls);
    std::string answer = "I ask. " + controls[0] + "f";
    for (const std::string& inner : call.inner) answer += " " + inner;
    CheckEveryCut(format, *tokenizer, answer + " " + call.close, {"", answer + " " + call.close});
  }
}

TEST(Answer, HeadersOfChannelsKeepTheirMarkers) {
  const std::vector<std::string> markers = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                            "<|end|>",   "<|call|>",    "<|return|>"};
  const auto tokenizer = TokenizerWith(markers);
  std::vector<std::string> known;
  for (const auto& control : FindAnswerFormat("<|channel|> <|message|>", *tokenizer, {}).controls)
    known.push_back(control.text);
  EXPECT_EQ(known, markers);
}

TEST(Answer, WithoutKnownMarkersIsContentAtOnce) {
  const auto tokenizer = TokenizerWith({"<|im_end|>"});
  const AnswerFormat format = FindAnswerFormat("{{ messages }}", *tokenizer, {});
  EXPECT_FALSE(format.marked());
  AnswerSplitter splitter(format);
  EXPECT_EQ(splitter.Push(1, "<think"), (std::vector<Piece>{{false, "<think"}}));
  EXPECT_TRUE(splitter.Push(256, "").empty());
  EXPECT_EQ(splitter.Finish(" x"), (std::vector<Piece>{{false, " x"}}));
}

TEST(Answer, ComesAsItIsThought) {
  AnswerSplitter splitter({.open = "<think>", .close = "</think>"});
  EXPECT_TRUE(splitter.Push(1, "<think>").empty());
  EXPECT_EQ(splitter.Push(1, "\nOne"), (std::vector<Piece>{{true, "One"}}));
  EXPECT_TRUE(splitter.Push(1, "\n").empty());
  EXPECT_EQ(splitter.Push(1, "two </"), (std::vector<Piece>{{true, "\ntwo"}}));
  EXPECT_EQ(splitter.Push(1, "think>\n\nYes"), (std::vector<Piece>{{false, "Yes"}}));
  EXPECT_EQ(splitter.Push(1, "!"), (std::vector<Piece>{{false, "!"}}));
}

TEST(Answer, ChannelsComeAsTheyAreWritten) {
  AnswerSplitter splitter({.channels = true, .controls = {{7, "<|channel|>"}, {8, "<|message|>"}}});
  EXPECT_TRUE(splitter.Push(7, "").empty());
  EXPECT_TRUE(splitter.Push(1, "analysis").empty());
  EXPECT_TRUE(splitter.Push(8, "").empty());
  EXPECT_EQ(splitter.Push(1, "One "), (std::vector<Piece>{{true, "One"}}));
  EXPECT_EQ(splitter.Push(1, "two<|en"), (std::vector<Piece>{{true, " two"}}));
  EXPECT_TRUE(splitter.Push(1, "d|><|start|>assistant").empty());
  EXPECT_TRUE(splitter.Push(7, "").empty());
  EXPECT_TRUE(splitter.Push(8, "final").empty());
  EXPECT_EQ(splitter.Push(1, "Y"), (std::vector<Piece>{{false, "Y"}}));
  EXPECT_EQ(splitter.Push(1, "es"), (std::vector<Piece>{{false, "es"}}));
}

TEST(Answer, ControlTokensHaveNoText) {
  AnswerSplitter splitter({.open = "[THINK]", .close = "[/THINK]", .controls = {{8, "[THINK]"}, {9, "[/THINK]"}}});
  EXPECT_TRUE(splitter.Push(8, "").empty());
  EXPECT_EQ(splitter.Push(1, "deep ["), (std::vector<Piece>{{true, "deep ["}}));
  EXPECT_EQ(splitter.Push(9, " thought [/T "), (std::vector<Piece>{{true, " thought [/T"}}));
  EXPECT_TRUE(splitter.Push(1, "\n").empty());
  EXPECT_EQ(splitter.Push(9, "So."), (std::vector<Piece>{{false, "So."}}));
}

TEST(Answer, TextThatSpellsAControlTokenIsText) {
  AnswerSplitter splitter({.open = "[THINK]", .close = "[/THINK]", .controls = {{8, "[THINK]"}, {9, "[/THINK]"}}});
  EXPECT_EQ(splitter.Push(1, "[THINK]x[/THINK]"), (std::vector<Piece>{{false, "[THINK]x[/THINK]"}}));
  AnswerSplitter channels({.channels = true,
                           .begins = Begins::kInContent,
                           .controls = {{7, "<|channel|>"}, {8, "<|message|>"}, {9, "<|end|>"}}});
  EXPECT_EQ(channels.Push(1, "one <|end|> two"), (std::vector<Piece>{{false, "one <|end|> two"}}));
}

// Text that begins as a header is given out as soon as it is too long for one.
TEST(Answer, ALongTextWithoutAMessageIsNoHeader) {
  AnswerSplitter splitter({.channels = true});
  std::string shown;
  for (int i = 0; i < 200; ++i) {
    for (const Piece& piece : splitter.Push(1, "to=nobody ")) shown += piece.text;
  }
  EXPECT_EQ(shown.substr(0, 20), "to=nobody to=nobody ");
}

TEST(Answer, AHeaderThatIsTooLongEnds) {
  for (const TokenId token : {7, 9}) {
    AnswerSplitter splitter({.channels = true, .controls = {{7, "<|channel|>"}, {8, "<|message|>"}, {9, "<|start|>"}}});
    EXPECT_TRUE(splitter.Push(token, "").empty());
    std::string shown;
    for (const Piece& piece : splitter.Push(1, std::string(600, 'a'))) shown += piece.text;
    EXPECT_EQ(shown, (token == 7 ? "<|channel|>" : "<|start|>") + std::string(600, 'a'));
  }
}

}  // namespace
}  // namespace gyre
