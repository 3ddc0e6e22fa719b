#include "coordinator/engine/steps_in_flight.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

// Other groups are worth a change where a turn takes this much less time by them.
constexpr double kWorthIt = 0.06;
// Choices within this share of the fastest count as equal; the one with the fewest groups wins, as larger steps cost
// less.
constexpr double kAboutAsFast = 0.03;
// A shorter way is none: the wake-ups of threads take as long.
constexpr double kShortWay = 1e-3;
constexpr uint32_t kLandedAChoice = 8;
// The least of so many is believed: on a busy machine the first ones are late.
constexpr uint32_t kLatencySamples = 64, kFirstSamples = 8;
// The coordinator's own time for a step, in seconds.
constexpr double kStepCost = 50e-6;
// Where only one size of steps is known, this share of its time is taken not to get less with fewer rows. If it is
// more, this shows with the first steps of another size.
constexpr double kFixedShare = 0.125;

void Average(double* mean, double sample, double weight) { *mean += (*mean == 0 ? 1 : weight) * (sample - *mean); }

uint32_t RowsOf(uint32_t decoding, uint32_t groups) { return (decoding + groups - 1) / groups; }

}  // namespace

void StepsInFlight::Begin(uint32_t stages) {
  *this = StepsInFlight();
  least_ = groups_ = std::max(stages, 1u);
  // One more step than stages hides the coordinator's turn; a lone stage takes everything in one step.
  steps_ = stages <= 1 ? 1 : stages + 1;
}

std::optional<double> StepsInFlight::latency() const {
  if (latency_samples_ < kFirstSamples && latency_before_ == 0) return std::nullopt;
  if (latency_samples_ == 0) return latency_before_;
  return latency_before_ == 0 ? latency_now_ : std::min(latency_now_, latency_before_);
}

void StepsInFlight::NoteLatency(double seconds) {
  seconds = seconds < kShortWay ? 1e-9 : seconds;
  latency_now_ = latency_samples_ == 0 ? seconds : std::min(latency_now_, seconds);
  if (++latency_samples_ < kLatencySamples) return;
  latency_before_ = latency_now_;
  latency_samples_ = 0;
}

void StepsInFlight::Observe(uint32_t decode_rows, uint32_t prompt_rows, Duration loop, const StepTimes& times) {
  ++landed_;
  const double computed = SecondsOf(times.computed), slowest = std::max(SecondsOf(times.slowest), kStepCost);
  if (computed <= 0) return;
  // One that waited for a stage tells nothing about the way.
  if (!times.queued) NoteLatency(SecondsOf(loop) - computed);
  Average(&mean_computed_, computed, 1.0 / 16);
  Average(&mean_slowest_, slowest, 1.0 / 16);
  if (prompt_rows == 0 && decode_rows > 0) {
    Size& size = sizes_[std::min<size_t>(static_cast<size_t>(std::bit_width(decode_rows - 1)), kSizes - 1)];
    Average(&size.rows, decode_rows, 1.0 / 8);
    Average(&size.computed, computed, 1.0 / 8);
    Average(&size.slowest, slowest, 1.0 / 8);
  }
  const auto way = latency();
  if (!way) return;
  const double fits = (*way + mean_computed_) / mean_slowest_;
  const uint32_t base = least_ <= 1 ? 1 : least_ + 1;
  const auto steps = least_ <= 1 && fits < 1.25 ? 1 : static_cast<uint32_t>(std::lround(std::min(fits, 1e6))) + 1;
  const uint32_t least = std::max(base, groups_ + (groups_ > 1 ? 1 : 0));
  steps_ = std::clamp(steps, std::min(least, kMost), kMost);
}

StepsInFlight::Cost StepsInFlight::CostOf(double rows) const {
  const Size* below = nullptr;
  const Size* above = nullptr;
  const Size* second = nullptr;  // the next one on the only side that is known
  for (const Size& size : sizes_) {
    if (size.rows == 0) continue;
    if (size.rows <= rows) {
      second = below;
      below = &size;
    } else if (above == nullptr) {
      above = &size;
    } else if (below == nullptr && second == nullptr) {
      second = &size;
    }
  }
  const Size* a = below != nullptr ? below : above;
  const Size* b = below != nullptr && above != nullptr ? above : second;
  const auto line = [rows, a, b](double at, double bt) {
    const double slope =
        b == nullptr ? at * (1 - kFixedShare) / a->rows : std::max((bt - at) / (b->rows - a->rows), 0.0);
    return std::max(at + slope * (rows - a->rows), at / 16);
  };
  return {.computed = line(a->computed, b != nullptr ? b->computed : 0),
          .slowest = std::max(line(a->slowest, b != nullptr ? b->slowest : 0), kStepCost)};
}

double StepsInFlight::Turn(uint32_t decoding, uint32_t groups) const {
  const uint32_t rows = RowsOf(decoding, groups);
  const Cost cost = CostOf(rows);
  double busy = decoding / rows * cost.slowest;  // the slowest stage
  if (decoding % rows != 0) busy += CostOf(decoding % rows).slowest;
  return std::max(latency().value_or(0) + cost.computed, busy);
}

void StepsInFlight::Choose(uint32_t decoding) {
  const bool changed = decoding > chosen_for_ + chosen_for_ / 4 || 4 * decoding < 3 * chosen_for_;
  if (landed_ < kLandedAChoice && !changed) return;
  if (decoding == 0 || !latency() ||
      std::all_of(sizes_.begin(), sizes_.end(), [](const Size& s) { return s.rows == 0; })) {
    return;
  }
  landed_ = 0;
  chosen_for_ = decoding;
  const uint32_t most = std::max(least_, std::min(decoding, kMost - 1));
  double best = Turn(decoding, least_);
  for (uint32_t groups = least_ + 1; groups <= most; ++groups) best = std::min(best, Turn(decoding, groups));
  uint32_t least = least_;
  while (least < most && Turn(decoding, least) > best * (1 + kAboutAsFast)) ++least;
  if (Turn(decoding, groups_) <= best * (1 + kWorthIt) && groups_ <= 2 * least) return;
  groups_ = least;
  steps_ = std::max(steps_, std::min(groups_ + (groups_ > 1 ? 1 : 0), kMost));
  ++changes_;
}

}  // namespace gyre
