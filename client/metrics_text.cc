#include "client/metrics_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gyre {

namespace {

// The value of a label that has no quotes in it; "" if there is none.
std::string LabelOf(const std::string& line, const std::string& label) {
  const size_t begin = line.find(label + "=\"");
  if (begin == std::string::npos) return "";
  const size_t value = begin + label.size() + 2;
  return line.substr(value, line.find('"', value) - value);
}

// The bound of the bucket that the share `part` of all values does not exceed. Buckets count all values up to their
// bounds.
double Percentile(const std::map<double, double>& buckets, double part) {
  if (buckets.empty() || buckets.rbegin()->second <= 0) return -1;
  for (const auto& [bound, count] : buckets) {
    if (count >= part * buckets.rbegin()->second) return bound;
  }
  return buckets.rbegin()->first;
}

}  // namespace

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
    if (error != std::errc() || !std::isfinite(number)) continue;
    std::string key = line.substr(0, name);
    if (key.ends_with("_bucket")) key += "{" + LabelOf(line, "le") + "}";
    out[key] += number;
  }
  return out;
}

QueueWait QueueWaitBetween(const std::map<std::string, double>& before, const std::map<std::string, double>& after) {
  const std::string kSum = "_seconds_sum";
  auto grown = [&](const std::string& name) {
    const auto a = before.find(name), b = after.find(name);
    return b == after.end() ? 0 : b->second - (a == before.end() ? 0 : a->second);
  };
  QueueWait out;
  for (const auto& [name, value] : after) {
    if (!name.ends_with(kSum) || name.find("queue") == std::string::npos) continue;
    const std::string base = name.substr(0, name.size() - 3);
    const double count = grown(base + "count");
    if (count <= 0) continue;
    out.mean = grown(name) / count;
    const std::string bucket = base + "bucket{";
    std::map<double, double> buckets;
    for (auto it = after.lower_bound(bucket); it != after.end() && it->first.starts_with(bucket); ++it) {
      const std::string bound = it->first.substr(bucket.size(), it->first.size() - bucket.size() - 1);
      buckets[std::strtod(bound.c_str(), nullptr)] = grown(it->first);
    }
    out.p50 = Percentile(buckets, 0.5);
    out.p95 = Percentile(buckets, 0.95);
    out.p99 = Percentile(buckets, 0.99);
    return out;
  }
  return out;
}

}  // namespace gyre
