// Rotary embeddings stretched beyond the context that a model was trained on. Every method results in divisors of the
// frequencies and a factor on the rotated pairs; the forward pass needs nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/spec.h"

namespace gyre {

enum class RopeScalingKind : uint8_t {
  kNone,
  kLinear,  // position interpolation: Chen et al. 2023
  kNtk,     // a larger base: "NTK-aware", bloc97 2023
  kYarn,    // Peng et al. 2023, "NTK-by-parts" and the attention factor
  kLlama3,  // Llama 3.1's three bands (its published inference code)
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  double original_context = 0;                                 // yarn, llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  bool fractions = false;                                      // yarn: the ramp's ends are not rounded
  double attention_factor = 1;                                 // multiplies the method's own factor
  double extrapolation = 1;                                    // yarn: share of the ramp; 0 = linear
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
};

// Yarn's own factor on rotated pairs.
double YarnAttention(double factor);

// Applies a scaling to `rope`, whose base and dims are set and whose divisors are not. kDataLoss: a factor below 1, or
// a value that is missing or not possible.
Status ApplyRopeScaling(const RopeScaling& scaling, RopeSpec* rope);

}  // namespace gyre
