#include "client/load_run.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <deque>
#include <memory>

#include "client/openai.h"
#include "client/sse.h"

namespace gyre {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;

// A running request. Its handlers hold it.
struct Flight {
  explicit Flight(size_t i) : index(i) {}
  const size_t index;
  SseParser events;
  HttpResponse refusal;  // where the code is not 200
  bool ended = false;    // the stream said so
  HttpId id = 0;
};

class Runner {
 public:
  Runner(HttpClient* client, const LoadPlan& plan, const LoadDialect& dialect, Duration duration)
      : client_(*client), plan_(plan), dialect_(dialect), duration_(duration) {}

  LoadRun Run(const std::function<void(size_t, size_t)>& on_progress, const std::function<bool()>& interrupted) {
    start_ = Clock::now();
    if (plan_.open_loop) {
      PlanArrivals();
    } else {
      Fill();
    }
    Deadline told{};
    while (!Over()) {
      client_.RunOne(After(milliseconds(50)));
      if (!run_.interrupted && interrupted()) Stop();
      if (Clock::now() - told < milliseconds(100)) continue;
      told = Clock::now();
      on_progress(ended_, Expected());
    }
    on_progress(ended_, Expected());
    return std::move(run_);
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool Repeats() const { return duration_ > Duration::zero() && !plan_.open_loop; }
  bool TimeIsOver() const { return duration_ > Duration::zero() && Clock::now() - start_ >= duration_; }
  size_t Expected() const { return Repeats() ? 0 : plan_.requests.size(); }
  bool Over() const {
    if (running_.size() > 0) return false;
    if (run_.interrupted) return true;
    return plan_.open_loop ? arrived_ == expected_ && waiting_.empty() : !More();
  }
  // Whether a closed loop has another request to send.
  bool More() const {
    if (run_.interrupted || TimeIsOver()) return false;
    return Repeats() || run_.records.size() < plan_.requests.size();
  }

  void PlanArrivals() {
    for (const LoadRequest& r : plan_.requests) {
      if (duration_ > Duration::zero() && r.due >= duration_) break;
      ++expected_;
    }
    if (expected_ > 0) AwaitArrival();
  }
  // One timer at a time, as a long trace has a million arrivals.
  void AwaitArrival() {
    client_.At(start_ + plan_.requests[arrived_].due, [this, alive = std::weak_ptr(alive_)] {
      if (alive.expired() || run_.interrupted) return;
      while (arrived_ < expected_ && start_ + plan_.requests[arrived_].due <= Clock::now())
        waiting_.push_back(arrived_++);
      SendWaiting();
      if (arrived_ < expected_) AwaitArrival();
    });
  }
  void SendWaiting() {
    while (!waiting_.empty() && running_.size() < plan_.at_once && !run_.interrupted) {
      const LoadRequest& r = plan_.requests[waiting_.front()];
      waiting_.pop_front();
      Send(r, std::chrono::duration<double>(r.due).count());
    }
  }

  void Fill() {
    const size_t limit = plan_.lead && !led_ ? 1 : plan_.at_once;
    while (running_.size() < limit && More()) {
      const size_t i = run_.records.size(), round = i / plan_.requests.size();
      LoadRequest r = plan_.requests[i % plan_.requests.size()];
      r.salt += round * plan_.requests.size();
      Send(r, -1);
    }
  }

  // due < 0: the request starts now.
  void Send(const LoadRequest& r, double due) {
    auto flight = std::make_shared<Flight>(run_.records.size());
    LoadRecord record{.asked = r.generate};
    const std::string path = client_.url().path + (dialect_.chat ? "/chat/completions" : "/completions");
    std::string body = dialect_.Body(r);
    record.sent = Now();
    record.due = due < 0 ? record.sent : due;
    run_.records.push_back(std::move(record));
    running_.push_back(flight);
    flight->id =
        client_.Start({.method = "POST", .target = path, .body = std::move(body)},
                      {.on_head = [flight](const HttpHead& head) { static_cast<HttpHead&>(flight->refusal) = head; },
                       .on_data = [this, flight](std::string_view bytes) { OnData(flight.get(), bytes); },
                       .on_done = [this, flight](const Status& status) { OnDone(flight, status); }});
  }

  void OnData(Flight* flight, std::string_view bytes) {
    if (flight->refusal.code != 200) {
      if (flight->refusal.body.size() < 65536) flight->refusal.body += bytes;
      return;
    }
    LoadRecord& record = run_.records[flight->index];
    const double now = Now();
    const Status status = flight->events.Feed(
        bytes, [&](std::string_view name, std::string_view data) { Take(flight, name, data, now, &record); });
    if (!status.ok()) {
      record.status = status;
      client_.Cancel(flight->id);
    }
  }

  void Take(Flight* flight, std::string_view name, std::string_view data, double now, LoadRecord* record) {
    flight->ended |= data == "[DONE]";
    if (data == "[DONE]" || !record->status.ok()) return;
    const StatusOr<ApiChunk> chunk = ParseApiChunk(data, name);
    if (!chunk.ok()) {
      record->status = chunk.status();
      return;
    }
    flight->ended |= !chunk->finish_reason.empty();
    if (chunk->usage) {
      record->prompt_tokens = chunk->usage->prompt_tokens;
      record->generated_tokens = chunk->usage->completion_tokens;
      record->cached_tokens = chunk->usage->cached_tokens;
      record->counted = true;
    }
    if (chunk->queue_seconds >= 0) record->queue_seconds = chunk->queue_seconds;
    // The first event of a chat names its role, and the last one only says why the answer ended.
    if (chunk->text.empty() && chunk->reasoning.empty() && chunk->ids.empty()) return;
    record->tokens_at.push_back(now);
    if (!led_) {
      led_ = true;
      if (plan_.lead && !plan_.open_loop) {
        client_.At(Clock::now(), [this, alive = std::weak_ptr(alive_)] {
          if (!alive.expired()) Fill();
        });
      }
    }
  }

  void OnDone(const std::shared_ptr<Flight>& flight, const Status& status) {
    LoadRecord& record = run_.records[flight->index];
    record.ended = Now();
    if (status.ok() && flight->refusal.code == 200) {
      flight->events.Finish(
          [&](std::string_view name, std::string_view data) { Take(flight.get(), name, data, record.ended, &record); });
    }
    if (record.status.ok()) {
      record.status = !status.ok() || flight->refusal.code == 200 ? status : ApiError(client_.url(), flight->refusal);
    }
    if (record.status.ok() && record.tokens_at.empty()) record.status = DataLoss("the answer has no token");
    if (record.status.ok() && !flight->ended) record.status = DataLoss("the answer is cut off");
    running_.erase(std::find(running_.begin(), running_.end(), flight));
    ++ended_;
    led_ = true;
    if (plan_.open_loop) {
      SendWaiting();
    } else {
      Fill();
    }
  }

  void Stop() {
    run_.interrupted = true;
    waiting_.clear();
    for (const auto& flight : running_) client_.Cancel(flight->id);
  }

  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers outlive a run that is interrupted
  HttpClient& client_;
  const LoadPlan& plan_;
  const LoadDialect& dialect_;
  const Duration duration_;
  Deadline start_{};
  LoadRun run_;
  std::vector<std::shared_ptr<Flight>> running_;
  std::deque<size_t> waiting_;  // due, but too many are running
  size_t arrived_ = 0, expected_ = 0, ended_ = 0;
  bool led_ = false;  // the first request has its first token
};

// Makes one request and waits for its answer.
StatusOr<LoadRecord> Probe(HttpClient* client, const LoadDialect& dialect, const LoadRequest& request,
                           const std::function<bool()>& interrupted) {
  const LoadPlan plan{.requests = {request}};
  LoadRun run = RunLoad(
      client, plan, dialect, {}, [](size_t, size_t) {}, interrupted);
  if (run.interrupted) return absl::CancelledError("interrupted");
  GYRE_RETURN_IF_ERROR(run.records[0].status);
  return run.records[0];
}

// Removes a field that the server refuses: one that it names, else the least common one. False: none is left.
bool DropField(const std::string& refusal, LoadDialect* dialect) {
  const std::pair<const char*, bool*> fields[] = {{"min_tokens", &dialect->min_tokens},
                                                  {"return_token_ids", &dialect->return_ids},
                                                  {"ignore_eos", &dialect->ignore_eos}};
  for (const bool named : {true, false}) {
    for (const auto& [name, used] : fields) {
      if (!*used || (named && refusal.find(name) == std::string::npos)) continue;
      *used = false;
      return true;
    }
  }
  return false;
}

}  // namespace

std::string LoadDialect::Body(const LoadRequest& r) const {
  json::object o{{"model", model},
                 {"max_tokens", r.generate},
                 {"temperature", 0},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
  if (ignore_eos) o["ignore_eos"] = true;
  if (min_tokens) o["min_tokens"] = r.generate;
  if (return_ids) o["return_token_ids"] = true;
  if (vocab > 0 && r.text.empty()) {
    const std::vector<TokenId> ids = PromptOfIds(r, seed, vocab);
    o["prompt"] = json::array(ids.begin(), ids.end());
    return json::serialize(o);
  }
  std::string text = r.text;
  if (text.empty()) {
    auto words = [&](double tokens) {
      return static_cast<uint32_t>(std::max(1.0, std::round(tokens / std::max(tokens_per_word, 0.01))));
    };
    const uint32_t shared = r.shared == 0 ? 0 : words(r.shared);
    text = PromptOfWords(r, seed, std::max(words(r.prompt - tokens_beside), shared + (r.prompt > r.shared ? 1 : 0)),
                         shared);
  }
  if (chat) {
    o["messages"] = json::array{{{"role", "user"}, {"content", text}}};
  } else {
    o["prompt"] = text;
  }
  return json::serialize(o);
}

Status LearnDialect(HttpClient* client, LoadDialect* dialect, const std::function<bool()>& interrupted) {
  constexpr uint32_t kTokens = 12, kFew = 20, kMany = 100;
  constexpr uint64_t kSalt = uint64_t{1} << 40;  // no request of a plan has it
  const LoadRequest short_request{.prompt = kFew, .generate = kTokens, .salt = kSalt};
  auto few = Probe(client, *dialect, short_request, interrupted);
  const Status refused = few.status();
  while (absl::IsInvalidArgument(few.status()) && DropField(Message(few.status()), dialect)) {
    few = Probe(client, *dialect, short_request, interrupted);
  }
  if (!few.ok()) return absl::IsInvalidArgument(few.status()) ? refused : few.status();
  if (few->counted && few->generated_tokens != kTokens) {
    return FailedPrecondition(
        "{}: an answer has {} tokens instead of {}; expected a server that takes ignore_eos or "
        "min_tokens, or a model that does not end its answers",
        FormatUrl(client->url()), few->generated_tokens, kTokens);
  }
  if (dialect->vocab > 0 || !few->counted) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(const LoadRecord many,
                        Probe(client, *dialect, {.prompt = kMany, .generate = 1, .salt = kSalt + 1}, interrupted));
  if (!many.counted || many.prompt_tokens <= few->prompt_tokens) return absl::OkStatus();
  dialect->tokens_per_word = static_cast<double>(many.prompt_tokens - few->prompt_tokens) / (kMany - kFew);
  dialect->tokens_beside = few->prompt_tokens - dialect->tokens_per_word * kFew;
  return absl::OkStatus();
}

LoadRun RunLoad(HttpClient* client, const LoadPlan& plan, const LoadDialect& dialect, Duration duration,
                const std::function<void(size_t, size_t)>& on_progress, const std::function<bool()>& interrupted) {
  return Runner(client, plan, dialect, duration).Run(on_progress, interrupted);
}

}  // namespace gyre
