#include "coordinator/http/anthropic.h"

#include <xxhash.h>

#include <utility>

#include "coordinator/http/answer_parts.h"
#include "coordinator/http/anthropic_request.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

const char* StopReason(const Finished& end, bool called) {
  if (end.reason == FinishReason::kLength) return "max_tokens";
  if (called && end.stop.empty()) return "tool_use";
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

// A sum of the text. Clients send back only thoughts with a signature; nobody checks it.
std::string Signature(const std::string& thought) {
  const XXH128_hash_t hash = XXH3_128bits(thought.data(), thought.size());
  return fmt::format("gyre-{:016x}{:016x}", hash.high64, hash.low64);
}

json::object Block(bool reasoning, const std::string& text) {
  json::object block;
  block["type"] = reasoning ? "thinking" : "text";
  block[reasoning ? "thinking" : "text"] = text;
  if (reasoning) block["signature"] = text.empty() ? "" : Signature(text);
  return block;
}

json::object CallBlock(const std::string& id, const std::string& name, json::object input) {
  return {{"type", "tool_use"}, {"id", id}, {"name", ValidUtf8(name)}, {"input", std::move(input)}};
}

// The content of a whole answer.
json::array Blocks(const std::vector<AnswerDelta>& parts, const std::string& answer) {
  json::array blocks;
  size_t calls = 0;
  for (const AnswerDelta& part : parts) {
    switch (part.kind) {
      case AnswerDelta::Kind::kReasoning:
      case AnswerDelta::Kind::kContent:
        blocks.push_back(Block(part.kind == AnswerDelta::Kind::kReasoning, part.text));
        break;
      case AnswerDelta::Kind::kCall:
        blocks.push_back(CallBlock(CallId("toolu_", answer, 0, calls++), part.text, {}));
        break;
      case AnswerDelta::Kind::kArguments: blocks.back().get_object()["input"] = CallInput(part.text); break;
      case AnswerDelta::Kind::kCallEnd: break;
    }
  }
  return blocks;
}

json::object MessageObject(const Exchange& exchange, const std::string& model) {
  json::object message;
  message["id"] = "msg_" + AnswerId(exchange.request());
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
  MessageStream(json::object message, std::string answer) : message_(std::move(message)), answer_(std::move(answer)) {}

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
    return SseEvent(WriteJson(event), "message_start") + Ping();
  }
  static std::string Ping() { return SseEvent(R"({"type":"ping"})", "ping"); }
  std::string Add(const std::vector<AnswerDelta>& deltas) {
    using Kind = AnswerDelta::Kind;
    std::string out;
    for (const AnswerDelta& delta : deltas) {
      switch (delta.kind) {
        case Kind::kCall:
          out += Open(Kind::kArguments, CallBlock(CallId("toolu_", answer_, 0, calls_++), delta.text, {}));
          break;
        case Kind::kCallEnd: out += Close(); break;
        case Kind::kArguments: out += BlockDelta("input_json_delta", "partial_json", ValidUtf8(delta.text)); break;
        case Kind::kReasoning:
        case Kind::kContent: {
          const bool reasoning = delta.kind == Kind::kReasoning;
          if (!open_ || kind_ != delta.kind) out += Open(delta.kind, Block(reasoning, ""));
          if (reasoning) thought_ += delta.text;
          out += reasoning ? BlockDelta("thinking_delta", "thinking", delta.text)
                           : BlockDelta("text_delta", "text", delta.text);
          break;
        }
      }
    }
    return out;
  }
  std::string End(const Finished& end, bool called) {
    std::string out;
    if (index_ < 0) out += Open(AnswerDelta::Kind::kContent, Block(false, ""));
    out += Close();
    json::object delta;
    delta["stop_reason"] = StopReason(end, called);
    delta["stop_sequence"] = StopSequence(end);
    json::object event;
    event["type"] = "message_delta";
    event["delta"] = std::move(delta);
    event["usage"] = UsageOf(end.usage);
    out += SseEvent(WriteJson(event), "message_delta");
    return out + SseEvent(R"({"type":"message_stop"})", "message_stop");
  }

 private:
  std::string BlockDelta(const char* type, const char* field, const std::string& text) const {
    return SseEvent(fmt::format(R"({{"type":"content_block_delta","index":{},"delta":{{"type":"{}","{}":{}}}}})",
                                index_, type, field, WriteJson(json::value(text))),
                    "content_block_delta");
  }
  std::string Open(AnswerDelta::Kind kind, json::object block) {
    std::string out = Close();
    open_ = true;
    kind_ = kind;
    json::object event;
    event["type"] = "content_block_start";
    event["index"] = ++index_;
    event["content_block"] = std::move(block);
    return out + SseEvent(WriteJson(event), "content_block_start");
  }
  std::string Close() {
    if (!open_) return {};
    open_ = false;
    std::string out;
    if (kind_ == AnswerDelta::Kind::kReasoning) {
      out = BlockDelta("signature_delta", "signature", Signature(std::exchange(thought_, {})));
    }
    return out + SseEvent(fmt::format(R"({{"type":"content_block_stop","index":{}}})", index_), "content_block_stop");
  }

  json::object message_;
  const std::string answer_;
  size_t calls_ = 0;
  int index_ = -1;
  bool open_ = false;
  std::string thought_;                                   // of the open block
  AnswerDelta::Kind kind_ = AnswerDelta::Kind::kContent;  // of what is open; calls have kArguments
};

