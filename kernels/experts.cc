#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

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
void KeepBestGroups(const RouterParams& params, std::vector<double>* rank) {
  const size_t groups = params.groups, size = rank->size() / groups;
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
  for (size_t g = params.used_groups; g < groups; ++g) {
    std::fill_n(rank->begin() + static_cast<std::ptrdiff_t>(order[g] * size), size, kLowest);
  }
}

// RouterParams::near.
void MixSparsely(const float* scores, const RouterParams& params, uint32_t* experts, float* weights) {
  constexpr double kTaken = -std::numeric_limits<double>::infinity();
  std::vector<double> left(scores, scores + params.count);
  std::vector<std::pair<size_t, double>> chosen;
  std::vector<size_t> order;
  for (size_t i = 0; i < params.used; ++i) {
    Sort(left, 1, &order);
    const double best = left[order[0]];
    double sum = 0;
    for (const double s : left) {
      const bool near = s == best || (best - s) / std::max(std::fabs(s), best) <= static_cast<double>(params.near);
      if (s != kTaken && near) sum += std::exp(s - best);
    }
    chosen.emplace_back(order[0], 1 / sum);
    left[order[0]] = kTaken;
  }
  std::sort(chosen.begin(), chosen.end());
  for (size_t i = 0; i < params.used; ++i) {
    experts[i] = static_cast<uint32_t>(chosen[i].first);
    weights[i] = static_cast<float>(chosen[i].second * static_cast<double>(params.scale));
  }
}

}  // namespace

void ChooseExpertsOfRows(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                         uint32_t* experts, float* weights) {
  const size_t count = params.count, used = params.used;
  const bool sigmoid = params.sigmoid, biased = choice_bias != nullptr;
  std::vector<size_t> order;
  std::vector<double> rank(count);
  for (size_t row = 0; row < rows; ++row) {
    const float* s = scores + row * count;
    if (params.near != 0) {
      MixSparsely(s, params, experts + row * used, weights + row * used);
      continue;
    }
    double top = -std::numeric_limits<double>::infinity();
    for (size_t e = 0; e < count; ++e) top = static_cast<double>(s[e]) > top ? static_cast<double>(s[e]) : top;
    // Without a choice bias a softmax has the order of its scores.
    double all = 0;
    auto worth = [&](size_t e) {
      const auto score = static_cast<double>(s[e]);
      return sigmoid ? 1 / (1 + std::exp(-score)) : std::exp(score - top) / all;
    };
    const bool by_score = !sigmoid && !biased;
    if (!sigmoid && (!by_score || !params.normalize)) {
      for (size_t e = 0; e < count; ++e) all += std::exp(static_cast<double>(s[e]) - top);
    }
    for (size_t e = 0; e < count; ++e)
      rank[e] = by_score ? static_cast<double>(s[e]) : worth(e) + (biased ? static_cast<double>(choice_bias[e]) : 0);
    if (params.groups > 1) KeepBestGroups(params, &rank);
    Sort(rank, used, &order);
    double sum = 1;
    if (params.normalize) {
      if (!sigmoid) all = 1;
      sum = 0;
      for (size_t i = 0; i < used; ++i) sum += worth(order[i]);
    }
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(used));
    for (size_t i = 0; i < used; ++i) {
      experts[row * used + i] = static_cast<uint32_t>(order[i]);
      weights[row * used + i] = static_cast<float>(worth(order[i]) / sum * static_cast<double>(params.scale));
    }
  }
}

}  // namespace gyre
