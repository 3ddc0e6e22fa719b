// What run, chat and logits share: waiting for a request's events, Ctrl-C, reading ids.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/options.h"
#include "coordinator/engine.h"

namespace gyre {

// While one lives, Ctrl-C (or SIGTERM) sets a flag instead of ending the process; a second Ctrl-C ends it.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  static bool Interrupted();
  static void Clear();
};

// Runs one request and hands its events over on the calling thread, the terminal one last. Ctrl-C cancels it.
// The error of Submit or of a Failed event; OK after Finished and Cancelled.
Status RunRequest(Engine& engine, Request request, const std::function<void(const Event&)>& on_event);

// Sampling parameters with the seed drawn where none was given.
SamplingParams WithSeed(const GenerateOptions& options);

// White-space separated token ids. kNotFound (no file), kInvalidArgument (which word is no id).
StatusOr<std::vector<TokenId>> ReadIds(const std::string& path);
StatusOr<std::string> ReadFile(const std::string& path);
// "512M", "8G", "1.5G", bytes without a letter.
StatusOr<uint64_t> ParseSize(const std::string& text);

// "12 prompt tokens, 345 tokens/s; ..." for stderr.
std::string DescribeUsage(const Usage& usage);

}  // namespace gyre
