#include "coordinator/http/openai_messages.h"

#include <algorithm>

#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

// The calls of an earlier answer.
void ReadCalls(JsonFields& fields, json::object* message) {
  const json::array* calls = fields.Array("tool_calls");
  if (calls == nullptr || calls->empty()) return;
  json::array out;
  fields.EachObject("tool_calls", *calls, [&out](JsonFields& call) {
    const std::string id = call.String("id").value_or("");
    const bool custom = call.String("type").value_or("function") == "custom";  // its tool takes a text
    const char* const kind = custom ? "custom" : "function";
    call.Require(kind);
    if (!custom && call.String("type").value_or("function") != "function") {
      call.Refuse("type", "functions and custom tools are all that is called");
    }
    call.Ignore("index");
    const json::object* function = call.Object(kind);
    if (function == nullptr) return;
    JsonFields inner(*function, call.Path(std::string(kind) + "."));
    inner.Require("name");
    const std::string name = inner.String("name").value_or("");
    const std::string arguments =
        custom ? CustomArguments(inner.String("input").value_or("")) : inner.String("arguments").value_or("");
    if (std::optional<ApiError> error = inner.Finish()) return call.Fail(*std::move(error));
    out.push_back(ToolCall(id, name, arguments.empty() ? "{}" : arguments));
  });
  (*message)["tool_calls"] = std::move(out);
}

json::object ReadMessage(JsonFields& fields, bool* prefix) {
  fields.Require("role");
  const std::string role = ReadRole(fields, true);
  const std::optional<std::string> content = ReadContent(fields, "content", {"text"}, role == "tool");
  // The message may be an earlier answer of the server, which may have these fields.
  for (const char* name :
       {"refusal", "annotations", "reasoning_details", "cache_control", "provider_specific_fields"}) {
    fields.Ignore(name);
  }
  fields.Refuse("function_call", "use tool_calls");
  fields.Refuse("audio", "text is all that is generated");
  fields.Refuse("images", "the model reads text only");
  *prefix = fields.Bool("prefix").value_or(false);
  if (!content && role != "assistant") fields.Require("content");
  json::object message = role == "tool" ? ToolResult(fields.String("tool_call_id").value_or(""), content.value_or(""))
                                        : TextMessage(role, content.value_or(""));
  if (role == "assistant") {
    ReadCalls(fields, &message);
  } else {
    fields.Refuse("tool_calls", "only an assistant calls tools");
  }
  if (role != "tool") fields.Refuse("tool_call_id", "it belongs to a tool's result");
  // An empty field is none: templates tell apart what is empty and what is absent.
  const std::string name = fields.String("name").value_or("");
  if (!name.empty()) message["name"] = name;
  std::string thought = fields.String("reasoning_content").value_or("");
  const std::string other = fields.String("reasoning").value_or("");  // another name that servers have for it
  if (thought.empty()) thought = other;
  if (!thought.empty()) message["reasoning_content"] = thought;
  return message;
}

// Appends the text of one part.
void ReadPart(JsonFields& fields, std::initializer_list<std::string_view> types, bool result, std::string* text) {
  fields.Require("type");
  const std::string type = fields.String("type").value_or("");
  if (const std::string_view note = result ? OmittedPart(type) : ""; !note.empty()) {
    if (!text->empty()) *text += '\n';
    *text += note;
    return fields.IgnoreAll("");
  }
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    const std::string path = fields.Path("type");
    fields.Fail(BadRequest(fmt::format("{} {} is not supported: the model reads text only", path, type), path));
  }
  fields.Require("text");
  *text += fields.String("text").value_or("");
  for (const char* name : {"annotations", "logprobs", "cache_control"}) fields.Ignore(name);
}

}  // namespace

json::object TextMessage(std::string_view role, std::string_view text) {
  return {{"role", JsonView(role)}, {"content", JsonView(text)}};
}

std::optional<std::string> ReadContent(JsonFields& fields, std::string_view name,
                                       std::initializer_list<std::string_view> parts, bool result) {
  const json::value* value = fields.Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) {
    fields.Fail(
        BadRequest(fmt::format("{} must be a string or an array of parts", fields.Path(name)), fields.Path(name)));
    return std::nullopt;
  }
  std::string text;
  fields.EachObject(name, value->get_array(), [&](JsonFields& part) { ReadPart(part, parts, result, &text); });
  return text;
}

std::string_view OmittedPart(std::string_view type) {
  if (type == "image" || type == "image_url" || type == "input_image") {
    return "[An image, which is left out: you read text alone.]";
  }
  if (type == "document" || type == "file" || type == "input_file" || type == "input_audio") {
    return "[A file, which is left out: you read text alone.]";
  }
  return "";
}

std::string ReadRole(JsonFields& fields, bool tools) {
  const std::string role = fields.String("role").value_or("");
  if (role == "developer") return "system";
  if (tools && role == "tool") return role;
  if (role != "system" && role != "user" && role != "assistant") {
    fields.Fail(
        BadRequest(fmt::format("{} is {}; it may be system, developer, user or assistant", fields.Path("role"), role),
                   fields.Path("role")));
  }
  return role;
}

void ReadMessages(JsonFields& fields, Conversation* conversation) {
  json::array& messages = conversation->messages;
  fields.Require("messages");
  const json::array* list = fields.Array("messages");
  bool prefix = false;  // of the last message
  if (list != nullptr && list->empty()) fields.Fail(BadRequest("messages is empty", "messages"));
  if (list != nullptr) {
    fields.EachObject("messages", *list,
                      [&](JsonFields& message) { messages.push_back(ReadMessage(message, &prefix)); });
  }
  if (!fields.failed()) NameToolResults(&messages);
  const bool continues = fields.Bool("continue_final_message").value_or(false);
  const std::optional<bool> begins = fields.Bool("add_generation_prompt");
  if (continues && begins.value_or(false)) {
    fields.Fail(
        BadRequest("continue_final_message and add_generation_prompt can't both be true: an answer begins anew "
                   "or continues the last message",
                   "continue_final_message"));
  }
  conversation->continue_final = continues || prefix;
  conversation->add_generation_prompt = begins.value_or(true);
  if (const json::object* extra = fields.Object("chat_template_kwargs")) conversation->extra = *extra;
  const std::string effort = fields.String("reasoning_effort").value_or("");
  if (!effort.empty()) conversation->extra["reasoning_effort"] = effort;
}

ToolRequest ReadChat(JsonFields& fields, Conversation* conversation) {
  ReadMessages(fields, conversation);
  ToolRequest tools;
  ReadChatTools(fields, &tools);
  tools.Offer(conversation);
  return tools;
}

}  // namespace gyre::http
