#include "coordinator/engine/draft_depth.h"

#include <algorithm>
#include <cmath>

#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

// Drafts are sent where the measured times promise at least this many times the tokens a second.
constexpr double kWorthDrafting = 1.03;
// A time that was measured more than this number of steps ago is measured again: the machine may have been busy, or the
// context is longer.
constexpr uint64_t kRememberedSteps = 1024;
// Until a larger step was seen, a further row is taken to cost this share of a step.
constexpr double kHopedFor = 0.02;

}  // namespace

void DraftDepth::Observe(uint32_t rows, const StepTimes& times) {
  ++steps_;
  const Duration computed = times.computed - times.drafts;  // what these take is weighed for itself
  if (rows == 0 || rows > kRows || computed <= Duration::zero()) return;
  Cost& cost = costs_[rows];
  if (cost.seen + kRememberedSteps < steps_) cost = {};
  cost.seen = steps_;
  Learn(&cost.computed, SecondsOf(computed));
  Learn(&cost.slowest, SecondsOf(std::max(std::min(times.slowest, computed), computed / 64)));
}

const DraftDepth::Cost* DraftDepth::Known(size_t rows) const {
  const Cost& cost = costs_[rows];
  return cost.computed > 0 && cost.seen + kRememberedSteps >= steps_ ? &cost : nullptr;
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

void DraftDepth::ObserveWay(uint32_t rows, Duration way) {
  constexpr double kMost = 64;  // steps that the means are over
  double seconds = std::max(SecondsOf(way), 0.0);
  const double x = rows;
  if (ways_.seen >= 8) {  // one late step must not spoil what is known
    const double slope = ways_.square > 0 ? std::max(ways_.product / ways_.square, 0.0) : 0;
    seconds = std::min(seconds, 2 * (ways_.way + slope * std::max(x - ways_.rows, 0.0)) + 1e-4);
  }
  ways_.seen = std::min(ways_.seen + 1, kMost);
  const double weight = 1 / ways_.seen, from = x - ways_.rows, off = seconds - ways_.way;
  ways_.rows += weight * from;
  ways_.way += weight * off;
  ways_.square += weight * (from * (x - ways_.rows) - ways_.square);
  ways_.product += weight * (from * (seconds - ways_.way) - ways_.product);
}

// Each row takes its time on the slowest links, too.
double DraftDepth::WayOf(size_t rows, double transit) const {
  constexpr double kLeastSquare = 0.25;  // of the rows: else nothing is known of others
  if (ways_.seen < 8 || ways_.square < kLeastSquare) return transit;
  return transit + std::max(ways_.product / ways_.square, 0.0) * static_cast<double>(rows - 1);
}

double DraftDepth::TimeOf(size_t rows, const Step& step) const {
  const Cost cost = CostOf(rows);
  return std::max(WayOf(rows, step.transit) + cost.computed, step.steps * cost.slowest);
}

DraftsWanted DraftDepth::ChooseAhead(const Step& step, double chance, size_t most, double each,
                                     uint32_t going_on) const {
  const uint32_t rows = step.rows;
  most = std::min(most, MostRows(rows) / std::max(rows, 1u) - 1);
  DraftsWanted wanted;
  if (rows == 0 || most == 0) return wanted;
  double sum = 1, product = 1, best = kWorthDrafting / TimeOf(rows, step);
  for (size_t n = 1; n <= most; ++n) {
    product *= chance;
    sum += product;
    const double rate = sum / (TimeOf(rows * (n + 1), step) + static_cast<double>(n) * each);
    if (rate <= best) continue;
    best = rate;
    wanted.count = n;
  }
  if (going_on == 0) return wanted;
  // The wrong draft ends a run of 1 / (1 - a) tokens, one lap after the step with the row before it went. Steps of n
  // drafts go as fast as they are found, and as the slowest stage computes them for all that go on. They pay more than
  // one step a lap only where they are clearly better, as they keep the stages busy.
  constexpr double kSurest = 0.98;
  const double a = std::min(chance, kSurest);
  best *= kWorthDrafting;
  for (size_t n = 1; n <= most; ++n) {
    const double all = std::pow(a, static_cast<double>(n));
    const double every = std::max(going_on * CostOf(rows * n).slowest, static_cast<double>(n) * each);
    const double steps = all / (1 - all) + 1 - (1 - a) / (1 - all);
    const double rate = 1 / (1 - a) / (TimeOf(rows * n, step) + every * steps);
    if (rate <= best) continue;
    best = rate;
    wanted = {.count = n, .goes_on = true};
  }
  return wanted;
}

size_t DraftDepth::ChooseBehind(const Step& step, std::span<const double> chances, uint32_t decoding) const {
  size_t known = 1;
  while (known <= kRows && Known(known) == nullptr) ++known;
  if (known > std::max(step.rows, 1u) || step.rows >= kRows) return 0;
  size_t largest = kRows;
  while (Known(largest) == nullptr) --largest;
  const size_t most = std::min(2 * largest + 2, kRows) - std::min<size_t>(step.rows, 2 * largest + 2);
  const double before = step.rows > 0 ? CostOf(step.rows).slowest : 0;
  double sum = 0, best = 0;
  size_t choice = 0;
  for (size_t n = 1; n <= std::min(most, chances.size()) && chances[n - 1] >= kLeastBehind; ++n) {
    sum += chances[n - 1];
    const double busy = std::max(CostOf(step.rows + n).slowest - before, 1e-6);
    if (sum / busy <= best) continue;
    best = sum / busy;
    choice = n;
  }
  if (choice == 0) return 0;
  const double lap = TimeOf(step.rows + choice, step), busy = CostOf(step.rows + choice).slowest - before;
  const double held_up = 1 - chances[0] + std::max(decoding, 1u) - 1;
  return chances[0] * lap > held_up * busy ? choice : 0;
}

size_t DraftDepth::Choose(const Step& step, uint32_t tokens, std::span<const double> chances) const {
  const uint32_t rows = step.rows;
  const size_t most = std::min(chances.size(), MostRows(rows) - rows);
  if (most == 0) return 0;
  double sum = tokens, best = kWorthDrafting * sum / TimeOf(rows, step);
  size_t choice = 0;
  for (size_t n = 1; n <= most; ++n) {
    sum += chances[n - 1];
    const double rate = sum / TimeOf(rows + n, step);
    if (rate <= best) continue;
    best = rate;
    choice = n;
  }
  return choice;
}

}  // namespace gyre
