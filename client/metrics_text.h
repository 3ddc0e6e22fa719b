// A reader of metrics in Prometheus' text format.
#pragma once

#include <map>
#include <string>

namespace gyre {

// The sum over all labels of each sample's name, as "http_requests_total". Lines that are no samples are left out.
std::map<std::string, double> ParseMetrics(const std::string& text);

// The mean time that requests waited for their turn between two readings, in seconds: by the histogram or summary whose
// name has "queue" in it and ends with "_seconds". -1: there is none, or no request came.
double MeanQueueSeconds(const std::map<std::string, double>& before, const std::map<std::string, double>& after);

}  // namespace gyre
