// The target of run, chat and logits, chosen by their flags.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/model_source.h"
#include "cli/session.h"
#include "client/remote.h"
#include "client/target.h"
#include "runtime/options.h"

namespace gyre {

// A model to run here, or a cluster that runs one.
struct TargetOptions : RuntimeOptions {
  SourceOptions source;                    // of a model that is a name
  std::string cluster;                     // HOST:PORT of a coordinator; "" = here
  std::string identity;                    // the folder of the identity that asks it; "" = without TLS
  std::string url;                         // an OpenAI-compatible server that run and chat ask instead; "" = none
  std::string api_key, ca_file, model_id;  // with url
};

// The coordinator at `cluster`, asked with the identity in a folder, if one is named.
StatusOr<ClusterAddress> ClusterOf(const std::string& cluster, const std::string& identity);
// Usage error: the target refuses what the flags ask for.
Status CheckFlags(const GenerateOptions& options, const TargetFacts& target);
// All texts of a process that opens a model itself have its adapter. Usage error: there are several.
Status UseOneAdapter(RuntimeOptions* options);
// Calls on_row with the logits [vocab] behind each of the ids, in order, until one of its errors, which is returned.
// kCancelled: the user ended it.
Status ForEachLogits(Target& target, std::vector<TokenId> ids,
                     const std::function<Status(const std::vector<float>&)>& on_row);
// Opens the target. Unless `quiet`, a bar on stderr shows the progress of loading.
StatusOr<std::unique_ptr<Target>> OpenTarget(const TargetOptions& options);

}  // namespace gyre
