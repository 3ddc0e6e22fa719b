#include "cli/open_target.h"

#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "client/remote.h"
#include "coordinator/engine/request.h"
#include "runtime/local_target.h"

namespace gyre {
namespace {

// A coordinator that is started again has to load the model first.
constexpr Duration kReconnect = std::chrono::seconds(60);

}  // namespace

StatusOr<ClusterAddress> ClusterOf(const std::string& cluster, const std::string& identity) {
  if (identity.empty()) return ClusterAddress(cluster);
  const auto folder = IdentityFolder::Open(identity);
  if (!folder.ok()) return Annotate(folder.status(), "--identity");
  return ClusterAddress(cluster, (*folder)->current());
}

Status CheckFlags(const GenerateOptions& options, const TargetFacts& target) {
  GYRE_RETURN_IF_ERROR(AsUsage(CheckStops(options.stops, 0, RequestLimits{})));
  return AsUsage(options.sampling.Validate(target.vocab));
}

Status UseOneAdapter(RuntimeOptions* options) {
  const size_t adapters = options->open.adapters.size();
  if (adapters > 1) {
    return UsageError(
        "--lora: {} adapters, and a text here has one; `gyre serve` takes several, of which requests choose", adapters);
  }
  options->adapts_all = true;
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Target>> OpenTarget(const TargetOptions& options) {
  if (!options.cluster.empty()) {
    GYRE_ASSIGN_OR_RETURN(ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
    cluster.reconnect = kReconnect;
    cluster.interrupted = &InterruptGuard::Interrupted;
    return OpenRemote(cluster);
  }
  RuntimeOptions here = options;
  SourceOptions source = options.source;
  source.quiet = source.quiet || options.quiet;
  if (source.hub.ca_file.empty()) source.hub.ca_file = options.ca_file;
  GYRE_ASSIGN_OR_RETURN(here.model, LocateModel(options.model, source));
  if (!here.draft_model.empty()) {
    GYRE_ASSIGN_OR_RETURN(here.draft_model, LocateModel(here.draft_model, source));
  }
  GYRE_RETURN_IF_ERROR(UseOneAdapter(&here));
  LoadingBar bar(options.quiet);
  here.on_load = bar.callback();
  auto runtime = Runtime::Open(here);
  bar.Finish();
  GYRE_RETURN_IF_ERROR(runtime.status());
  return MakeLocalTarget(*std::move(runtime), GYRE_VERSION);
}

Status ForEachLogits(Target& target, std::vector<TokenId> ids,
                     const std::function<Status(const std::vector<float>&)>& on_row) {
  Request request;
  request.prompt = std::move(ids);
  request.prompt_logits = true;
  Status status;
  bool cancelled = false;
  GYRE_RETURN_IF_ERROR(target.Run(
      std::move(request),
      [&](const Event& event) {
        cancelled |= std::holds_alternative<Cancelled>(event);
        const auto* row = std::get_if<LogitsEvent>(&event);
        if (row != nullptr && status.ok()) status = on_row(row->logits);
      },
      &InterruptGuard::Interrupted));
  return cancelled ? InterruptGuard::Stopped() : status;
}

}  // namespace gyre
