#include "coordinator/http/llama_completion.h"

#include "coordinator/http/generation.h"
#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_sampling.h"
#include "coordinator/http/sampling_fields.h"
#include "coordinator/http/speculation_fields.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

struct CompletionRequest {
  Question question;
  bool stream = false, tokens = false, timings = false;
  std::optional<uint32_t> probabilities;
  // A prompt of several parts is assembled on the service's threads: texts are tokenized, ids stay.
  std::vector<std::variant<std::string, TokenId>> parts;
};

void ReadPrompt(const json::value& prompt, int vocab, JsonFields* fields, CompletionRequest* out) {
  if (const json::string* text = prompt.if_string()) {
    out->question.input = TextInput{.text = std::string(View(*text)), .parse_special = true};
    return;
  }
  const json::array* array = prompt.if_array();
  if (array == nullptr) {
    return fields->Fail(BadRequest("prompt must be a string or an array of strings and token ids", "prompt"));
  }
  for (const json::value& part : *array) {
    if (const json::string* text = part.if_string()) {
      out->parts.emplace_back(std::string(View(*text)));
    } else {
      const std::vector<TokenId> id = ReadIds(*fields, "prompt", {part}, vocab);
      if (id.empty()) return;
      out->parts.emplace_back(id[0]);
    }
  }
  if (array->empty()) fields->Fail(BadRequest("prompt is empty", "prompt"));
}

std::optional<ApiError> ReadCompletion(const json::object& body, const ApiContext& context, const Caller& caller,
                                       CompletionRequest* out) {
  JsonFields fields(body);
  const Model& model = context.service.model();
  Question& q = out->question;
  fields.Require("prompt");
  if (const json::value* prompt = fields.Any("prompt")) ReadPrompt(*prompt, model.spec().vocab, &fields, out);
  q.sampling = DefaultSampling(model);
  ReadSamplers(fields, &q.sampling);
  const int64_t seed = fields.Integer("seed", -1, UINT32_MAX).value_or(-1);
  q.sampling.seed = seed < 0 || seed == UINT32_MAX ? RandomSeed() >> 32 : static_cast<uint64_t>(seed);
  ReadLogitBias(fields, model.spec().vocab, 1e6, &q.sampling);
  ReadEnds(fields, model.spec().vocab, &q);
  // -2 means the rest of the context, as -1 does here.
  ReadMostTokens(fields, "n_predict", -2, &q);
  ReadMostTokens(fields, "max_tokens", -2, &q);
  const json::value* name = fields.Any("model");  // whatever else it says has no effect
  q.adapter = ReadAdapter(fields, context, name != nullptr && name->is_string() ? View(name->get_string()) : "");
  ReadOtherServersFields(fields);
  ReadGrammars(fields, &q);
  ReadSpeculation(fields, &q);
  q.tenant = caller.tenant;
  out->stream = fields.Bool("stream").value_or(false);
  out->tokens = fields.Bool("return_tokens").value_or(false);
  out->timings = fields.Bool("timings_per_token").value_or(false);
  q.progress = fields.Bool("return_progress").value_or(false) && out->stream;
  const int64_t probabilities = fields.Integer("n_probs", 0, 20).value_or(0);
  if (probabilities > 0) {
    out->probabilities = static_cast<uint32_t>(probabilities);
    q.logprobs = out->probabilities;
  }
  fields.Refuse("post_sampling_probs", "probabilities are those before sampling");
  fields.Refuse("response_fields", "all fields are given");
  fields.Refuse("multimodal_data", "the model reads text alone");
  fields.Refuse("reasoning_in_content", "the text is given as it is");
  for (const char* name : {"n_cmpl", "n"}) {
    if (fields.Integer(name, INT64_MIN, INT64_MAX).value_or(1) != 1) fields.RefuseAny(name, "there is one answer");
  }
  fields.Ignore("reasoning_format");
  return fields.Finish();
}

