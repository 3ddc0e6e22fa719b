// A reader of safetensors: a JSON header with names, types, shapes and offsets, then the bytes. Source: the format's
// README (Hugging Face).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/quant.h"

namespace gyre {

struct SafeTensor {
  std::string dtype;            // "BF16", "F8_E4M3", ...
  std::vector<uint64_t> shape;  // slowest first
  std::span<const std::byte> bytes;
};

// The type of floats that a dtype names: F32, F16 or BF16; nullopt: another one.
std::optional<DType> FloatDType(std::string_view dtype);

// `metadata`, unless null, gets the texts of the file's "__metadata__". kDataLoss: an invalid header, a tensor outside
// the file, of another size than its shape, or over another one.
StatusOr<std::map<std::string, SafeTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                             std::map<std::string, std::string>* metadata = nullptr);

}  // namespace gyre
