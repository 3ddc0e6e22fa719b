// Arguments of ops that the inner loops of every instruction set read too. Constants and plain data only, so that no
// code of one instruction set can be linked into another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gyre {

enum class RopePairing : uint8_t { kInterleaved, kHalves };  // rotated pairs: (2i, 2i + 1) | (i, i + half)

// The choice of experts in a mixture: Shazeer et al. 2017, with the variants of Mixtral, Qwen and DeepSeek-V3.
struct RouterParams {
  size_t count = 0, used = 0;  // experts, and those of each row
  // Not 0: SparseMixer (Liu et al. 2023) without its training part, as Phi-3.5-MoE has it; then only count, used and
  // scale count. Experts are taken one after the other, the best score first. The weight of each is its softmax among
  // the scores s that are still there and near: (best - s) / max(|s|, best) <= near.
  float near = 0;
  bool sigmoid = false;                // of a score, as an expert's worth; otherwise softmax
  bool normalize = false;              // the weights of those used add up to `scale`
  float scale = 1;                     // on the weights
  size_t groups = 1, used_groups = 1;  // only experts of the best groups can be chosen
};

// All exact, without tables. kClampedSwiglu is gpt-oss's, of a gated block only: with g = min(gate, 7) and u = up
// within -7 and 7 it is g * sigmoid(1.702 g) * (u + 1). kReluSquared: max(x, 0)^2 (So et al. 2021, Primer). kGelu: x
// times the normal distribution's function (Hendrycks and Gimpel 2016), of which kGeluTanh is an approximation.
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu, kSigmoid, kReluSquared, kGelu, kRelu };

// An activation with numbers that are learned: Huang and Schlag 2024, xIELU. For x > 0 it is positive * x^2 + beta * x,
// otherwise negative * (exp(min(x, eps)) - 1 - x) + beta * x.
struct XieluParams {
  float positive = 0, negative = 0, beta = 0, eps = 0;
  bool operator==(const XieluParams&) const = default;
};

// Rows [first, first + count) of a step are consecutive positions of one sequence, whose recurrent state is `state`:
// the state before the first of them, and after the op that after the last. Runs share no rows and no state.
struct StateRun {
  float* state = nullptr;
  size_t first = 0, count = 0;
};

// A causal convolution of each channel with weights of its own. Kept are its last taps - 1 inputs.
struct ShortConvParams {
  size_t channels = 0, taps = 0;
  const float* w = nullptr;     // [taps][channels]; the last one is for the row itself
  const float* bias = nullptr;  // [channels], or null
  bool silu = false;            // on the sum
  size_t state_at = 0;          // floats from StateRun::state to the inputs [taps - 1][channels], oldest first
  // So many convolutions of the same inputs, with weights w [outputs][taps][channels]; the result of each begins
  // output_step floats behind that of the one before.
  size_t outputs = 1, output_step = 0;
};

// The step of a decay gate, of x with its bias: log(1 + exp(x)), or 1 / (1 + exp(-x)).
enum class DecayStep : uint8_t { kSoftplus, kSigmoid };

// Linear attention with decay. The state of a value head is a matrix S [key_dim][value_dim]. Plain, this is Mamba-2
// (Dao and Gu 2024: k = B, q = C); with the delta rule a Gated DeltaNet (Yang et al. 2024).
struct StateScanParams {
  size_t key_heads = 0, value_heads = 0;  // value_heads is a multiple of key_heads
  size_t key_dim = 0, value_dim = 0;
  bool interleaved = false;    // value head j has key head j % key_heads; otherwise j / (value_heads / key_heads)
  bool channel_decay = false;  // each row of S has a decay of its own (Kimi Delta Attention: Kimi Team 2025; Mamba-1)
  bool delta = false;          // what is written is beta (v - S^T k) instead of beta v, S^T k of the decayed state
  // S = decay S - replace (S^T remove)^T + k v^T: what is taken away has keys of its own (RWKV-7: Peng et al. 2025).
  // There is no beta then, nor the delta rule, nor a norm of keys.
  bool removal = false;
  float key_norm_eps = 0;       // not 0: each q and k is first divided by sqrt(sum of its squares + eps)
  const float* skip = nullptr;  // [value_heads]: skip * v is added to the result; null: nothing
  float scale = 1;              // of the result
  size_t state_at = 0;          // floats from StateRun::state to [value_heads][key_dim][value_dim]
  constexpr size_t Decays() const { return channel_decay ? key_dim : 1; }  // of a head
};
struct StateScanRows {
  const float *q, *k, *v;  // [rows][key_heads][key_dim], twice, and [rows][value_heads][value_dim]
  size_t stride;           // floats from one row of these to the next
  const float* decay;      // [rows][value_heads], with channel_decay [rows][value_heads][key_dim]
  const float* beta;       // [rows][value_heads]
  const float *remove = nullptr, *replace = nullptr;  // as k, for StateScanParams::removal
};

}  // namespace gyre
