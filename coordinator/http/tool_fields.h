// Tools in the bodies of requests, in the shapes of all APIs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "coordinator/http/json_fields.h"
#include "coordinator/service/service.h"
#include "model/chat_template.h"
#include "model/tool_reader.h"

namespace gyre::http {

// What a request says of tools.
struct ToolRequest {
  boost::json::array tools;                   // for the template: {"type": "function", "function": {...}} each
  DeclaredTools declared;                     // those that the model may call
  std::set<std::string, std::less<>> strict;  // those whose arguments obey their schemas in any answer
  // Those that take a text instead of arguments (OpenAI's "custom"): for the model a function with one argument.
  std::set<std::string, std::less<>> custom;
  // Those of a namespace, by the names under which the model knows them: the namespace's name and their own.
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> namespaced;
  bool required = false;  // the answer is calls
  bool parallel = true;   // more than one call in an answer

  bool any() const { return !declared.empty(); }
  // Puts the tools into the conversation.
  void Offer(Conversation* conversation) const;
  // What the tools ask of the answer. REQUIRES: the other fields that ask for a form of it are read.
  void Ask(Question* question) const;
};

// OpenAI's chat completions: tools, tool_choice, parallel_tool_calls.
void ReadChatTools(JsonFields& fields, ToolRequest* out);
// OpenAI's responses: the same with flat functions.
void ReadResponseTools(JsonFields& fields, ToolRequest* out);
// ollama's chats: tools.
void ReadOllamaTools(JsonFields& fields, ToolRequest* out);
// Anthropic's messages: tools, tool_choice.
void ReadMessageTools(JsonFields& fields, ToolRequest* out);

// The name under which the model knows a tool of a namespace.
std::string NamespacedName(std::string_view space, std::string_view name);
// A call of a tool that takes a text, and back: the arguments for the template, and the text in the model's arguments.
std::string CustomArguments(std::string_view input);
std::string CustomInput(std::string_view arguments);

// A call in an assistant's message, in the form of chat templates. `arguments`: a JSON text.
boost::json::object ToolCall(std::string_view id, std::string_view name, std::string_view arguments);
// A tool's result as a message of the role "tool".
boost::json::object ToolResult(std::string_view id, std::string_view content);
// A call's arguments for APIs that have them as an object. A text that is no JSON object is one with the field "raw".
boost::json::object CallInput(std::string_view arguments);
// Names the tool in each result that has no name, by the call with its id.
void NameToolResults(boost::json::array* messages);

// The id of a call: `prefix` and 24 characters that depend on the answer's id, the choice and the call's index alone,
// so that a stream that is reattached has the same.
std::string CallId(std::string_view prefix, std::string_view answer, size_t choice, size_t index);

}  // namespace gyre::http
