#include "base/cpus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/affinity.h"
#include "base/counted.h"
#include "base/range.h"

namespace gyre {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string Topology(int cpu) { return fmt::format("/sys/devices/system/cpu/cpu{}/", cpu); }

// The hardware threads of the processor's core; "" if the system does not tell.
std::string Siblings(int cpu) { return FirstLine(Topology(cpu) + "topology/thread_siblings_list"); }

// The NUMA node of a processor, from the link node<N> in its folder; 0 if there is none.
int NodeOf(int cpu) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(Topology(cpu), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    int node = 0;
    if (name.starts_with("node") && std::from_chars(name.data() + 4, name.data() + name.size(), node).ec == std::errc())
      return node;
  }
  return 0;
}

// The number of processors that CPU quotas allow (cgroup v2), those of this process's control group and of the groups
// around it.
double Quota() {
  double least = kMaxProcessors;
  std::string group;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) group = line.substr(3);
  }
  for (std::filesystem::path at = group;; at = at.parent_path()) {
    // "QUOTA PERIOD" in microseconds, or "max PERIOD".
    std::ifstream limit("/sys/fs/cgroup" + at.string() + "/cpu.max");
    double quota = 0, period = 0;
    if (limit >> quota >> period && quota > 0 && period > 0) least = std::min(least, quota / period);
    if (!at.has_relative_path()) return least;
  }
}

}  // namespace

std::vector<int> UsableCores() {
  std::map<std::pair<int, std::string>, int> cores;  // (node, siblings) -> first processor of the core
  for (const int cpu : AffinityMask()) {
    const std::string siblings = Siblings(cpu);
    cores.try_emplace({NodeOf(cpu), siblings.empty() ? fmt::format("{}", cpu) : siblings}, cpu);
  }
  std::vector<std::pair<int, int>> by_node;
  for (const auto& [key, cpu] : cores) by_node.emplace_back(key.first, cpu);
  std::sort(by_node.begin(), by_node.end());
  std::vector<int> out;
  for (const auto& [node, cpu] : by_node) out.push_back(cpu);
  for (unsigned i = 0; out.size() < std::thread::hardware_concurrency() && cores.empty(); ++i)
    out.push_back(static_cast<int>(i));
  if (out.empty()) out.push_back(0);
  return out;
}

bool SameCore(int a, int b) {
  if (a == b) return true;
  const std::string siblings = Siblings(a);
  return !siblings.empty() && siblings == Siblings(b);
}

int DefaultThreads() {
  const auto cores = static_cast<int>(UsableCores().size());
  return std::clamp(static_cast<int>(std::ceil(Quota())), 1, cores);
}

StatusOr<std::vector<int>> ParseCpuList(std::string_view text) {
  auto wrong = [&](const std::string& why) { return InvalidArgument("--cpus {}: {}", text, why); };
  constexpr const char* kForm = "expected processors as 0-3,8";
  std::vector<int> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto range = ParseRange(text.substr(begin, end - begin));
    if (!range) return wrong(kForm);
    begin = end + 1;
    const auto [first, last] = *range;
    if (last < first) return wrong(fmt::format("the range {}-{} is empty, {}", first, last, kForm));
    if (last >= kMaxProcessors)
      return wrong(fmt::format("there is no processor {}, expected numbers below {}", last, kMaxProcessors));
    for (int cpu = first; cpu <= last; ++cpu) {
      if (std::find(out.begin(), out.end(), cpu) != out.end())
        return wrong(fmt::format("processor {} is there twice, expected each once", cpu));
      out.push_back(cpu);
    }
  }
  const std::vector<int> allowed = AffinityMask();
  for (const int cpu : out) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) {
      return wrong(fmt::format("this process may not use processor {}, expected some of the {} from {} to {}", cpu,
                               allowed.size(), allowed.empty() ? 0 : allowed.front(),
                               allowed.empty() ? 0 : allowed.back()));
    }
  }
  return out;
}

StatusOr<TeamCpus> ChooseCpus(int threads, std::string_view cpus) {
  if (!cpus.empty()) {
    GYRE_ASSIGN_OR_RETURN(std::vector<int> list, ParseCpuList(cpus));
    if (threads > static_cast<int>(list.size())) {
      return InvalidArgument("--threads {}: --cpus {} has {}, expected one a thread", threads, cpus,
                             Counted(list.size(), "processor"));
    }
    if (threads > 0) list.resize(static_cast<size_t>(threads));
    return TeamCpus{.threads = static_cast<int>(list.size()), .cpus = std::move(list)};
  }
  if (threads > 0) return TeamCpus{.threads = threads, .cpus = {}};
  TeamCpus out{.threads = DefaultThreads(), .cpus = {}};
  std::vector<int> cores = UsableCores();  // sorted by node: the first and the last tell whether there are several
  if (NodeOf(cores.front()) != NodeOf(cores.back()) && out.threads == static_cast<int>(cores.size()))
    out.cpus = std::move(cores);
  return out;
}

}  // namespace gyre
