#include "coordinator/http/openai_answer.h"

#include <chrono>

#include "coordinator/http/json_text.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

constexpr size_t kWriteBytes = 64 * 1024;  // a write is no longer than this and one event

HttpResponse StreamHead() {
  HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers.emplace_back("cache-control", "no-cache");
  head.headers.emplace_back("x-accel-buffering", "no");  // proxies hand it on at once
  return head;
}

// Turns events into deltas and counts.
class Reader {
 public:
  explicit Reader(size_t choices_per_prompt) : per_prompt_(choices_per_prompt) {}

  // The error ends the answer.
  std::optional<ApiError> Take(Generation::Item item, Delta* delta) {
    *delta = {.choice = item.index};
    if (auto* token = std::get_if<TokenEvent>(&item.event)) {
      delta->text = std::move(token->text);
      delta->ids.push_back(token->token);
      return std::nullopt;
    }
    if (auto* finished = std::get_if<Finished>(&item.event)) {
      delta->text = std::move(finished->text);
      delta->finish = finished->reason;
      const Usage& usage = finished->usage;
      usage_.completion += usage.generated_tokens;
      if (item.index % per_prompt_ == 0) {
        usage_.prompt += usage.prompt_tokens;
        usage_.cached += usage.cached_tokens;
      }
      return std::nullopt;
    }
    if (const auto* failed = std::get_if<Failed>(&item.event)) return FromStatus(failed->status);
    return FromStatus(Unavailable("the request was cancelled: the server stops"));
  }
  const UsageSum& usage() const { return usage_; }

 private:
  const size_t per_prompt_;
  UsageSum usage_;
};

Awaitable<void> RunWhole(Exchange& exchange, Generation& generation, OpenAiAnswer& answer, size_t count) {
  Reader reader(answer.choices_per_prompt());
  std::vector<Choice> choices(count);
  while (std::optional<Generation::Item> item = co_await generation.Next()) {
    Delta delta;
    std::optional<ApiError> error = reader.Take(*std::move(item), &delta);
    if (error) {
      co_await RespondError(exchange, *std::move(error), ApiStyle::kOpenAi);
      co_return;
    }
    Choice& choice = choices[delta.choice];
    choice.text += delta.text;
    choice.ids.insert(choice.ids.end(), delta.ids.begin(), delta.ids.end());
    if (delta.finish) choice.finish = *delta.finish;
  }
  if (exchange.gone()) co_return;
  HttpResponse response;
  response.body = answer.Whole(choices, reader.usage());
  co_await exchange.Respond(std::move(response));
}

// The answer begins with the first event: a request that fails before it has an HTTP status that says so.
Awaitable<void> RunStream(Exchange& exchange, Generation& generation, OpenAiAnswer& answer) {
  Reader reader(answer.choices_per_prompt());
  bool begun = false, failed = false;
  std::string out;
  answer.AppendBegin(&out);
  while (!failed && !generation.ended()) {
    std::optional<Generation::Item> item = co_await generation.Next();
    if (exchange.gone()) co_return;
    for (; item; item = generation.TryNext()) {
      Delta delta;
      std::optional<ApiError> error = reader.Take(*std::move(item), &delta);
      if (error && !begun) {
        co_await RespondError(exchange, *std::move(error), ApiStyle::kOpenAi);
        co_return;
      }
      failed = error.has_value();
      if (failed) {
        answer.AppendError(*error, &out);
        break;
      }
      answer.AppendDelta(delta, &out);
      if (out.size() >= kWriteBytes) break;
    }
    if (!failed && generation.ended()) answer.AppendEnd(reader.usage(), &out);
    if (!begun) {
      begun = true;
      HttpResponse head = StreamHead();
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

void OpenAiAnswer::AppendError(const ApiError& error, std::string* out) {
  *out += SseEvent(RenderJson(error, ApiStyle::kOpenAi));
}

Awaitable<void> RunAnswer(const ApiContext& context, Exchange& exchange, std::unique_ptr<OpenAiAnswer> answer) {
  std::optional<ApiError> error;
  std::function<void()> read = [&] { error = answer->Read(exchange.request().body); };
  const Status posted = co_await RunOnService(exchange, context.service, std::move(read));
  if (!posted.ok()) error = FromStatus(posted);
  if (exchange.gone()) co_return;
  Generation generation(exchange, context.service);
  std::vector<Request> requests = answer->TakeRequests();
  const size_t count = requests.size();
  if (!error) error = generation.Start(std::move(requests));
  if (error) {
    co_await RespondError(exchange, *std::move(error), ApiStyle::kOpenAi);
    co_return;
  }
  if (answer->stream()) {
    co_await RunStream(exchange, generation, *answer);
  } else {
    co_await RunWhole(exchange, generation, *answer, count);
  }
}

const char* QuotedFinish(FinishReason reason) { return reason == FinishReason::kStop ? "\"stop\"" : "\"length\""; }

std::string UsageJson(const UsageSum& usage) {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      usage.prompt, usage.completion, usage.prompt + usage.completion, usage.cached);
}

void AppendIds(const std::vector<TokenId>& ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) *out += ',';
    fmt::format_to(std::back_inserter(*out), "{}", ids[i]);
  }
  *out += ']';
}

std::string ObjectBeginning(const ApiContext& context, const std::string& id, std::string_view object,
                            const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string out = "{\"id\":";
  AppendQuoted(ValidUtf8(id), &out);
  out += fmt::format(R"(,"object":"{}","created":{},"model":)", object,
                     std::chrono::duration_cast<std::chrono::seconds>(now).count());
  AppendQuoted(ValidUtf8(model), &out);
  out += ",\"system_fingerprint\":";
  AppendQuoted("gyre-" + context.version, &out);
  out += ",\"choices\":[";
  return out;
}

}  // namespace gyre::http
