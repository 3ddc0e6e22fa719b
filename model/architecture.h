// The types of the table of architectures, and the functions that make specs from it; for model/arch*.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/spec.h"

namespace gyre {

inline constexpr int64_t kMaxDim = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;

// The mixer that replaces attention, in some layers or all (arch_state.cc).
enum class MixerFamily : uint8_t {
  kAttention,
  kLatent,
  kDeltaNet,
  kKimiDelta,
  kMamba,
  kMamba2,
  kShortConvolution,
  kRwkv7
};

enum class Bias : uint8_t { kNone, kOptional, kRequired };

// An expert that every row goes through, in families with experts. Its width is stated, or counted in widths of an
// expert.
enum class SharedExpert : uint8_t {
  kGated,   // scaled by a gate; only with a stated width
  kPlain,   // without a gate
  kCounted  // as kPlain, only counted
};

// A feed-forward block without experts in a family that may have experts.
enum class DenseLayers : uint8_t {
  kLeading,   // the first leading_dense_block_count layers
  kByTensors  // those without a router
};

// The norms in front of mixer and feed-forward block.
enum class Norms : uint8_t {
  kRms,
  kLayer,        // LayerNorms
  kLayerBiased,  // with biases
  kLayerOrRms,   // as the epsilon's key says
};

// What the feed-forward block of a family sees.
enum class Residual : uint8_t {
  kSequential,  // the row after the mixer
  kParallel,    // the mixer's row under the mixer's norm
  kByNorms,     // that, but where a layer has a feed-forward norm: kSequential
  kSecondNorm,  // the mixer's row under the norm "attn_norm", where a layer has the norm "attn_norm_2" for the mixer
  kSwitched,    // as the key use_parallel_residual says, under a norm of its own
};

// The facts of one architecture that its metadata does not contain.
struct Architecture {
  const char* name;
  RopePairing pairing;
  Activation activation = Activation::kSilu;
  Bias qkv_bias = Bias::kNone;
  QkNorm qk_norm = QkNorm::kNone;
  bool optional_qk_norm = false;  // only where a layer has its tensors
  bool qk_centered = false;       // AttentionSpec's, as the next one
  bool norm_after_rope = false;
  bool output_bias = false;
  OutputGate output_gate = OutputGate::kNone;
  Norms norms = Norms::kRms;
  Residual residual = Residual::kSequential;
  bool gated = true;  // DenseSpec's, as the next one
  bool biases = false;
  bool xielu = false;   // DenseSpec::xielu, one for each layer
  bool limits = false;  // gates have limits, one for each layer
  bool head_bias = false;
  bool positions = false;   // a table of positions, and no rotation
  int alibi_layers = 0;     // a model of so many layers has linear biases in place of a rotation
  bool half_width = false;  // the feed-forward length counts gate and up together
  bool sinks = false;
  bool optional_sinks = false;  // where a layer has their tensor
  bool pre_norms = true;
  bool post_norms = false;
  bool residual_norms = false;               // LayerSpec's; "attn_output_norm" and "layer_output_norm"
  bool optional_mixer_norm = false;          // a layer may have no norm before its mixer
  bool encoder = false;                      // ModelSpec's
  bool bare_post_norms = false;              // post-norms' tensors have no ".weight" in their names
  const char* ffn_norm = "ffn_norm.weight";  // the tensor of the norm before the feed-forward block
  bool scaled_embedding = false;             // the embedding is multiplied by sqrt(dim)
  bool final_softcap = false;                // logits have a softcap if the metadata gives it
  bool softcaps = false;                     // attention and logits have softcaps, which the metadata gives
  int global_every = 0;           // n: layers n, 2n, ... attend to everything, the others in a window. 0: all are alike
  bool global_first = false;      // with global_every: layers 0, n, 2n, ... attend to everything
  bool global_no_rope = false;    // where some layers have a window, those without one do not rotate
  bool dense_ropes = false;       // but those without experts do
  bool half_global_rope = false;  // they rotate half as many elements, and those with a window by plain frequencies
  int chunk = 0;                  // the window of layers, in which chunks of so many positions do not see each other
  bool optional_window = false;   // a file without a window has none in any layer
  double local_rope_base = 0;     // windowed layers have this base and no scaling; 0: they rotate as all others
  bool local_heads = false;       // windowed layers have a head size and a rotation of their own
  bool unit_scale = false;        // scores are not divided by anything
  bool value_norm = false;
  bool values_from_keys = false;  // a layer without a window may have no tensor for values
  bool output_scale = false;      // a layer may scale its output
  bool plain_local_rope = false;  // windowed layers have the others' base and no scaling
  int no_rope_every = 0;          // n: layers n, 2n, ... do not rotate
  bool yarn_fractions = false;    // yarn's ramp ends between two pairs; otherwise it is rounded outwards
  bool yarn_log_multiplier = false;
  bool temperature = false;  // queries grow with their position
  bool value_width = false;  // heads of values may have another width than those of keys, and a scale
  bool scales = false;       // scales of embedding, residuals, scores and logits, and a switch for the rotation
  bool scales_by_size =
      false;                  // where a file lacks the keys of the first two and the last, the model's sizes give them
  bool logit_factor = false;  // logits are multiplied by logit_scale
  int wide_layers = 0;        // a model of so many layers scales by dim / heads in place of the head's size
  bool experts = false;       // a file may have experts
  RouterScore router = RouterScore::kSoftmax;
  bool normalize_experts = true;
  const char* choice_bias = nullptr;  // its tensor
  bool expert_biases = false;         // the router has one too
  float near = 0;                     // RouterParams::near
  bool router_sees_input = false;     // ExpertSpec's, as the next one
  bool weight_on_input = false;
  float sum_scale = 1;  // ExpertSpec's, where there is a shared expert
  SharedExpert shared = SharedExpert::kGated;
  int shared_experts = 0;  // where the file neither states nor counts them
  DenseLayers dense = DenseLayers::kLeading;
  bool beside_dense = false;          // experts stand beside a dense block
  bool streams = false;               // several streams, residuals beside mixers, and gates that may be sparse
  bool per_layer_embeddings = false;  // and layers that read earlier layers' keys and values
  bool drafts = false;                // the last layers may be for drafts
  MixerFamily mixers = MixerFamily::kAttention;
  bool one_part_layers = false;  // a layer is a mixer or a feed-forward block
  bool side_by_side = false;     // each block of the file attends and has state: two layers (LayerSpec::same_input)
  bool mixers_only = false;      // there are no feed-forward blocks, nor attention
  bool plamo = false;            // MambaSpec's
  bool state_norms = false;      // MambaSpec::norm_weights
  bool no_rope = false;          // attention does not see positions
  // A position may have several parts (M-RoPE), which are equal in a text; then pairs are as RopePairing::kHalves.
  bool rope_sections = false;
  bool joint_gates = false;  // DeltaNetSpec::joint_gates, and heads are consecutive
  bool indexer = false;      // it chooses what rows attend to: only texts that it leaves whole are computed
};

template <typename T>
StatusOr<T> Required(StatusOr<std::optional<T>> value, const std::string& key) {
  if (!value.ok()) return value.status();
  if (!value->has_value()) return DataLoss("key {} is missing", key);
  return **value;
}

// Reads keys that begin with "<architecture>.", and remembers which ones: some of the others must have values that
// change nothing.
class Keys {
 public:
  Keys(const Gguf& gguf, std::string arch) : gguf_(gguf), arch_(std::move(arch)) {}
  // Returns the key's full name and counts it as read.
  std::string Name(const char* key) const {
    read_.insert(key);
    return arch_ + "." + key;
  }
  bool WasRead(const char* key) const { return read_.count(key) > 0; }

