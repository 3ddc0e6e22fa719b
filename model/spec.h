// The description of a model: one spec, read by the one forward pass, which branches on these fields, never on a name.
//
// A layer is a mixer, which lets rows of a sequence see each other, and a feed-forward block, which sees one row at a
// time. Both are variants of facts: a family combines them, and only a part that no other family has needs code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/kv_type.h"
#include "base/memory_counts.h"
#include "kernels/op_types.h"
#include "model/pooling.h"

namespace gyre {

struct RopeSpec {
  RopePairing pairing = RopePairing::kInterleaved;
  int dims = 0;  // rotated elements of a head, even; 0 = positions are not seen at all
  double base = 10000.0;
  std::vector<float> frequency_factors;  // [dims/2] divisors (rope_freqs.weight, a scaling), or empty
  float magnitude = 1;                   // factor on the rotated elements (yarn, longrope)
  bool operator==(const RopeSpec&) const = default;
};

enum class QkNorm : uint8_t {
  kNone,
  kHead,   // RMS norm of q and k over each head
  kRow,    // over all heads of a row together
  kHeads,  // over each head, which has weights of its own
  kUnit,   // over each head, without weights
};

// A sigmoid that scales the result of attention before its output matrix.
enum class OutputGate : uint8_t {
  kNone,
  kInQuery,   // of each element; q's rows are, per head, a query and a gate
  kElements,  // of each element, by a matrix of its own
  kHeads,     // of each head, by a matrix of its own
};

// Softmax attention with grouped queries.
struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;  // elements of a head's value; 0 = head_dim
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool qk_centered = false;      // the norms of q and k are LayerNorms
  bool norm_after_rope = false;  // otherwise q and k are rotated after their norm
  bool output_bias = false;
  OutputGate output_gate = OutputGate::kNone;
  bool sinks = false;         // AttentionParams::sinks
  bool value_norm = false;    // RMS norm of v over each head, without weights
  bool value_is_key = false;  // v is k before its norm and rope
  int kv_layer = -1;          // an earlier layer, whose keys and values this one reads; -1: it has its own
  float value_scale = 1;      // on the values
  int window = 0;             // 0 = full attention
  bool causal = true;         // otherwise rows see later ones too, in a window half of it to each side
  int chunk = 0;              // AttentionParams::chunk; 0 = none
  float scale = 0;            // on q.k
  float softcap = 0;          // 0 = none
  RopeSpec rope;
  // Queries at position p are multiplied by 1 + temperature * ln(1 + floor((p + temperature_offset) /
  // temperature_length)), after rope.
  float temperature = 0;
  int temperature_length = 1, temperature_offset = 0;
  int ValueDim() const { return value_dim == 0 ? head_dim : value_dim; }
  bool operator==(const AttentionSpec&) const = default;
};

// Multi-head latent attention: DeepSeek-V2 (2024). A position keeps kv_rank elements, from which keys and values of all
// heads follow, and rope.dims elements of one key that all heads share.
struct LatentAttentionSpec {
  int heads = 0;
  int q_rank = 0;  // 0 = queries come straight from the row
  int kv_rank = 0;
  int key_dim = 0;      // elements of a head's key that are not rotated
  int value_dim = 0;    // elements of a head's value
  float scale = 0;      // on q.k
  RopeSpec rope;        // of the last elements of a query, and of the shared key
  bool rotates = true;  // otherwise the rotation's elements are used as they are
  bool operator==(const LatentAttentionSpec&) const = default;
};

// Linear attention with the gated delta rule: Yang et al. 2024, as Qwen3-Next has it.
struct DeltaNetSpec {
  int kernel = 0;  // positions that the convolution sees
  int key_heads = 0;
  int value_heads = 0;  // a multiple of key_heads
  int head_dim = 0;     // of keys and of values
  // Value head j reads key head j / (value_heads / key_heads); otherwise j % key_heads.
  bool consecutive = false;
  // beta and alpha are one tensor: for each key head those of its value heads.
  bool joint_gates = false;
  bool operator==(const DeltaNetSpec&) const = default;
};

// Linear attention with the delta rule and a decay for each element of a key: Kimi Team 2025 (Kimi Linear).
struct KimiDeltaSpec {
  int kernel = 0;  // positions that the convolutions of queries, keys and values see
  int heads = 0;
  int head_dim = 0;  // of keys and of values
  bool operator==(const KimiDeltaSpec&) const = default;
};

