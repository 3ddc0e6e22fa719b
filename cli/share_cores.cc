#include "cli/share_cores.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/cpus.h"

namespace gyre {
namespace {

// The value of a flag given as `--long V`, `--long=V`, `-sV`, `-s V` or `-s=V`.
std::optional<std::string> Value(const std::vector<std::string>& command, const std::string& longer,
                                 const std::string& shorter) {
  for (size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == longer || (!shorter.empty() && word == shorter)) return i + 1 < command.size() ? command[i + 1] : "";
    if (word.starts_with(longer + "=")) return word.substr(longer.size() + 1);
    if (!shorter.empty() && word.starts_with(shorter))
      return word.substr(shorter.size() + (word[shorter.size()] == '=' ? 1 : 0));
  }
  return std::nullopt;
}

}  // namespace

void ShareCores(std::vector<std::vector<std::string>*> commands, std::vector<int> cores, size_t most) {
  if (commands.size() < 2) return;
  std::vector<std::vector<std::string>*> silent;
  size_t counted = 0;
  for (auto* command : commands) {
    if (const auto cpus = Value(*command, "--cpus", "")) {
      if (const auto named = ParseCpuList(*cpus); named.ok()) {
        std::erase_if(cores, [&](int cpu) {
          return std::any_of(named->begin(), named->end(), [&](int other) { return SameCore(cpu, other); });
        });
      }
    } else if (const auto threads = Value(*command, "--threads", "-t")) {
      size_t n = 0;
      std::from_chars(threads->data(), threads->data() + threads->size(), n);
      counted += std::min(n, cores.size());
    } else if (!Value(*command, "--config", "")) {
      silent.push_back(command);
    }
  }
  const bool limited = most < cores.size();
  const size_t free = std::min(cores.size(), most), left = free - std::min(free, counted);
  for (size_t i = 0; i < silent.size(); ++i) {
    const size_t begin = left * i / silent.size(), end = left * (i + 1) / silent.size();
    std::string list;
    for (size_t c = begin; c < end; ++c) list += (list.empty() ? "" : ",") + std::to_string(cores[c]);
    if (limited || left < silent.size()) {
      silent[i]->insert(silent[i]->end(), {"--threads", std::to_string(std::max<size_t>(1, end - begin))});
    } else {
      silent[i]->insert(silent[i]->end(), {"--cpus", list});
    }
  }
}

}  // namespace gyre
