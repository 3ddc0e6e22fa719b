#include "coordinator/http/openai_answer.h"

#include <algorithm>

#include "base/unix_time.h"
#include "coordinator/http/event_ids.h"
#include "coordinator/http/json_text.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

constexpr size_t kWriteBytes = 64 * 1024;  // a write is no longer than this and one event

HttpResponse StreamHead(bool json_lines) {
  HttpResponse head;
  head.content_type = json_lines ? "application/x-ndjson" : "text/event-stream";
  head.headers.emplace_back("cache-control", "no-cache");
  head.headers.emplace_back("x-accel-buffering", "no");  // proxies hand it on at once
  return head;
}

// Turns events into deltas and counts.
class Reader {
 public:
  Reader(const Service& service, OpenAiAnswer& answer, size_t choices)
      : per_prompt_(answer.choices_per_prompt()),
        scored_(answer.with_logprobs()),
        tools_(answer.with_tools()),
        parts_(answer.TakeParts()) {
    states_.resize(choices, {.scores = HeldScores(service, !parts_.empty())});
  }

  // The error ends the answer.
  std::optional<ApiError> Take(Generation::Item item, Delta* delta) {
    *delta = {.choice = item.index};
    if (auto* token = std::get_if<TokenEvent>(&item.event)) {
      TakeToken(*token, delta);
    } else if (auto* finished = std::get_if<Finished>(&item.event)) {
      TakeEnd(*finished, delta);
    } else if (auto* score = std::get_if<PromptTokenEvent>(&item.event)) {
      delta->prompt_score = {.token = score->token, .logprob = score->logprob, .top = std::move(score->top)};
    }
    return ErrorOf(item.event);
  }
  const UsageSum& usage() const { return usage_; }

 private:
  struct State {
    HeldScores scores;
    uint64_t tokens = 0;  // before the content began
    bool reasoned = false, content = false;
  };

  void TakeParts(std::vector<AnswerDelta> parts, Delta* delta) {
    State& state = states_[delta->choice];
    bool call = false;
    for (const AnswerDelta& part : parts) {
      if (part.kind == AnswerDelta::Kind::kReasoning) {
        delta->reasoning += part.text;
      } else if (part.kind == AnswerDelta::Kind::kContent) {
        delta->text += part.text;
      } else {
        call = true;
      }
    }
    if (tools_) delta->parts = std::move(parts);
    state.reasoned |= !delta->reasoning.empty();
    const bool content = !delta->text.empty() || call;
    if (state.reasoned && !state.content && content) usage_.reasoning += state.tokens;
    state.content |= content;
  }

  void TakeToken(TokenEvent& token, Delta* delta) {
    State& state = states_[delta->choice];
    delta->id = token.token;
    if (parts_.empty()) {
      delta->text = std::move(token.text);
    } else {
      TakeParts(parts_[delta->choice].Push(token), delta);
      ++state.tokens;
    }
    if (!scored_) return;
    state.scores.Hold({.token = token.token, .logprob = token.logprob, .top = std::move(token.top)});
    if (!delta->text.empty()) {
      delta->scores = state.scores.Release(delta->text);
    } else if (!delta->reasoning.empty() || !delta->parts.empty()) {
      state.scores.Drop();  // calls have none
    }
  }

  void TakeEnd(Finished& finished, Delta* delta) {
    State& state = states_[delta->choice];
    if (parts_.empty()) {
      delta->text = finished.text;
    } else {
      TakeParts(parts_[delta->choice].Finish(finished), delta);
      delta->called = parts_[delta->choice].called();
      if (state.reasoned && !state.content) usage_.reasoning += state.tokens;
    }
    if (scored_) delta->scores = state.scores.Finish(finished, delta->text);
    delta->finish = finished.reason;
    const Usage& usage = finished.usage;
    usage_.completion += usage.generated_tokens;
    usage_.shifts += usage.context_shifts;
    usage_.drafted += usage.drafted_tokens;
    usage_.accepted += usage.accepted_drafts;
    usage_.to_first_token = std::max(usage_.to_first_token, usage.to_first_token);
    usage_.total = std::max(usage_.total, usage.total);
    if (delta->choice % per_prompt_ != 0) return;
    usage_.prompt += usage.prompt_tokens;
    usage_.cached += usage.cached_tokens;
  }

