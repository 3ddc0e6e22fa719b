// Which experts a row goes through, and with what weight.
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

// scores [rows][spec.count] are the router's products. A row has its spec.used best, of equals the lower number,
// weighted by the softmax over all experts, or with spec.normalize over those it has. In double, so that no rounding of
// it shows.
void ChooseExperts(const float* scores, size_t rows, const ExpertSpec& spec, ExpertRoutes* routes);

// sigmoid(x . gate), both [gate.size()].
float SharedWeight(const float* x, const std::vector<float>& gate);

}  // namespace gyre
