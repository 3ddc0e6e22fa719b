// Checked views of a model's tensors, by layer; every file format fills the same slots.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kernels/quant.h"
#include "model/adapter.h"
#include "model/layer_tensors.h"
#include "model/made_tensor.h"
#include "model/spec.h"

namespace gyre {

struct FfnWeights {
  WeightView gate, up, down;
};

// The tensors of a layer, by slot; empty (a matrix: n = 0) if the spec has none.
struct LayerWeights {
  std::array<std::vector<float>, kSlots> vectors;  // norms, biases and the like, expanded to f32
  std::array<WeightView, kSlots> matrices;
  std::vector<FfnWeights> experts;
  std::vector<std::vector<LowRankWeights>> adapters;  // of each of the model's adapters
  std::vector<MadeTensor::Bytes> made;                // what views point to that no file has

  const std::vector<float>& vector(Slot slot) const { return vectors[Index(slot)]; }
  const WeightView& matrix(Slot slot) const { return matrices[Index(slot)]; }
};

// Calls fn for each matrix that the layer has.
template <typename Fn>
void ForEachMatrix(const LayerWeights& w, Fn fn) {
  auto call = [&](const WeightView& v) {
    if (v.n > 0) fn(v);
  };
  for (const WeightView& v : w.matrices) call(v);
  for (const FfnWeights& e : w.experts) {
    for (const WeightView* v : {&e.gate, &e.up, &e.down}) call(*v);
  }
  for (const auto& adapter : w.adapters) {
    for (const LowRankWeights& p : adapter) call(p.a), call(p.b);
  }
}

struct HeadWeights {
  std::vector<float> final_norm, final_norm_bias, bias;  // empty where there are none
  WeightView output;                                     // the embedding where tied; n = 0: an encoder has none
};

// [dim] each: what is added to an encoder's embeddings, and their norm; empty where there are none.
struct EmbeddingVectors {
  std::vector<float> token_type, norm, norm_bias;
};

// The weights of the layer for drafts (ModelSpec::mtp).
struct MtpWeights {
  LayerWeights layer;
  std::vector<float> embedding_norm, hidden_norm, head_norm;
  WeightView join;       // [dim][2 dim]: of a token's embedding and a hidden state, both under their norms
  WeightView embedding;  // the model's, unless it has its own
  WeightView output;     // n = 0: it has none of its own
};

class MappedFile;
class TensorTable;
class Tokenizer;

// The chat templates that come with a model.
struct ChatTemplates {
  std::string text;   // "" = none
  std::string tools;  // takes its place in chats with tools; "" = it serves these too
  std::string note;   // why there is none, although there are several; "" else
};
// GGUF's key of the template for chats with tools; that of the other is tokenizer.chat_template.
inline constexpr const char* kToolTemplateKey = "tokenizer.chat_template.tool_use";

// Settings of sampling that the model's maker recommends, by the names of the sampling options ("top_p"); those that
// were not given are absent.
using RecommendedSampling = std::map<std::string, double, std::less<>>;

// An opened model file: spec, tensors, tokenizer. Immutable after Open; thread-safe. Views point into it.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual const std::string& path() const = 0;
  // xxHash64 of the header, sampled content and size; equal files give equal hashes. For .bin models the rope base and
  // the epsilon count too, as the file has neither: equal hashes mean the same function.
  virtual uint64_t content_hash() const = 0;
  // Every lookup states name, shape and type; an error names the tensor, the value and the expected one.
  virtual StatusOr<LayerWeights> Layer(int layer) const = 0;
  virtual StatusOr<WeightView> Embedding() const = 0;
  virtual StatusOr<HeadWeights> Head() const = 0;
  // The table of positions [spec().positions][dim]. REQUIRES: positions > 0.
  virtual StatusOr<WeightView> Positions() const = 0;
  // Each token's part of the per-layer embeddings [vocab][spec().per_layer_width]. REQUIRES: per_layer_width > 0.
  virtual StatusOr<WeightView> PerLayerTokens() const = 0;
  // Null if the file has none ("tokenizer.ggml.model" = none; .bin without tokenizer.bin).
  virtual const Tokenizer* tokenizer() const = 0;
  // Why tokenizer() is null, as "the file has no tokenizer"; "" if there is one.
  virtual const std::string& tokenizer_note() const = 0;
  virtual const ChatTemplates& chat_templates() const = 0;
  // The one for all chats, or "".
  const std::string& chat_template() const { return chat_templates().text; }
  // The file's keys general.sampling.*, or a folder's generation_config.json.
  virtual const RecommendedSampling& recommended_sampling() const = 0;
  virtual const TensorTable& tensors() const = 0;
  // Keys and values for people, in the file's order of keys; empty for .bin files.
  virtual std::vector<std::pair<std::string, std::string>> DescribeMetadata() const = 0;
  // True if all weights are F32, F16 or BF16, so that kernels multiply no integers.
  virtual bool float_weights() const = 0;
  // The mapped files that hold its tensors, in their order; none for a model from bytes.
  virtual std::vector<std::shared_ptr<const MappedFile>> files() const = 0;
  // The sum of their sizes.
  uint64_t file_bytes() const;
  // Those of OpenOptions, in their order. They count in content_hash().
  virtual const std::vector<std::shared_ptr<const Adapter>>& adapters() const = 0;
};

