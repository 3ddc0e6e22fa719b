// The objects that the routes of the APIs use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/http/server.h"
#include "coordinator/service/service.h"
#include "fmt/core.h"
#include "model/weights.h"

namespace gyre {
class BatchStore;
class Cluster;
class ResponseStore;
class Tracer;
}  // namespace gyre

namespace gyre::http {

class RequestCounts;

// The names of models, beside those in ApiContext::models, by which a request may ask for this model.
enum class OtherNames : uint8_t {
  kNone,
  kHosted,  // those of models that only their makers serve, as "gpt-4o", which many programs ask for whatever is there
  kAny,
};

// Outlives the server that has the routes.
struct ApiContext {
  Service& service;
  Cluster* cluster = nullptr;                     // null: the routes of the cluster are not there (tests)
  std::function<EngineStats()> engine_stats;      // thread-safe
  std::function<ServerStats()> server_stats;      // thread-safe
  const RequestCounts* request_counts = nullptr;  // of all routes; null: none are counted
  std::vector<std::string> models;                // names that the model answers to, at least one; the first is its own
  OtherNames other_names = OtherNames::kHosted;
  int64_t created = 0;  // when it was opened, seconds since 1970
  std::string version;  // Gyre's
  // The flags of the engine that the server was started with, by their long names.
  std::vector<std::pair<std::string, std::string>> flags;
  ResponseStore* responses = nullptr;  // of /v1/responses; null: none are kept
  BatchStore* batches = nullptr;       // null: no /v1/files and /v1/batches
  Tracer* tracer = nullptr;            // null: no /v1/cluster/trace
  bool split_reasoning = true;         // reasoning_content beside content
  bool metrics_open = false;           // anyone may read /metrics
  std::function<Status()> ready;       // OK, or why no request can be served; thread-safe. Empty: always OK
  // A request that waits for a ring after a loss, and has no stream to say so, ends after this time.
  Duration ring_wait = std::chrono::seconds(30);
  std::function<bool()> draining;  // the server is about to end: so do streams that have no end of their own
  Duration stream_ping = std::chrono::seconds(5);  // a stream that has nothing to say sends a comment so often

  std::string model_hash() const { return fmt::format("{:016x}", service.model().content_hash()); }
  bool Has(std::string_view model) const { return std::find(models.begin(), models.end(), model) != models.end(); }
  // The number of the adapter with this name; 0: there is none.
  uint32_t AdapterOf(std::string_view name) const;
  // Whether the model answers to the name, as it is or with an adapter.
  bool Serves(std::string_view model) const;
};

}  // namespace gyre::http
