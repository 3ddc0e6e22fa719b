#include "coordinator/http/cluster_routes.h"

#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/trace.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/http/cluster_json.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/trace_json.h"
#include "model/tensor_table.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

std::string StatusText(const ApiContext& context) {
  const Model& model = context.service.model();
  const ModelSpec& spec = model.spec();
  const ServedFacts facts{.version = context.version,
                          .flags = context.flags,
                          .model = context.models.front(),
                          .architecture = spec.architecture,
                          .layers = static_cast<int>(spec.layers.size()),
                          .context = context.service.context(),
                          .vocab = spec.vocab,
                          .weights = model.tensors().MainType(),
                          .hash = context.model_hash()};
  const EngineStats engine = context.engine_stats ? context.engine_stats() : EngineStats{};
  return WriteJson(StatusJson(facts, context.cluster->status(), engine));
}

HttpResponse Answer(std::string body) {
  HttpResponse response;
  response.headers.emplace_back("cache-control", "no-store");
  response.body = std::move(body);
  return response;
}

Awaitable<void> ShowStatus(Exchange& exchange, ApiContext& context) {
  HttpResponse response = Answer(StatusText(context));
  co_await exchange.Respond(std::move(response));
}

Awaitable<void> Events(Exchange& exchange, ApiContext& context) {
  constexpr Duration kAtLeast = std::chrono::seconds(1);
  // A plan change has many small steps, and a reader needs no more updates than these.
  constexpr Duration kAtMost = std::chrono::milliseconds(50);
  std::function<void()> wake = exchange.waker();
  const std::shared_ptr<void> subscription = context.cluster->Subscribe(std::move(wake));
  HttpResponse head = Answer("");
  head.content_type = "text/event-stream";
  co_await exchange.Begin(std::move(head));
  const auto ends = [&context] { return context.draining && context.draining(); };
  for (Wake woken = Wake::kWoken; woken != Wake::kGone && !ends();) {
    std::string event = SseEvent(StatusText(context), "status");
    const bool there = co_await exchange.Write(std::move(event));
    if (!there) break;
    const Deadline next = After(kAtLeast);
    co_await exchange.Pause(kAtMost);
    woken = co_await exchange.Wait(next);
  }
}

constexpr int kTraceSeconds = 60;  // of a trace at most

// Returns 1 without the parameter; nullopt: it is not a whole number from 1 to kTraceSeconds.
std::optional<int> TraceSeconds(const HttpRequest& request) {
  const std::string* text = request.Query("seconds");
  if (text == nullptr) return 1;
  int seconds = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  const bool whole = error == std::errc() && end == text->data() + text->size();
  return whole && seconds >= 1 && seconds <= kTraceSeconds ? std::optional<int>(seconds) : std::nullopt;
}

Awaitable<void> ShowTrace(Exchange& exchange, ApiContext& context) {
  const std::optional<int> seconds = TraceSeconds(exchange.request());
  if (!seconds) {
    ApiError error;
    error.status = 400;
    error.message = fmt::format("seconds must be a whole number from 1 to {}", kTraceSeconds);
    error.param = "seconds";
    co_await RespondError(exchange, error);
    co_return;
  }
  const Tracer::Session session(*context.tracer);
  const Deadline end = After(std::chrono::seconds(*seconds));
  while (Clock::now() < end && !(context.draining && context.draining())) {
    const Deadline next = std::min(end, After(std::chrono::milliseconds(250)));
    const Wake woken = co_await exchange.Wait(next);
    if (woken == Wake::kGone) co_return;
  }
  // The stages are asked several times a second; those of other machines answer after a round trip.
  const Deadline late = After(std::chrono::milliseconds(200));
  while (Clock::now() < late) {
    const Wake woken = co_await exchange.Wait(late);
    if (woken == Wake::kGone) co_return;
  }
  HttpResponse response = Answer(TraceJson(session.Events(), session.Members()));
  response.headers.emplace_back("content-disposition", "attachment; filename=\"gyre-trace.json\"");
  co_await exchange.Respond(std::move(response));
}

// Waits for the answer of a change, which comes on another thread.
class Pending {
 public:
  explicit Pending(std::function<void()> wake) : wake_(std::move(wake)) {}
  void Set(StatusOr<ChangeReport> report) {
    {
      MutexLock lock(&mutex_);
      report_ = std::move(report);
    }
    wake_();
  }
  std::optional<StatusOr<ChangeReport>> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(report_, std::nullopt);
  }

 private:
  const std::function<void()> wake_;
  Mutex mutex_;
  std::optional<StatusOr<ChangeReport>> report_ GYRE_GUARDED_BY(mutex_);
};

constexpr int64_t kMostKvTokens = int64_t{1} << 40;

// A function that asks the cluster, or an error of the request.
using Asking = std::function<void(Cluster&, Cluster::Done)>;
using ReadAsking = std::optional<ApiError> (*)(const json::object& body, Asking* asking);

