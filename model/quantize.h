// Quantizes a model file: writes it with another type of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/importance.h"
#include "model/mapped_file.h"
#include "model/weights.h"

namespace gyre {

struct QuantizeOptions {
  std::string type;  // of QuantizeTypes(), in either case; "" = each tensor keeps its own
  int threads = 1;
  std::vector<std::string> tensor_types;  // PATTERN=TYPE: tensors whose name has the regular expression get the type
  Importance importance;                  // of the columns of tensors; may be empty
  std::map<std::string, std::vector<RowAddition>> additions;  // to rows of tensors, before they are quantized
  bool requantize = false;                                    // tensors that are quantized already are quantized again
  bool overwrite = false;  // an existing `out` is replaced; `in` and `sources` never are
  std::vector<std::shared_ptr<const MappedFile>> sources;  // beside `in`: what it was made of
  // Called with the bytes read, on the calling thread. Its error ends the work; then no file is left.
  std::function<Status(uint64_t done, uint64_t total)> progress;
};

struct QuantizeReport {
  uint64_t bytes_before = 0, bytes_after = 0;  // of all tensors
  double relative_error = 0;  // over all quantized tensors: sqrt(sum of squared errors / sum of squared values)
  int with_importance = 0;    // tensors that the importance matrix has
  // The number of tensors whose rows don't divide into the type's blocks, by the type that they got instead.
  std::map<DType, int> fallbacks;
  uint32_t block = 0;  // elements of the type's blocks
};

// The usual names of mixes of tensor types: "Q8_0", "Q4_K_M", ...
const std::vector<std::string>& QuantizeTypes();

// The usual name of a model's quantization, as "Q4_K_M": what the number of general.file_type means, or the type that
// takes the most bytes. "": there are no tensors.
std::string QuantizationName(std::optional<int64_t> file_type, const TensorTable& tensors);

// The same of an open model.
std::string QuantizationOf(const Model& model);
// kInvalidArgument: the model's weights are not those that `wanted` names, in either case: the name of a quantization,
// gguf, or a method of other engines, as fp8. The sentence begins with --quantization. "" names none.
Status CheckQuantization(const Model& model, const std::string& wanted);

// The type that a mix gives a tensor. Vectors, routers and integer tensors keep theirs. As usual, attn_v, ffn_down and
// attn_output get a finer type in some mixes, in all or some layers, and the output matrix in most. REQUIRES: a known
// type.
DType TypeFor(const std::string& type, const std::string& name, const TensorView& tensor, int layers, bool tied);

// Reads `in` (a GGUF file) and writes `out`. kInvalidArgument: an unknown type, quantized weights without requantize,
// an importance matrix of another shape, or an `out` that NewFile refuses; kUnavailable: the file can't be written.
StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& options);

}  // namespace gyre
