// A model file in another type of weights.
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
  // Told bytes read, on the calling thread. An error from it ends the work, and nothing is left behind.
  std::function<Status(uint64_t done, uint64_t total)> progress;
};

struct QuantizeReport {
  uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double relative_error = 0;                   // of what was quantized: root of squared error over squared values
  // Tensors whose rows don't divide into the type's blocks, by the type that they got instead.
  std::map<DType, int> fallbacks;
};

// "Q8_0", "Q4_K_M", ...: the names that the field gives to mixes of tensor types.
const std::vector<std::string>& QuantizeTypes();

// The type that a mix gives a tensor: matrices of the layers and of the ends; vectors, routers and what is no float
// stay. Mixes as they are usual: the attention's values and the feed-forward's way down get a finer type in a part of
// the layers, the output matrix always. REQUIRES: a known type.
DType TypeFor(const std::string& type, const std::string& name, const TensorView& tensor, int layers, bool tied);

// Reads `in` (a GGUF file) and writes `out`. kInvalidArgument: an unknown type, quantized weights without requantize,
// or an `out` that NewFile refuses; kUnavailable: the file can't be written.
StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& options);

}  // namespace gyre
