// The choice of the experts that a row goes through, and their weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/op_types.h"

namespace gyre {

// Backend::ChooseExperts on the host. Each row takes its params.used best experts, by worth plus `choice_bias` (null =
// none), the lower number first among equals; with groups only experts of the best groups can be chosen, a group being
// as good as its two best experts together (DeepSeek-V3). An expert's weight is its worth, with params.normalize
// divided by the sum of those chosen, times params.scale. Computed in double, so that rounding does not show.
void ChooseExpertsOfRows(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                         uint32_t* experts, float* weights);

}  // namespace gyre
