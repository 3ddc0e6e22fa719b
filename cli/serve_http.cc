#include "cli/serve_http.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/counted.h"
#include "base/describe_bytes.h"
#include "base/log.h"
#include "base/unix_time.h"
#include "cli/exit_code.h"
#include "cli/listen.h"
#include "cli/log_setup.h"
#include "cli/session.h"
#include "coordinator/http/health_routes.h"
#include "coordinator/http/openai.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/score.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

http::ServerOptions ServerOptionsOf(const HttpOptions& options, const HostPort& at) {
  http::ServerOptions out;
  out.address = FormatHostPort(at.host, at.port);
  out.tls_cert = options.tls_cert;
  out.tls_key = options.tls_key;
  out.api_keys = options.api_keys;
  out.hosts = options.allow_hosts;
  out.cors = options.cors;
  out.limits.connections = options.connections;
  out.limits.body_bytes = options.max_body_bytes;
  return out;
}

}  // namespace

std::string ModelName(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();  // a folder with a slash at its end
  std::string name = p.filename().string();
  const auto ends_with = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  for (const char* end : {".gguf", ".bin"}) {
    if (ends_with(end)) name.resize(name.size() - std::string(end).size());
  }
  // A split file's numbers have the form -00001-of-00003.
  constexpr size_t kNumbers = 15;
  if (name.size() > kNumbers) {
    const std::string tail = name.substr(name.size() - kNumbers);
    std::string shape = tail;
    for (char& c : shape) c = std::isdigit(static_cast<unsigned char>(c)) != 0 ? '0' : c;
    if (shape == "-00000-of-00000") name.resize(name.size() - kNumbers);
  }
  return name.empty() ? "model" : name;
}

Status ChooseHttpAddress(bool clustered, HttpOptions* options) {
  if (options->address == "off") {
    if (!clustered) return UsageError("--http off without --cluster: nobody could ask this server");
    options->address.clear();
  } else if (options->address.empty()) {
    options->address = kHttpAddress;
    // Several coordinators of one machine need no flag for their pages. A server alone stays where its clients ask.
    if (clustered) options->more_ports = 19;
  }
  return absl::OkStatus();
}

Status CheckHttp(const HttpOptions& options, bool insecure, HostPort* at) {
  const StatusOr<HostPort> parsed = ParseHostPort(options.address);
  if (!parsed.ok()) return AsUsage(Annotate(parsed.status(), "--http"));
  *at = *parsed;
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return UsageError("--tls-cert and --tls-key belong together, only one of them is given");
  }
  if (!IsLoopback(at->host) && !insecure && (options.tls_cert.empty() || options.api_keys.empty())) {
    return UsageError(
        "--http {}: this address is not loopback, so it needs --tls-cert, --tls-key and --api-keys; on a network that "
        "you trust, add --insecure=http",
        options.address);
  }
  // A single body that no room of all bodies holds could never be read.
  const uint64_t most = http::ServerLimits().all_bodies_bytes;
  if (options.max_body_bytes > most) {
    return UsageError("--max-body: {}, expected at most {}", DescribeBytes(options.max_body_bytes),
                      DescribeBytes(most));
  }
  const Status files = http::CheckSettings(ServerOptionsOf(options, *at));
  if (files.code() == absl::StatusCode::kInvalidArgument) return AsUsage(files);
  GYRE_RETURN_IF_ERROR(files);
  return options.more_ports > 0 ? absl::OkStatus() : CheckPort("--http or --port", *at);
}

bool ShowsKeys(const HttpOptions& options, const HostPort& at) {
  return !IsLoopback(at.host) && !options.api_keys.empty() && options.tls_cert.empty();
}

StatusOr<std::unique_ptr<HttpFront>> HttpFront::Open(const HttpOptions& options, const HostPort& at) {
  std::unique_ptr<HttpFront> front(new HttpFront(options));
  GYRE_RETURN_IF_ERROR(front->Listen(at));
  front->counted_ = front->server_.get();
  if (!options.tls_cert.empty() || !options.api_keys.empty()) CatchHangups();
  if (ShowsKeys(options, at)) {
    Log(LogLevel::kWarn,
        "http: {} without TLS: whoever sees the network's traffic sees the API keys; --tls-cert and --tls-key hide "
        "them",
        front->server_->url());
  }
  return front;
}

