#include "hub/download.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "hub/download_policy.h"
#include "hub/partial_file.h"
#include "hub/range_answer.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMostRefusalBytes = 65536;
constexpr Duration kTurn = milliseconds(50);      // between two looks at `interrupted`
constexpr Duration kReport = milliseconds(100);   // between two reports of progress
constexpr Duration kHandOver = milliseconds(20);  // between two looks of the partial file at what is there

// The mean rate of the last seconds, in bytes per second.
class RateMeter {
 public:
  double Add(Deadline now, uint64_t bytes) {
    points_.push_back({now, bytes});
    while (points_.size() > 2 && now - points_[1].first > std::chrono::seconds(5)) points_.pop_front();
    const double seconds = std::chrono::duration<double>(now - points_.front().first).count();
    return seconds <= 0 ? 0 : static_cast<double>(bytes - points_.front().second) / seconds;
  }

 private:
  std::deque<std::pair<Deadline, uint64_t>> points_;
};

// One attempt at a file: the policy's actions become requests, and the requests' events go back to the policy.
class Session {
 public:
  Session(const DownloadRequest& request, const HubOptions& hub, const DownloadOptions& options)
      : request_(request),
        hub_(hub),
        options_(options),
        policy_({.connections = options.connections,
                 .range_bytes = std::max<uint64_t>(1, options.range_bytes),
                 .first_pause = options.first_pause,
                 .longest_pause = options.longest_pause,
                 .attempts = options.attempts}) {}

  StatusOr<DownloadResult> Run() {
    HttpClientOptions http{.idle_timeout = options_.idle_timeout, .max_body_bytes = SIZE_MAX};
    http.connect_timeout = std::min(http.connect_timeout, options_.idle_timeout);
    StatusOr<std::unique_ptr<HttpFetcher>> fetcher = MakeHubFetcher(hub_, http);
    GYRE_RETURN_IF_ERROR(fetcher.status());
    fetcher_ = *std::move(fetcher);
    StatusOr<std::unique_ptr<PartialFile>> file = PartialFile::Open(request_.path, options_.save_every);
    GYRE_RETURN_IF_ERROR(file.status());
    file_ = *std::move(file);
    if (const Status transferred = Transfer(); !transferred.ok()) {
      if (begun_) file_->Advance(policy_.done()).IgnoreError();  // the next run goes on with all that came
      return transferred;
    }
    const StatusOr<DownloadResult> result = Check();
    if (absl::IsDataLoss(result.status())) file_->Discard();
    if (result.ok()) GYRE_RETURN_IF_ERROR(file_->Commit());
    return result;
  }
  // Whether bytes from an earlier run may be the reason for a wrong hash.
  bool worth_another() const { return transferred_ && resumed_ > 0; }

 private:
  using Again = DownloadPolicy::Again;

  // A running request. Handlers of a request that is no longer needed see `live` = false.
  struct Flow {
    HttpId id = 0;
    bool live = true;
  };

  Status Transfer() {
    while (!policy_.finished()) {
      if (Interrupted()) return absl::CancelledError("interrupted");
      for (const DownloadAction& action : policy_.Next(Clock::now())) {
        switch (action.kind) {
          case DownloadAction::kLocate: GYRE_RETURN_IF_ERROR(Locate()); break;
          case DownloadAction::kFetch: Fetch(action); break;
          case DownloadAction::kCancel: Cancel(action.slot); break;
        }
      }
      if (!policy_.failure().ok()) return policy_.failure();
      const Deadline until = std::min(policy_.wake(), After(kTurn));
      if (client_ != nullptr) {
        client_->RunOne(until);
      } else {
        std::this_thread::sleep_until(until);
      }
      GYRE_RETURN_IF_ERROR(write_error_);
      GYRE_RETURN_IF_ERROR(Report(false));
    }
    transferred_ = true;
    return absl::OkStatus();
  }

  bool Interrupted() const { return options_.interrupted != nullptr && options_.interrupted(); }

