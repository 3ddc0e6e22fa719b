#include "model/classifier.h"

#include <algorithm>
#include <cmath>

#include "model/layer_tensors.h"

namespace gyre {

StatusOr<Classifier> Classifier::Read(const TensorTable& tensors, const ModelSpec& spec) {
  constexpr char kWeights[] = "cls.output.weight", kBias[] = "cls.output.bias";
  Classifier out;
  const uint64_t labels = spec.labels.size();
  GYRE_ASSIGN_OR_RETURN(const WeightView weights, tensors.Matrix(kWeights, labels, Unsigned(spec.dim)));
  if (weights.data == nullptr) return Unimplemented("tensor {} is made of others", kWeights);
  for (uint64_t i = 0; i < labels; ++i)
    DequantizeRow(weights, i, out.rows_.emplace_back(static_cast<size_t>(spec.dim)).data());
  if (tensors.Has(kBias)) {
    GYRE_ASSIGN_OR_RETURN(out.bias_, tensors.Vector(kBias, {labels}));
  }
  return out;
}

std::vector<double> Classifier::Probabilities(std::span<const float> hidden) const {
  std::vector<double> scores;
  for (size_t i = 0; i < rows_.size(); ++i) {
    double sum = bias_.empty() ? 0 : static_cast<double>(bias_[i]);
    for (size_t d = 0; d < hidden.size(); ++d) sum += static_cast<double>(rows_[i][d]) * static_cast<double>(hidden[d]);
    scores.push_back(sum);
  }
  if (scores.size() == 1) return {1 / (1 + std::exp(-scores[0]))};
  const double best = *std::max_element(scores.begin(), scores.end());
  double all = 0;
  for (double& s : scores) all += s = std::exp(s - best);
  for (double& s : scores) s /= all;
  return scores;
}

}  // namespace gyre
