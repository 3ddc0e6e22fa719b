// What run, chat and logits share: how text is generated, Ctrl-C, reading ids.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/engine.h"

namespace gyre {

// While one lives, SIGINT (Ctrl-C) and SIGTERM don't end the process as they come. At first, while a model loads, the
// process ends with `exit_code`; after Begin(n) the first n signals set a flag, and the next one ends the process.
class InterruptGuard {
 public:
  explicit InterruptGuard(int exit_code);
  ~InterruptGuard();
  static void Begin(int signals = 1);
  static bool Interrupted();
  // As before Begin.
  static void End();
  static bool Alive();
  // Signals that came since then.
  static int Count();
  // SIGTERM came: the program is to end, not only what it is doing.
  static bool Terminated();
  // As a signal does.
  static void Interrupt();
  // Forgets a SIGINT; a SIGTERM stays.
  static void Clear();
  // "stopped by Ctrl-C" or "stopped by SIGTERM", as kCancelled.
  static Status Stopped();
};

struct GenerateOptions {
  SamplingParams sampling;
  int64_t n = -1;     // tokens; -1 = to the end of the context
  int64_t seed = -1;  // -1 = a random one, which is printed
  std::vector<std::string> stops;
  bool ignore_eos = false;
  std::vector<std::string> given;  // long names of the flags that the user gave, by any way
};

// Sampling parameters with the seed drawn where none was given.
SamplingParams WithSeed(const GenerateOptions& options);

// White-space separated token ids. kNotFound (no file), kInvalidArgument (which word is no id).
StatusOr<std::vector<TokenId>> ReadIds(const std::string& path);
StatusOr<std::string> ReadFile(const std::string& path);
// Bytes: a number with a unit, as 512M, 8.5G, 16GB or 16GiB; units are powers of 1024. kInvalidArgument.
StatusOr<uint64_t> ParseSize(const std::string& text);

// "12 prompt tokens, 345 tokens/s; ..." for stderr.
std::string DescribeUsage(const Usage& usage);

}  // namespace gyre