  StatusOr<int> Int(const char* key, int64_t max) const {
    GYRE_ASSIGN_OR_RETURN(const int64_t v, Required(gguf_.Int(Name(key), 1, max), Name(key)));
    return static_cast<int>(v);
  }
  StatusOr<int> Int(const char* key, int64_t max, int fallback) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Int(Name(key), 1, max));
    return v ? static_cast<int>(*v) : fallback;
  }
  // Returns 0 if the key is missing.
  StatusOr<int> Count(const char* key, int64_t max) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Int(Name(key), 0, max));
    return static_cast<int>(v.value_or(0));
  }
  StatusOr<std::vector<int64_t>> PerLayer(const char* key, size_t layers, int64_t max) const {
    return Required(gguf_.Ints(Name(key), layers, 1, max), Name(key));
  }
  StatusOr<double> Positive(const char* key, std::optional<double> fallback) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Float(Name(key)));
    if (!v && !fallback) return DataLoss("key {} is missing", Name(key));
    const double value = v ? *v : *fallback;
    if (!(value > 0) || !(static_cast<float>(value) > 0) || value > std::numeric_limits<float>::max())
      return DataLoss("key {} is {}, expected a positive number", Name(key), value);
    return value;
  }
  // Returns a finite number; `fallback` if the key is missing.
  StatusOr<double> Number(const char* key, double fallback) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Float(Name(key)));
    if (v && !std::isfinite(*v)) return DataLoss("key {} is {}, expected a finite number", Name(key), *v);
    return v.value_or(fallback);
  }
  bool Has(const char* key) const { return gguf_.Has(Name(key)); }
  // Whether the number under the key, or one of the numbers, is not 0.
  bool HasNonZero(const char* key) const {
    const auto it = gguf_.metadata().find(Name(key));
    return it != gguf_.metadata().end() &&
           std::any_of(it->second.bytes.begin(), it->second.bytes.end(), [](std::byte b) { return b != std::byte{0}; });
  }

 private:
  const Gguf& gguf_;
  const std::string arch_;
  mutable std::unordered_set<std::string> read_;
};

// The input for a spec: a file, its family, and the caller's options.
struct SpecSource {
  const Gguf& gguf;
  const Keys& keys;
  const Architecture& arch;
  size_t blocks = 0;  // the file's, with those that are not read
  int context = 0;    // positions that are wanted
};

// Sets the norms of all layers, and of the end (arch_layers.cc).
Status ReadNorms(const SpecSource& from, LayerSpec* layer, ModelSpec* spec);

// The rotation of layers (arch_rope.cc). `trained`: the file's context. `base_key`: the key of its base.
StatusOr<RopeSpec> ReadRope(const SpecSource& from, int head_dim, int trained, const char* base_key = "rope.freq_base");

// The attention facts that all layers without a window have in common (arch_layers.cc).
StatusOr<AttentionSpec> ReadAttention(const SpecSource& from, const ModelSpec& spec, size_t layers, int heads);
Status CheckHeads(size_t layer, const AttentionSpec& a);

// ReadLayers of families whose mixers are not all attention (arch_state.cc).
Status ReadOtherLayers(const SpecSource& from, size_t layers, ModelSpec* spec);

// Appends `layers` layers to spec->layers and sets final_norm_eps. The other fields of the spec are already set
// (arch_layers.cc).
Status ReadLayers(const SpecSource& from, size_t layers, ModelSpec* spec);

}  // namespace gyre
