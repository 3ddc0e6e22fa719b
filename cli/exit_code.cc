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
  if (status.GetPayload(kUsagePayload)) return kExitUsage;
  // Other folders know flags too, those of the model and the machine: their sentences begin with the flag.
  const bool of_flag = absl::IsInvalidArgument(status) && status.message().substr(0, 2) == "--";
  return of_flag ? kExitUsage : kExitFailed;
}

}  // namespace gyre
