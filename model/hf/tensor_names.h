// What Hugging Face's tensors are called in GGUF.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gyre {

// nullopt: the name is not known. "": it is no part of a language model (a vision tower, buffers). `after_attention`:
// HfArchitecture's.
std::optional<std::string> GgufName(std::string_view name, bool after_attention);

// A tensor of the block that predicts further tokens, where it has names of its own ("mtp.").
bool IsDraftName(std::string_view name);

// One expert's matrix by GGUF's older names, as in "blk.3.ffn_up.7.weight".
struct ExpertTensor {
  std::string all;  // the tensor that holds all of them: "blk.3.ffn_up_exps.weight"
  int expert = 0;
};
std::optional<ExpertTensor> ParseExpertName(std::string_view gguf_name);

}  // namespace gyre
