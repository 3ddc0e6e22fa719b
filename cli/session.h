// Helpers of run, chat and logits: settings of generation, Ctrl-C, files of ids.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/engine/engine.h"
#include "coordinator/grammar/source.h"

namespace gyre {

// While an object lives, SIGINT (Ctrl-C) and SIGTERM don't end the process directly. While a model loads, the
// process ends with `exit_code`; after Begin(n) the first n signals set a flag, and the next one ends the process.
class InterruptGuard {
 public:
  explicit InterruptGuard(int exit_code);
  ~InterruptGuard();
  static void Begin(int signals = 1);
  static bool Interrupted();
  // Returns to the behaviour before Begin.
  static void End();
  static bool Alive();
  // The number of signals since Begin.
  static int Count();
  // SIGTERM came: the program has to end, not only its current work.
  static bool Terminated();
  // Has the effect of a signal.
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
  std::optional<grammar::Source> grammar;  // of the answer
  bool compact_json = false, no_jump_ahead = false;
  std::vector<std::string> given;  // long names of the flags that the user gave, by any way
};

// The sampling parameters. If the user gave no seed, one is drawn.
SamplingParams WithSeed(const GenerateOptions& options);

// Token ids separated by white space. kNotFound: no file; kInvalidArgument: a word is no id (the message says which).
StatusOr<std::vector<TokenId>> ReadIds(const std::string& path);
StatusOr<std::string> ReadFile(const std::string& path);
// Bytes: a number with a unit, as 512M, 8.5G, 16GB or 16GiB; units are powers of 1024. kInvalidArgument.
StatusOr<uint64_t> ParseSize(const std::string& text);

// The usage as text for stderr: "12 prompt tokens, 345 tokens/s; ...".
std::string DescribeUsage(const Usage& usage);

}  // namespace gyre
