// The choice of the experts that a row goes through, and their weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace gyre {

struct ExpertRoute {
  size_t row = 0;
  float weight = 0;
};
using ExpertRoutes = std::vector<std::vector<ExpertRoute>>;  // [expert], rows rising

// scores [rows][spec.count] are the router's products, of which softmax or sigmoid makes each expert's worth. Each row
// takes its spec.used best experts, by worth plus `choice_bias` (empty = none), the lower number first among equals;
// with groups only experts of the best groups can be chosen, a group being as good as its two best experts together
// (DeepSeek-V3). An expert's weight is its worth, with spec.normalize divided by the sum of those chosen, times
// spec.scale. Computed in double, so that rounding does not show.
void ChooseExperts(const float* scores, size_t rows, const ExpertSpec& spec, const std::vector<float>& choice_bias,
                   ExpertRoutes* routes);

// sigmoid(x . gate), both [gate.size()].
float SharedWeight(const float* x, const std::vector<float>& gate);

}  // namespace gyre
