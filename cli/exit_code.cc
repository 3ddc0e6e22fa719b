#include "cli/exit_code.h"

#include "absl/strings/cord.h"

namespace gyre {
namespace {

constexpr char kUsagePayload[] = "gyre/usage";

}  // namespace

Status AsUsage(Status status) {
  if (!status.ok()) status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return status.GetPayload(kUsagePayload) ? kExitUsage : kExitFailed;
}

}  // namespace gyre