StatusOr<IdsInput> JoinParts(const Service& service, const std::vector<std::variant<std::string, TokenId>>& parts) {
  IdsInput all;
  for (const auto& part : parts) {
    if (const TokenId* id = std::get_if<TokenId>(&part)) {
      all.push_back(*id);
      continue;
    }
    GYRE_ASSIGN_OR_RETURN(const auto ids, service.Tokenize(std::get<std::string>(part),
                                                           {.add_special = all.empty(), .parse_special = true}));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

json::object SettingsOf(const Request& request) {
  json::object out;
  for (const SamplingOption& option : SamplingOptions()) out[option.llama] = JsonOf(request.sampling, option);
  out["seed"] = request.sampling.seed;
  out["n_predict"] = request.max_new_tokens;
  out["ignore_eos"] = request.ignore_end;
  json::array stops;
  for (const std::string& stop : request.stops) stops.emplace_back(ValidUtf8(stop));
  out["stop"] = std::move(stops);
  return out;
}

double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

json::object Timings(const Usage& usage) {
  const double prompt = Milliseconds(usage.to_first_token);
  const double predicted = Milliseconds(usage.total - usage.to_first_token);
  const uint32_t computed = usage.prompt_tokens - usage.cached_tokens;
  const auto each = [](double ms, uint32_t n) { return n > 0 ? ms / n : 0; };
  const auto rate = [](double ms, uint32_t n) { return ms > 0 ? 1000 * n / ms : 0; };
  json::object out;
  out["cache_n"] = usage.cached_tokens;
  out["prompt_n"] = computed;
  out["prompt_ms"] = prompt;
  out["prompt_per_token_ms"] = each(prompt, computed);
  out["prompt_per_second"] = rate(prompt, computed);
  out["predicted_n"] = usage.generated_tokens;
  out["predicted_ms"] = predicted;
  out["predicted_per_token_ms"] = each(predicted, usage.generated_tokens);
  out["predicted_per_second"] = rate(predicted, usage.generated_tokens);
  if (usage.drafted_tokens > 0) {
    out["draft_n"] = usage.drafted_tokens;
    out["draft_n_accepted"] = usage.accepted_drafts;
  }
  return out;
}

json::object TokenObject(const Service& service, TokenId id, float logprob) {
  const std::string piece = service.TokenBytes(id, true).value_or("");
  json::array bytes;
  for (const char byte : piece) bytes.push_back(static_cast<uint8_t>(byte));
  json::object out;
  out["id"] = id;
  out["token"] = ValidUtf8(piece);
  out["bytes"] = std::move(bytes);
  out["logprob"] = DecimalOf(std::max(logprob, -9999.0F));
  return out;
}

json::object Probabilities(const Service& service, const TokenEvent& event) {
  json::object out = TokenObject(service, event.token, event.logprob);
  json::array top;
  for (const TokenLogprob& other : event.top) top.push_back(TokenObject(service, other.id, other.logprob));
  out["top_logprobs"] = std::move(top);
  return out;
}

// An answer so far, and its JSON.
class LlamaCompletionAnswer {
 public:
  LlamaCompletionAnswer(const ApiContext& context, const CompletionRequest& asked, const Request& request)
      : context_(context),
        asked_(asked),
        settings_(SettingsOf(request)),
        prompt_tokens_(request.prompt.size()),
        started_(Clock::now()) {}

  // The object of one streamed token.
  json::object Add(const TokenEvent& event) {
    if (++predicted_ == 1) first_ = Clock::now();
    json::object out;
    out["index"] = 0;
    out["content"] = event.text;
    json::array tokens;
    if (asked_.stream || asked_.tokens) tokens.push_back(event.token);
    out["tokens"] = std::move(tokens);
    out["stop"] = false;
    out["id_slot"] = 0;
    out["tokens_predicted"] = predicted_;
    out["tokens_evaluated"] = prompt_tokens_;
    if (asked_.probabilities) out["completion_probabilities"] = json::array({Probabilities(context_.service, event)});
    if (asked_.timings) out["timings"] = Timings(UsageNow());
    if (asked_.stream) return out;
    content_ += event.text;
    if (asked_.tokens) tokens_.push_back(event.token);
    if (asked_.probabilities) probabilities_.push_back(Probabilities(context_.service, event));
    return out;
  }
  // The object of a step of the prompt.
  json::object Progress(const PromptProgress& progress) const {
    json::object out;
    out["index"] = 0;
    out["content"] = "";
    out["tokens"] = json::array();
    out["stop"] = false;
    out["id_slot"] = 0;
    out["tokens_predicted"] = 0;
    out["tokens_evaluated"] = prompt_tokens_;
    out["prompt_progress"] =
        json::object{{"total", progress.total},
                     {"cache", progress.cached},
                     {"processed", progress.processed},
                     {"time_ms", std::chrono::duration_cast<std::chrono::milliseconds>(progress.time).count()}};
    return out;
  }
  json::object End(const Finished& end) {
    json::object out;
    out["index"] = 0;
    out["content"] = content_ + end.text;
    out["tokens"] = std::move(tokens_);
    out["id_slot"] = 0;
    out["stop"] = true;
    out["model"] = context_.models.front();
    out["tokens_predicted"] = end.usage.generated_tokens;
    out["tokens_evaluated"] = end.usage.prompt_tokens;
    out["generation_settings"] = std::move(settings_);
    out["truncated"] = end.usage.context_shifts > 0;
    const char* word = end.stop.empty() ? "eos" : "word";
    out["stop_type"] = end.reason == FinishReason::kLength ? "limit" : word;
    out["stopping_word"] = ValidUtf8(end.stop);
    out["tokens_cached"] = end.usage.prompt_tokens + end.usage.generated_tokens;
    out["timings"] = Timings(end.usage);
    if (!probabilities_.empty()) out["completion_probabilities"] = std::move(probabilities_);
    return out;
  }

 private:
  Usage UsageNow() const {
    return {.prompt_tokens = static_cast<uint32_t>(prompt_tokens_),
            .generated_tokens = predicted_,
            .to_first_token = first_ - started_,
            .total = Clock::now() - started_};
  }

  const ApiContext& context_;
  const CompletionRequest& asked_;
  json::object settings_;
  const size_t prompt_tokens_;
  const Clock::time_point started_;
  Clock::time_point first_;
  uint32_t predicted_ = 0;
  std::string content_;
  json::array tokens_, probabilities_;
};

Awaitable<void> StreamCompletion(Exchange& exchange, Generation& generation, EventIds& ids,
                                 LlamaCompletionAnswer& answer) {
  HttpResponse head;
  head.content_type = "text/event-stream";
  co_await exchange.Begin(std::move(head));
  for (;;) {
    std::optional<Generation::Item> item = co_await generation.Next();
    if (!item) co_return;
    std::string bytes;
    for (; item; item = generation.TryNext()) {
      std::string events;
      if (const auto* token = std::get_if<TokenEvent>(&item->event)) events = SseEvent(WriteJson(answer.Add(*token)));
      if (const auto* end = std::get_if<Finished>(&item->event)) events = SseEvent(WriteJson(answer.End(*end)));
      ids.AppendChoice(0, events, &bytes);
      // A stream that is taken up has no progress, so these have no ids.
      if (const auto* progress = std::get_if<PromptProgress>(&item->event)) {
        bytes += SseEvent(WriteJson(answer.Progress(*progress)));
      }
      bytes += CommentOf(item->event);
      if (const std::optional<ApiError> error = ErrorOf(item->event)) {
        bytes += SseEvent(RenderJson(*error, ApiStyle::kOpenAi));
      }
    }
    if (bytes.empty()) continue;
    const bool there = co_await exchange.Write(std::move(bytes));
    if (!there) co_return;
  }
}

Awaitable<void> WholeCompletion(Exchange& exchange, Generation& generation, LlamaCompletionAnswer& answer) {
  for (;;) {
    const std::optional<Generation::Item> item = co_await generation.Next();
    if (!item) co_return;  // the client is gone
    HttpResponse response;
    if (const auto* token = std::get_if<TokenEvent>(&item->event)) {
      answer.Add(*token);
      continue;
    }
    if (const auto* end = std::get_if<Finished>(&item->event)) response.body = WriteJson(answer.End(*end));
    if (const std::optional<ApiError> error = ErrorOf(item->event)) response = Render(*error, ApiStyle::kOpenAi);
    if (response.body.empty()) continue;
    co_await exchange.Respond(std::move(response));
    co_return;
  }
}

}  // namespace

json::object DefaultSettings(const Model& model) {
  Request request;
  request.sampling = DefaultSampling(model);
  json::object out = SettingsOf(request);
  out["n_predict"] = -1;
  out["seed"] = -1;
  return out;
}

Awaitable<void> LlamaCompletion(ApiContext& context, Exchange& exchange) {
  CompletionRequest asked;
  json::object body;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) error = ReadCompletion(body, context, exchange.request().caller, &asked);
  if (!error && !asked.parts.empty()) {
    StatusOr<IdsInput> ids = IdsInput();
    std::function<void()> work = [&] { ids = JoinParts(context.service, asked.parts); };
    const Status ran = co_await RunOnService(exchange, context.service, std::move(work));
    if (!ran.ok()) error = FromStatus(ran);
    if (ran.ok() && !ids.ok()) error = FromInput(ids.status(), "prompt");
    if (ran.ok() && ids.ok()) asked.question.input = *std::move(ids);
  }
  Request request;
  if (!error) error = co_await MakeRequest(exchange, context.service, std::move(asked.question), &request);
  LlamaCompletionAnswer answer(context, asked, request);
  Generation generation(exchange, context);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  EventIds ids;
  if (!error) error = generation.Open(std::move(requests), asked.stream, &ids);
  if (error) {
    co_await RespondError(exchange, *std::move(error));
  } else if (asked.stream) {
    co_await StreamCompletion(exchange, generation, ids, answer);
  } else {
    co_await WholeCompletion(exchange, generation, answer);
  }
}

}  // namespace gyre::http
