// The output of `gyre bench serve`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "client/cluster_api.h"
#include "client/load_run.h"
#include "client/load_stats.h"
#include "client/metrics_text.h"
#include "client/openai.h"

namespace gyre {

struct LoadReport {
  BenchServeOptions options;
  LoadPlan plan;
  std::string url;
  ApiModel model;
  LoadDialect dialect;
  std::optional<ServerCluster> cluster;             // after the load; where the server is Gyre
  std::vector<std::pair<double, uint64_t>> memory;  // by --pid: seconds, bytes
  QueueWait queue;                                  // by the server's /metrics
  size_t idle_closed = 0;                           // connections of --idle that the server closed
  Status idle_status;                               // how their requests went
  std::vector<LoadRecord> records;
  LoadSummary summary;
};

std::string ReportTable(const LoadReport& report);
// One object on one line, with every flag and every request.
std::string ReportJson(const LoadReport& report);
// A chart with a bar for each request: the wait for its first token, and the answer.
std::string ReportSvg(const LoadReport& report);

}  // namespace gyre
