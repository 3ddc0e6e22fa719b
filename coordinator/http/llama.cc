#include "coordinator/http/llama.h"

#include "coordinator/http/answer_parts.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/llama_completion.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/sampling_fields.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

// A token's text, or its bytes if they are not complete characters.
json::value PieceOf(const std::string& piece) {
  if (ValidUtf8(piece) == piece) return json::value(piece);
  json::array bytes;
  for (const char byte : piece) bytes.push_back(static_cast<uint8_t>(byte));
  return bytes;
}

Awaitable<void> Tokenize(ApiContext& context, Exchange& exchange) {
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  std::string content;
  EncodeOptions options;
  bool pieces = false;
  if (!error) {
    JsonFields fields(body);
    fields.Require("content");
    content = fields.String("content").value_or("");
    options.add_special = fields.Bool("add_special").value_or(false);
    options.parse_special = fields.Bool("parse_special").value_or(true);
    pieces = fields.Bool("with_pieces").value_or(false);
    error = fields.Finish();
  }
  json::array tokens;
  Status done;
  if (!error) {
    std::function<void()> work = [&] {
      StatusOr<std::vector<TokenId>> ids = context.service.Tokenize(content, options);
      done = ids.status();
      if (!done.ok()) return;
      for (const TokenId id : *ids) {
        if (!pieces) {
          tokens.push_back(id);
          continue;
        }
        json::object token;
        token["id"] = id;
        token["piece"] = PieceOf(context.service.TokenBytes(id, true).value_or(""));
        tokens.push_back(std::move(token));
      }
    };
    const Status ran = co_await RunOnService(exchange, context.service, std::move(work));
    if (!ran.ok()) error = FromStatus(ran);
    if (ran.ok() && !done.ok()) error = FromInput(done, "content");
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  json::object reply;
  reply["tokens"] = std::move(tokens);
  co_await RespondJson(exchange, std::move(reply));
}

Awaitable<void> Detokenize(ApiContext& context, Exchange& exchange) {
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  std::vector<TokenId> ids;
  if (!error) {
    JsonFields fields(body);
    fields.Require("tokens");
    const int vocab = context.service.model().spec().vocab;
    if (const json::array* tokens = fields.Array("tokens")) ids = ReadIds(fields, "tokens", *tokens, vocab);
    error = fields.Finish();
  }
  json::object reply;
  if (!error) {
    const StatusOr<std::string> text = context.service.Detokenize(ids);
    if (!text.ok()) error = FromInput(text.status(), "tokens");
    if (text.ok()) reply["content"] = ValidUtf8(*text);
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  co_await RespondJson(exchange, std::move(reply));
}

Awaitable<void> ApplyTemplate(ApiContext& context, Exchange& exchange) {
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  ChatInput chat;
  if (!error) {
    JsonFields fields(body);
    ReadChat(fields, &chat.conversation);
    fields.Ignore("model");
    error = fields.Finish();
  }
  StatusOr<std::string> prompt = std::string();
  if (!error) {
    std::function<void()> work = [&] { prompt = context.service.PromptText(std::move(chat)); };
    const Status ran = co_await RunOnService(exchange, context.service, std::move(work));
    if (!ran.ok()) error = FromStatus(ran);
    if (ran.ok() && !prompt.ok()) error = FromInput(prompt.status(), "messages");
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  json::object reply;
  reply["prompt"] = ValidUtf8(*prompt);
  co_await RespondJson(exchange, std::move(reply));
}

Awaitable<void> Props(ApiContext& context, Exchange& exchange) {
  const Model& model = context.service.model();
  json::object settings;
  settings["n_ctx"] = context.service.context();
  settings["params"] = DefaultSettings(model);
  json::object modalities;
  modalities["vision"] = false;
  modalities["audio"] = false;
  json::object reply;
  reply["default_generation_settings"] = std::move(settings);
  reply["total_slots"] = context.engine_stats().scheduler.max_sequences;
  reply["model_alias"] = context.models.front();
  // Only the file's name is shown, as the folders of this machine concern no client.
  reply["model_path"] = ValidUtf8(model.path().substr(model.path().rfind('/') + 1));
  reply["chat_template"] = ChatTemplateSource(context);
  if (const Tokenizer* tokenizer = model.tokenizer()) {
    reply["bos_token"] = ValidUtf8(tokenizer->Text(tokenizer->bos()));
    reply["eos_token"] = ValidUtf8(tokenizer->Text(tokenizer->eos()));
  }
  reply["modalities"] = std::move(modalities);
  reply["build_info"] = "gyre " + context.version;
  co_await RespondJson(exchange, std::move(reply));
}

// Returns a slot for each present sequence, as Gyre has no fixed slots.
Awaitable<void> Slots(ApiContext& context, Exchange& exchange) {
  const EngineStats stats = context.engine_stats();
  json::array slots;
  for (const SequenceStats& sequence : stats.sequences) {
    json::object next;
    next["n_decoded"] = sequence.generated;
    json::object slot;
    slot["id"] = slots.size();
    slot["id_task"] = static_cast<uint64_t>(sequence.id);
    slot["n_ctx"] = context.service.context();
    slot["is_processing"] = sequence.state != SeqState::kWaiting;
    slot["n_prompt_tokens"] = sequence.prompt;
    slot["next_token"] = json::array({std::move(next)});
    slots.push_back(std::move(slot));
  }
  HttpResponse response;
  response.body = WriteJson(slots);
  co_await exchange.Respond(std::move(response));
}

}  // namespace

void AddLlamaRoutes(Router& router, ApiContext& context) {
  const auto add = [&](const char* method, const char* path, Awaitable<void> (*handler)(ApiContext&, Exchange&)) {
    router.Add(
        {.method = method, .path = path, .role = Role::kUser, .handler = [&context, handler](Exchange& exchange) {
           return handler(context, exchange);
         }});
  };
  add("POST", "/completion", &LlamaCompletion);
  add("POST", "/tokenize", &Tokenize);
  add("POST", "/detokenize", &Detokenize);
  add("POST", "/apply-template", &ApplyTemplate);
  add("GET", "/props", &Props);
  add("GET", "/slots", &Slots);
}

}  // namespace gyre::http
