// The GGUF names of Hugging Face's tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gyre {

// nullopt: the name is unknown. "": it is not part of a language model (a vision tower, buffers). `after_attention`:
// the field of HfArchitecture.
std::optional<std::string> GgufName(std::string_view name, bool after_attention);

// Whether a tensor belongs to the block that predicts further tokens, if that has names of its own ("mtp.").
bool IsDraftName(std::string_view name);

// One expert's matrix under GGUF's older names, as in "blk.3.ffn_up.7.weight".
struct ExpertTensor {
  std::string all;  // the tensor that holds all of them: "blk.3.ffn_up_exps.weight"
  int expert = 0;
};
std::optional<ExpertTensor> ParseExpertName(std::string_view gguf_name);

}  // namespace gyre
