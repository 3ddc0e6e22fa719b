// The HTTP part of `gyre serve`.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/status.h"
#include "batch/batch_store.h"
#include "cli/commands.h"
#include "coordinator/http/api_context.h"
#include "coordinator/http/batch_runner.h"
#include "coordinator/http/request_counts.h"
#include "coordinator/http/server.h"
#include "coordinator/state/response_store.h"
#include "runtime/runtime.h"

namespace gyre {

// Completes what the flags say about the address: it is "" afterwards if HTTP is off, which needs a cluster.
Status ChooseHttpAddress(bool clustered, HttpOptions* options);
// Checks that the flags fit together, that files can be read and the port is free, before a model is loaded. Errors are
// usage errors, among others. `at` gets the address.
Status CheckHttp(const HttpOptions& options, bool insecure, HostPort* at);

// Whether API keys cross a network where others may listen.
bool ShowsKeys(const HttpOptions& options, const HostPort& at);

// The routes, the objects that they need, and the server.
class HttpFront {
 public:
  // Opens the port, or the first free one of options.more_ports behind it. Until Serve, /health answers, and all other
  // routes say that the model is loading.
  static StatusOr<std::unique_ptr<HttpFront>> Open(const HttpOptions& options, const HostPort& at);
  // Until Serve, all routes but /health say why nothing is served.
  void StandBy(const std::string& why);
  // Opens options.batches, if there is one, for the coordinator that leads: one process at a time has it.
  Status OpenBatches();
  // Opens all routes; called once. Runtime, keeper and tracer outlive the server's run: call Stop before they are
  // destroyed. keeper null: responses are kept in memory. tracer null: no /v1/cluster/trace.
  void Serve(const ServeCommandOptions& options, const std::string& model, Runtime& runtime, StateKeeper* keeper,
             Tracer* tracer);
  http::HttpServer& server() { return *server_; }
  // Ends the server and the requests of batches, which go on at the next start.
  void Stop() {
    batch_runner_.reset();
    server_->Stop();
    batches_.reset();  // the next one to lead may have the folder
  }
  // Reads certificate, key and API keys again, if there are any.
  void Reload();
  // Accepts no more connections, and waits for running answers: until the time limit, or one more signal.
  void Drain();

 private:
  explicit HttpFront(const HttpOptions& options) : options_(options) {}
  Status Listen(HostPort at);
  void StartBatches();

  const HttpOptions options_;
  std::atomic<bool> draining_{false};
  http::RequestCounts request_counts_;
  std::optional<ResponseStore> responses_;
  std::optional<http::ApiContext> context_;
  std::atomic<const http::HttpServer*> counted_{nullptr};  // server_, for its own routes
  std::unique_ptr<BatchStore> batches_;                    // null: none are kept
  std::unique_ptr<http::HttpServer> server_;
  std::unique_ptr<http::BatchRunner> batch_runner_;
};

// The name of a model's file or folder for clients: without .gguf, and without a split file's numbers.
std::string ModelName(const std::string& path);

}  // namespace gyre
