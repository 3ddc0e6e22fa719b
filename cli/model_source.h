// Models as users give them, by path or by name, and their files on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/hub_client.h"
#include "hub/pull.h"

namespace gyre {

// The source of models that have a name, and the folder of the cache.
struct SourceOptions {
  HubFlags hub;
  std::string cache;        // folder; "" = DefaultCacheRoot
  std::string cache_limit;  // as 100G; "" = none
  bool yes = false;         // pull without a question
  bool quiet = false;       // no progress, no notes
};

// The same options after they were checked. Errors are usage errors.
struct Source {
  Cache cache;
  PullOptions pull;  // without progress and interruption
  bool yes = false, quiet = false;
};
StatusOr<Source> OpenSource(const SourceOptions& options);

// Reads a model as a user gives it; an existing path wins. Errors are usage errors.
StatusOr<ModelReference> ReadModelName(const std::string& model, const Source& source);

// The path to open a model by. A name that is not in the cache is pulled, on a terminal after a question. Elsewhere,
// without `yes`, this is a usage error that says what to type. The files stay in use until the process ends.
// kCancelled: the pull was interrupted; kFailedPrecondition: the user answered no.
StatusOr<std::string> LocateModel(const std::string& model, const SourceOptions& options);

// Pulls with a bar on stderr, and reports what was pulled.
StatusOr<CachedModel> PullWithBar(const PullPlan& plan, Source* source);

// The folder of the cache; "" where there is none.
std::string CacheFolder(const SourceOptions& options);

// The models in this machine's cache, for a worker that looks for the coordinator's. Empty if there is no cache.
std::vector<std::string> CachedModelPaths(const SourceOptions& options);

}  // namespace gyre
