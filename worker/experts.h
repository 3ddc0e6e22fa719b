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

// scores [rows][spec.count] are the router's products. Each row takes its spec.used best experts, the lower number
// first among equals, weighted by the softmax over all experts, or with spec.normalize over the chosen ones. Computed
// in double, so that rounding does not show.
void ChooseExperts(const float* scores, size_t rows, const ExpertSpec& spec, ExpertRoutes* routes);

// sigmoid(x . gate), both [gate.size()].
float SharedWeight(const float* x, const std::vector<float>& gate);

}  // namespace gyre
