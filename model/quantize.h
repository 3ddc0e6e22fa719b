// Quantizes a model file: writes it with another type of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

struct QuantizeOptions {
  std::string type;  // of QuantizeTypes(), in either case
  int threads = 1;
  bool requantize = false;  // tensors that are quantized already are quantized again
  bool overwrite = false;   // an existing `out` is replaced; `in` never is
  // Called with the bytes read, on the calling thread. Its error ends the work; then no file is left.
  std::function<Status(uint64_t done, uint64_t total)> progress;
};

struct QuantizeReport {
  uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double relative_error = 0;  // over all quantized tensors: sqrt(sum of squared errors / sum of squared values)
  // The number of tensors whose rows don't divide into the type's blocks, by the type that they got instead.
  std::map<DType, int> fallbacks;
};

// The usual names of mixes of tensor types: "Q8_0", "Q4_K_M", ...
const std::vector<std::string>& QuantizeTypes();

// The type that a mix gives a tensor. Vectors, routers and integer tensors keep theirs. As usual, attn_v and
// ffn_down get a finer type in some layers, and the output matrix always does. REQUIRES: a known type.
DType TypeFor(const std::string& type, const std::string& name, const TensorView& tensor, int layers, bool tied);

// Reads `in` (a GGUF file) and writes `out`. kInvalidArgument: an unknown type, quantized weights without requantize,
// or an `out` that NewFile refuses; kUnavailable: the file can't be written.
StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& options);

}  // namespace gyre
