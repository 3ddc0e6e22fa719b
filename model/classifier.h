// What a reranker's classifier says of a text, by the hidden state of its last row.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "model/tensor_table.h"

namespace gyre {

// Immutable, thread-safe.
class Classifier {
 public:
  // Reads cls.output.weight [labels][dim] and, where the file has it, cls.output.bias. kDataLoss: missing, or of
  // another shape. REQUIRES: the spec has labels.
  static StatusOr<Classifier> Read(const TensorTable& tensors, const ModelSpec& spec);
  // The softmax of the labels; where there is one label, its sigmoid. REQUIRES: dim elements.
  std::vector<double> Probabilities(std::span<const float> hidden) const;

 private:
  std::vector<std::vector<float>> rows_;  // of each label
  std::vector<float> bias_;               // [labels], or empty
};

}  // namespace gyre