// A LoRA adapter that is opened with a model: what requests call it by, and a file or folder (docs/lora.md).
struct AdapterFile {
  std::string name, path;
};

struct OpenOptions {
  std::string tokenizer_path;  // .bin models: tokenizer.bin; "" = tok*.bin or tokenizer.bin beside the model if any
  double rope_base = 0;        // .bin models: 0 = 10000, or 500000 for a vocabulary of 128256
  double norm_eps = 0;         // .bin models: 0 = 1e-5
  int context = 0;             // positions that are wanted, where rope factors depend on it; 0 = the file's
  std::string quantization;    // "" = any; a model of another one is refused (CheckQuantization in model/quantize.h)
  std::vector<AdapterFile> adapters;
  // The content_hash of a model whose files lack parts, which read as zeros (weights/piece_store.h): then no content is
  // sampled, and there is no tokenizer.
  std::optional<uint64_t> known_hash;
};

// The bytes of matrices in the file: of a layer, and of the ends that a stage has beside its layers (the embedding,
// the output matrix; a tied one counts once).
StatusOr<size_t> LayerBytes(const Model& model, int layer);
StatusOr<size_t> EndBytes(const Model& model, bool first, bool last);
// The same of the layer for drafts and what stands around it, without the embedding, which is read in the file.
// kFailedPrecondition: the model has none.
StatusOr<size_t> MtpBytes(const Model& model);

// The marker beside files that lack parts. Without OpenOptions::known_hash they are refused: the gaps read as zeros.
inline constexpr char kPartialModelMarker[] = ".partial-model";

// Opens GGUF or llama2.c .bin by content, and Hugging Face's folders (or a .safetensors file in one). Looks up every
// layer's tensors once, so that a file with a missing or misshapen tensor fails here. Errors: kNotFound (no
// file), kDataLoss (corrupt), kUnimplemented (unknown architecture, type or value: the message lists those that are
// known).
StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path, const OpenOptions& options = {});
// Opens a model from bytes that outlive it and its views (fuzzing, tests); aligned to 8. `tokenizer_bytes`: of a
// tokenizer.bin.
StatusOr<std::shared_ptr<const Model>> OpenModelFromBytes(std::span<const std::byte> bytes,
                                                          const OpenOptions& options = {},
                                                          std::span<const std::byte> tokenizer_bytes = {});
// Opens only tokenizer and chat template; the file or folder may have no tensors. An error if there is no tokenizer:
// tokenizer() of the result is not null.
StatusOr<std::shared_ptr<const Model>> OpenVocabulary(const std::string& path, const OpenOptions& options = {});
// Opens the tokenizer of such a file.
StatusOr<std::shared_ptr<const Tokenizer>> OpenTokenizer(const std::string& path, const OpenOptions& options = {});
// The same from a GGUF file's bytes, which need not outlive the result.
StatusOr<std::shared_ptr<const Tokenizer>> TokenizerFromBytes(std::span<const std::byte> bytes);

}  // namespace gyre
