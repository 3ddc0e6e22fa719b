#include "coordinator/engine/draft_depth.h"

#include <algorithm>

#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

// Drafts are sent where the measured times promise at least this many times the tokens a second.
constexpr double kWorthDrafting = 1.03;
// A time that was measured more than this number of steps ago is measured again: the machine may have been busy, or the
// context is longer.
constexpr uint64_t kRemembered = 1024;
// Until a larger step was seen, a further row is taken to cost this share of a step.
constexpr double kHopedFor = 0.02;

}  // namespace

void DraftDepth::Observe(uint32_t rows, const StepTimes& times) {
  ++steps_;
  if (rows == 0 || rows > kRows || times.computed <= Duration::zero()) return;
  Cost& cost = costs_[rows];
  if (cost.seen + kRemembered < steps_) cost = {};
  cost.seen = steps_;
  Learn(&cost.computed, SecondsOf(times.computed));
  Learn(&cost.slowest, SecondsOf(std::max(times.slowest, times.computed / 64)));
}

const DraftDepth::Cost* DraftDepth::Known(size_t rows) const {
  const Cost& cost = costs_[rows];
  return cost.computed > 0 && cost.seen + kRemembered >= steps_ ? &cost : nullptr;
}

// The time is interpolated between the nearest known sizes, on both sides or the two below. REQUIRES: a smaller size,
// or this one, is known.
DraftDepth::Cost DraftDepth::CostOf(size_t rows) const {
  size_t below = rows;
  while (Known(below) == nullptr) --below;
  if (below == rows) return costs_[rows];
  size_t other = rows + 1;
  while (other <= kRows && Known(other) == nullptr) ++other;
  if (other > kRows) {
    other = below - 1;
    while (other > 0 && Known(other) == nullptr) --other;
  }
  const Cost& a = costs_[below];
  const auto line = [&](double at, double to) {
    const double slope =
        other == 0 ? at * kHopedFor : (to - at) / (static_cast<double>(other) - static_cast<double>(below));
    return at + std::max(slope, 0.0) * static_cast<double>(rows - below);
  };
  return {.computed = line(a.computed, costs_[other].computed), .slowest = line(a.slowest, costs_[other].slowest)};
}

// Rows of a step at most, with drafts. A step without drafts comes first, so that there is something to compare with.
// Then each unknown size is tried in steps of twice the size, so that one that does not pay costs little.
size_t DraftDepth::MostRows(uint32_t rows) const {
  if (rows == 0 || rows > kRows || Known(rows) == nullptr) return rows;
  size_t largest = kRows;
  while (Known(largest) == nullptr) --largest;
  return std::min(kRows, std::max<size_t>(2 * largest + 2, rows));
}

double DraftDepth::TimeOf(size_t rows, double transit, uint32_t steps) const {
  const Cost cost = CostOf(rows);
  return std::max(transit + cost.computed, steps * cost.slowest);
}

size_t DraftDepth::ChooseAhead(uint32_t rows, double chance, size_t most, double each, double transit,
                               uint32_t steps) const {
  most = std::min(most, MostRows(rows) / std::max(rows, 1u) - 1);
  if (rows == 0 || most == 0) return 0;
  double sum = 1, product = 1, best = kWorthDrafting / TimeOf(rows, transit, steps);
  size_t choice = 0;
  for (size_t n = 1; n <= most; ++n) {
    product *= chance;
    sum += product;
    const double rate = sum / (TimeOf(rows * (n + 1), transit, steps) + static_cast<double>(n) * each);
    if (rate <= best) continue;
    best = rate;
    choice = n;
  }
  return choice;
}

size_t DraftDepth::Choose(uint32_t rows, uint32_t tokens, std::span<const double> chances, double transit,
                          uint32_t steps) const {
  const size_t most = std::min(chances.size(), MostRows(rows) - rows);
  if (most == 0) return 0;
  double sum = tokens, best = kWorthDrafting * sum / TimeOf(rows, transit, steps);
  size_t choice = 0;
  for (size_t n = 1; n <= most; ++n) {
    sum += chances[n - 1];
    const double rate = sum / TimeOf(rows + n, transit, steps);
    if (rate <= best) continue;
    best = rate;
    choice = n;
  }
  return choice;
}

}  // namespace gyre