  const size_t per_prompt_;
  const bool scored_, tools_;
  std::vector<AnswerParts> parts_;
  std::vector<State> states_;
  UsageSum usage_;
};

void Add(Delta delta, Choice* choice) {
  choice->reasoning += delta.reasoning;
  choice->text += delta.text;
  Merge(std::move(delta.parts), &choice->parts);
  choice->called |= delta.called;
  if (delta.id) choice->ids.push_back(*delta.id);
  for (TokenScore& score : delta.scores) choice->scores.push_back(std::move(score));
  if (delta.prompt_score) choice->prompt_scores.push_back(*std::move(delta.prompt_score));
  if (delta.finish) choice->finish = *delta.finish;
}

Awaitable<void> RunWhole(Exchange& exchange, Generation& generation, OpenAiAnswer& answer, Reader& reader,
                         size_t count) {
  std::vector<Choice> choices(count);
  while (std::optional<Generation::Item> item = co_await generation.Next()) {
    if (std::holds_alternative<Waiting>(item->event)) continue;
    Delta delta;
    std::optional<ApiError> error = reader.Take(*std::move(item), &delta);
    if (error) {
      co_await RespondError(exchange, *std::move(error));
      co_return;
    }
    Choice* choice = &choices[delta.choice];
    Add(std::move(delta), choice);
  }
  if (exchange.gone()) co_return;
  HttpResponse response;
  response.body = answer.Whole(choices, reader.usage());
  co_await exchange.Respond(std::move(response));
}

// Appends the events that are there. The error ends the answer.
std::optional<ApiError> AppendAll(std::optional<Generation::Item> item, Generation& generation, OpenAiAnswer& answer,
                                  Reader& reader, EventIds& ids, std::string* out) {
  std::string events;
  for (; item; item = generation.TryNext()) {
    Delta delta;
    if (std::holds_alternative<Waiting>(item->event)) {
      if (answer.json_lines()) answer.AppendPing(out);
      if (!answer.json_lines()) *out += CommentOf(item->event);
      continue;
    }
    if (const auto* progress = std::get_if<PromptProgress>(&item->event)) {
      answer.AppendProgress(item->index, *progress, out);
      continue;
    }
    if (std::optional<ApiError> error = reader.Take(*std::move(item), &delta)) return error;
    events.clear();
    answer.AppendDelta(delta, &events);
    ids.AppendChoice(delta.choice, events, out);
    if (out->size() >= kWriteBytes) break;
  }
  if (generation.ended()) {
    events.clear();
    answer.AppendEnd(reader.usage(), &events);
    ids.AppendWhole(events, out);
  }
  return std::nullopt;
}

// The answer begins with the first event, so that a request that fails before it gets an HTTP status of its own; or
// with a comment if the first event takes long, as proxies and clients close connections that are silent.
Awaitable<void> RunStream(Exchange& exchange, Generation& generation, OpenAiAnswer& answer, Reader& reader,
                          EventIds& ids, Duration ping) {
  bool begun = false, failed = false;
  std::string out, beginning;
  answer.AppendBegin(&beginning);
  ids.AppendWhole(beginning, &out);
  while (!failed && !generation.ended()) {
    std::optional<Generation::Item> item = generation.TryNext();
    if (item) {
      std::optional<ApiError> error = AppendAll(std::move(item), generation, answer, reader, ids, &out);
      if (error && !begun) {
        co_await RespondError(exchange, *std::move(error));
        co_return;
      }
      failed = error.has_value();
      if (failed) answer.AppendError(*error, &out);
    } else {
      const Wake woken = co_await exchange.Wait(After(ping));
      if (woken == Wake::kGone) co_return;
      if (woken == Wake::kWoken) continue;
      answer.AppendPing(&out);
    }
    if (!begun) {
      begun = true;
      HttpResponse head = StreamHead(answer.json_lines());
      head.body = std::move(out);
      co_await exchange.Begin(std::move(head));
    } else if (!out.empty()) {
      const bool there = co_await exchange.Write(std::move(out));
      if (!there) co_return;
    }
    out.clear();
  }
}

}  // namespace