  Status Report(bool checking) {
    const Deadline now = Clock::now();
    if (now >= hand_over_ && !checking) {
      hand_over_ = now + kHandOver;
      if (begun_) GYRE_RETURN_IF_ERROR(file_->Advance(policy_.done()));
    }
    if (options_.on_progress == nullptr || now < report_) return absl::OkStatus();
    report_ = now + kReport;
    const uint64_t there = policy_.done().total();
    DownloadProgress progress{.bytes = there,
                              .total = policy_.size().value_or(0),
                              .bytes_per_second = rate_.Add(now, there),
                              .checking = checking};
    const bool runs = std::any_of(flows_.begin(), flows_.end(), [](const auto& f) { return f != nullptr && f->live; });
    if (!runs && !policy_.trouble().ok() && policy_.wake() != kNoDeadline && policy_.wake() > now) {
      progress.waiting = policy_.wake() - now;
      progress.trouble = Message(policy_.trouble());
    }
    options_.on_progress(progress);
    return absl::OkStatus();
  }

  // Asks for the first byte: the answer tells the server of the bytes, the size, and whether it gives ranges.
  Status Locate() {
    const StatusOr<HttpFetched> r = fetcher_->Get(
        request_.url, {{"Range", "bytes=0-0"}, {"Accept", "*/*"}, {"Accept-Encoding", "identity"}},
        [this] { return Interrupted(); }, kMostRefusalBytes);
    const Deadline now = Clock::now();
    if (absl::IsCancelled(r.status())) return r.status();
    if (!r.ok()) {
      const bool retry = absl::IsUnavailable(r.status()) || absl::IsDeadlineExceeded(r.status());
      policy_.OnLocateFailed(r.status(), retry ? Again::kYes : Again::kNo, std::nullopt, now);
      return absl::OkStatus();
    }
    const RangeAnswer answer = ReadRangeAnswer(*r);
    const bool empty = r->code == 416 && answer.total == 0u;
    if (r->code != 200 && r->code != 206 && !empty) {
      const bool busy = r->code == 429 || r->code == 503;
      const bool retry = r->code == 408 || r->code == 416 || r->code / 100 == 5;
      policy_.OnLocateFailed(Refusal(r->address, *r, r->body),
                             busy    ? Again::kBusy
                             : retry ? Again::kYes
                                     : Again::kNo,
                             answer.retry_after, now);
      return absl::OkStatus();
    }
    if (request_.size.has_value() && answer.total.has_value() && *answer.total != *request_.size) {
      return DataLoss("{}: the server has a file of {} bytes, expected {}", FormatAddress(r->address), *answer.total,
                      *request_.size);
    }
    const bool hashed = !request_.sha256.empty();
    const LocatedFile located{.size = answer.total, .ranges = r->code == 206, .etag = hashed ? "" : answer.etag};
    ByteRanges there;
    if (!begun_) {
      GYRE_ASSIGN_OR_RETURN(there, file_->Begin(located.size, Identity(*r, answer)));
      resumed_ = there.total();
      begun_ = true;
    }
    GYRE_ASSIGN_OR_RETURN(HttpClient * client, fetcher_->ClientFor(r->address.server));
    if (client_ != nullptr && client != client_) {
      for (size_t slot = 0; slot < flows_.size(); ++slot) Cancel(static_cast<int>(slot));
      policy_.OnMoved();
    }
    client_ = client;
    address_ = r->address;
    policy_.OnLocated(located, there, now);
    return absl::OkStatus();
  }

  // An identity that stays the same as long as the file does; "" = none is known.
  std::string Identity(const HttpFetched& r, const RangeAnswer& answer) const {
    if (!request_.sha256.empty()) return "sha256 " + request_.sha256;
    if (!request_.git_sha1.empty()) return "git " + request_.git_sha1;
    const std::string linked = FindHeader(r.redirect_headers, "x-linked-etag");
    const std::string etag = linked.empty() ? answer.etag : linked;
    return etag.empty() ? "" : "etag " + etag;
  }

  Status Refusal(const HttpAddress& address, const HttpHead& head, const std::string& body) const {
    const StatusOr<HttpAddress> url = ParseAddress(request_.url);
    return HubError(hub_, address.server, url.ok() ? FormatAddress(*url) : request_.url, head, body);
  }

