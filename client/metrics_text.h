// A reader of metrics in Prometheus' text format.
#pragma once

#include <map>
#include <string>

namespace gyre {

// The sum over all labels of each sample's name, as "http_requests_total"; of a histogram's bucket also with its bound,
// as "x_seconds_bucket{0.5}". Lines that are no samples are left out.
std::map<std::string, double> ParseMetrics(const std::string& text);

// Seconds; -1: not told. A percentile is the bound of the histogram's bucket that it lies in, so it is at most that;
// infinity: above the last bound.
struct QueueWait {
  double mean = -1, p50 = -1, p95 = -1, p99 = -1;
};
// The times that requests waited for their turn between two readings: by the histogram or summary whose name has
// "queue" in it and ends with "_seconds". -1: there is none, or no request came.
QueueWait QueueWaitBetween(const std::map<std::string, double>& before, const std::map<std::string, double>& after);

}  // namespace gyre
