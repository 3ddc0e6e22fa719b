// What run, chat and logits share: how text is generated, Ctrl-C, reading ids.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
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

struct GenerateOptions {
  SamplingParams sampling;
  int64_t n = -1;     // tokens; -1 = to the end of the context
  int64_t seed = -1;  // -1 = a random one, which is printed
  std::vector<std::string> stops;
  bool ignore_eos = false;
};

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
