// gyre batch: a file of requests, sent to a server.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/counted.h"
#include "batch/batch_lines.h"
#include "batch/results_file.h"
#include "cli/api_request.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "client/openai.h"
#include "fmt/core.h"

namespace gyre {
namespace {

constexpr double kSilence = 600;  // seconds without a byte, after which a request is sent again
constexpr Duration kPause = std::chrono::milliseconds(500);  // before a request that found no room is sent again
// While no request gets an answer: how long nobody may be there, and how long the server may say that it can't answer.
// One that is only full (429, 529) is waited for.
constexpr Duration kOutage = std::chrono::seconds(60), kLoading = std::chrono::minutes(15);

// Nobody is there, or it has no room now: the request is to be sent again.
bool IsFull(int code) { return code == 429 || code == 529; }
bool IsBusy(int code) { return IsFull(code) || code == 502 || code == 503 || code == 504; }

class BatchRun {
 public:
  BatchRun(const BatchCommandOptions& o, HttpClient* http, ResultsFile* results, std::string base)
      : o_(o), http_(http), results_(results), base_(std::move(base)) {}

  Status Run(const std::vector<BatchRequest>& requests) {
    all_ = requests.size();
    for (const BatchRequest& request : requests) {
      if (!results_->Has(request.custom_id)) waiting_.push_back(&request);
    }
    const size_t before = all_ - waiting_.size();
    if (before > 0 && !o_.quiet) fmt::print(stderr, "{} of {} have answers already\n", before, all_);
    Progress progress("asking", o_.quiet, "requests");
    while (status_.ok() && (!waiting_.empty() || running_ > 0)) {
      if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
      while (!waiting_.empty() && running_ < o_.at_once && Clock::now() >= rests_until_) Start();
      http_->RunOne(After(std::chrono::milliseconds(50)));
      // Answers that came together share a sync.
      GYRE_RETURN_IF_ERROR(results_->Sync());
      progress.Update(done_, all_ - before);
    }
    progress.Finish();
    GYRE_RETURN_IF_ERROR(status_);
    return results_->Sync();
  }
  size_t failed() const { return failed_; }

 private:
  void Start() {
    const BatchRequest* const request = waiting_.front();
    waiting_.pop_front();
    ++running_;
    struct Answer {
      HttpHead head;
      std::string body;
    };
    const auto answer = std::make_shared<Answer>();
    HttpRequest http;
    http.method = "POST";
    http.target = base_ + request->path;
    http.body = request->body;
    http_->Start(std::move(http), {.on_head = [answer](const HttpHead& head) { answer->head = head; },
                                   .on_data = [answer](std::string_view data) { answer->body.append(data); },
                                   .on_done =
                                       [this, request, answer](const Status& end) {
                                         --running_;
                                         OnDone(*request, end, answer->head, answer->body);
                                       }});
  }

  void OnDone(const BatchRequest& request, const Status& end, const HttpHead& head, const std::string& body) {
    if (!status_.ok()) return;
    if (!end.ok() || IsBusy(head.code)) return Again(request, end, head);
    // It would be the answer to all of them. A server that has answered others may mean this one alone by 403.
    if (head.code == 401 || (head.code == 403 && results_->size() == 0)) {
      status_ = ApiError(http_->url(), {head, body});
      return;
    }
    away_since_ = failing_since_ = kNoDeadline;
    const BatchResult result = BatchAnswer(request, head.code, FindHeader(head.headers, "x-request-id"), body);
    failed_ += result.succeeded ? 0 : 1;
    ++done_;
    status_ = results_->Add(request.custom_id, result.line);
  }

  static void Note(bool holds, Deadline* since) {
    if (!holds) *since = kNoDeadline;
    if (holds && *since == kNoDeadline) *since = Clock::now();
  }

  void Again(const BatchRequest& request, const Status& end, const HttpHead& head) {
    waiting_.push_front(&request);
    rests_until_ = After(kPause);
    const bool away = !end.ok(), full = end.ok() && IsFull(head.code);
    Note(away, &away_since_);
    Note(!full, &failing_since_);
    if (away && Clock::now() - away_since_ > kOutage) status_ = end;
    if (!full && Clock::now() - failing_since_ > kLoading)
      status_ = away ? end : Unavailable("the server answers with HTTP {}", head.code);
  }

  const BatchCommandOptions& o_;
  HttpClient* const http_;
  ResultsFile* const results_;
  const std::string base_;
  std::deque<const BatchRequest*> waiting_;
  size_t all_ = 0, done_ = 0, failed_ = 0;
  uint32_t running_ = 0;
  Deadline rests_until_{};
  Deadline away_since_ = kNoDeadline, failing_since_ = kNoDeadline;
  Status status_;
};

}  // namespace

Status BatchCommand(const BatchCommandOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(o.file));
  const StatusOr<std::vector<BatchRequest>> requests = ReadBatch(text, BatchPaths());
  if (!requests.ok()) return Annotate(requests.status(), o.file);
  GYRE_ASSIGN_OR_RETURN(const Url url, ParseApiUrl(o.url));
  GYRE_ASSIGN_OR_RETURN(const HttpClientOptions http, HttpClientOptionsOf(o.api_key, o.ca_file, kSilence));
  GYRE_ASSIGN_OR_RETURN(const auto client, HttpClient::Make(url, http));
  std::error_code none;
  if (std::filesystem::equivalent(o.file, o.out, none))
    return UsageError("--out {} is the file of the requests", o.out);
  GYRE_ASSIGN_OR_RETURN(const auto results, ResultsFile::Open(o.out));
  InterruptGuard::Begin();
  // The lines' paths begin with /v1, as the base of the API does.
  std::string base = url.path;
  if (base.size() >= 3 && base.compare(base.size() - 3, 3, "/v1") == 0) base.resize(base.size() - 3);
  BatchRun run(o, client.get(), results.get(), base);
  GYRE_RETURN_IF_ERROR(run.Run(*requests));
  if (run.failed() > 0) {
    return Unavailable("{}: {} of {} got an error as its answer; the others are whole", o.out,
                       Counted(run.failed(), "request"), requests->size());
  }
  return absl::OkStatus();
}

}  // namespace gyre
