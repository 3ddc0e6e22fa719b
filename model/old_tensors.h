// Tensors that older GGUF files have in one piece, under today's names.
#pragma once

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

// Replaces deepseek2's attn_kv_b by attn_k_b and attn_v_b, and qwen3next's ssm_in by attn_qkv and attn_gate. Their
// bytes are made when a layer is read. kDataLoss: a key is missing, or the shape is another one.
Status SplitOldTensors(Gguf* gguf);

}  // namespace gyre
