#include "worker/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace gyre {

namespace {

// Whether expert a comes before b: the larger first, NaN last, the lower number first among equals.
bool Before(const std::vector<double>& rank, size_t a, size_t b) {
  const bool nan_a = std::isnan(rank[a]), nan_b = std::isnan(rank[b]);
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && rank[a] != rank[b]) return rank[a] > rank[b];
  return a < b;
}

// Puts the `used` best of `rank` to the front of `order`.
void Sort(const std::vector<double>& rank, size_t used, std::vector<size_t>* order) {
  order->resize(rank.size());
  std::iota(order->begin(), order->end(), size_t{0});
  std::partial_sort(order->begin(), order->begin() + static_cast<std::ptrdiff_t>(used), order->end(),
                    [&](size_t a, size_t b) { return Before(rank, a, b); });
}

// Experts of all but the best groups get the lowest rank.
void KeepBestGroups(const ExpertSpec& spec, std::vector<double>* rank) {
  const auto groups = static_cast<size_t>(spec.groups), size = rank->size() / groups;
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  std::vector<double> worth(groups);
  for (size_t g = 0; g < groups; ++g) {
    double best = kLowest, second = kLowest;
    for (size_t i = g * size; i < (g + 1) * size; ++i) {
      const double r = (*rank)[i];
      if (r > best)
        second = std::exchange(best, r);
      else if (r > second)
        second = r;
    }
    worth[g] = size > 1 ? best + second : best;
  }
  std::vector<size_t> order;
  Sort(worth, groups, &order);
  for (size_t g = static_cast<size_t>(spec.used_groups); g < groups; ++g) {
    std::fill_n(rank->begin() + static_cast<std::ptrdiff_t>(order[g] * size), size, kLowest);
  }
}

}  // namespace

void ChooseExperts(const float* scores, size_t rows, const ExpertSpec& spec, const std::vector<float>& choice_bias,
                   ExpertRoutes* routes) {
  const auto count = static_cast<size_t>(spec.count), used = static_cast<size_t>(spec.used);
  routes->resize(count);
  for (auto& r : *routes) r.clear();
  std::vector<size_t> order;
  std::vector<double> rank(count);
  const bool sigmoid = spec.score == RouterScore::kSigmoid;
  for (size_t row = 0; row < rows; ++row) {
    const float* s = scores + row * count;
    double top = -std::numeric_limits<double>::infinity();
    for (size_t e = 0; e < count; ++e) top = static_cast<double>(s[e]) > top ? static_cast<double>(s[e]) : top;
    // Without a choice bias a softmax has the order of its scores.
    double all = 0;
    auto worth = [&](size_t e) {
      const auto score = static_cast<double>(s[e]);
      return sigmoid ? 1 / (1 + std::exp(-score)) : std::exp(score - top) / all;
    };
    const bool by_score = !sigmoid && choice_bias.empty();
    if (!sigmoid && (!by_score || !spec.normalize)) {
      for (size_t e = 0; e < count; ++e) all += std::exp(static_cast<double>(s[e]) - top);
    }
    for (size_t e = 0; e < count; ++e) {
      rank[e] = by_score ? static_cast<double>(s[e])
                         : worth(e) + (choice_bias.empty() ? 0 : static_cast<double>(choice_bias[e]));
    }
    if (spec.groups > 1) KeepBestGroups(spec, &rank);
    Sort(rank, used, &order);
    if (spec.normalize) {
      double sum = 0;
      if (!sigmoid) all = 1;
      for (size_t i = 0; i < used; ++i) sum += worth(order[i]);
      for (size_t i = 0; i < used; ++i) {
        (*routes)[order[i]].push_back(
            {.row = row, .weight = static_cast<float>(worth(order[i]) / sum * static_cast<double>(spec.scale))});
      }
      continue;
    }
    for (size_t i = 0; i < used; ++i) {
      (*routes)[order[i]].push_back(
          {.row = row, .weight = static_cast<float>(worth(order[i]) * static_cast<double>(spec.scale))});
    }
  }
}

float SharedWeight(const float* x, const std::vector<float>& gate) {
  double sum = 0;
  for (size_t i = 0; i < gate.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(gate[i]);
  return static_cast<float>(1 / (1 + std::exp(-sum)));
}

}  // namespace gyre