// A selective state space whose inputs and steps follow from what the convolution gives: Gu and Dao 2023 (Mamba), and
// PLaMo 2's with a step for each head.
struct MambaSpec {
  int kernel = 0;  // positions that the convolution sees
  int inner = 0;   // width, a multiple of heads
  int state = 0;   // elements of state for each element of the width
  int rank = 0;    // of the steps before their matrix
  int heads = 0;   // steps; as many as the width in Mamba
  bool conv_bias = false;
  bool norms = false;         // RMS norms of the steps, and of B and C
  bool norm_weights = false;  // they have weights
  bool plamo = false;         // order of the rows: per head gate and input, and B, C, step; the norms have bare names
  // Of Mamba's state, in which each element of the width decays by its own numbers.
  bool own_decays() const { return heads == inner; }
  bool operator==(const MambaSpec&) const = default;
};

// A selective state space: Dao and Gu 2024 (Mamba-2).
struct Mamba2Spec {
  int kernel = 0;  // positions that the convolution sees
  int inner = 0;   // width, a multiple of heads and of groups
  int state = 0;   // elements of state for each element of a head
  int heads = 0;
  int groups = 0;  // heads of a group share B and C, and a norm
  bool norm = true;
  bool operator==(const Mamba2Spec&) const = default;
};

// A gated convolution over few positions, as LFM2 has it.
struct ShortConvolutionSpec {
  int kernel = 0;  // positions that it sees
  bool operator==(const ShortConvolutionSpec&) const = default;
};

// RWKV-7's time mixing: Peng et al. 2025. Its inputs are mixtures of a row and the row before; matrices in two parts of
// low rank make the decay of each element of a key, the rate at which what a key had is replaced, the share of the
// first layer's values, and the gate.
struct TimeMixSpec {
  int heads = 0;
  int head_dim = 0;  // of keys and of values
  int decay_rank = 0, rate_rank = 0, value_rank = 0, gate_rank = 0;
  bool first = false;  // its values are those that later layers share (ModelSpec::carries_values)
  bool operator==(const TimeMixSpec&) const = default;
};

// RWKV-7's channel mixing: down(relu(up x)^2) of a mixture x of a row and the row before.
struct ChannelMixSpec {
  int width = 0;
  bool operator==(const ChannelMixSpec&) const = default;
};

struct NoMixer {
  bool operator==(const NoMixer&) const = default;
};
using MixerSpec = std::variant<AttentionSpec, LatentAttentionSpec, DeltaNetSpec, KimiDeltaSpec, MambaSpec, Mamba2Spec,
                               ShortConvolutionSpec, TimeMixSpec, ChannelMixSpec, NoMixer>;

// Backend::Ffn's limits; 0 = none.
struct GateLimits {
  float gate = 0, up = 0;
  bool operator==(const GateLimits&) const = default;
};

struct DenseSpec {
  int width = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;                 // down(act(gate x) * (up x)); otherwise down(act(up x))
  bool biases = false;               // on the products of up and down
  std::optional<XieluParams> xielu;  // of a block without gate, in place of the activation
  GateLimits limits;
  // Not 0: of a row's gate only what is above its mean by more than so many standard deviations counts, less those.
  float sparsity = 0;
  bool operator==(const DenseSpec&) const = default;
};

enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

// A mixture of experts: Shazeer et al. 2017, as Mixtral, Qwen and DeepSeek have it.
struct ExpertSpec {
  int count = 0;
  int used = 0;   // of them, for each row
  int width = 0;  // of one
  RouterScore score = RouterScore::kSoftmax;
  bool router_bias = false;  // on the router's products
  bool choice_bias = false;  // added to the scores where experts are chosen, not in their weights
  std::string_view choice_bias_name = "exp_probs_b.bias";  // in the file
  float near = 0;                                          // RouterParams::near
  bool router_sees_input = false;                          // the layer's input, in place of the block's
  bool weight_on_input = false;                            // the one expert's weight scales what goes into it
  bool normalize = false;                                  // the weights of those used add up to 1
  float scale = 1;                                         // on the weights
  int groups = 1;  // only experts of the `used_groups` best groups can be chosen
  int used_groups = 1;
  Activation activation = Activation::kSilu;
  bool gated = true;         // as DenseSpec's
  bool biases = false;       // on an expert's products
  int shared_width = 0;      // of an expert that every row goes through; 0 = none
  bool shared_gate = false;  // a sigmoid of the row scales it
  float sum_scale = 1;       // on experts and shared expert together
  GateLimits limits, shared_limits;
  // Gemma 4's: the shared expert is a dense block beside the experts. Each of the two has norms of its own, the router
  // sees the row under a norm of its own, and every expert's output has a scale.
  bool beside_dense = false;
  bool operator==(const ExpertSpec&) const = default;
};

struct NoFeedForward {
  bool operator==(const NoFeedForward&) const = default;
};
using FeedForwardSpec = std::variant<DenseSpec, ExpertSpec, NoFeedForward>;

// A layer's piece of a per-layer embedding: Gemma 3n's and 4's per-layer embeddings. All pieces follow from a row's
// token alone, and are not part of the row.
struct PerLayerEmbeddingSpec {
  int width = 0;  // of the piece; 0 = the layer has none
  int number = 0;
  int pieces = 0;  // of the model
  bool operator==(const PerLayerEmbeddingSpec&) const = default;
};

