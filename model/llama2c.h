// Readers of the .bin files of llama2.c and LEAP: v0 (f32, no magic), v1 (f32), v2 (int8 groups); and tokenizer.bin.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace gyre {

struct Llama2cFile {
  int version = 0;
  ModelSpec spec;
  TensorTable tensors;  // GGUF's names; v2: int8 with scales
};

// kDataLoss names the field or the offset, the value and the expected one. Views point into `file`.
StatusOr<Llama2cFile> ParseLlama2c(std::span<const std::byte> file, const OpenOptions& options);

}  // namespace gyre