std::optional<ApiError> OpenAiAnswer::Read(std::string_view body) {
  boost::json::object object;
  if (std::optional<ApiError> error = ParseBody(body, &object)) return error;
  JsonFields fields(object);
  Question question;
  ReadFields(fields, &question);
  if (std::optional<ApiError> error = fields.Finish()) return error;
  return Prepare(std::move(question));
}

void OpenAiAnswer::PartRequests(const ApiContext& context, bool reasoning) {
  for (const Request& request : requests_) {
    AnswerParts parts(context, request,
                      {.tools = tools_.declared, .parallel = tools_.parallel, .reasoning = reasoning});
    if (parts.parted()) parts_.push_back(std::move(parts));
  }
}

void OpenAiAnswer::AppendPing(std::string* out) { *out += ": the answer takes a while\n\n"; }

void OpenAiAnswer::AppendError(const ApiError& error, std::string* out) {
  *out += SseEvent(RenderJson(error, ApiStyle::kOpenAi));
}

Awaitable<void> RunAnswer(const ApiContext& context, Exchange& exchange, std::unique_ptr<OpenAiAnswer> answer) {
  std::optional<ApiError> error;
  std::function<void()> read = [&] { error = answer->Read(exchange.request().body); };
  const Status posted = co_await RunOnService(exchange, context.service, std::move(read));
  if (!posted.ok()) error = FromStatus(posted);
  if (exchange.gone()) co_return;
  Generation generation(exchange, context);
  std::vector<Request> requests = answer->TakeRequests();
  const size_t count = requests.size();
  EventIds ids;
  if (!error && answer->json_lines()) {
    error = generation.Start(std::move(requests), answer->stream());
  } else if (!error) {
    error = generation.Open(std::move(requests), answer->stream(), &ids);
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  Reader reader(context.service, *answer, count);
  if (answer->stream()) {
    co_await RunStream(exchange, generation, *answer, reader, ids, context.stream_ping);
  } else {
    co_await RunWhole(exchange, generation, *answer, reader, count);
  }
}

const char* QuotedFinish(FinishReason reason, bool called) {
  if (reason != FinishReason::kStop) return "\"length\"";
  return called ? "\"tool_calls\"" : "\"stop\"";
}

std::string UsageJson(const UsageSum& usage) {
  const std::string shifts = usage.shifts > 0 ? fmt::format(R"(,"context_shifts":{})", usage.shifts) : "";
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}},)"
                     R"("completion_tokens_details":{{"reasoning_tokens":{},"accepted_prediction_tokens":{},)"
                     R"("rejected_prediction_tokens":{}}}{}}})",
                     usage.prompt, usage.completion, usage.prompt + usage.completion, usage.cached, usage.reasoning,
                     usage.accepted, usage.drafted - usage.accepted, shifts);
}

void AppendPromptProgress(const PromptProgress& progress, std::string_view end, std::string* out) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(progress.time).count();
  fmt::format_to(std::back_inserter(*out),
                 R"(],"prompt_progress":{{"total":{},"cache":{},"processed":{},"time_ms":{}}})", progress.total,
                 progress.cached, progress.processed, ms);
  *out += end.substr(1);
}

void AppendIds(std::span<const TokenId> ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) *out += ',';
    fmt::format_to(std::back_inserter(*out), "{}", ids[i]);
  }
  *out += ']';
}

std::string ObjectBeginning(const ApiContext& context, const std::string& id, std::string_view object,
                            const std::string& model) {
  std::string out = "{\"id\":";
  AppendQuoted(ValidUtf8(id), &out);
  out += fmt::format(R"(,"object":"{}","created":{},"model":)", object, UnixSeconds());
  AppendQuoted(ValidUtf8(model), &out);
  out += ",\"system_fingerprint\":";
  AppendQuoted("gyre-" + context.version, &out);
  out += ",\"choices\":[";
  return out;
}

}  // namespace gyre::http
