// The metrics in Prometheus' text format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/process_stats.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/engine/engine.h"
#include "coordinator/http/request_counts.h"
#include "coordinator/http/server.h"

namespace gyre::http {

// The input of /metrics, read at one moment.
struct MetricsInput {
  std::string version, model;
  EngineStats engine;
  std::optional<ClusterStatus> cluster;
  uint64_t streams = 0, queued_bytes = 0;  // of EventStreams
  ServerStats server;
  RequestCounts::Counts requests;
  ProcessStats process;
};

// The most workers that have their own samples; further ones are only in the totals.
inline constexpr size_t kMetricWorkers = 1024;

// Pure. Texts from outside are label values of at most 64 bytes, and each of them is used once.
std::string MetricsText(const MetricsInput& in);

}  // namespace gyre::http
