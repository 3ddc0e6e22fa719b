#include "coordinator/http/openai_messages.h"

#include <algorithm>

#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

json::object ReadMessage(JsonFields& fields) {
  fields.Require("role");
  const std::string role = ReadRole(fields);
  const std::optional<std::string> content = ReadContent(fields, "content", {"text"});
  // The message may be an earlier answer of the server, which may have these fields.
  fields.Ignore("refusal");
  fields.Ignore("annotations");
  for (const char* name : {"tool_calls", "function_call", "tool_call_id"}) {
    fields.Refuse(name, "this server calls no tools");
  }
  fields.Refuse("audio", "text is all that is generated");
  if (!content && role != "assistant") fields.Require("content");
  json::object message;
  message["role"] = role;
  message["content"] = content.value_or("");
  if (const std::optional<std::string> name = fields.String("name")) message["name"] = *name;
  if (const std::optional<std::string> thought = fields.String("reasoning_content")) {
    message["reasoning_content"] = *thought;
  }
  return message;
}

// Appends the text of one part.
void ReadPart(const json::value& part, const std::string& path, std::initializer_list<std::string_view> types,
              JsonFields& outer, std::string* text) {
  if (!part.is_object()) return outer.Fail(Malformed(fmt::format("{} must be an object", path), path));
  JsonFields fields(part.get_object(), path + ".");
  fields.Require("type");
  const std::string type = fields.String("type").value_or("");
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    fields.Fail(Unprocessable(fmt::format("{}.type {} is not supported: the model reads text only", path, type),
                              path + ".type"));
  }
  fields.Require("text");
  *text += fields.String("text").value_or("");
  for (const char* name : {"annotations", "logprobs"}) fields.Ignore(name);
  if (std::optional<ApiError> error = fields.Finish()) outer.Fail(*std::move(error));
}

}  // namespace

std::optional<std::string> ReadContent(JsonFields& fields, std::string_view name,
                                       std::initializer_list<std::string_view> parts) {
  const json::value* value = fields.Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) {
    fields.Fail(
        Malformed(fmt::format("{} must be a string or an array of parts", fields.Path(name)), fields.Path(name)));
    return std::nullopt;
  }
  std::string text;
  size_t index = 0;
  for (const json::value& part : value->get_array()) {
    ReadPart(part, fmt::format("{}[{}]", fields.Path(name), index++), parts, fields, &text);
  }
  return text;
}

std::string ReadRole(JsonFields& fields) {
  const std::string role = fields.String("role").value_or("");
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant") {
    fields.Fail(Unprocessable(
        fmt::format("{} is {}; it may be system, developer, user or assistant", fields.Path("role"), role),
        fields.Path("role")));
  }
  return role;
}

json::array ReadMessages(JsonFields& fields) {
  json::array messages;
  fields.Require("messages");
  const json::array* list = fields.Array("messages");
  if (list == nullptr) return messages;
  if (list->empty()) fields.Fail(Unprocessable("messages is empty", "messages"));
  for (size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*list)[i].is_object()) {
      fields.Fail(Malformed(fmt::format("{} must be an object", path), path));
      break;
    }
    JsonFields message((*list)[i].get_object(), path + ".");
    messages.push_back(ReadMessage(message));
    if (std::optional<ApiError> error = message.Finish()) fields.Fail(*std::move(error));
  }
  return messages;
}

}  // namespace gyre::http
