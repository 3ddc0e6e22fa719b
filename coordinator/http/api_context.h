// The objects that the routes of the APIs use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engine.h"
#include "coordinator/http/server.h"
#include "coordinator/service.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre {
class Cluster;
class Tracer;
}  // namespace gyre

namespace gyre::http {

class RequestCounts;

inline constexpr size_t kMaxStops = 16;  // stop strings of a request

// Outlives the server that has the routes.
struct ApiContext {
  Service& service;
  Cluster* cluster = nullptr;                     // null: the routes of the cluster are not there (tests)
  std::function<EngineStats()> engine_stats;      // thread-safe
  std::function<ServerStats()> server_stats;      // thread-safe
  const RequestCounts* request_counts = nullptr;  // of all routes; null: none are counted
  std::vector<std::string> models;                // names that the model answers to, at least one; the first is its own
  int64_t created = 0;                            // when it was opened, seconds since 1970
  std::string version;                            // Gyre's
  Tracer* tracer = nullptr;                       // null: no /v1/cluster/trace
  bool split_reasoning = true;                    // reasoning_content beside content
  bool metrics_open = false;                      // anyone may read /metrics
  std::function<Status()> ready;                  // OK, or why no request can be served; thread-safe. Empty: always OK
  std::function<bool()> draining;  // the server is about to end: so do streams that have no end of their own
  Duration stream_ping = std::chrono::seconds(15);  // a stream that has nothing to say sends a comment so often

  std::string model_hash() const { return fmt::format("{:016x}", service.model().content_hash()); }
  bool Serves(std::string_view model) const { return std::find(models.begin(), models.end(), model) != models.end(); }
};

}  // namespace gyre::http
