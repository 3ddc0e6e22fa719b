#include "coordinator/http/anthropic.h"

#include <random>

#include "boost/json/serialize.hpp"
#include "coordinator/http/answer_parts.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

struct MessagesRequest {
  Question question;
  std::string model;
  bool stream = false;
};

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
    // What the model thought in earlier turns is no part of a conversation: templates drop it.
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

// What a conversation consists of: the fields that count_tokens has too.
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

std::optional<ApiError> ReadMessages(const json::object& body, const Caller& caller, MessagesRequest* out) {
  JsonFields fields(body);
  ReadConversation(&fields, out);
  Question& q = out->question;
  fields.Require("max_tokens");
  q.max_new_tokens = static_cast<uint32_t>(fields.Integer("max_tokens", 1, UINT32_MAX).value_or(1));
  // The API's defaults: the model's own distribution.
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

const char* StopReason(const Finished& end) {
  if (end.reason == FinishReason::kLength) return "max_tokens";
  return end.stop.empty() ? "end_turn" : "stop_sequence";
}

json::value StopSequence(const Finished& end) {
  if (end.stop.empty()) return nullptr;
  return json::value(ValidUtf8(end.stop));
}

json::object UsageOf(const Usage& usage) {
  json::object out;
  out["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  out["cache_creation_input_tokens"] = 0;
  out["cache_read_input_tokens"] = usage.cached_tokens;
  out["output_tokens"] = usage.generated_tokens;
  return out;
}

json::object Block(bool reasoning, std::string text) {
  json::object block;
  block["type"] = reasoning ? "thinking" : "text";
  block[reasoning ? "thinking" : "text"] = std::move(text);
  if (reasoning) block["signature"] = "";
  return block;
}

json::object MessageObject(const Exchange& exchange, const std::string& model) {
  json::object message;
  message["id"] = "msg_" + exchange.request().id;
  message["type"] = "message";
  message["role"] = "assistant";
  message["model"] = model;
  message["content"] = json::array();
  message["stop_reason"] = nullptr;
  message["stop_sequence"] = nullptr;
  return message;
}

// The events of one streamed message, written as they come.
class MessageStream {
 public:
  explicit MessageStream(json::object message) : message_(std::move(message)) {}

  std::string Start(size_t prompt_tokens) {
    json::object usage;
    usage["input_tokens"] = prompt_tokens;
    usage["cache_creation_input_tokens"] = 0;
    usage["cache_read_input_tokens"] = 0;
    usage["output_tokens"] = 0;
    message_["usage"] = std::move(usage);
    json::object event;
    event["type"] = "message_start";
    event["message"] = std::move(message_);
    return SseEvent(json::serialize(event), "message_start") + SseEvent(R"({"type":"ping"})", "ping");
  }
  std::string Add(const std::vector<ReasoningSplitter::Piece>& pieces) {
    std::string out;
    for (const ReasoningSplitter::Piece& piece : pieces) {
      if (!open_ || reasoning_ != piece.reasoning) out += Open(piece.reasoning);
      const char* type = piece.reasoning ? "thinking" : "text";
      out +=
          SseEvent(fmt::format(R"({{"type":"content_block_delta","index":{},"delta":{{"type":"{}_delta","{}":{}}}}})",
                               index_, type, type, json::serialize(json::value(piece.text))),
                   "content_block_delta");
    }
    return out;
  }
  std::string End(const Finished& end) {
    std::string out;
    if (!open_) out += Open(false);
    out += Close();
    json::object delta;
    delta["stop_reason"] = StopReason(end);
    delta["stop_sequence"] = StopSequence(end);
    json::object event;
    event["type"] = "message_delta";
    event["delta"] = std::move(delta);
    event["usage"] = UsageOf(end.usage);
    out += SseEvent(json::serialize(event), "message_delta");
    return out + SseEvent(R"({"type":"message_stop"})", "message_stop");
  }

 private:
  std::string Open(bool reasoning) {
    std::string out = Close();
    open_ = true;
    reasoning_ = reasoning;
    json::object event;
    event["type"] = "content_block_start";
    event["index"] = ++index_;
    event["content_block"] = Block(reasoning, "");
    return out + SseEvent(json::serialize(event), "content_block_start");
  }
  std::string Close() {
    if (!open_) return {};
    open_ = false;
    return SseEvent(fmt::format(R"({{"type":"content_block_stop","index":{}}})", index_), "content_block_stop");
  }

  json::object message_;
  int index_ = -1;
  bool open_ = false, reasoning_ = false;
};

Awaitable<void> StreamMessage(Exchange& exchange, Generation& generation, AnswerParts parts, json::object message,
                              size_t prompt_tokens) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  MessageStream stream(std::move(message));
  head.body = stream.Start(prompt_tokens);
  co_await exchange.Begin(std::move(head));
  for (;;) {
    std::optional<Generation::Item> item = co_await generation.Next();
    if (!item) co_return;
    std::string bytes;
    // Everything that is there goes into one write.
    for (; item; item = generation.TryNext()) {
      if (const auto* token = std::get_if<TokenEvent>(&item->event)) bytes += stream.Add(parts.Push(*token));
      if (const auto* end = std::get_if<Finished>(&item->event)) {
        bytes += stream.Add(parts.Finish(*end));
        bytes += stream.End(*end);
      }
      if (const auto* failed = std::get_if<Failed>(&item->event)) {
        bytes += SseEvent(RenderJson(FromStatus(failed->status), ApiStyle::kAnthropic), "error");
      }
    }
    if (bytes.empty()) continue;
    const bool there = co_await exchange.Write(std::move(bytes));
    if (!there) co_return;
  }
}

Awaitable<void> WholeMessage(Exchange& exchange, Generation& generation, AnswerParts parts, json::object message) {
  std::vector<ReasoningSplitter::Piece> all;
  const auto add = [&all](std::vector<ReasoningSplitter::Piece> pieces) {
    for (ReasoningSplitter::Piece& piece : pieces) {
      if (all.empty() || all.back().reasoning != piece.reasoning) {
        all.push_back(std::move(piece));
      } else {
        all.back().text += piece.text;
      }
    }
  };
  for (;;) {
    const std::optional<Generation::Item> item = co_await generation.Next();
    if (!item) co_return;  // the client is gone
    if (const auto* token = std::get_if<TokenEvent>(&item->event)) add(parts.Push(*token));
    if (const auto* failed = std::get_if<Failed>(&item->event)) {
      HttpResponse error = Render(FromStatus(failed->status), ApiStyle::kAnthropic);
      co_await exchange.Respond(std::move(error));
      co_return;
    }
    if (const auto* end = std::get_if<Finished>(&item->event)) {
      add(parts.Finish(*end));
      json::array content;
      for (ReasoningSplitter::Piece& piece : all) content.push_back(Block(piece.reasoning, std::move(piece.text)));
      message["content"] = std::move(content);
      message["stop_reason"] = StopReason(*end);
      message["stop_sequence"] = StopSequence(*end);
      message["usage"] = UsageOf(end->usage);
      HttpResponse response;
      response.body = json::serialize(message);
      co_await exchange.Respond(std::move(response));
      co_return;
    }
  }
}

Awaitable<void> Messages(ApiContext& context, Exchange& exchange) {
  MessagesRequest asked;
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) error = ReadMessages(body, exchange.request().caller, &asked);
  if (!error) error = CheckModel(context, asked.model);
  Request request;
  if (!error) error = co_await MakeRequest(exchange, context.service, std::move(asked.question), &request);
  Generation generation(exchange, context.service);
  const size_t prompt_tokens = request.prompt.size();
  AnswerParts parts(context, request.prompt);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  if (!error) error = generation.Start(std::move(requests));
  if (error) {
    co_await RespondError(exchange, *std::move(error), ApiStyle::kAnthropic);
    co_return;
  }
  json::object message = MessageObject(exchange, asked.model);
  if (asked.stream) {
    co_await StreamMessage(exchange, generation, std::move(parts), std::move(message), prompt_tokens);
  } else {
    co_await WholeMessage(exchange, generation, std::move(parts), std::move(message));
  }
}

