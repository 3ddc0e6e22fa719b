// Pulls a model by its name to files of this machine: listing, choice, cache and download.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/hub_client.h"
#include "hub/model_name.h"

namespace gyre {

struct PullOptions {
  HubOptions hub;
  uint64_t cache_limit = 0;                                  // bytes; 0 = none
  DownloadOptions download;                                  // its on_progress and interrupted are those below
  std::function<bool()> interrupted;                         // asked every 50 ms; may be null
  std::function<void(const DownloadProgress&)> on_progress;  // over all files; may be null
  std::function<void(const std::string&)> say;               // a line for the user; may be null
};

// The plan of a pull.
struct PullPlan {
  CachedModel model;
  std::vector<std::string> urls;   // of model.files
  std::vector<std::string> notes;  // as FileChoice::notes
  uint64_t missing = 0;            // bytes that are not in the cache yet, of files whose size is known
  bool size_known = true;
  bool here = false;  // nothing is to be done
};

// Asks the hub (or the URL's server), and changes nothing. Errors as HubClient::List, ChooseFiles, RemoteFile::Open.
StatusOr<PullPlan> PlanPull(const ModelReference& name, const Cache& cache, const PullOptions& options);

// Carries out the plan. Waits for files that another process downloads at the same time, and continues unfinished
// downloads. Errors as Download and Cache; kCancelled: interrupted.
StatusOr<CachedModel> Pull(const PullPlan& plan, Cache* cache, const PullOptions& options);

}  // namespace gyre
