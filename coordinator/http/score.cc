#include "coordinator/http/score.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/score_request.h"
#include "fmt/format.h"
#include "model/half_floats.h"
#include "scoring/arrow_scores.h"

namespace gyre::http {
namespace {

constexpr size_t kScores = 32;               // requests to the engine
constexpr size_t kLogitScores = 4;           // with all logits
constexpr size_t kPiece = size_t{64} << 10;  // of the answer: bytes that are written together

// JSON has no infinity: null.
void AppendFinite(double value, std::string* out) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  } else {
    *out += "null";
  }
}
void AppendFinite(float value, std::string* out) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  } else {
    *out += "null";
  }
}

// The answer, as it grows.
class ScoreWriter {
 public:
  explicit ScoreWriter(const ScoreJob& job) : job_(job), arrow_(job.format) {}

  HttpResponse Head() const {
    HttpResponse head;
    switch (job_.form) {
      case ScoreJob::Form::kJson:
        head.body = "{\"object\":\"list\",\"model\":";
        AppendQuoted(ValidUtf8(job_.model), &head.body);
        head.body += ",\"data\":[";
        break;
      case ScoreJob::Form::kNpy: {
        uint64_t rows = 0;
        for (const ScoreJob::Input& input : job_.inputs) rows += input.rows();
        head.content_type = "application/octet-stream";
        head.body = NpyHeader(job_.format, rows);
        break;
      }
      case ScoreJob::Form::kArrow:
        head.content_type = kArrowStreamType;
        head.body = arrow_.Schema();
        break;
    }
    return head;
  }

  // kInvalidArgument: the student's distribution is none.
  Status Add(size_t index, const PromptTokenEvent& event, std::string* out) {
    const ScoreJob::Input& input = job_.inputs[index];
    std::optional<Divergence> divergence;
    if (!input.student.empty()) {
      const std::vector<float>& student = input.student[event.position - input.request.score->from];
      auto found = Diverge(event.named, student, student.size() == job_.format.vocab, job_.beta);
      if (!found.ok()) return Annotate(found.status(), fmt::format("input[{}], position {}", index, event.position));
      divergence = *found;
    }
    switch (job_.form) {
      case ScoreJob::Form::kJson: AppendPosition(index, event, divergence, out); break;
      case ScoreJob::Form::kNpy: AppendRecord(job_.format, static_cast<uint32_t>(index), event, divergence, out); break;
      case ScoreJob::Form::kArrow:
        arrow_.Add(static_cast<uint32_t>(index), event, divergence);
        if (arrow_.bytes() >= kPiece) *out += arrow_.TakeBatch();
        break;
    }
    return absl::OkStatus();
  }

  void End(size_t index, const Usage& usage, std::string* out) {
    prompt_ += usage.prompt_tokens;
    cached_ += usage.cached_tokens;
    within_ = false;
    if (job_.form != ScoreJob::Form::kJson) return;
    fmt::format_to(std::back_inserter(*out), R"(],"tokens":{},"sum":)", job_.inputs[index].rows());
    AppendFinite(sum_, out);
    fmt::format_to(std::back_inserter(*out), R"(,"prompt_tokens":{},"cached_tokens":{}}})", usage.prompt_tokens,
                   usage.cached_tokens);
  }

  std::string Tail() {
    if (job_.form == ScoreJob::Form::kNpy) return "";
    if (job_.form == ScoreJob::Form::kArrow) return arrow_.TakeBatch() + ArrowScores::End();
    return fmt::format(
        R"(],"usage":{{"prompt_tokens":{0},"total_tokens":{0},"prompt_tokens_details":{{"cached_tokens":{1}}}}}}})",
        prompt_, cached_);
  }

  // After an answer that has begun. A .npy file just ends too early, so that no reader takes it for whole, and an Arrow
  // stream within a message.
  std::string Broken(const ApiError& error) const {
    if (job_.form == ScoreJob::Form::kNpy) return "";
    if (job_.form == ScoreJob::Form::kArrow) return ArrowScores::Broken();
    std::string out = within_ ? "]}]," : "],";
    const std::string object = RenderJson(error, ApiStyle::kOpenAi);
    return out + object.substr(1);
  }

