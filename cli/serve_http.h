// The HTTP part of `gyre serve`.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/host_port.h"
#include "base/status.h"
#include "cli/commands.h"
#include "coordinator/http/api_context.h"
#include "coordinator/http/server.h"
#include "runtime/runtime.h"

namespace gyre {

// Whether the flags fit together, the files can be read and the port can be had, before a model is loaded. Usage errors
// among others. `at` gets the address.
Status CheckHttp(const HttpOptions& options, bool insecure, HostPort* at);

// Routes, what they stand on, and the server.
class HttpFront {
 public:
  // The runtime outlives it.
  static StatusOr<std::unique_ptr<HttpFront>> Open(const HttpOptions& options, const HostPort& at,
                                                   const std::string& model, const std::string& version,
                                                   Runtime& runtime);
  http::HttpServer& server() { return *server_; }
  // While one lives, SIGHUP makes Poll read certificate, key and API keys again.
  void Poll();
  // Accepts nothing more, and waits for the answers that run: until the time limit, or one more signal.
  void Drain();

 private:
  HttpFront(const HttpOptions& options, Runtime& runtime);

  const HttpOptions options_;
  std::atomic<bool> draining_{false};
  http::ApiContext context_;
  std::unique_ptr<http::HttpServer> server_;
};

// The name of a model's file or folder, as its clients call it: without .gguf, and without a split file's numbers.
std::string ModelName(const std::string& path);

}  // namespace gyre
