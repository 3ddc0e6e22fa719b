// What a model is: one spec, read by the one forward pass, which branches on these fields and never on a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kv_type.h"
#include "kernels/ops.h"

namespace gyre {

struct RopeSpec {
  RopePairing pairing = RopePairing::kInterleaved;
  int dims = 0;  // rotated elements of a head, even
  double base = 10000.0;
  std::vector<float> frequency_factors;  // [dims/2] divisors (rope_freqs.weight, a scaling), or empty
  float magnitude = 1;                   // factor on the rotated elements (yarn, longrope)
  bool operator==(const RopeSpec&) const = default;
};

// A mixture of experts in place of the feed-forward block: Shazeer et al. 2017, as Mixtral and Qwen have it.
struct ExpertSpec {
  int count = 0;           // 0: the layer is dense
  int used = 0;            // of them, for each row
  int ffn = 0;             // width of one
  bool normalize = false;  // the weights of those used add up to 1
  float scale = 1;         // on the weights
  bool operator==(const ExpertSpec&) const = default;
};

struct LayerSpec {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;  // with experts: width of the shared one, 0 = none
  ExpertSpec experts;
  float norm_eps = 0;
  bool qk_norm = false;  // RMS norm of q and k per head, before rope
  bool qkv_bias = false;
  bool post_norms = false;      // norms on the outputs of attention and ffn, before the residual
  int window = 0;               // 0 = full attention
  float attention_scale = 0;    // on q.k
  float attention_softcap = 0;  // 0 = none
  Activation activation = Activation::kSilu;
  RopeSpec rope;
  int kv_group = 0;  // layers of a group share a block table
  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string architecture;  // for people only
  std::string name;
  int dim = 0;
  int vocab = 0;
  int context = 0;  // the file's default; passing it warns
  float embedding_scale = 1;
  float final_norm_eps = 0;
  float final_softcap = 0;  // 0 = none
  bool tied_head = false;   // the embedding matrix is the output matrix
  int kv_groups = 1;
  std::vector<LayerSpec> layers;

  // KV elements (K and V together) one position takes in a layer.
  static size_t KvElems(const LayerSpec& l) {
    return 2 * static_cast<size_t>(l.kv_heads) * static_cast<size_t>(l.head_dim);
  }
  // Bytes of KV cache that one position takes in all layers.
  uint64_t KvBytesPerToken(KvType type) const {
    uint64_t elems = 0;
    for (const LayerSpec& layer : layers) elems += KvElems(layer);
    return KvBytes(type, elems);
  }
};

}  // namespace gyre