 private:
  void AppendPosition(size_t index, const PromptTokenEvent& e, const std::optional<Divergence>& divergence,
                      std::string* out) {
    if (e.position == job_.inputs[index].request.score->from) {
      fmt::format_to(std::back_inserter(*out), R"({}{{"object":"score","index":{},"score_from":{},"positions":[)",
                     index > 0 ? "," : "", index, e.position);
      sum_ = 0;
      within_ = true;
    } else {
      *out += ',';
    }
    sum_ += static_cast<double>(e.logprob);
    fmt::format_to(std::back_inserter(*out), R"({{"id":{},"logprob":)", e.token);
    AppendFinite(e.logprob, out);
    if (job_.format.top > 0) {
      *out += ",\"top\":[";
      for (size_t i = 0; i < e.top.size(); ++i) {
        fmt::format_to(std::back_inserter(*out), "{}[{},", i > 0 ? "," : "", e.top[i].id);
        AppendFinite(e.top[i].logprob, out);
        *out += ']';
      }
      *out += "],\"rest\":";
      AppendFinite(e.rest, out);
    }
    if (divergence) {
      *out += ",\"forward_kl\":";
      AppendFinite(divergence->forward, out);
      *out += ",\"reverse_kl\":";
      AppendFinite(divergence->reverse, out);
      *out += ",\"jensen_shannon\":";
      AppendFinite(divergence->jensen_shannon, out);
    }
    if (!e.logits.empty()) {
      std::string bytes;
      if (job_.format.logits == LogitType::kF16) {
        AppendHalves(e.logits, &bytes);
      } else {
        bytes.assign(reinterpret_cast<const char*>(e.logits.data()), e.logits.size() * sizeof(float));
      }
      *out += ",\"logits\":\"" + absl::Base64Escape(absl::string_view(bytes.data(), bytes.size())) + "\"";
    }
    *out += '}';
  }

  const ScoreJob& job_;
  ArrowScores arrow_;
  bool within_ = false;  // an input's positions are open
  double sum_ = 0;       // of the input's log-probabilities
  uint64_t prompt_ = 0, cached_ = 0;
};

// Computes several inputs at once and writes them in their order; those that are ahead of the reader are held back.
class ScoreRun {
 public:
  ScoreRun(const ApiContext& context, Exchange& exchange, ScoreJob& job)
      : context_(context), exchange_(exchange), job_(job), writer_(job) {}

  Awaitable<void> Run() {
    const size_t at_once = job_.format.logits == LogitType::kNone ? kScores : kLogitScores;
    for (size_t first = 0; first < job_.inputs.size(); first += at_once) {
      std::optional<ApiError> error = co_await RunSome(first, std::min(first + at_once, job_.inputs.size()));
      if (exchange_.gone()) co_return;
      if (!error) continue;
      co_await Break(*std::move(error));
      co_return;
    }
    pending_ += writer_.Tail();
    co_await Flush();
  }

 private:
  Awaitable<std::optional<ApiError>> RunSome(size_t first, size_t end) {
    std::vector<Request> requests;
    for (size_t i = first; i < end; ++i) requests.push_back(job_.inputs[i].request);
    Generation generation(exchange_, context_);
    std::optional<ApiError> error = generation.StartInOrder(std::move(requests));
    if (error) co_return error;
    while (std::optional<Generation::Item> item = co_await generation.Next()) {
      const size_t index = first + item->index;
      if (const auto* event = std::get_if<PromptTokenEvent>(&item->event)) {
        const Status added = writer_.Add(index, *event, &pending_);
        if (!added.ok()) co_return FromStatus(added);
      } else if (const auto* finished = std::get_if<Finished>(&item->event)) {
        writer_.End(index, finished->usage, &pending_);
      } else {
        error = ErrorOf(item->event);
        if (error) co_return error;
      }
      if (pending_.size() < kPiece) continue;
      const bool there = co_await Flush();
      if (!there) co_return std::nullopt;
    }
    co_return std::nullopt;
  }

  Awaitable<bool> Flush() {
    if (!begun_) {
      begun_ = true;
      HttpResponse head = writer_.Head();
      co_await exchange_.Begin(std::move(head));
    }
    std::string bytes = std::exchange(pending_, {});
    if (bytes.empty()) co_return !exchange_.gone();
    co_return co_await exchange_.Write(std::move(bytes));
  }

  Awaitable<void> Break(ApiError error) {
    if (!begun_) {
      co_await RespondError(exchange_, std::move(error));
      co_return;
    }
    pending_ += writer_.Broken(error);
    exchange_.Broke(error.status);
    co_await Flush();
  }

  const ApiContext& context_;
  Exchange& exchange_;
  ScoreJob& job_;
  ScoreWriter writer_;
  std::string pending_;  // of the answer, not written yet
  bool begun_ = false;
};

Awaitable<void> Score(const ApiContext& context, Exchange& exchange) {
  ScoreJob job;
  std::optional<ApiError> error;
  std::function<void()> read = [&] { error = ReadScoreJob(context, exchange.request(), &job); };
  const Status posted = co_await RunOnService(exchange, context.service, std::move(read));
  if (!posted.ok()) error = FromStatus(posted);
  if (exchange.gone()) co_return;
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  ScoreRun run(context, exchange, job);
  co_await run.Run();
}

}  // namespace

void AddScoreRoutes(Router& router, ApiContext& context) {
  router.Add({.method = "POST", .path = "/v1/score", .role = Role::kUser, .handler = [&context](Exchange& exchange) {
                return Score(context, exchange);
              }});
}

}  // namespace gyre::http
