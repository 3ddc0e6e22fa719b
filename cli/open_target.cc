#include "cli/open_target.h"

#include "cli/progress.h"
#include "client/remote.h"
#include "runtime/local_target.h"

namespace gyre {

StatusOr<std::unique_ptr<Target>> OpenTarget(const TargetOptions& options) {
  if (!options.cluster.empty()) return OpenRemote(options.cluster);
  RuntimeOptions here = options;
  LoadingBar bar(options.quiet);
  here.on_load = bar.callback();
  auto runtime = Runtime::Open(here);
  bar.Finish();
  GYRE_RETURN_IF_ERROR(runtime.status());
  return MakeLocalTarget(*std::move(runtime), GYRE_VERSION);
}

}  // namespace gyre
