// Rotary embeddings stretched beyond the context that a model was trained on. Every method results in divisors of the
// frequencies and a factor on the rotated pairs; the forward pass needs nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/spec.h"

namespace gyre {

// Gyre's own GGUF keys, for what GGUF has no names for.
//
// Beyond the model's context the base of the rotation follows the length of the text (transformers' "dynamic"). Up to
// there nothing is scaled, and longer contexts are refused.
inline constexpr const char* kRopeFollowsLengthKey = "gyre.rope.follows_length";
// Whether yarn's ramp ends at whole pairs, if it is otherwise than usual for the architecture.
inline constexpr const char* kYarnTruncateKey = "gyre.rope.yarn_truncate";

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