struct LayerSpec {
  MixerSpec mixer;
  FeedForwardSpec feed_forward;
  float norm_eps = 0;
  bool layer_norms = false;  // all of them are LayerNorms
  bool norm_biases = false;
  bool pre_norms = true;  // norms of what goes into mixer and feed-forward block
  // The mixer sees the normed row that the mixer of the layer before saw, on the same stage: both are one block of the
  // file, in which attention and state stand side by side.
  bool same_input = false;
  // Mixer and feed-forward block see the same row, and both are added to it.
  bool parallel = false;
  bool mixer_norm = true;       // otherwise the mixer sees the row itself
  bool shared_norm = false;     // of a parallel layer: the feed-forward block has no norm, and sees what the mixer sees
  bool post_norms = false;      // norms on their outputs, before the residual
  bool residual_norms = false;  // norms of the row when mixer or feed-forward block is added to it, by the same names
  std::string_view mixer_norm_name = "attn_norm.weight";  // of the mixer's pre-norm, in the file
  std::string_view ffn_norm_name = "ffn_norm.weight";     // of the feed-forward block's
  std::string_view mixer_post_norm_name = "post_attention_norm.weight", ffn_post_norm_name = "post_ffw_norm.weight";
  int streams = 0;              // 0: a row is one; otherwise ModelSpec's, which worker/streams.h mixes
  bool carries_values = false;  // ModelSpec's
  int laurel_rank = 0;       // of a low-rank residual beside the mixer (LAuReL: Menghani et al. 2024); 0: there is none
  float residual_scale = 1;  // on what mixer and feed-forward block add to the row
  PerLayerEmbeddingSpec side;  // it is added to the row behind the feed-forward block
  bool output_scale = false;   // a number of the file, on the row after the layer
  int kv_group = kPageGroup;   // layers of a group share a block table
  bool operator==(const LayerSpec&) const = default;

  // Each returns null if the layer has another kind.
  const AttentionSpec* attention() const { return std::get_if<AttentionSpec>(&mixer); }
  AttentionSpec* attention() { return std::get_if<AttentionSpec>(&mixer); }
  const DenseSpec* dense() const { return std::get_if<DenseSpec>(&feed_forward); }
  const ExpertSpec* experts() const { return std::get_if<ExpertSpec>(&feed_forward); }
  ExpertSpec* experts() { return std::get_if<ExpertSpec>(&feed_forward); }
};

struct ModelSpec {
  std::string architecture;  // for people only
  std::string name;
  int dim = 0;
  int streams = 1;  // rows of so many times dim elements go from layer to layer
  // Behind the row itself go the values of the first layer, of dim elements, from layer to layer.
  bool carries_values = false;
  int vocab = 0;
  int context = 0;  // the file's default; passing it warns
  float embedding_scale = 1;
  int most_context = 0;  // what is computed holds for no longer texts; 0 = for any
  int positions = 0;     // rows of a table that is added to embeddings by their position; 0 = there is none
  // It makes vectors of texts, and no text: there is no output matrix, and a text's rows see each other in both
  // directions, so they are in one step.
  bool encoder = false;
  std::optional<Pooling> pooling;   // how a text becomes a vector, as the file says
  std::vector<std::string> labels;  // of a reranker's classifier (model/classifier.h); empty: there is none
  // Embeddings (of an encoder, of RWKV) go through a norm of the layers' kind, with the final norm's epsilon. Where the
  // model has types of tokens, the vector of the first type is added before.
  bool embedding_norm = false, token_types = false;
  bool embedding_norm_bias = false;
  bool final_norm = true;  // otherwise the last layer's rows are the hidden states
  float final_norm_eps = 0;
  bool final_layer_norm = false;  // it is a LayerNorm
  bool final_norm_bias = false;
  bool head_bias = false;   // on the products of the output matrix
  float logit_scale = 1;    // on the logits
  float final_softcap = 0;  // 0 = none
  bool tied_head = false;   // the embedding matrix is the output matrix
  bool indexer = false;     // the file has tensors of an indexer, which are not read
  int draft_layers = 0;     // of the file, behind these: they predict several tokens ahead
  // The first of them, whose keys and values are pages like others; without one the note says why there is none. Its
  // number is that behind the last layer's (docs/speculation.md, MTP).
  std::optional<LayerSpec> mtp;
  std::string mtp_note = "the file has no layer for drafts (nextn)";
  // The number of tables of a sequence (docs/memory.md): pages 1, with slots of recurrent state 2, with a window 3.
  int kv_groups = 1;
  bool has_slots = false;
  int window = 0;  // the largest of the layers in kWindowGroup; 0: there are none
  std::string_view final_norm_name = "output_norm.weight";  // in the file
  int layers_per_block = 1;  // layers whose tensors have the same number in their names, "blk.N."
  int per_layer_width = 0;  // of all layers' per-layer embeddings together; the ids of tokens then travel with the rows
  std::vector<LayerSpec> layers;

