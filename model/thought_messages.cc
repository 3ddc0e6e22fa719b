#include "model/thought_messages.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "boost/json/parse.hpp"
#include "model/message_shapes.h"
#include "model/tool_messages.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr char kThought[] = "reasoning_content";

// The text of the message's thoughts; nullptr: it has none.
json::string* ThoughtOf(json::value& message) {
  json::object* fields = message.if_object();
  json::value* thought = fields == nullptr ? nullptr : fields->if_contains(kThought);
  json::string* text = thought == nullptr ? nullptr : thought->if_string();
  return text == nullptr || text->empty() ? nullptr : text;
}

void WriteThought(const ThoughtShape& shape, json::value& message) {
  const json::string* const found = ThoughtOf(message);
  if (found == nullptr) return;
  json::string thought = *found;
  json::object& fields = message.get_object();
  json::value& content = fields["content"];
  if (shape.alone && fields.contains("tool_calls") && content.is_string() && !content.get_string().empty()) {
    thought += "\n\n";
    thought += content.get_string();
    content = "";
  }
  if (shape.field.empty()) {
    if (!content.is_string()) return;
    json::array parts{json::object{{"type", "thinking"}, {"thinking", thought}}};
    if (!content.get_string().empty()) parts.push_back(json::object{{"type", "text"}, {"text", content.get_string()}});
    content = std::move(parts);
  } else {
    fields[json::string_view(shape.field.data(), shape.field.size())] = thought;
  }
  if (shape.field != kThought) fields.erase(kThought);
}

// Whether the template writes the thoughts of an answer behind which the user has said nothing, with all that stands
// beside them.
bool ShowsThought(const ChatTemplate& chat, bool tools, const ThoughtShape& shape, bool calls) {
  Conversation probe;
  probe.add_generation_prompt = false;
  probe.messages = json::parse(R"([{"role": "user", "content": "a"},
      {"role": "assistant", "content": "gyre4said", "reasoning_content": "gyre4thought"}])")
                       .as_array();
  if (calls) {
    probe.tools = ProbeTools(tools);
    probe.messages[1].as_object()["tool_calls"] = json::parse(R"([{"id": "gyre4call", "type": "function",
        "function": {"name": "gyre4call", "arguments": {"gyre4key": "gyre4value"}}}])");
    probe.messages.push_back(
        json::parse(R"({"role": "tool", "tool_call_id": "gyre4call", "name": "gyre4call", "content": "b"})"));
  }
  WriteThought(shape, probe.messages[1]);
  const StatusOr<std::string> text = chat.Render(WithToolMessages(chat, std::move(probe)));
  return text.ok() && text->find("gyre4thought") != std::string::npos && text->find("gyre4said") != std::string::npos;
}

std::optional<ThoughtShape> FindThoughtShape(const ChatTemplate& chat, bool tools) {
  for (const std::string_view field :
       {std::string_view(kThought), std::string_view("thinking"), std::string_view("reasoning"), std::string_view()}) {
    if (chat.source().find(field.empty() ? "thinking" : field) == std::string::npos) continue;
    for (const bool alone : {false, true}) {
      if (ShowsThought(chat, tools, {field, alone}, true)) return ThoughtShape{field, alone};
    }
    if (ShowsThought(chat, tools, {field, false}, false)) return ThoughtShape{field, false};
  }
  return std::nullopt;
}

}  // namespace

Conversation WithThoughts(const ChatTemplate& chat, Conversation conversation) {
  json::array& messages = conversation.messages;
  const auto thought = [](json::value& message) { return ThoughtOf(message) != nullptr; };
  if (std::none_of(messages.begin(), messages.end(), thought)) return conversation;
  const bool tools = !conversation.tools.is_null();
  const std::optional<ThoughtShape>& shape =
      chat.shapes().thoughts.Get(tools, [&] { return FindThoughtShape(chat, tools); });
  if (!shape) return conversation;
  for (json::value& message : messages) {
    // The text of a message that goes on stays a text.
    const bool goes_on = conversation.continue_final && &message == &messages.back();
    if (!goes_on || !shape->field.empty()) WriteThought(*shape, message);
  }
  return conversation;
}

}  // namespace gyre
