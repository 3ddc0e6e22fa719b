#include "cli/session.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "fmt/core.h"

namespace gyre {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void OnInterrupt(int signal) {
  if (interrupted != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupted = 1;
}

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
}
InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}
bool InterruptGuard::Interrupted() { return interrupted != 0; }
void InterruptGuard::Clear() { interrupted = 0; }

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
  std::string out = fmt::format("prompt {} tokens", u.prompt_tokens);
  if (u.cached_tokens > 0) out += fmt::format(" ({} cached)", u.cached_tokens);
  if (prefill > 0) out += fmt::format(", {:.1f} tokens/s", computed / prefill);
  out += fmt::format("; generated {} tokens", u.generated_tokens);
  if (u.generated_tokens > 1 && decode > 0) out += fmt::format(", {:.1f} tokens/s", (u.generated_tokens - 1) / decode);
  return out;
}

StatusOr<uint64_t> ParseSize(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  double unit = 1;
  switch (*end) {
    case 'k':
    case 'K': unit = 1 << 10; break;
    case 'm':
    case 'M': unit = 1 << 20; break;
    case 'g':
    case 'G': unit = 1 << 30; break;
    case 't':
    case 'T': unit = 1099511627776.0; break;
    default: break;
  }
  const bool whole = *end == '\0' || (unit > 1 && end[1] == '\0');
  if (end == text.c_str() || !whole || !(value > 0) || value * unit > 1e18) {
    return InvalidArgument("'{}': expected a size as 512M or 8G", text);
  }
  return static_cast<uint64_t>(value * unit);
}

}  // namespace gyre
