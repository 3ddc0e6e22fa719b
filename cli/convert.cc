// gyre convert: a folder of safetensors as one GGUF file.
#include "base/counted.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/hf/folder.h"
#include "model/weights.h"

namespace gyre {

Status ConvertCommand(const ConvertOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const auto folder, OpenHfFolder(options.folder));
  if (!folder->vocabulary.tokenizer && !options.quiet) {
    fmt::print(stderr, "the file will have no tokenizer: {}\n", folder->vocabulary.tokenizer_note);
  }
  Progress progress("converting", options.quiet);
  const InterruptGuard guard(kExitInterrupted);
  InterruptGuard::Begin();
  const StatusOr<ConvertReport> report = ConvertToGguf(
      *folder, options.out, {.overwrite = options.force, .progress = [&](uint64_t done, uint64_t total) {
                               progress.Update(done, total);
                               return InterruptGuard::Interrupted() ? InterruptGuard::Stopped() : absl::OkStatus();
                             }});
  progress.Finish();
  GYRE_RETURN_IF_ERROR(report.status());
  if (!options.quiet) {
    if (folder->draft_tensors > 0)
      fmt::print(stderr, "{} for drafts (mtp.*) and left out\n",
                 Counted(static_cast<uint64_t>(folder->draft_tensors), "tensor is", "tensors are"));
    for (const auto& [types, count] : report->changed) {
      fmt::print(stderr, "{} of {} stored as {}: GGUF has no such type\n",
                 Counted(static_cast<uint64_t>(count), "tensor"), Info(types.first).name, Info(types.second).name);
    }
  }
  // A file that does not open as a model would be useless.
  return OpenModel(options.out).status();
}

}  // namespace gyre