Status HttpFront::Listen(HostPort at) {
  Status status;
  for (int taken = 0; taken <= options_.more_ports; ++taken, ++at.port) {
    http::Router router;
    http::AddLoadingRoutes(router, "loading", "the model is loading; try again later");
    http::ServerOptions server_options = ServerOptionsOf(options_, at);
    server_options.on_request = [&counts = request_counts_](const http::RequestRecord& r) { counts.Add(r); };
    auto server = http::HttpServer::Open(std::move(server_options), std::move(router));
    if (server.ok()) {
      server_ = *std::move(server);
      if (taken > 0)
        Log(LogLevel::kInfo, "http: another program has {}, so HTTP is answered at {}", options_.address,
            server_->address());
      return absl::OkStatus();
    }
    if (status.ok()) status = server.status();
  }
  return status;
}

Status HttpFront::OpenBatches() {
  if (!options_.batches.empty()) {
    GYRE_ASSIGN_OR_RETURN(batches_, BatchStore::Open(options_.batches));
  }
  return absl::OkStatus();
}

void HttpFront::StandBy(const std::string& why) {
  http::Router router;
  http::AddLoadingRoutes(router, why, why);
  server_->SetRouter(std::move(router));
}

void HttpFront::Serve(const ServeCommandOptions& options, const std::string& model, Runtime& runtime,
                      StateKeeper* keeper, Tracer* tracer) {
  http::ApiContext& context = context_.emplace(http::ApiContext{.service = runtime.service()});
  context.responses = &responses_.emplace(ResponseLimits{}, keeper);
  context.cluster = &runtime.cluster();
  context.engine_stats = [&runtime] { return runtime.engine().stats(); };
  context.models = {ModelName(model)};
  for (const std::string& alias : options_.aliases) {
    if (!context.Has(alias)) context.models.push_back(alias);
  }
  context.other_names = options_.other_names == "none"  ? http::OtherNames::kNone
                        : options_.other_names == "any" ? http::OtherNames::kAny
                                                        : http::OtherNames::kHosted;
  context.created = UnixSeconds();
  context.version = options.version;
  context.flags = options.flags;
  context.tracer = tracer;
  context.metrics_open = options_.metrics_open;
  context.split_reasoning = !options_.no_reasoning_split;
  context.ready = [&runtime, &draining = draining_]() -> Status {
    if (draining) return Unavailable("draining: the server is about to end");
    const ClusterStatus status = runtime.cluster().status();
    if (!status.plan) return Unavailable("{}", status.state);
    return absl::OkStatus();
  };
  context.draining = [&draining = draining_] { return draining.load(); };
  context.server_stats = [&counted = counted_] {
    const http::HttpServer* server = counted;
    return server != nullptr ? server->stats() : http::ServerStats{};
  };
  context.request_counts = &request_counts_;
  context.batches = batches_.get();
  http::Router router;
  AddAllRoutes(router, context);
  StartBatches();
  server_->SetRouter(std::move(router));
}

void HttpFront::StartBatches() {
  if (batches_ == nullptr) return;
  http::Router routes;
  AddOpenAiRoutes(routes, *context_);
  AddScoreRoutes(routes, *context_);
  auto runner = http::BatchRunner::Start(*batches_, std::move(routes),
                                         {.draining = [&draining = draining_] { return draining.load(); }});
  if (runner.ok()) {
    batch_runner_ = *std::move(runner);
  } else {
    Log(LogLevel::kError, "http: batches wait: {}", Message(runner.status()));
  }
}

void HttpFront::Reload() {
  if (options_.tls_cert.empty() && options_.api_keys.empty()) return;
  const Status status = server_->Reload();
  if (status.ok()) {
    Log(LogLevel::kInfo, "http: certificate and API keys are read again");
  } else {
    Log(LogLevel::kError, "http: {}; certificate and API keys stay as they were", Message(status));
  }
}

void HttpFront::Drain() {
  draining_ = true;
  server_->Drain();
  const Deadline end = After(std::chrono::seconds(options_.drain_seconds));
  // The streams of events that pages read end by themselves, at their next event.
  const Deadline say_at = After(std::chrono::milliseconds(1500));
  const int signals = InterruptGuard::Count();
  bool said = false;
  while (server_->stats().active > 0 && Clock::now() < end && InterruptGuard::Count() == signals) {
    if (!said && Clock::now() >= say_at) {
      said = true;
      Log(LogLevel::kInfo, "http: {}, for at most {} s; one more signal ends them now",
          Counted(server_->stats().active, "answer runs", "answers run"), options_.drain_seconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace gyre
