#include "coordinator/http/anthropic_request.h"

#include <random>

#include "boost/json/array.hpp"
#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

// A content that is a text, or a list of text blocks, as one text. `where` names it in errors.
std::string ReadContent(const json::value& content, const std::string& where, JsonFields* errors) {
  if (const json::string* text = content.if_string()) return std::string(View(*text));
  const json::array* blocks = content.if_array();
  if (blocks == nullptr) {
    errors->Fail(Malformed(where + " must be a string or an array of text blocks", where));
    return {};
  }
  std::string all;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", where, i);
    const json::object* block = (*blocks)[i].if_object();
    if (block == nullptr) {
      errors->Fail(Malformed(path + " must be an object", path));
      return {};
    }
    JsonFields fields(*block, path + ".");
    const std::string type = fields.String("type").value_or("");
    // The model's thoughts in earlier turns are no part of a conversation: templates drop them.
    if (type == "thinking" || type == "redacted_thinking") continue;
    if (type != "text") {
      errors->Fail(Unprocessable(fmt::format("{}.type is \"{}\"; only text is supported", path, type), path + ".type"));
      return {};
    }
    fields.Require("text");
    fields.Ignore("cache_control");
    fields.Refuse("citations", "the model reads text alone");
    const std::string text = fields.String("text").value_or("");
    if (std::optional<ApiError> error = fields.Finish()) {
      errors->Fail(*std::move(error));
      return {};
    }
    if (!all.empty()) all += '\n';
    all += text;
  }
  return all;
}

json::object MessageOf(std::string_view role, std::string text) {
  json::object message;
  message["role"] = json::string_view(role.data(), role.size());
  message["content"] = std::move(text);
  return message;
}

// Reads a conversation: the fields that count_tokens has too.
void ReadConversation(JsonFields* fields, MessagesRequest* out) {
  fields->Require("model");
  fields->Require("messages");
  out->model = fields->String("model").value_or("");
  ChatInput chat;
  if (const json::value* system = fields->Any("system")) {
    std::string text = ReadContent(*system, "system", fields);
    if (!text.empty()) chat.conversation.messages.push_back(MessageOf("system", std::move(text)));
  }
  const json::array* messages = fields->Array("messages");
  if (messages == nullptr) return;
  if (messages->empty()) fields->Fail(Malformed("messages must have at least one message", "messages"));
  std::string last;
  for (size_t i = 0; i < messages->size() && !fields->failed(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    const json::object* message = (*messages)[i].if_object();
    if (message == nullptr) return fields->Fail(Malformed(path + " must be an object", path));
    JsonFields in(*message, path + ".");
    in.Require("role");
    in.Require("content");
    last = in.String("role").value_or("");
    const json::value* content = in.Any("content");
    if (!in.failed() && last != "user" && last != "assistant") {
      in.Fail(Unprocessable(fmt::format("{}.role is \"{}\"; it may be user or assistant", path, last), path + ".role"));
    }
    std::string text;
    if (!in.failed()) text = ReadContent(*content, path + ".content", &in);
    if (std::optional<ApiError> error = in.Finish()) return fields->Fail(*std::move(error));
    chat.conversation.messages.push_back(MessageOf(last, std::move(text)));
  }
  if (!fields->failed() && last != "user") {
    fields->Fail(
        Unprocessable("the last message must be the user's: an answer that is begun can't be continued", "messages"));
  }
  if (const json::object* thinking = fields->Object("thinking")) {
    JsonFields in(*thinking, "thinking.");
    in.Require("type");
    const std::string type = in.String("type").value_or("");
    if (!in.failed() && type != "enabled" && type != "disabled" && type != "adaptive") {
      in.Fail(Unprocessable("thinking.type may be enabled, disabled or adaptive", "thinking.type"));
    }
    in.Ignore("budget_tokens");
    in.Ignore("display");
    if (type != "adaptive") chat.conversation.extra["enable_thinking"] = type == "enabled";
    if (std::optional<ApiError> error = in.Finish()) return fields->Fail(*std::move(error));
  }
  if (const json::object* extra = fields->Object("chat_template_kwargs")) {
    for (const auto& [key, value] : *extra) chat.conversation.extra[key] = value;
  }
  constexpr const char* kTools = "tools are not supported";
  if (const json::array* tools = fields->Array("tools"); tools != nullptr && !tools->empty())
    fields->Refuse("tools", kTools);
  fields->Refuse("tool_choice", kTools);
  fields->Refuse("mcp_servers", kTools);
  fields->Refuse("container", kTools);
  fields->Refuse("output_config", "the form of the answer can't be set");
  fields->Refuse("output_format", "the form of the answer can't be set");
  fields->Ignore("metadata");
  fields->Ignore("cache_control");
  out->question.input = std::move(chat);
}

}  // namespace

std::optional<ApiError> ReadMessages(const json::object& body, const Caller& caller, MessagesRequest* out) {
  JsonFields fields(body);
  ReadConversation(&fields, out);
  Question& q = out->question;
  fields.Require("max_tokens");
  q.max_new_tokens = static_cast<uint32_t>(fields.Integer("max_tokens", 1, UINT32_MAX).value_or(1));
  // The API's default is the model's own distribution.
  q.sampling.temperature = static_cast<float>(fields.Number("temperature", 0, 100).value_or(1));
  q.sampling.top_p = static_cast<float>(fields.Number("top_p", 0, 1).value_or(1));
  q.sampling.top_k = static_cast<int>(fields.Integer("top_k", 0, INT32_MAX).value_or(0));
  q.sampling.min_p = static_cast<float>(fields.Number("min_p", 0, 1).value_or(0));
  if (q.sampling.top_p == 0) fields.Fail(Unprocessable("top_p is 0; it may be above 0, up to 1", "top_p"));
  const std::optional<int64_t> seed = fields.Integer("seed", INT64_MIN, INT64_MAX);
  q.sampling.seed = seed ? static_cast<uint64_t>(*seed) : std::random_device()();
  q.tenant = caller.tenant;
  if (const json::array* stops = fields.Array("stop_sequences")) {
    for (const json::value& stop : *stops) {
      const json::string* text = stop.if_string();
      if (text == nullptr) {
        fields.Fail(Malformed("stop_sequences must be strings", "stop_sequences"));
        break;
      }
      if (text->empty()) fields.Fail(Unprocessable("stop_sequences: a sequence is empty", "stop_sequences"));
      q.stops.emplace_back(View(*text));
    }
    if (q.stops.size() > kMaxStops) {
      fields.Fail(Unprocessable(fmt::format("stop_sequences: {}, at most {} are taken", q.stops.size(), kMaxStops),
                                "stop_sequences"));
    }
  }
  out->stream = fields.Bool("stream").value_or(false);
  fields.Ignore("service_tier");
  fields.Ignore("inference_geo");
  return fields.Finish();
}

std::optional<ApiError> ReadCountTokens(const json::object& body, MessagesRequest* out) {
  JsonFields fields(body);
  ReadConversation(&fields, out);
  return fields.Finish();
}

}  // namespace gyre::http
