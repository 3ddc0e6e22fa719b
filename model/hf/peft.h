// Adapters in the form of Hugging Face's PEFT: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/mapped_file.h"
#include "model/tensor_table.h"

namespace gyre {

struct PeftAdapter {
  TensorTable tensors;                  // under GGUF's names: "blk.3.attn_q.weight.lora_a" and "... .lora_b"
  std::map<std::string, float> scales;  // of "blk.3.attn_q.weight"
  std::vector<std::shared_ptr<const MappedFile>> files;  // the tensors' file and the other one
};

// `path`: a folder, or a file NAME.safetensors, beside which NAME.json or adapter_config.json is. Errors name file and
// key or tensor. kNotFound; kDataLoss; kUnimplemented: it is no LoRA adapter, or changes more than products of
// matrices.
StatusOr<PeftAdapter> ReadPeft(const std::string& path);

}  // namespace gyre
