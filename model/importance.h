// Importance matrices: for each column of a model's weight matrices the mean square of what it is multiplied by, over a
// text. A quantizer that knows them spends its bits on the columns that matter.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/new_file.h"

namespace gyre {

class Importance {
 public:
  // Reads GGUF with tensors NAME.in_sum2 and NAME.counts, or the older .dat (both as llama.cpp's llama-imatrix writes
  // them). kDataLoss: neither.
  static StatusOr<Importance> Load(const std::string& path);

  bool empty() const { return means_.empty(); }
  // The mean squares of a tensor's columns, for a stack of experts [expert][column]; empty if there are none. Experts
  // that no row went through have ones.
  std::span<const float> Find(const std::string& tensor) const;

 private:
  void Add(const std::string& tensor, std::vector<float> sums, const std::vector<float>& counts);

  std::map<std::string, std::vector<float>> means_;
};

// Sums while a text is computed, and writes them. Not thread-safe.
class ImportanceSums {
 public:
  // Adds `rows` rows x [rows][k] that tensor `name` is multiplied by. An expert of a stack has its number, other
  // tensors 0 of 1.
  void Add(const std::string& name, uint64_t expert, uint64_t experts, const float* x, uint64_t rows, uint64_t k);
  size_t size() const { return tensors_.size(); }
  // Writes GGUF. `chunk`: tokens that were computed at once; `chunks`: how often.
  Status Write(const std::string& path, const NewFileOptions& place, const std::string& text, uint32_t chunk,
               uint32_t chunks) const;

 private:
  struct Tensor {
    uint64_t columns = 0;
    std::vector<double> sums;    // [expert][column]
    std::vector<double> counts;  // [expert]: rows
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace gyre
