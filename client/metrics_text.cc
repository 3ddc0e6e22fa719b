#include "client/metrics_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace gyre {

std::map<std::string, double> ParseMetrics(const std::string& text) {
  std::map<std::string, double> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t name = line.find_first_of(" {");
    if (line.empty() || line[0] == '#' || name == std::string::npos || name == 0) continue;
    // A label's value may hold any characters, so the sample's own value is searched after the last brace.
    size_t value = line[name] == '{' ? line.rfind('}') : name;
    if (value == std::string::npos) continue;
    value = line.find_first_not_of(' ', value + 1);
    if (value == std::string::npos) continue;
    double number = 0;
    const auto [rest, error] = std::from_chars(line.data() + value, line.data() + line.size(), number);
    if (error == std::errc() && std::isfinite(number)) out[line.substr(0, name)] += number;
  }
  return out;
}

double MeanQueueSeconds(const std::map<std::string, double>& before, const std::map<std::string, double>& after) {
  const std::string kSum = "_seconds_sum";
  auto grown = [&](const std::string& name) {
    const auto a = before.find(name), b = after.find(name);
    return b == after.end() ? 0 : b->second - (a == before.end() ? 0 : a->second);
  };
  for (const auto& [name, value] : after) {
    const bool sum = name.size() > kSum.size() && name.compare(name.size() - kSum.size(), kSum.size(), kSum) == 0;
    if (!sum || name.find("queue") == std::string::npos) continue;
    const double count = grown(name.substr(0, name.size() - 3) + "count");
    if (count > 0) return grown(name) / count;
  }
  return -1;
}

}  // namespace gyre
