// The types of the table of architectures, and the functions that make specs from it; for model/arch*.cc.
#pragma once

#include <cmath>
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
enum class MixerFamily : uint8_t { kAttention, kLatent, kDeltaNet, kMamba2, kShortConvolution };

enum class Bias : uint8_t { kNone, kOptional, kRequired };

// The facts of one architecture that its metadata does not contain.
struct Architecture {
  const char* name;
  RopePairing pairing;
  Activation activation = Activation::kSilu;
  Bias qkv_bias = Bias::kNone;
  QkNorm qk_norm = QkNorm::kNone;
  bool optional_qk_norm = false;  // only where a layer has its tensors
  bool output_bias = false;
  bool sinks = false;
  bool pre_norms = true;
  bool post_norms = false;
  const char* ffn_norm = "ffn_norm.weight";  // the tensor of the norm before the feed-forward block
  bool scaled_embedding = false;             // the embedding is multiplied by sqrt(dim)
  bool final_softcap = false;                // logits have a softcap if the metadata gives it
  bool softcaps = false;                     // attention and logits have softcaps, which the metadata gives
  int global_every = 0;          // n: layers n, 2n, ... attend to everything, the others in a window. 0: all are alike
  bool optional_window = false;  // a file without a window has none in any layer
  double local_rope_base = 0;    // windowed layers have this base and no scaling; 0: they rotate as all others
  bool local_heads = false;      // windowed layers have a head size and a rotation of their own
  bool unit_scale = false;       // scores are not divided by anything
  bool value_norm = false;
  bool values_from_keys = false;  // a layer without a window may have no tensor for values
  bool output_scale = false;      // a layer may scale its output
  bool plain_local_rope = false;  // windowed layers have the others' base and no scaling
  int no_rope_every = 0;          // n: layers n, 2n, ... do not rotate
  bool yarn_fractions = false;    // yarn's ramp ends between two pairs; otherwise it is rounded outwards
  bool yarn_log_multiplier = false;
  bool temperature = false;  // queries grow with their position
  bool scales = false;       // scales of embedding, residuals, scores and logits, and a switch for the rotation
  int wide_layers = 0;       // a model of so many layers scales by dim / heads in place of the head's size
  bool experts = false;      // a file may have experts
  RouterScore router = RouterScore::kSoftmax;
  bool normalize_experts = true;
  bool choice_bias = false;
  bool expert_biases = false;         // the router has one too
  bool counted_shared = false;        // the shared expert is as wide as so many experts, and has no gate
  bool beside_dense = false;          // experts stand beside a dense block
  bool per_layer_embeddings = false;  // and layers that read earlier layers' keys and values
  bool drafts = false;                // the last layers may be for drafts
  MixerFamily mixers = MixerFamily::kAttention;
  bool one_part_layers = false;  // a layer is a mixer or a feed-forward block
  bool joint_gates = false;      // DeltaNetSpec::joint_gates, and heads are consecutive
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

// The rotation of layers without a window (arch_rope.cc). `trained`: the file's context.
StatusOr<RopeSpec> ReadRope(const SpecSource& from, int head_dim, int trained);

// The attention facts that all layers without a window have in common (arch_layers.cc).
StatusOr<AttentionSpec> ReadAttention(const SpecSource& from, const ModelSpec& spec, size_t layers, int heads);
Status CheckHeads(size_t layer, const AttentionSpec& a);

// ReadLayers of families whose mixers are not all attention (arch_state.cc).
Status ReadOtherLayers(const SpecSource& from, size_t layers, ModelSpec* spec);

// Appends `layers` layers to spec->layers and sets final_norm_eps. The other fields of the spec are already set
// (arch_layers.cc).
Status ReadLayers(const SpecSource& from, size_t layers, ModelSpec* spec);

}  // namespace gyre
