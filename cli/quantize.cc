// gyre quantize: a model file in another type of weights.
#include "model/quantize.h"
#include "base/cpus.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "fmt/core.h"

namespace gyre {

Status QuantizeCommand(const QuantizeCommandOptions& options) {
  Progress progress("quantizing", options.quiet);
  const StatusOr<QuantizeReport> report =
      QuantizeFile(options.in, options.out,
                   {.type = options.type,
                    .threads = options.threads > 0 ? options.threads : DefaultThreads(),
                    .requantize = options.requantize,
                    .progress = [&](uint64_t done, uint64_t total) { progress.Update(done, total); }});
  progress.Finish();
  GYRE_RETURN_IF_ERROR(report.status());
  for (const std::string& f : report->fallbacks) fmt::print(stderr, "rows that are no multiple of 256: {}\n", f);
  if (!options.quiet) {
    fmt::print(stderr, "{}: {:.1f} MiB, was {:.1f}; relative error of the weights {:.3g}\n", options.out,
               static_cast<double>(report->bytes_after) / (1 << 20),
               static_cast<double>(report->bytes_before) / (1 << 20), report->relative_error);
  }
  return absl::OkStatus();
}

}  // namespace gyre
