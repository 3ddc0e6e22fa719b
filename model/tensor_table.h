// A table of named tensors of any file format; the names are GGUF's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/quant.h"
#include "model/made_tensor.h"

namespace gyre {

struct TensorView {
  DType type = DType::kF32;
  std::vector<uint64_t> dims;       // dims[0] is the fastest: a matrix [n][k] has {k, n}
  const std::byte* data = nullptr;  // null where `made` is not
  size_t bytes = 0;
  const std::byte* scales = nullptr;  // as in WeightView; NVFP4's are those of experts, or one
  size_t group = 0;
  std::shared_ptr<const MadeTensor> made;  // makes the data

  // The same with its data, for whoever reads it; `held` keeps them.
  TensorView WithData(MadeTensor::Bytes* held) const;
  // Whether DequantizeRow reads its rows.
  bool dequantizes() const { return Info(type).dequantizes || scales != nullptr; }
  // All of it as one matrix of rows of dims[0] elements. REQUIRES: one dimension or more.
  WeightView Rows() const;
};

std::string DescribeDims(const std::vector<uint64_t>& dims);

// Not thread-safe while tensors are added; read-only and thread-safe afterwards.
class TensorTable {
 public:
  // kDataLoss: the name exists already.
  Status Add(std::string name, TensorView tensor);
  void Remove(const std::string& name) { tensors_.erase(name); }
  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  const TensorView* Find(const std::string& name) const;
  const std::unordered_map<std::string, TensorView>& all() const { return tensors_; }
  // Gives weights in NVFP4 what GGUF has beside them: "X.scale" has one number for "X.weight", or one for each expert.
  // kDataLoss: it has another shape or type.
  Status AddScales();
  // Whether the tensor is such a scale, or one of activations ("X.input_scale", which nothing here needs), of a tensor
  // in NVFP4; then that tensor's name, else "".
  std::string ScaledBy(const std::string& name) const;
  // The same in the order of their places in the file; those that are made come first, by name.
  std::vector<std::pair<std::string, const TensorView*>> InFileOrder() const;
  // The type of most bytes, as "Q8_0"; "" if there are no tensors.
  std::string MainType() const;
  // xxHash64 of the header, a sample of each tensor's data, and the size of the whole file, so that two files of the
  // same shapes differ.
  uint64_t SampledHash(std::span<const std::byte> header, uint64_t file_bytes) const;
  // The numbers in all tensors that were learned.
  uint64_t Parameters() const;

  // W[n][k] of a type that the kernels can dequantize. kDataLoss (missing, shape), kUnimplemented (type). Where the
  // tensor has `made`, the view has no data.
  StatusOr<WeightView> Matrix(const std::string& name, uint64_t n, uint64_t k) const;
  // W[count][n][k], as one matrix of count * n rows.
  StatusOr<WeightView> Matrices(const std::string& name, uint64_t count, uint64_t n, uint64_t k) const;
  // Checks that Vector gives the tensor's elements.
  Status CheckVector(const std::string& name, const std::vector<uint64_t>& dims) const;
  // All elements of a small tensor of these dims, expanded to f32.
  StatusOr<std::vector<float>> Vector(const std::string& name, const std::vector<uint64_t>& dims) const;

 private:
  StatusOr<const TensorView*> Checked(const std::string& name, const std::vector<uint64_t>& dims) const;
  std::unordered_map<std::string, TensorView> tensors_;
};

}  // namespace gyre
