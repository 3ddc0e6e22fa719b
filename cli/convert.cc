// gyre convert: a folder of safetensors as one GGUF file, and a model with an adapter in its weights.
#include <unistd.h>

#include <filesystem>

#include "base/counted.h"
#include "base/cpus.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/temporary_file.h"
#include "fmt/core.h"
#include "model/adapter.h"
#include "model/hf/folder.h"
#include "model/new_file.h"
#include "model/quantize.h"
#include "model/source_files.h"
#include "model/weights.h"

namespace gyre {
namespace {

// A GGUF file with the adapter in its weights, each in its own type.
Status Merge(const std::string& in, const ConvertOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(in));
  GYRE_ASSIGN_OR_RETURN(const auto adapter, Adapter::Open("", options.merged, model->spec(), true));
  std::vector<MadeTensor::Bytes> made;
  GYRE_ASSIGN_OR_RETURN(auto additions, adapter->Additions(model->tensors(), model->spec(), &made));
  Progress progress("merging", options.quiet);
  const InterruptGuard guard(kExitInterrupted);
  InterruptGuard::Begin();
  QuantizeOptions q{.type = "",
                    .threads = DefaultThreads(),
                    .additions = std::move(additions),
                    .requantize = true,
                    .overwrite = options.force,
                    .sources = SourceFiles(options.folder),
                    .progress = [&](uint64_t done, uint64_t total) {
                      progress.Update(done, total);
                      return InterruptGuard::Interrupted() ? InterruptGuard::Stopped() : absl::OkStatus();
                    }};
  q.sources.insert(q.sources.end(), adapter->files().begin(), adapter->files().end());
  const Status status = QuantizeFile(in, options.out, q).status();
  progress.Finish();
  GYRE_RETURN_IF_ERROR(status);
  return OpenModel(options.out).status();
}

}  // namespace

Status ConvertCommand(const ConvertOptions& options) {
  std::error_code error;
  if (!options.merged.empty()) {
    if (!std::filesystem::is_directory(options.folder, error)) return Merge(options.folder, options);
    // A file that can't be written is refused before the conversion, which takes long.
    GYRE_RETURN_IF_ERROR(
        NewFile::Create(options.out, {.overwrite = options.force, .sources = SourceFiles(options.folder)}).status());
    const TemporaryFile converted(fmt::format("{}.{}.gguf", options.out, getpid()));
    GYRE_RETURN_IF_ERROR(ConvertCommand({.folder = options.folder, .out = converted.path(), .quiet = options.quiet}));
    return Merge(converted.path(), options);
  }
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