std::optional<ApiError> ReadResize(const json::object& body, Asking* asking) {
  JsonFields fields(body);
  const bool proposed = fields.Bool("proposed").value_or(false);
  const std::optional<int64_t> kv_tokens = fields.Integer("kv_tokens", 1, kMostKvTokens);
  if (!proposed && !kv_tokens) fields.Require("ranges");
  const std::optional<std::string> ranges = fields.String("ranges");
  const bool dry_run = fields.Bool("dry_run").value_or(false);
  if (int{proposed} + int{ranges.has_value()} + int{kv_tokens.has_value()} > 1) {
    return BadRequest("ranges, the proposed plan, or kv_tokens: expected one of them", "ranges");
  }
  *asking = [proposed, ranges = ranges.value_or(""), kv_tokens, dry_run](Cluster& cluster, Cluster::Done done) {
    if (proposed) return cluster.TakeProposed(std::move(done), dry_run);
    if (kv_tokens) return cluster.ResizeCache(static_cast<uint64_t>(*kv_tokens), std::move(done), dry_run);
    cluster.Resize(ranges, std::move(done), dry_run);
  };
  return fields.Finish();
}

std::optional<ApiError> ReadDrain(const json::object& body, Asking* asking) {
  JsonFields fields(body);
  fields.Require("worker");
  const std::string worker = fields.String("worker").value_or("");
  const bool dry_run = fields.Bool("dry_run").value_or(false);
  *asking = [worker, dry_run](Cluster& cluster, Cluster::Done done) {
    cluster.Drain(worker, std::move(done), dry_run);
  };
  return fields.Finish();
}

std::optional<ApiError> ReadUndrain(const json::object& body, Asking* asking) {
  JsonFields fields(body);
  fields.Require("worker");
  const std::string worker = fields.String("worker").value_or("");
  *asking = [worker](Cluster& cluster, Cluster::Done done) { cluster.Undrain(worker, std::move(done)); };
  return fields.Finish();
}

std::optional<ApiError> ReadRemove(const json::object& body, Asking* asking) {
  JsonFields fields(body);
  fields.Require("worker");
  const std::string worker = fields.String("worker").value_or("");
  *asking = [worker](Cluster& cluster, Cluster::Done done) { cluster.Remove(worker, std::move(done)); };
  return fields.Finish();
}

HttpResponse AnswerOf(const StatusOr<ChangeReport>& report) {
  if (report.ok()) return Answer(WriteJson(ChangeJson(*report)));
  ApiError error = FromStatus(report.status());
  // Some member has too little memory: the same change would be refused again at any time.
  if (absl::IsResourceExhausted(report.status())) error.status = 409, error.code.clear(), error.retry_after = 0;
  return Render(error, ApiStyle::kOpenAi);
}

// Makes a change that goes on when its client is gone, as it belongs to the cluster, not to the connection.
Awaitable<void> Change(Exchange& exchange, ApiContext& context, ReadAsking read) {
  json::object body;
  Asking asking;
  std::optional<ApiError> error = ParseBody(exchange.request().body, &body);
  if (!error) error = read(body, &asking);
  if (error) {
    co_await RespondError(exchange, *error);
    co_return;
  }
  std::function<void()> wake = exchange.waker();
  const auto pending = std::make_shared<Pending>(std::move(wake));
  asking(*context.cluster, [pending](StatusOr<ChangeReport> report) { pending->Set(std::move(report)); });
  for (;;) {
    const std::optional<StatusOr<ChangeReport>> report = pending->Take();
    if (report) {
      HttpResponse response = AnswerOf(*report);
      co_await exchange.Respond(std::move(response));
      co_return;
    }
    const Wake woken = co_await exchange.Wait();
    if (woken == Wake::kGone) co_return;
  }
}

}  // namespace

void AddClusterRoutes(Router& router, ApiContext& context) {
  if (context.cluster == nullptr) return;
  auto add = [&router](std::string method, std::string path, std::function<Awaitable<void>(Exchange&)> handler) {
    router.Add(
        {.method = std::move(method), .path = std::move(path), .role = Role::kAdmin, .handler = std::move(handler)});
  };
  auto change = [&context](ReadAsking read) {
    return [&context, read](Exchange& exchange) { return Change(exchange, context, read); };
  };
  add("GET", "/v1/cluster", [&context](Exchange& exchange) { return ShowStatus(exchange, context); });
  add("GET", "/v1/cluster/events", [&context](Exchange& exchange) { return Events(exchange, context); });
  if (context.tracer != nullptr) {
    add("GET", "/v1/cluster/trace", [&context](Exchange& exchange) { return ShowTrace(exchange, context); });
  }
  add("POST", "/v1/cluster/resize", change(ReadResize));
  add("POST", "/v1/cluster/drain", change(ReadDrain));
  add("POST", "/v1/cluster/undrain", change(ReadUndrain));
  add("POST", "/v1/cluster/remove", change(ReadRemove));
}

}  // namespace gyre::http
