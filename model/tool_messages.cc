#include "model/tool_messages.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "boost/json/parse.hpp"
#include "boost/json/serialize.hpp"
#include "model/message_shapes.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr size_t kShortId = 9;  // Mistral's templates take no others

json::object* FunctionOf(json::value& call) {
  json::object* object = call.if_object();
  json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  return function == nullptr ? nullptr : function->if_object();
}

json::array* CallsOf(json::value& message) {
  json::object* object = message.if_object();
  json::value* calls = object == nullptr ? nullptr : object->if_contains("tool_calls");
  return calls == nullptr ? nullptr : calls->if_array();
}

bool IsEmpty(const json::object& message) {
  const json::value* content = message.if_contains("content");
  return content == nullptr || content->is_null() || *content == "";
}

void Apply(const CallShape& shape, json::value& message) {
  if (CallsOf(message) == nullptr) return;
  // A new field moves the others, so the calls are looked up behind it.
  json::object& fields = message.get_object();
  if (IsEmpty(fields)) fields["content"] = shape.no_content ? json::value() : json::value("");
  for (json::value& call : *CallsOf(message)) {
    json::object* const function = FunctionOf(call);
    json::value* const arguments = function == nullptr ? nullptr : function->if_contains("arguments");
    if (arguments == nullptr) continue;
    if (shape.texts && arguments->is_object()) *arguments = json::serialize(*arguments);
    if (!shape.texts && arguments->is_string()) {
      boost::system::error_code error;
      json::value value = json::parse(arguments->get_string(), error);
      if (!error && value.is_object()) *arguments = std::move(value);
    }
  }
}

void ShortenId(json::object& fields, std::string_view name) {
  json::value* id = fields.if_contains(name);
  if (id == nullptr || !id->is_string()) return;
  std::string text(id->get_string());
  if (text.size() > kShortId) text.erase(0, text.size() - kShortId);
  *id = text;
}

// A template has read a call if its argument is there as JSON has it, and not as a text within a text.
bool HasCall(std::string_view text) {
  const auto has = [&](std::string_view what) { return text.find(what) != std::string_view::npos; };
  return has("gyre4call") && has("gyre4value") && !has("'gyre4key'") && !has("\\\"gyre4key");
}

CallShape FindShape(const ChatTemplate& chat, bool tools) {
  for (const CallShape shape : {CallShape{false, false}, {true, false}, {false, true}, {true, true}}) {
    Conversation probe;
    probe.tools = ProbeTools(tools);
    probe.add_generation_prompt = false;
    probe.messages = json::parse(R"([{"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "gyre4call", "type": "function",
           "function": {"name": "gyre4call", "arguments": {"gyre4key": "gyre4value"}}}]},
        {"role": "tool", "tool_call_id": "gyre4call", "name": "gyre4call", "content": "b"}])")
                         .as_array();
    Apply(shape, probe.messages[1]);
    const StatusOr<std::string> text = chat.Render(probe);
    if (text.ok() && HasCall(*text)) return shape;
  }
  return {};
}

}  // namespace

json::value ProbeTools(bool tools) {
  if (!tools) return nullptr;
  return json::parse(R"([{"type": "function", "function": {"name": "gyre4tool", "description": "a", "parameters":
      {"type": "object", "properties": {"gyre4parameter": {"type": "string", "description": "a"}},
       "required": ["gyre4parameter"]}}}])");
}

Conversation WithToolMessages(const ChatTemplate& chat, Conversation conversation) {
  const auto written = [&](const char* text) { return chat.source().find(text) != std::string::npos; };
  const bool called = std::any_of(conversation.messages.begin(), conversation.messages.end(),
                                  [](json::value& message) { return CallsOf(message) != nullptr; });
  if (called) {
    const bool tools = !conversation.tools.is_null();
    const CallShape shape = chat.shapes().calls.Get(tools, [&] { return FindShape(chat, tools); });
    const bool short_ids = written("length != 9");
    for (json::value& message : conversation.messages) {
      Apply(shape, message);
      if (!short_ids || !message.is_object()) continue;
      ShortenId(message.get_object(), "tool_call_id");
      if (json::array* const calls = CallsOf(message)) {
        for (json::value& call : *calls) {
          if (call.is_object()) ShortenId(call.get_object(), "id");
        }
      }
    }
  }
  if (!conversation.tools.is_null() && (written("message['tools']") || written("message[\"tools\"]"))) {
    json::array& messages = conversation.messages;
    const bool system = !messages.empty() && messages[0].is_object() && messages[0].get_object()["role"] == "system";
    if (!system) messages.insert(messages.begin(), json::object{{"role", "system"}, {"content", ""}});
    messages[0].get_object()["tools"] = json::serialize(conversation.tools);
  }
  return conversation;
}

}  // namespace gyre
