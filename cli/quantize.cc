// gyre quantize: a model file in another type of weights.
#include "model/quantize.h"
#include "base/counted.h"

#include <unistd.h>

#include <filesystem>

#include "base/cpus.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/temporary_file.h"
#include "fmt/core.h"
#include "model/new_file.h"
#include "model/source_files.h"

namespace gyre {
namespace {

// "57 tensors stored as Q5_0, 2 as Q8_0": rows that the wanted type's blocks don't divide.
std::string DescribeFallbacks(const std::map<DType, int>& fallbacks) {
  std::string text;
  for (const auto& [type, count] : fallbacks) {
    text += text.empty()
                ? fmt::format("{} stored as {}", Counted(static_cast<uint64_t>(count), "tensor"), Info(type).name)
                : fmt::format(", {} as {}", count, Info(type).name);
  }
  return text;
}

}  // namespace

Status QuantizeCommand(const QuantizeCommandOptions& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(options.in, error);
  // A file that can't be written is refused before the conversion, which takes long.
  const auto sources = folder ? SourceFiles(options.in) : std::vector<std::shared_ptr<const MappedFile>>();
  if (folder) {
    GYRE_RETURN_IF_ERROR(NewFile::Create(options.out, {.overwrite = options.force, .sources = sources}).status());
  }
  const TemporaryFile converted(folder ? fmt::format("{}.{}.gguf", options.out, getpid()) : "");
  if (folder) {
    GYRE_RETURN_IF_ERROR(ConvertCommand({.folder = options.in, .out = converted.path(), .quiet = options.quiet}));
  }
  Importance importance;
  if (!options.importance.empty()) {
    GYRE_ASSIGN_OR_RETURN(importance, Importance::Load(options.importance));
  }
  Progress progress("quantizing", options.quiet);
  const InterruptGuard guard(kExitInterrupted);
  InterruptGuard::Begin();
  const StatusOr<QuantizeReport> report =
      QuantizeFile(folder ? converted.path() : options.in, options.out,
                   {.type = options.type,
                    .threads = options.threads > 0 ? options.threads : DefaultThreads(),
                    .tensor_types = options.tensor_types,
                    .importance = std::move(importance),
                    .requantize = options.requantize,
                    .overwrite = options.force,
                    .sources = sources,
                    .progress = [&](uint64_t done, uint64_t total) {
                      progress.Update(done, total);
                      return InterruptGuard::Interrupted() ? InterruptGuard::Stopped() : absl::OkStatus();
                    }});
  progress.Finish();
  GYRE_RETURN_IF_ERROR(report.status());
  if (options.quiet) return absl::OkStatus();
  if (!report->fallbacks.empty()) {
    fmt::print(stderr, "{}: row length not divisible by {}\n", DescribeFallbacks(report->fallbacks), report->block);
  }
  if (!options.importance.empty()) {
    fmt::print(stderr, "{} of the importance matrix {} weights here\n",
               Counted(static_cast<uint64_t>(report->with_importance), "tensor"),
               report->with_importance == 1 ? "has" : "have");
  }
  fmt::print(stderr, "{}: {:.1f} MiB, was {:.1f}; relative error of the weights {:.3g}\n", options.out,
             static_cast<double>(report->bytes_after) / (1 << 20),
             static_cast<double>(report->bytes_before) / (1 << 20), report->relative_error);
  return absl::OkStatus();
}

}  // namespace gyre
