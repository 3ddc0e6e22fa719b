// gyre bench serve: an OpenAI-compatible server under load.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "base/counted.h"
#include "cli/api_request.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/load_report.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "client/cluster_api.h"
#include "client/load_run.h"
#include "client/load_stats.h"
#include "client/metrics_text.h"
#include "client/openai.h"
#include "fmt/core.h"
#include "model/source_files.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Raises the limit on open files as far as the system allows, as each connection needs one.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Physical memory of a process; 0 = unknown.
uint64_t ResidentOf(int pid) {
  std::ifstream in(fmt::format("/proc/{}/statm", pid));
  uint64_t pages = 0, resident = 0;
  if (pid <= 0 || !(in >> pages >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

StatusOr<LoadPlan> MakePlan(const BenchServeOptions& o) {
  if (o.trace_file.empty()) return PlanLoad(o.load);
  GYRE_ASSIGN_OR_RETURN(const std::string lines, ReadFile(o.trace_file));
  auto plan = PlanTrace(lines, o.load);
  if (!plan.ok()) return Annotate(plan.status(), o.trace_file);
  return plan;
}

// The server: its model and, if it is Gyre, its cluster.
struct Server {
  ApiModel model;
  std::optional<ServerCluster> cluster;
};

StatusOr<Server> AskServer(HttpClient* client, const BenchServeOptions& o) {
  Server out;
  const auto models = FetchModels(client, &InterruptGuard::Interrupted);
  if (models.ok()) {
    out.model = models->front();
    for (const ApiModel& m : *models) {
      if (m.id == o.model_id) out.model = m;
    }
  } else if (o.model_id.empty() || !absl::IsNotFound(models.status())) {
    return models.status();
  }
  if (!o.model_id.empty()) out.model.id = o.model_id;
  if (auto cluster = FetchCluster(client, &InterruptGuard::Interrupted); cluster.ok())
    out.cluster = *std::move(cluster);
  if (out.cluster && out.model.vocab == 0) out.model.vocab = out.cluster->vocab;
  return out;
}

// The server's /metrics; empty if it has none.
std::map<std::string, double> FetchMetrics(HttpClient* client) {
  const auto r = client->Fetch({.target = "/metrics"}, &InterruptGuard::Interrupted);
  return r.ok() && r->code == 200 ? ParseMetrics(r->body) : std::map<std::string, double>();
}

// Reads the memory of a process each second while the load runs.
class MemoryWatch {
 public:
  MemoryWatch(HttpClient* client, int pid) : client_(*client), pid_(pid), start_(Clock::now()) {
    if (ResidentOf(pid) > 0) Sample();
  }
  // {seconds, bytes}
  const std::vector<std::pair<double, uint64_t>>& samples() const { return *samples_; }

 private:
  void Sample() {
    samples_->emplace_back(std::chrono::duration<double>(Clock::now() - start_).count(), ResidentOf(pid_));
    client_.At(After(std::chrono::seconds(1)), [this, alive = std::weak_ptr(samples_)] {
      if (!alive.expired()) Sample();
    });
  }
  HttpClient& client_;
  const int pid_;
  const Deadline start_;
  const std::shared_ptr<std::vector<std::pair<double, uint64_t>>> samples_ =
      std::make_shared<std::vector<std::pair<double, uint64_t>>>();
};

// Clients that hold a connection each and only list the models now and then: servers close connections that never
// had a request, or none for long.
class IdleClients {
 public:
  IdleClients(HttpClient* client, uint32_t count) : client_(*client), count_(count) {}

  // All clients connect and ask once. Returns the error of any of them, as Fetch.
  Status Start() {
    if (count_ == 0) return absl::OkStatus();
    Ask();
    while (state_->waiting > 0) {
      client_.RunOne(After(std::chrono::milliseconds(50)));
      if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
    }
    GYRE_RETURN_IF_ERROR(state_->status);
    AskLater();
    return absl::OkStatus();
  }
  // The number of connections that the server has closed so far.
  size_t closed() { return state_->closed += client_.DropClosed(kPool); }
  // The error of the first request that failed since the start.
  const Status& status() const { return state_->status; }

 private:
  static constexpr int kPool = 1;
  struct State {
    size_t waiting = 0, closed = 0;
    Status status;
  };

  void Ask() {
    state_->closed += client_.DropClosed(kPool);
    for (uint32_t i = 0; i < count_; ++i) {
      ++state_->waiting;
      client_.Start({.target = client_.url().path + "/models", .pool = kPool},
                    {.on_done = [state = state_](const Status& status) {
                      --state->waiting;
                      if (state->status.ok()) state->status = status;
                    }});
    }
  }
  void AskLater() {
    client_.At(After(std::chrono::seconds(30)), [this, alive = std::weak_ptr(state_)] {
      if (alive.expired()) return;
      Ask();
      AskLater();
    });
  }

  HttpClient& client_;
  const uint32_t count_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

void ShowProgress(size_t done, size_t all) {
  if (all > 0) {
    fmt::print(stderr, "\r{} of {} answered ", done, Counted(all, "request"));
  } else {
    fmt::print(stderr, "\r{} answered ", Counted(done, "request"));
  }
}

}  // namespace

Status BenchServeCommand(const BenchServeOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  RaiseFileLimit();
  LoadReport report{.options = o};
  GYRE_ASSIGN_OR_RETURN(report.plan, MakePlan(o));
  const auto url = ParseApiUrl(o.url);
  if (!url.ok()) return AsUsage(Annotate(url.status(), "URL"));
  GYRE_ASSIGN_OR_RETURN(const HttpClientOptions http, HttpClientOptionsOf(o.api_key, o.ca_file, o.timeout));
  GYRE_ASSIGN_OR_RETURN(const auto client, HttpClient::Make(*url, http));
  // It opens first, as a name that is taken must not cost the minutes of the load.
  std::optional<OutFile> svg_file;
  if (!o.svg_file.empty()) {
    GYRE_ASSIGN_OR_RETURN(OutFile file,
                          OutFile::Open(o.svg_file, {.overwrite = o.force, .sources = SourceFiles(o.trace_file)}));
    svg_file.emplace(std::move(file));
  }
  InterruptGuard::Begin();
  GYRE_ASSIGN_OR_RETURN(const Server server, AskServer(client.get(), o));
  LoadDialect dialect{.model = server.model.id, .chat = o.chat, .seed = o.load.seed};
  if (o.ids) dialect.vocab = o.vocab > 0 ? o.vocab : server.model.vocab;
  if (o.ids && dialect.vocab == 0) {
    return UsageError("the server does not tell the size of its vocabulary: add --vocab N, or leave --ids out");
  }
  GYRE_RETURN_IF_ERROR(LearnDialect(client.get(), &dialect, &InterruptGuard::Interrupted));
  IdleClients idle(client.get(), o.idle);
  GYRE_RETURN_IF_ERROR(idle.Start());
  const bool shows = !o.quiet && isatty(STDERR_FILENO) != 0;
  const auto metrics = FetchMetrics(client.get());
  const MemoryWatch memory(client.get(), o.pid);
  const LoadRun run = RunLoad(
      client.get(), report.plan, dialect,
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(o.duration)),
      [shows](size_t done, size_t all) {
        if (shows) ShowProgress(done, all);
      },
      &InterruptGuard::Interrupted);
  if (shows) fmt::print(stderr, "\r\033[K");
  if (run.interrupted) return InterruptGuard::Stopped();
  if (!metrics.empty()) report.queue = QueueWaitBetween(metrics, FetchMetrics(client.get()));
  report.url = FormatUrl(*url);
  report.model = server.model;
  report.dialect = dialect;
  report.memory = memory.samples();
  report.idle_closed = idle.closed();
  report.idle_status = idle.status();
  if (server.cluster) {
    auto after = FetchCluster(client.get(), &InterruptGuard::Interrupted);
    report.cluster = after.ok() ? *std::move(after) : *server.cluster;
  }
  report.records = run.records;
  constexpr size_t kOthers = 16;  // tokens that others get in a gap that counts as starvation
  report.summary = Summarize(run.records, o.starvation, kOthers);
  const std::string out = o.json ? ReportJson(report) : ReportTable(report);
  std::fwrite(out.data(), 1, out.size(), stdout);
  if (svg_file) {
    const std::string svg = ReportSvg(report);
    GYRE_RETURN_IF_ERROR(svg_file->Write(std::as_bytes(std::span(svg))));
    GYRE_RETURN_IF_ERROR(svg_file->Finish());
  }
  GYRE_RETURN_IF_ERROR(Annotate(report.idle_status, "an idle connection"));
  if (report.summary.failed == 0) return absl::OkStatus();
  return FailedPrecondition("{} of {} failed", report.summary.failed, Counted(report.summary.requests, "request"));
}

}  // namespace gyre
