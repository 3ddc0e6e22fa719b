// From what a user gives as a model, a path or a name, to files of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/hub_client.h"
#include "hub/pull.h"

namespace gyre {

// Where models with a name come from, and where they lie.
struct SourceOptions {
  HubFlags hub;
  std::string cache;        // folder; "" = DefaultCacheRoot
  std::string cache_limit;  // as 100G; "" = none
  bool yes = false;         // pull without a question
  bool quiet = false;       // no progress, no notes
};

// The same, checked. Errors of usage.
struct Source {
  Cache cache;
  PullOptions pull;  // without progress and interruption
  bool yes = false, quiet = false;
};
StatusOr<Source> OpenSource(const SourceOptions& options);

// Reads a model as a user gives it; a path that is there wins. Errors of usage.
StatusOr<ModelReference> ReadModelName(const std::string& model, const Source& source);

// The path to open a model by. A name that is not in the cache is pulled, after a question on a terminal; elsewhere,
// without `yes`, it is an error of usage that says what to type. What was found stays in use until the process ends.
// An interrupted pull is kCancelled, and FailedPrecondition is a "no" of the user.
StatusOr<std::string> LocateModel(const std::string& model, const SourceOptions& options);

// Pulls with a bar on stderr, and notes what it took.
StatusOr<CachedModel> PullWithBar(const PullPlan& plan, Source* source);

// The folder of the cache; "" where there is none.
std::string CacheFolder(const SourceOptions& options);

// The models of this machine's cache, for a worker that looks for the coordinator's. Empty where there is none.
std::vector<std::string> CachedModelPaths(const SourceOptions& options);

}  // namespace gyre