Awaitable<void> CountTokens(ApiContext& context, Exchange& exchange) {
  MessagesRequest asked;
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) {
    JsonFields fields(body);
    ReadConversation(&fields, &asked);
    error = fields.Finish();
  }
  if (!error) error = CheckModel(context, asked.model);
  StatusOr<ChatPrompt> prompt = ChatPrompt();
  if (!error) {
    std::function<void()> work = [&] { prompt = context.service.Prompt(std::get<ChatInput>(asked.question.input)); };
    const Status ran = co_await RunOnService(exchange, context.service, std::move(work));
    if (!ran.ok()) error = FromStatus(ran);
    if (ran.ok() && !prompt.ok()) error = FromStatus(prompt.status());
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error), ApiStyle::kAnthropic);
    co_return;
  }
  HttpResponse response;
  response.body = fmt::format(R"({{"input_tokens":{}}})", prompt->ids.size());
  co_await exchange.Respond(std::move(response));
}

}  // namespace

void AddAnthropicRoutes(Router& router, ApiContext& context) {
  router.Add({.method = "POST",
              .path = "/v1/messages",
              .role = Role::kUser,
              .style = ApiStyle::kAnthropic,
              .handler = [&context](Exchange& exchange) { return Messages(context, exchange); }});
  router.Add({.method = "POST",
              .path = "/v1/messages/count_tokens",
              .role = Role::kUser,
              .style = ApiStyle::kAnthropic,
              .handler = [&context](Exchange& exchange) { return CountTokens(context, exchange); }});
}

}  // namespace gyre::http
