// The tensors of a layer by its spec's facts: one table, which loading, checks and sizes use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"

namespace gyre {

// The role of a tensor in the forward pass. A slot is always a vector or always a matrix.
enum class Slot : uint8_t {
  // Norms [dim] of the inputs of mixer and feed-forward block, and of their outputs.
  kMixerNorm,
  kMixerNormBias,
  kMixerPostNorm,
  kMixerPostNormBias,
  kFfnNorm,
  kFfnNormBias,
  kFfnPostNorm,
  kFfnPostNormBias,
  // Attention.
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kSinks,  // [heads]
  // Latent attention: the input of queries (then the rows of Slot::kQ come from it), and its norm; the latent that is
  // kept of a position, and its norm; the elements of the key that all heads share; each head's keys and values.
  kQueryLatent,
  kQueryLatentNorm,
  kLatent,
  kLatentNorm,
  kSharedKey,
  kKeyHeads,    // [heads][kv_rank][key_dim]
  kValueHeads,  // [heads][value_dim][kv_rank]
  // Layers with recurrent state (Slot::kO is their output).
  kStateIn,   // what the convolution sees
  kInGate,    // a factor of that
  kOutGate,   // of the output; also of attention
  kStep,      // gives the decay
  kBeta,      // what the delta rule writes of a difference
  kStepBeta,  // both, as DeltaNetSpec::joint_gates
  // Mamba's step, B and C from what the convolution gives, and their norms.
  kStateParams,
  kStepNorm,
  kWriteNorm,
  kReadNorm,
  // Of matrices in two parts, Slot::kStep and Slot::kOutGate, the first.
  kStepLow,
  kOutGateLow,
  // [channels][taps]; Layer has it as [taps][channels], and so the next two. Of RWKV-7's mixing the shares of the row
  // before, [mixtures][channels]; Layer has [mixtures][2][channels].
  kConv,
  kKeyConv,  // of keys and values, where queries have kConv
  kValueConv,
  kConvBias,  // [channels]
  kStepBias,  // [heads]
  // RWKV-7 has no tensor for it: all elements of a key have the same number.
  kDecay,      // [heads] or, in Mamba's order, [width][state]; Layer has KimiDeltaSpec's as [heads][head_dim]
  kSkip,       // [heads]
  kStateNorm,  // of a head, or [groups][inner / groups]
  // RWKV-7's: the first and second parts and the biases of its rates and of its shares of the first values (those of
  // the
  // decay are kStepLow, kStep and kStepBias), factors on keys, and a norm's bias.
  kRateLow,
  kRate,
  kRateBias,
  kShareLow,
  kShare,
  kShareBias,
  kRemovalScale,   // [dim]: of a key, gives what is removed
  kRateScale,      // [dim]
  kBonus,          // [heads][head_dim]: how much of a row's own value a query sees
  kStateNormBias,  // [dim]
  // The dense block, or the expert that all rows share.
  kGate,
  kUp,
  kDown,
  kUpBias,      // [width]
  kDownBias,    // [dim]
  kSharedGate,  // [dim]: the sigmoid of its product with the row scales the shared expert
  // Experts.
  kRouter,      // [experts][dim]
  kRouterBias,  // [experts]
  kChoiceBias,  // [experts]
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertGateBias,  // [experts][width]
  kExpertUpBias,
  kExpertDownBias,  // [experts][dim]
  // Beside a dense block.
  kSharedPostNorm,  // [dim], as the next three
  kExpertsNorm,
  kExpertsPostNorm,
  kRouterScale,
  kExpertScales,  // [experts]
  kOutputScale,   // [1]: of the whole layer
  // The per-layer embedding, of `width` elements.
  kSideModel,      // [width][dim]: from the embedding
  kSideModelNorm,  // [width]
  kSideGate,       // [width][dim]
  kSideOut,        // [dim][width]
  kSidePostNorm,   // [dim]
  // A model with several streams has a router with a norm, matrices that turn the router's scores into weights of
  // predictions and of corrections, and a scale of the first stream before the per-layer embedding.
  kStreamRouter,  // [streams][dim]
  kStreamRouterNorm,
  kStreamPrediction,  // [streams][streams][streams]
  kStreamCorrection,  // [streams][streams]
  kStreamScale,       // [dim]
  // The residual beside the mixer: its two matrices, and the norm of what they make.
  kLaurelDown,
  kLaurelUp,
  kLaurelNorm,
  kGateShift,  // [width]: the layer's -DenseSpec::sparsity; no tensor
  kCount,
};
inline uint64_t Unsigned(int v) { return static_cast<uint64_t>(v); }
inline constexpr size_t kSlots = static_cast<size_t>(Slot::kCount);
constexpr size_t Index(Slot slot) { return static_cast<size_t>(slot); }

enum class TensorForm : uint8_t {
  kVector,   // expanded to f32, of whatever shape; never quantized
  kMatrix,   // W[n][k], in the file's type
  kRouter,   // a matrix that decides: never quantized
  kHeads,    // a matrix for each head, in one tensor
  kExperts,  // as many matrices as there are experts, in one tensor or in one each
};

// The axis along which several devices may share a tensor: each has some of its outputs (rows), inputs (columns) or
// experts. Outputs and inputs of attention are cut between key-value heads.
enum class CutAxis : uint8_t { kWhole, kOutputs, kInputs, kExperts };

struct TensorRow {
  std::string name;  // without "blk.3."
  Slot slot = Slot::kCount;
  TensorForm form = TensorForm::kVector;
  std::vector<uint64_t> dims;  // the file's: the fastest first. An expert's own, without their number
  CutAxis cut = CutAxis::kWhole;
  uint64_t heads = 1;      // of kHeads
  bool any_shape = false;  // of a vector: the file may have its elements in any dimensions
  // If all layers share a tensor without "blk.3.": the part of the rows, of so many equal ones, that is this layer's.
  int part = 0, parts = 0;  // 0 parts: the layer's own tensor
  std::string fused;        // the tensor that may hold its rows and those of the neighbours in this table; "" = none
};

// Every tensor of a layer with this spec, in a fixed order. REQUIRES: a checked spec.
std::vector<TensorRow> LayerTensors(const LayerSpec& layer, int dim);

}  // namespace gyre
