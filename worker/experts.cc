#include "worker/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gyre {

void ChooseExperts(const float* scores, size_t rows, const ExpertSpec& spec, ExpertRoutes* routes) {
  const auto count = static_cast<size_t>(spec.count), used = static_cast<size_t>(spec.used);
  routes->resize(count);
  for (auto& r : *routes) r.clear();
  std::vector<size_t> order(count);
  for (size_t row = 0; row < rows; ++row) {
    const float* s = scores + row * count;
    std::iota(order.begin(), order.end(), size_t{0});
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(used), order.end(),
                      [&](size_t a, size_t b) {
                        if (s[a] != s[b] && !std::isnan(s[a]) && !std::isnan(s[b])) return s[a] > s[b];
                        if (std::isnan(s[a]) != std::isnan(s[b])) return std::isnan(s[b]);
                        return a < b;
                      });
    const double top = s[order[0]];
    double sum = 0;
    for (size_t i = 0, n = spec.normalize ? used : count; i < n; ++i) {
      sum += std::exp(static_cast<double>(s[spec.normalize ? order[i] : i]) - top);
    }
    for (size_t i = 0; i < used; ++i) {
      const double weight = std::exp(static_cast<double>(s[order[i]]) - top) / sum * static_cast<double>(spec.scale);
      (*routes)[order[i]].push_back({.row = row, .weight = static_cast<float>(weight)});
    }
  }
}

float SharedWeight(const float* x, const std::vector<float>& gate) {
  double sum = 0;
  for (size_t i = 0; i < gate.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(gate[i]);
  return static_cast<float>(1 / (1 + std::exp(-sum)));
}

}  // namespace gyre