  void Fetch(const DownloadAction& action) {
    HttpRequest request{.target = address_.target, .headers = {{"Accept", "*/*"}, {"Accept-Encoding", "identity"}}};
    if (!action.whole) request.headers.emplace_back("Range", RangeHeader(action.range));
    auto flow = std::make_shared<Flow>();
    const int slot = action.slot;
    if (flows_.size() <= static_cast<size_t>(slot)) flows_.resize(static_cast<size_t>(slot) + 1);
    flows_[static_cast<size_t>(slot)] = flow;
    flow->id = client_->Start(std::move(request), {.on_head =
                                                       [this, flow, slot](const HttpHead& head) {
                                                         if (!flow->live) return;
                                                         RangeAnswer answer = ReadRangeAnswer(head);
                                                         if (head.code / 100 != 2)
                                                           answer.refusal = Refusal(address_, head, "");
                                                         policy_.OnHead(slot, answer, Clock::now());
                                                       },
                                                   .on_data =
                                                       [this, flow, slot](std::string_view bytes) {
                                                         if (flow->live) OnData(slot, bytes);
                                                       },
                                                   .on_done =
                                                       [this, flow, slot](const Status& status) {
                                                         if (!flow->live) return;
                                                         flow->live = false;
                                                         policy_.OnEnd(slot, status, Clock::now());
                                                       }});
  }

  void OnData(int slot, std::string_view bytes) {
    const ByteRange range = policy_.OnBytes(slot, bytes.size(), Clock::now());
    if (range.size() > 0 && write_error_.ok()) write_error_ = file_->Write(range.begin, bytes.substr(0, range.size()));
  }

  void Cancel(int slot) {
    const std::shared_ptr<Flow>& flow = flows_[static_cast<size_t>(slot)];
    if (flow == nullptr || !flow->live) return;
    flow->live = false;
    client_->Cancel(flow->id);
  }

  StatusOr<DownloadResult> Check() {
    const uint64_t size = *policy_.size();
    if (request_.size.has_value() && size != *request_.size) {
      return DataLoss("{}: the server gave {} bytes, expected {}", request_.path, size, *request_.size);
    }
    GYRE_RETURN_IF_ERROR(file_->Advance(policy_.done()));
    std::optional<FileDigests> digests;
    while (!digests.has_value()) {
      if (Interrupted()) return absl::CancelledError("interrupted");
      GYRE_ASSIGN_OR_RETURN(digests, file_->Digests(size, After(kTurn)));
      GYRE_RETURN_IF_ERROR(Report(true));
    }
    const bool sha = !request_.sha256.empty();
    const std::string& expected = sha ? request_.sha256 : request_.git_sha1;
    const std::string& found = sha ? digests->sha256 : digests->git_sha1;
    if (!expected.empty() && found != expected) {
      return DataLoss("{}: the file that came has the {} {}, expected {}", request_.path, sha ? "SHA-256" : "Git hash",
                      found, expected);
    }
    return DownloadResult{.size = size, .sha256 = digests->sha256, .resumed = resumed_};
  }

  const DownloadRequest& request_;
  const HubOptions& hub_;
  const DownloadOptions& options_;
  DownloadPolicy policy_;
  std::unique_ptr<PartialFile> file_;
  HttpAddress address_;  // where the bytes are now
  bool begun_ = false, transferred_ = false;
  uint64_t resumed_ = 0;
  std::vector<std::shared_ptr<Flow>> flows_;  // by slot
  Status write_error_;
  Deadline report_{}, hand_over_{};
  RateMeter rate_;
  std::unique_ptr<HttpFetcher> fetcher_;  // its clients' handlers use the rest
  HttpClient* client_ = nullptr;
};

}  // namespace

StatusOr<DownloadResult> Download(const DownloadRequest& request, const HubOptions& hub,
                                  const DownloadOptions& options) {
  {
    Session session(request, hub, options);
    StatusOr<DownloadResult> result = session.Run();
    if (!absl::IsDataLoss(result.status()) || !session.worth_another()) return result;
  }
  return Session(request, hub, options).Run();
}

}  // namespace gyre