// A stream that has nothing to say sends pings: a prompt may take minutes.
Awaitable<void> StreamMessage(Exchange& exchange, Generation& generation, EventIds& ids, AnswerParts parts,
                              json::object message, size_t prompt_tokens, Duration ping) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  MessageStream stream(std::move(message), AnswerId(exchange.request()));
  ids.AppendWhole(stream.Start(prompt_tokens), &head.body);
  co_await exchange.Begin(std::move(head));
  while (!generation.ended()) {
    std::optional<Generation::Item> item = generation.TryNext();
    std::string bytes;
    if (!item) {
      const Wake woken = co_await exchange.Wait(After(ping));
      if (woken == Wake::kGone) co_return;
      if (woken == Wake::kWoken) continue;
      bytes = MessageStream::Ping();
    }
    // All events that are there go into one write.
    for (; item; item = generation.TryNext()) {
      std::string events;
      if (const auto* token = std::get_if<TokenEvent>(&item->event)) events = stream.Add(parts.Push(*token));
      if (const auto* end = std::get_if<Finished>(&item->event)) {
        events = stream.Add(parts.Finish(*end));
        events += stream.End(*end, parts.called());
      }
      ids.AppendChoice(0, events, &bytes);
      bytes += CommentOf(item->event);
      if (const std::optional<ApiError> error = ErrorOf(item->event)) {
        bytes += SseEvent(RenderJson(*error, ApiStyle::kAnthropic), "error");
      }
    }
    if (bytes.empty()) continue;
    const bool there = co_await exchange.Write(std::move(bytes));
    if (!there) co_return;
  }
}

Awaitable<void> WholeMessage(Exchange& exchange, Generation& generation, AnswerParts parts, json::object message) {
  std::vector<AnswerDelta> all;
  for (;;) {
    const std::optional<Generation::Item> item = co_await generation.Next();
    if (!item) co_return;  // the client is gone
    if (const auto* token = std::get_if<TokenEvent>(&item->event)) Merge(parts.Push(*token), &all);
    if (const std::optional<ApiError> error = ErrorOf(item->event)) {
      co_await RespondError(exchange, *error);
      co_return;
    }
    if (const auto* end = std::get_if<Finished>(&item->event)) {
      Merge(parts.Finish(*end), &all);
      message["content"] = Blocks(all, AnswerId(exchange.request()));
      message["stop_reason"] = StopReason(*end, parts.called());
      message["stop_sequence"] = StopSequence(*end);
      message["usage"] = UsageOf(end->usage);
      HttpResponse response;
      response.body = WriteJson(message);
      co_await exchange.Respond(std::move(response));
      co_return;
    }
  }
}

Awaitable<void> Messages(ApiContext& context, Exchange& exchange) {
  MessagesRequest asked;
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) error = ReadMessages(body, context.service.model(), exchange.request().caller, &asked);
  if (!error) error = CheckModel(context, asked.model);
  asked.question.adapter = context.AdapterOf(asked.model);
  Request request;
  if (!error) error = co_await MakeRequest(exchange, context.service, std::move(asked.question), &request);
  Generation generation(exchange, context);
  const size_t prompt_tokens = request.prompt.size();
  AnswerParts parts(context, request, {.tools = std::move(asked.tools.declared), .parallel = asked.tools.parallel});
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  EventIds ids;
  if (!error) error = generation.Open(std::move(requests), asked.stream, &ids);
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  json::object message = MessageObject(exchange, asked.model);
  if (asked.stream) {
    co_await StreamMessage(exchange, generation, ids, std::move(parts), std::move(message), prompt_tokens,
                           context.stream_ping);
  } else {
    co_await WholeMessage(exchange, generation, std::move(parts), std::move(message));
  }
}

Awaitable<void> CountTokens(ApiContext& context, Exchange& exchange) {
  MessagesRequest asked;
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) {
    error = ReadCountTokens(body, &asked);
  }
  if (!error) error = CheckModel(context, asked.model);
  StatusOr<ChatPrompt> prompt = ChatPrompt();
  if (!error) {
    std::function<void()> work = [&] {
      prompt = context.service.Prompt(std::move(std::get<ChatInput>(asked.question.input)));
    };
    const Status ran = co_await RunOnService(exchange, context.service, std::move(work));
    if (!ran.ok()) error = FromStatus(ran);
    if (ran.ok() && !prompt.ok()) error = FromInput(prompt.status());
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  HttpResponse response;
  response.body = fmt::format(R"({{"input_tokens":{}}})", prompt->ids.size());
  co_await exchange.Respond(std::move(response));
}

}  // namespace

void AddAnthropicRoutes(Router& router, ApiContext& context) {
  router.Add({.method = "POST", .path = "/v1/messages", .role = Role::kUser, .handler = [&context](Exchange& exchange) {
                return Messages(context, exchange);
              }});
  router.Add({.method = "POST",
              .path = "/v1/messages/count_tokens",
              .role = Role::kUser,
              .handler = [&context](Exchange& exchange) { return CountTokens(context, exchange); }});
}

}  // namespace gyre::http