  // The KV elements (K and V together) that one position takes in a layer.
  static size_t KvElems(const LayerSpec& l) {
    if (const auto* latent = std::get_if<LatentAttentionSpec>(&l.mixer))
      return static_cast<size_t>(latent->kv_rank) + static_cast<size_t>(latent->rope.dims);
    const AttentionSpec* a = l.attention();
    if (a == nullptr || a->kv_layer >= 0) return 0;
    return static_cast<size_t>(a->kv_heads) * static_cast<size_t>(a->head_dim + a->ValueDim());
  }
  // The recurrent state of one sequence in a layer, in floats: the rows of its convolution, and its matrices.
  struct StateSize {
    size_t channels = 0, taps = 0;  // the last taps - 1 inputs of each channel
    size_t matrices = 0;
    size_t floats() const { return channels * (taps == 0 ? 0 : taps - 1) + matrices; }
  };
  static StateSize StateOf(const LayerSpec& l, int dim) {
    auto size = [](int n) { return static_cast<size_t>(n); };
    if (const auto* d = std::get_if<DeltaNetSpec>(&l.mixer)) {
      return {.channels = size(2 * d->key_heads + d->value_heads) * size(d->head_dim),
              .taps = size(d->kernel),
              .matrices = size(d->value_heads) * size(d->head_dim) * size(d->head_dim)};
    }
    if (const auto* k = std::get_if<KimiDeltaSpec>(&l.mixer)) {
      return {.channels = 3 * size(k->heads) * size(k->head_dim),
              .taps = size(k->kernel),
              .matrices = size(k->heads) * size(k->head_dim) * size(k->head_dim)};
    }
    if (const auto* m = std::get_if<MambaSpec>(&l.mixer)) {
      return {.channels = size(m->inner), .taps = size(m->kernel), .matrices = size(m->inner) * size(m->state)};
    }
    if (const auto* m = std::get_if<Mamba2Spec>(&l.mixer)) {
      return {.channels = size(m->inner) + 2 * size(m->groups) * size(m->state),
              .taps = size(m->kernel),
              .matrices = size(m->inner) * size(m->state)};
    }
    if (const auto* c = std::get_if<ShortConvolutionSpec>(&l.mixer)) {
      return {.channels = size(dim), .taps = size(c->kernel), .matrices = 0};
    }
    if (const auto* t = std::get_if<TimeMixSpec>(&l.mixer)) {
      return {.channels = size(dim), .taps = 2, .matrices = size(t->heads) * size(t->head_dim) * size(t->head_dim)};
    }
    if (std::holds_alternative<ChannelMixSpec>(l.mixer)) return {.channels = size(dim), .taps = 2, .matrices = 0};
    return {};
  }
  // The bytes of a unit of memory in a layer, 0 where it keeps nothing.
  uint64_t UnitBytes(const LayerSpec& l, KvType type, uint32_t block_size) const {
    return KindOf(l.kv_group).paged ? KvBytes(type, KvElems(l) * block_size) : StateOf(l, dim).floats() * sizeof(float);
  }
  // The bytes of a unit of each kind in all layers; with_mtp: in the layer for drafts, too.
  KvBytesByGroup UnitBytes(KvType type, uint32_t block_size, bool with_mtp = false) const {
    KvBytesByGroup bytes{};
    if (with_mtp && mtp) bytes[kPageGroup] += UnitBytes(*mtp, type, block_size);
    for (const LayerSpec& l : layers) bytes[static_cast<size_t>(l.kv_group)] += UnitBytes(l, type, block_size);
    return bytes;
  }
  // The layer with this number, the one for drafts too. REQUIRES: there is one.
  const LayerSpec& LayerOf(int layer) const {
    const auto i = static_cast<size_t>(layer);
    return i < layers.size() ? layers[i] : *mtp;
  }
  // The elements of a row between layers.
  int RowElems() const { return dim * (streams + (carries_values ? 1 : 0)); }
  // The number of a layer in its tensors' names.
  int BlockOf(int layer) const { return layer / layers_per_block; }
  // The first of the layers that must be on the stage of this one, as it reads what they made; the layer itself: none.
  int JoinedFrom(int layer) const {
    const LayerSpec& l = layers[static_cast<size_t>(layer)];
    const AttentionSpec* a = l.attention();
    return a != nullptr && a->kv_layer >= 0 ? a->kv_layer : l.same_input ? layer - 1 : layer;
  }
  // Assigns each layer to its KV group. REQUIRES: the layers have their mixers.
  void AssignKvGroups();
};

}  // namespace gyre
