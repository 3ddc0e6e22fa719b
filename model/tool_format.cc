#include "model/tool_format.h"

#include <algorithm>
#include <string>

namespace gyre {
namespace {

constexpr const char *kThink = "</think>", *kThinkToken = "[/THINK]";

const ToolFormat kFormats[] = {
    // gpt-oss
    {"harmony", ToolForm::kHarmony, "", "", {}, {{"<|channel|>"}, {"<|message|>"}}, true, ""},
    // DeepSeek V3 and R1
    {"deepseek_v3",
     ToolForm::kDeepSeekFenced,
     "<｜tool▁calls▁begin｜>",
     "<｜tool▁calls▁end｜>",
     {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
     {{"<｜tool▁calls▁begin｜>"}, {"```json"}},
     true,
     kThink},
    {"deepseek_v3_1",
     ToolForm::kDeepSeek,
     "<｜tool▁calls▁begin｜>",
     "<｜tool▁calls▁end｜>",
     {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
     {{"<｜tool▁calls▁begin｜>"}},
     true,
     kThink},
    // DeepSeek V3.2
    {"deepseek_dsml",
     ToolForm::kInvoke,
     "<｜DSML｜function_calls>",
     "</｜DSML｜function_calls>",
     {"｜DSML｜"},
     {{"<｜DSML｜function_calls>"}},
     false,
     kThink},
    // Kimi K2
    {"kimi",
     ToolForm::kKimi,
     "<|tool_calls_section_begin|>",
     "<|tool_calls_section_end|>",
     {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
     {{"<|tool_calls_section_begin|>"}},
     true,
     kThink},
    // Gemma 4
    {"gemma4", ToolForm::kBraces, "<|tool_call>", "<tool_call|>", {"<|\"|>"}, {{"<|tool_call>"}}, true, "<channel|>"},
    {"function_gemma",
     ToolForm::kBraces,
     "<start_function_call>",
     "<end_function_call>",
     {"<escape>"},
     {{"<start_function_call>"}},
     true,
     kThink},
    // MiniMax M2
    {"minimax",
     ToolForm::kInvoke,
     "<minimax:tool_call>",
     "</minimax:tool_call>",
     {},
     {{"<minimax:tool_call>"}},
     false,
     kThink},
    // Seed-OSS
    {"seed_xml",
     ToolForm::kXmlParameters,
     "<seed:tool_call>",
     "</seed:tool_call>",
     {},
     {{"<seed:tool_call>"}},
     false,
     "</seed:think>"},
    // LFM2
    {"lfm2",
     ToolForm::kTaggedPythonic,
     "<|tool_call_start|>",
     "<|tool_call_end|>",
     {},
     {{"<|tool_call_start|>"}},
     true,
     kThink},
    // Mistral
    {"mistral_args",
     ToolForm::kMistralArgs,
     "[TOOL_CALLS]",
     "",
     {"[ARGS]", "[CALL_ID]"},
     {{"[TOOL_CALLS]"}, {"[ARGS]"}},
     true,
     kThinkToken},
    {"mistral_list",
     ToolForm::kJson,
     "[TOOL_CALLS]",
     "",
     {"[ARGS]", "[CALL_ID]"},
     {{"[TOOL_CALLS]"}},
     true,
     kThinkToken},
    // Nemotron Nano 2
    {"nemotron_list", ToolForm::kJson, "<TOOLCALL>", "</TOOLCALL>", {}, {{"<TOOLCALL>"}}, false, kThink},
    // OLMo 3
    {"olmo3",
     ToolForm::kTaggedPythonic,
     "<function_calls>",
     "</function_calls>",
     {},
     {{"<function_calls>"}},
     false,
     kThink},
    // GLM 4.5 and later
    {"glm_args",
     ToolForm::kArgKeys,
     "<tool_call>",
     "</tool_call>",
     {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
     {{"<tool_call>"}, {"<arg_key>"}},
     false,
     kThink},
    // Qwen 3 Coder and 3.5, Nemotron 3
    {"xml_parameters",
     ToolForm::kXmlParameters,
     "<tool_call>",
     "</tool_call>",
     {},
     {{"<tool_call>"}, {"<function="}, {"<parameter="}},
     false,
     kThink},
    // Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4
    {"json_in_tags", ToolForm::kJson, "<tool_call>", "</tool_call>", {}, {{"<tool_call>"}}, false, kThink},
    // Phi 4 mini
    {"phi4_call",
     ToolForm::kJson,
     "<|tool_call|>",
     "<|/tool_call|>",
     {},
     {{"<|/tool_call|>", "<|/tool|>"}},
     true,
     kThink},
    // Granite 3
    {"granite_list", ToolForm::kJson, "<|tool_call|>", "", {}, {{"<|tool_call|>"}}, true, kThink},
    // Command R7B and A
    {"cohere_action",
     ToolForm::kJson,
     "<|START_ACTION|>",
     "<|END_ACTION|>",
     {},
     {{"<|START_ACTION|>"}},
     true,
     "<|END_THINKING|>"},
    {"functionary_v3_2", ToolForm::kRecipient, ">>>", "", {}, {{">>>all"}}, false, kThink},
    {"functionary_v3_1",
     ToolForm::kFunctionTag,
     "<function=",
     "</function>",
     {},
     {{"<function="}, {"</function>"}},
     false,
     kThink},
    // Llama 4, and templates for others that ask for the same
    {"pythonic",
     ToolForm::kPythonic,
     "<|python_start|>",
     "<|python_end|>",
     {},
     {{"<|python_start|>", "params_name1=", "(param1="}},
     true,
     kThink},
    // Llama 3.1 and later
    {"llama_json",
     ToolForm::kLlamaJson,
     "<|python_tag|>",
     "",
     {},
     {{"<|python_tag|>", "<|start_header_id|>ipython<|end_header_id|>", "\"parameters\": dictionary of argument"}},
     true,
     kThink},
};

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kFormats; }

const ToolFormat* ToolFormatOf(std::string_view chat_template) {
  const auto written = [&](const char* text) { return chat_template.find(text) != std::string_view::npos; };
  const auto writes = [&](const ToolFormat& format) {
    return std::all_of(format.written.begin(), format.written.end(),
                       [&](const auto& texts) { return std::any_of(texts.begin(), texts.end(), written); });
  };
  const auto found = std::find_if(std::begin(kFormats), std::end(kFormats), writes);
  return found == std::end(kFormats) ? nullptr : &*found;
}

const ToolFormat* ToolFormatNamed(std::string_view name) {
  if (name == "llama_builtin") name = "llama_json";  // the same template's calls of built-in tools
  const auto found =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const ToolFormat& f) { return f.name == name; });
  return found == std::end(kFormats) ? nullptr : &*found;
}

}  // namespace gyre
