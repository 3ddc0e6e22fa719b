// A model file in another type of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

struct QuantizeOptions {
  std::string type;  // of QuantizeTypes()
  int threads = 1;
  bool requantize = false;                                      // weights that are quantized already, too
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes read; on the calling thread
};

struct QuantizeReport {
  uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double relative_error = 0;                   // of what was quantized: root of squared error over squared values
  std::vector<std::string> fallbacks;  // tensors whose rows don't divide into blocks of the type, and what they got
};

// "Q8_0", "Q4_K_M", ...: the names that the field gives to mixes of tensor types.
const std::vector<std::string>& QuantizeTypes();

// The type that a mix gives a tensor: matrices of the layers and of the ends; vectors, routers and what is no float
// stay. Mixes as they are usual: the attention's values and the feed-forward's way down get a finer type in a part of
// the layers, the output matrix always. REQUIRES: a known type.
DType TypeFor(const std::string& type, const std::string& name, const TensorView& tensor, int layers, bool tied);

// Reads `in` (a GGUF file) and writes `out`. kInvalidArgument: an unknown type, or quantized weights without
// requantize; kUnavailable: the file can't be written.
StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& options);

}  // namespace gyre
