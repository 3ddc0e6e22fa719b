#include "cli/session.h"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

#include "base/counted.h"
#include "cli/terminal_signals.h"
#include "fmt/core.h"

namespace gyre {
namespace {

volatile std::sig_atomic_t interrupted = 0;  // signals that came
volatile std::sig_atomic_t most = 1;         // of them; the next one ends the process
volatile std::sig_atomic_t terminated = 0;
volatile std::sig_atomic_t begun = 0;
volatile std::sig_atomic_t alive = 0;
volatile std::sig_atomic_t early_exit_code = 0;

extern "C" void OnInterrupt(int signal) {
  if (begun == 0) _exit(early_exit_code);
  if (interrupted >= most) {
    RestoreTerminal();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupted = interrupted + 1;
  if (signal == SIGTERM) terminated = 1;
}

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

InterruptGuard::InterruptGuard(int exit_code) {
  interrupted = 0;
  terminated = 0;
  begun = 0;
  alive = 1;
  early_exit_code = exit_code;
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
}
InterruptGuard::~InterruptGuard() {
  alive = 0;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}
void InterruptGuard::Begin(int signals) {
  most = signals;
  begun = 1;
}
void InterruptGuard::End() { begun = 0; }
bool InterruptGuard::Alive() { return alive != 0; }
bool InterruptGuard::Interrupted() { return interrupted != 0; }
int InterruptGuard::Count() { return interrupted; }
bool InterruptGuard::Terminated() { return terminated != 0; }
void InterruptGuard::Interrupt() { interrupted = 1; }
void InterruptGuard::Clear() {
  if (terminated == 0) interrupted = 0;
}
Status InterruptGuard::Stopped() {
  return absl::CancelledError(Terminated() ? "stopped by SIGTERM" : "stopped by Ctrl-C");
}

SamplingParams WithSeed(const GenerateOptions& options) {
  SamplingParams sampling = options.sampling;
  sampling.seed = options.seed >= 0 ? static_cast<uint64_t>(options.seed) : std::random_device{}();
  return sampling;
}

StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound("{}: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return Unavailable("{}: {}", path, std::strerror(errno));
  return text.str();
}

StatusOr<std::vector<TokenId>> ReadIds(const std::string& path) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<TokenId> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0) {
      return InvalidArgument("{}: '{}' (word {}) is no token id", path, word, ids.size() + 1);
    }
    ids.push_back(id);
  }
  if (ids.empty()) return InvalidArgument("{}: no token ids in it", path);
  return ids;
}

std::string DescribeUsage(const Usage& u) {
  const double prefill = Seconds(u.to_first_token);
  const double decode = Seconds(u.total - u.to_first_token);
  const uint32_t computed = u.prompt_tokens - u.cached_tokens;
  std::string out = fmt::format("prompt {}", Counted(u.prompt_tokens, "token"));
  if (u.cached_tokens > 0) out += fmt::format(" ({} cached)", u.cached_tokens);
  if (prefill > 0) out += fmt::format(", {:.1f} tokens/s", computed / prefill);
  out += fmt::format("; generated {}", Counted(u.generated_tokens, "token"));
  if (u.generated_tokens > 1 && decode > 0) out += fmt::format(", {:.1f} tokens/s", (u.generated_tokens - 1) / decode);
  if (u.drafted_tokens > 0) out += fmt::format("; {} of {} drafts accepted", u.accepted_drafts, u.drafted_tokens);
  if (u.context_shifts > 0) {
    out += fmt::format("; the context was full {} and lost its older tokens",
                       u.context_shifts == 1 ? "once" : fmt::format("{} times", u.context_shifts));
  }
  return out;
}

StatusOr<uint64_t> ParseSize(const std::string& text) {
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string unit(rest, end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view kUnits = "kmgt";
  double bytes = unit == "b" ? 1 : 0;
  if (const size_t power = unit.empty() ? kUnits.npos : kUnits.find(unit[0]); power != kUnits.npos) {
    const std::string behind = unit.substr(1);
    if (behind.empty() || behind == "b" || behind == "ib") bytes = std::exp2(10.0 * static_cast<double>(power + 1));
  }
  if (error != std::errc() || bytes == 0 || !(value > 0) || value * bytes > 1e18 || value * bytes < 1) {
    return InvalidArgument("'{}' is no size, expected a number and a unit, as 512M, 8.5G or 16GiB", text);
  }
  return static_cast<uint64_t>(value * bytes);
}

}  // namespace gyre
