#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gyre {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double Frequency(const RopeSpec& rope, size_t i) {
  return std::pow(rope.base, -2.0 * static_cast<double>(i) / rope.dims);
}

// The index of the pair that turns `rotations` times within the context; a fraction if it is between two pairs.
double PairOfRotations(const RopeSpec& rope, double context, double rotations) {
  return rope.dims * std::log(context / (rotations * kTwoPi)) / (2 * std::log(rope.base));
}

std::vector<double> YarnFactors(const RopeScaling& s, const RopeSpec& rope, size_t half) {
  const double last = static_cast<double>(rope.dims) - 1;
  const double fast = PairOfRotations(rope, s.original_context, s.beta_fast),
               slow = PairOfRotations(rope, s.original_context, s.beta_slow);
  const double low = std::max(0.0, s.fractions ? fast : std::floor(fast));
  const double high = std::min(last, s.fractions ? slow : std::ceil(slow));
  std::vector<double> out(half);
  for (size_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double extrapolated = (1 - ramp) * s.extrapolation;
    out[i] = 1 / ((1 - extrapolated) / s.factor + extrapolated);
  }
  return out;
}

std::vector<double> Llama3Factors(const RopeScaling& s, const RopeSpec& rope, size_t half) {
  std::vector<double> out(half);
  for (size_t i = 0; i < half; ++i) {
    const double wavelength = kTwoPi / Frequency(rope, i);
    const double turns = s.original_context / wavelength;  // within the original context
    if (turns > s.high_frequency_factor) {
      out[i] = 1;
    } else if (turns < s.low_frequency_factor) {
      out[i] = s.factor;
    } else {
      const double smooth = (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
      out[i] = 1 / ((1 - smooth) / s.factor + smooth);
    }
  }
  return out;
}

}  // namespace

double YarnAttention(double factor) { return 0.1 * std::log(factor) + 1; }

Status ApplyRopeScaling(const RopeScaling& s, RopeSpec* rope) {
  if (s.kind == RopeScalingKind::kNone) return absl::OkStatus();
  const auto half = static_cast<size_t>(rope->dims) / 2;
  if (!(s.factor >= 1) || !std::isfinite(s.factor))
    return DataLoss("the rope scaling factor is {}, expected 1 or more", s.factor);
  if (s.kind == RopeScalingKind::kNtk) {
    if (rope->dims <= 2) return DataLoss("{} rotated elements are too few for a larger base", rope->dims);
    rope->base *= std::pow(s.factor, rope->dims / (rope->dims - 2.0));
    return absl::OkStatus();
  }
  std::vector<double> factors(half, s.factor);
  if (s.kind != RopeScalingKind::kLinear && !(s.original_context > 0)) {
    return DataLoss("the rope scaling's original context length is {}, expected a positive number", s.original_context);
  }
  if (s.kind == RopeScalingKind::kYarn) {
    if (!(s.beta_fast > 0) || !(s.beta_slow > 0)) {
      return DataLoss("yarn's beta_fast and beta_slow are {} and {}, expected positive numbers", s.beta_fast,
                      s.beta_slow);
    }
    factors = YarnFactors(s, *rope, half);
    rope->magnitude = static_cast<float>(s.attention_factor * YarnAttention(s.factor));
  }
  if (s.kind == RopeScalingKind::kLlama3) {
    if (!(s.high_frequency_factor > s.low_frequency_factor)) {
      return DataLoss(
          "the rope scaling's high and low frequency factors are {} and {}, expected the first to be larger",
          s.high_frequency_factor, s.low_frequency_factor);
    }
    factors = Llama3Factors(s, *rope, half);
  }
  rope->frequency_factors.clear();
  for (double f : factors) rope->frequency_factors.push_back(static_cast<float>(f));
  return absl::OkStatus();
}

}  // namespace gyre
