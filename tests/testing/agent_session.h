// The requests of an agent's session, turn after turn, in the shapes of Claude Code (Anthropic's messages) and OpenCode
// (OpenAI's chat). Nothing is random: a session is the same each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "boost/json.hpp"
#include "fmt/core.h"

namespace gyre::testing {

struct SessionSize {
  size_t system = 3000;  // bytes of the system prompt
  size_t tools = 8;      // each of some 400 bytes
  size_t result = 150;   // bytes of a tool's result
};

// Some text of about so many bytes, in lines; another seed is another text.
inline std::string AgentText(uint32_t seed, size_t bytes) {
  constexpr std::string_view kWords[] = {"read",  "the",    "file",   "before", "you",  "edit", "a",
                                         "test",  "fails",  "when",   "its",    "path", "is",   "wrong",
                                         "never", "commit", "unless", "asked",  "to"};
  std::string out;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t words = 0; out.size() < bytes; ++words) {
    state = state * 1664525u + 1013904223u;
    out += kWords[(state >> 16) % std::size(kWords)];
    out += words % 12 == 11 ? '\n' : ' ';
  }
  return out;
}

class AgentSession {
 public:
  enum class Shape { kClaudeCode, kOpenCode };
  AgentSession(Shape shape, const SessionSize& size) : shape_(shape), size_(size) {}

  bool anthropic() const { return shape_ == Shape::kClaudeCode; }
  const char* path() const { return anthropic() ? "/v1/messages" : "/v1/chat/completions"; }

  // The body of the request of a turn, from 0. Turn n has the n calls and results before it; each third turn the user
  // says something beside the result. `answer`: tokens of the model's own answer, which the session does not use.
  std::string Body(size_t turn, uint32_t answer = 4) const {
    return boost::json::serialize(anthropic() ? Messages(turn, answer) : Chat(turn, answer));
  }

 private:
  using Object = boost::json::object;
  using Array = boost::json::array;

  static Object Text(std::string text, bool cached = false) {
    Object out{{"type", "text"}, {"text", std::move(text)}};
    if (cached) out["cache_control"] = Object{{"type", "ephemeral"}};
    return out;
  }
  static Object Schema(size_t i) {
    return {{"type", "object"},
            {"properties", Object{{"file_path", Object{{"type", "string"}, {"description", AgentText(100 + i, 60)}}},
                                  {"limit", Object{{"type", "number"}, {"description", AgentText(200 + i, 40)}}}}},
            {"required", Array{"file_path"}}};
  }
  static std::string Name(size_t i) { return fmt::format("Tool{}", i); }
  static std::string Id(size_t turn) { return fmt::format("toolu_{:024}", turn); }
  static Object Arguments(size_t turn) {
    return {{"file_path", fmt::format("/src/part{}.cc", turn)}, {"limit", 10 + turn}};
  }
  std::string Result(size_t turn) const { return AgentText(1000 + turn, size_.result); }
  std::string Said(size_t turn) const { return "I look at it. " + AgentText(2000 + turn, 20); }

  Object Messages(size_t turn, uint32_t answer) const {
    // What changes in each request, as real clients write it.
    const std::string billing =
        fmt::format("x-anthropic-billing-header: cc_version=2.1.177.{:03x}; cc_entrypoint=cli; cch={:05x};",
                    0x1c + turn, 0x8a3f1 - 77 * turn);
    Array system{Text(billing), Text("You are Claude Code, Anthropic's official CLI for Claude.", true),
                 Text(AgentText(1, size_.system), true)};
    Array tools;
    for (size_t i = 0; i < size_.tools; ++i)
      tools.push_back(Object{{"name", Name(i)}, {"description", AgentText(10 + i, 200)}, {"input_schema", Schema(i)}});
    Array messages{Object{{"role", "user"},
                          {"content", Array{Text("<system-reminder>\n" + AgentText(3, 300) + "\n</system-reminder>"),
                                            Text("Fix the test that fails.")}}}};
    for (size_t i = 1; i <= turn; ++i) {
      Object call{{"type", "tool_use"}, {"id", Id(i)}, {"name", Name(i % size_.tools)}, {"input", Arguments(i)}};
      messages.push_back(Object{{"role", "assistant"}, {"content", Array{Text(Said(i)), std::move(call)}}});
      Object result{{"type", "tool_result"}, {"tool_use_id", Id(i)}, {"content", Result(i)}};
      if (i == turn) result["cache_control"] = Object{{"type", "ephemeral"}};
      Array content{std::move(result)};
      if (i % 3 == 0) content.push_back(Text("Go on."));
      messages.push_back(Object{{"role", "user"}, {"content", std::move(content)}});
    }
    return {
        {"model", "claude-opus-4-8"},
        {"max_tokens", answer},
        {"temperature", 1},
        {"system", std::move(system)},
        {"tools", std::move(tools)},
        {"messages", std::move(messages)},
        {"metadata", Object{{"user_id", "user_1_account__session_2"}}},
        {"context_management", Object{{"edits", Array{Object{{"type", "clear_thinking_20251015"}, {"keep", "all"}}}}}}};
  }

  Object Chat(size_t turn, uint32_t answer) const {
    Array tools;
    for (size_t i = 0; i < size_.tools; ++i) {
      tools.push_back(Object{
          {"type", "function"},
          {"function", Object{{"name", Name(i)}, {"description", AgentText(10 + i, 200)}, {"parameters", Schema(i)}}}});
    }
    // A counter of what is left stands in the system prompt.
    const std::string counter = fmt::format("<total_tokens>{} tokens left</total_tokens>", 190000 - 731 * turn);
    Array messages{
        Object{{"role", "system"}, {"content", "You are opencode.\n" + counter + "\n" + AgentText(1, size_.system)}},
        Object{{"role", "user"}, {"content", "Fix the test that fails."}}};
    for (size_t i = 1; i <= turn; ++i) {
      Object function{{"name", Name(i % size_.tools)}, {"arguments", boost::json::serialize(Arguments(i))}};
      Object call{{"id", Id(i)}, {"type", "function"}, {"function", std::move(function)}};
      messages.push_back(Object{{"role", "assistant"}, {"content", Said(i)}, {"tool_calls", Array{std::move(call)}}});
      messages.push_back(Object{{"role", "tool"}, {"tool_call_id", Id(i)}, {"content", Result(i)}});
      if (i % 3 == 0) messages.push_back(Object{{"role", "user"}, {"content", "Go on."}});
    }
    return {{"model", "demo"},           {"max_tokens", answer}, {"temperature", 0}, {"messages", std::move(messages)},
            {"tools", std::move(tools)}, {"tool_choice", "auto"}};
  }

  const Shape shape_;
  const SessionSize size_;
};

}  // namespace gyre::testing
