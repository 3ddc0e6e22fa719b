// OpenModel: every format becomes one spec, one table of tensors and one tokenizer.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include <xxhash.h>

#include "base/counted.h"
#include "base/log.h"
#include "base/step.h"
#include "model/arch.h"
#include "model/bpe.h"
#include "model/foreign_file.h"
#include "model/gguf.h"
#include "model/hf/folder.h"
#include "model/hf/json_file.h"
#include "model/layer_reader.h"
#include "model/llama2c.h"
#include "model/mapped_file.h"
#include "model/old_tensors.h"
#include "model/quantize.h"
#include "model/quoted.h"
#include "model/recommended_sampling.h"
#include "model/rwkv_tokenizer.h"
#include "model/split_file.h"
#include "model/spm.h"
#include "model/tensor_table.h"
#include "model/tokenizer.h"
#include "model/tokenizer_bin.h"
#include "model/unigram.h"
#include "model/weights.h"
#include "model/word_piece.h"

namespace gyre {
namespace {

class OpenedModel : public Model {
 public:
  const ModelSpec& spec() const override { return spec_; }
  const std::string& path() const override { return path_; }
  uint64_t content_hash() const override { return hash_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  const ChatTemplates& chat_templates() const override { return templates_; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const { return tokenizer_; }
  const std::string& tokenizer_note() const override { return tokenizer_note_; }
  const RecommendedSampling& recommended_sampling() const override { return sampling_; }
  const TensorTable& tensors() const override { return gguf_ ? gguf_->tensors() : bin_.tensors; }
  std::vector<std::shared_ptr<const MappedFile>> files() const override { return hf_ ? hf_->files : files_; }

  std::vector<std::pair<std::string, std::string>> DescribeMetadata() const override {
    std::vector<std::pair<std::string, std::string>> out;
    if (gguf_) {
      for (const auto& [key, value] : gguf_->metadata()) out.emplace_back(key, DescribeValue(value));
    }
    return out;
  }

  bool float_weights() const override {
    for (const auto& [name, t] : tensors().all()) {
      if (t.type != DType::kF32 && t.type != DType::kF16 && t.type != DType::kBF16) return false;
    }
    return true;
  }

  StatusOr<LayerWeights> Layer(int layer) const override {
    GYRE_ASSIGN_OR_RETURN(LayerWeights w, ReadLayer(tensors(), spec_, layer, nullptr));
    for (const auto& adapter : adapters_) w.adapters.push_back(adapter->Layer(layer, &w.made));
    return w;
  }
  const std::vector<std::shared_ptr<const Adapter>>& adapters() const override { return adapters_; }

  StatusOr<WeightView> Embedding() const override { return ReadEmbedding(tensors(), spec_); }
  StatusOr<HeadWeights> Head() const override { return ReadHead(tensors(), spec_); }
  StatusOr<WeightView> Positions() const override { return ReadPositions(tensors(), spec_); }
  StatusOr<WeightView> PerLayerTokens() const override { return ReadPerLayerTokens(tensors(), spec_); }

  // `parts`: the parts of a split file that follow `bytes`.
  Status Open(std::span<const std::byte> bytes, const OpenOptions& options, std::span<const Gguf> parts = {}) {
    size_t header_bytes = 256;
    if (IsGguf(bytes)) {
      GYRE_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(bytes));
      gguf_ = std::move(gguf);
      GYRE_ASSIGN_OR_RETURN(const auto count, gguf_->Int("split.count", 0, kMaxSplitParts));
      if (static_cast<size_t>(std::max<int64_t>(count.value_or(0), 1)) != parts.size() + 1) {
        return InvalidArgument("part 1 of {}: the others are needed too, under their names", *count);
      }
      for (const Gguf& part : parts) GYRE_RETURN_IF_ERROR(gguf_->AddTensors(part));
      header_bytes = gguf_->data_offset();
      GYRE_RETURN_IF_ERROR(SplitOldTensors(&*gguf_));
      GYRE_ASSIGN_OR_RETURN(spec_, SpecFromGguf(*gguf_, options.context));
      sampling_ = ReadRecommendedSampling(*gguf_);
    } else {
      StatusOr<Llama2cFile> bin = ParseLlama2c(bytes, options);
      if (!bin.ok()) {
        const std::string foreign = DescribeForeignFile(bytes);
        if (!foreign.empty()) return InvalidArgument("{}", foreign);
        if (!absl::IsDataLoss(bin.status())) return bin.status();
        return Annotate(bin.status(), "neither a GGUF file nor a llama2.c .bin");
      }
      bin_ = *std::move(bin);
      spec_ = bin_.spec;
    }
    GYRE_RETURN_IF_ERROR(CheckTensors(tensors(), spec_));
    SayDrafts();
    if (options.known_hash) {
      hash_ = *options.known_hash;
      return absl::OkStatus();
    }
    hash_ = tensors().SampledHash(bytes.first(std::min(header_bytes, bytes.size())), bytes.size());
    MixInRopeFactors();
    if (!gguf_) {
      const double beyond_the_file[] = {spec_.layers[0].attention()->rope.base,
                                        static_cast<double>(spec_.final_norm_eps)};
      hash_ = XXH64(beyond_the_file, sizeof beyond_the_file, hash_);
    }
    return absl::OkStatus();
  }

  // Opens a folder of Hugging Face's format.
  Status Open(std::unique_ptr<HfFolder> folder, const OpenOptions& options) {
    hf_ = std::move(folder);
    gguf_ = Gguf::FromParts(hf_->metadata.values(), hf_->tensors);
    GYRE_ASSIGN_OR_RETURN(spec_, SpecOf(*hf_, options.context));
    sampling_ = ReadRecommendedSampling(*gguf_);
    GYRE_RETURN_IF_ERROR(CheckTensors(tensors(), spec_));
    SayDrafts();
    if (hf_->draft_tensors > 0)
      Log(LogLevel::kInfo, "{} for drafts (mtp.*) and not read",
          Counted(static_cast<uint64_t>(hf_->draft_tensors), "tensor is", "tensors are"));
    if (options.known_hash) {
      hash_ = *options.known_hash;
      return absl::OkStatus();
    }
    const auto config = std::as_bytes(std::span(hf_->config));
    hash_ = tensors().SampledHash(config, config.size());
    MixInRopeFactors();
    return OpenHfVocabulary(hf_->vocabulary);
  }

  // Reads only the tokenizer and the chat template of such a folder, which may lack the weights.
  Status OpenOnlyTokenizer(const std::string& folder) {
    const std::filesystem::path config_path = std::filesystem::path(folder) / "config.json";
    std::error_code error;
    boost::json::object config;
    if (std::filesystem::exists(config_path, error)) {
      GYRE_ASSIGN_OR_RETURN(config, ReadJsonFile(config_path));
    }
    GYRE_ASSIGN_OR_RETURN(const HfVocabulary vocabulary, ReadHfVocabulary(folder, config, 0));
    return OpenHfVocabulary(vocabulary);
  }

  Status OpenGgufTokenizer() {
    GYRE_ASSIGN_OR_RETURN(const auto chat, gguf_->String("tokenizer.chat_template"));
    GYRE_ASSIGN_OR_RETURN(const auto tools, gguf_->String(kToolTemplateKey));
    templates_ = {.text = chat.value_or(""), .tools = tools.value_or("")};
    GYRE_ASSIGN_OR_RETURN(const auto kind, gguf_->String("tokenizer.ggml.model"));
    if (!kind || *kind == "none") {
      tokenizer_note_ =
          "the file has no tokenizer: key tokenizer.ggml.model is " + std::string(kind ? "none" : "missing");
      return absl::OkStatus();
    }
    const auto read = *kind == "llama"    ? SpmFromGguf
                      : *kind == "gemma4" ? MergedSpmFromGguf
                      : *kind == "gpt2"   ? BpeFromGguf
                      : *kind == "t5"     ? UnigramFromGguf
                      : *kind == "bert"   ? WordPieceFromGguf
                      : *kind == "rwkv"   ? RwkvTokenizerFromGguf
                                          : nullptr;
    if (read == nullptr) {
      tokenizer_note_ = fmt::format(
          "its tokenizer is of the kind \"{}\", known are \"llama\", \"gemma4\", \"gpt2\", \"t5\", \"bert\" and "
          "\"rwkv\"",
          Printable(*kind));
      return absl::OkStatus();
    }
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, read(*gguf_));
    if (!spec_.layers.empty() && tokenizer->size() > spec_.vocab) {
      return DataLoss("the tokenizer has {} tokens, the embedding {} rows", tokenizer->size(), spec_.vocab);
    }
    SetTokenizer(std::move(tokenizer));
    return absl::OkStatus();
  }

  Status OpenBinTokenizer(std::span<const std::byte> bytes) {
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, TokenizerFromBin(bytes, spec_.vocab));
    SetTokenizer(std::move(tokenizer));
    return absl::OkStatus();
  }
  void NoTokenizer(std::string note) { tokenizer_note_ = std::move(note); }

  // Opens the adapters, once the model's own file is opened.
  Status OpenAdapters(const OpenOptions& options) {
    if (options.adapters.size() > kMaxAdapters)
      return InvalidArgument("{} adapters, a model has at most {}", options.adapters.size(), kMaxAdapters);
    for (const AdapterFile& file : options.adapters) {
      GYRE_ASSIGN_OR_RETURN(auto adapter, Adapter::Open(file.name, file.path, spec_, !options.known_hash));
      const uint64_t content = adapter->content_hash();
      if (!options.known_hash) hash_ = XXH64(&content, sizeof content, hash_);
      adapters_.push_back(std::move(adapter));
    }
    return absl::OkStatus();
  }

  bool is_gguf() const { return gguf_.has_value(); }
  void Keep(std::vector<std::shared_ptr<const MappedFile>> files, std::string path) {
    files_ = std::move(files);
    path_ = std::move(path);
  }
  // Reads only the tokenizer of a GGUF file.
  Status OpenOnlyTokenizer(std::span<const std::byte> bytes) {
    GYRE_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(bytes));
    gguf_ = std::move(gguf);
    return OpenGgufTokenizer();
  }

 private:
  void SayDrafts() const {
    if (spec_.draft_layers == 0) return;
    Log(LogLevel::kInfo, "{} for drafts",
        Counted(static_cast<uint64_t>(spec_.draft_layers), "layer behind the model's is",
                "layers behind the model's are"));
  }
  Status OpenHfVocabulary(const HfVocabulary& v) {
    templates_ = v.templates;
    tokenizer_note_ = v.tokenizer_note;
    if (!v.tokenizer) return absl::OkStatus();
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, MakeTokenizer(*v.tokenizer));
    SetTokenizer(std::move(tokenizer));
    return absl::OkStatus();
  }
  // A file may have two sets of factors; the wanted context decides which one is used.
  void MixInRopeFactors() {
    if (!tensors().Has("rope_factors_long.weight")) return;
    for (const LayerSpec& l : spec_.layers) {
      if (l.attention() == nullptr) continue;
      const auto& factors = l.attention()->rope.frequency_factors;
      hash_ = XXH64(factors.data(), factors.size() * sizeof(float), hash_);
      break;
    }
  }
  void SetTokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    tokenizer_note_.clear();
  }
  std::string path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::unique_ptr<HfFolder> hf_;
  std::optional<Gguf> gguf_;
  Llama2cFile bin_;
  ModelSpec spec_;
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  uint64_t hash_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  RecommendedSampling sampling_;
  ChatTemplates templates_;
  std::string tokenizer_note_ = "the file has no tokenizer";
};

// The path of tokenizer.bin, or of the only tok*.bin, beside a .bin model; "" if there is none.
std::string FindTokenizerBin(const std::string& model_path) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(model_path).parent_path();
  std::error_code error;
  if (fs::exists(dir / "tokenizer.bin", error)) return (dir / "tokenizer.bin").string();
  std::vector<std::string> found;
  for (fs::directory_iterator it(dir.empty() ? "." : dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind("tok", 0) == 0 && it->path().extension() == ".bin") found.push_back(it->path().string());
  }
  return found.size() == 1 ? found[0] : "";
}

Status OpenTokenizerFor(OpenedModel& model, const std::string& path, const OpenOptions& options) {
  if (model.is_gguf()) return model.OpenGgufTokenizer();
  const std::string file = !options.tokenizer_path.empty() ? options.tokenizer_path : FindTokenizerBin(path);
  if (file.empty()) {
    model.NoTokenizer("no tokenizer.bin lies beside it (--tokenizer FILE names one)");
    return absl::OkStatus();
  }
  GYRE_ASSIGN_OR_RETURN(const auto bytes, MappedFile::Open(file));
  const Status status = Annotate(model.OpenBinTokenizer(bytes->bytes()), file);
  if (status.ok() || !options.tokenizer_path.empty()) return status;
  // The user did not name this file, and it may belong to another model, so this is no error.
  model.NoTokenizer(Message(status));
  return absl::OkStatus();
}

// An error if a file's name ends in .gguf and it is none; the message says what the file is instead.
Status CheckName(const std::string& path, std::span<const std::byte> bytes) {
  if (!path.ends_with(".gguf") || IsGguf(bytes)) return absl::OkStatus();
  return Gguf::Parse(bytes).status();
}

// An error for files of a cache of weights that has only some of the layers.
Status CheckWhole(const std::string& path) {
  std::error_code error;
  const std::filesystem::path p(path), folder = std::filesystem::is_directory(p, error) ? p : p.parent_path();
  if (!std::filesystem::exists(folder / kPartialModelMarker, error)) return absl::OkStatus();
  return FailedPrecondition("{}: only the layers that a worker fetched are in it", path);
}

// The folder that `path` names, directly or by a .safetensors file in it; "" if it is neither.
std::string HfFolderOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path;
  const std::filesystem::path p(path);
  if (p.extension() != ".safetensors") return "";
  return p.has_parent_path() ? p.parent_path().string() : ".";
}

// The hash reads a part of each tensor, and the system maps more beside it: all of this would stay in memory, also for
// layers of other nodes.
void DropSamples(const Model& model) {
  for (const auto& file : model.files()) file->Drop(file->bytes());
  for (const auto& adapter : model.adapters()) {
    for (const auto& file : adapter->files()) file->Drop(file->bytes());
  }
}

}  // namespace

uint64_t Model::file_bytes() const {
  uint64_t sum = 0;
  for (const auto& file : files()) sum += file->bytes().size();
  return sum;
}

StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path, const OpenOptions& options) {
  if (!options.known_hash) GYRE_RETURN_IF_ERROR(CheckWhole(path));
  if (const std::string folder = HfFolderOf(path); !folder.empty()) {
    GYRE_ASSIGN_OR_RETURN(auto hf, OpenHfFolder(folder));
    auto model = std::make_shared<OpenedModel>();
    model->Keep({}, path);
    GYRE_RETURN_IF_ERROR(Annotate(model->Open(std::move(hf), options), path));
    GYRE_RETURN_IF_ERROR(model->OpenAdapters(options));
    GYRE_RETURN_IF_ERROR(CheckQuantization(*model, options.quantization));
    DropSamples(*model);
    return std::shared_ptr<const Model>(std::move(model));
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> names, PartsOf(path));
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<Gguf> parts;
  for (const std::string& name : names) {
    GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(name));
    files.push_back(std::move(file));
    if (names.size() == 1) break;
    StatusOr<Gguf> part = Gguf::Parse(files.back()->bytes());
    Status status = part.status();
    if (status.ok()) status = CheckPart(*part, files.size() - 1, names.size());
    GYRE_RETURN_IF_ERROR(Annotate(status, name));
    parts.push_back(*std::move(part));
  }
  if (names.size() > 1) GYRE_RETURN_IF_ERROR(Annotate(CheckTogether(parts), path));
  GYRE_RETURN_IF_ERROR(Annotate(CheckName(path, files[0]->bytes()), path));
  auto model = std::make_shared<OpenedModel>();
  model->Keep(files, path);
  const std::span<const Gguf> further =
      parts.empty() ? std::span<const Gguf>() : std::span<const Gguf>(parts).subspan(1);
  GYRE_RETURN_IF_ERROR(Annotate(model->Open(files[0]->bytes(), options, further), path));
  if (!options.known_hash) GYRE_RETURN_IF_ERROR(Annotate(OpenTokenizerFor(*model, path, options), path));
  GYRE_RETURN_IF_ERROR(model->OpenAdapters(options));
  GYRE_RETURN_IF_ERROR(CheckQuantization(*model, options.quantization));
  DropSamples(*model);
  return std::shared_ptr<const Model>(std::move(model));
}

StatusOr<std::shared_ptr<const Model>> OpenModelFromBytes(std::span<const std::byte> bytes, const OpenOptions& options,
                                                          std::span<const std::byte> tokenizer_bytes) {
  auto model = std::make_shared<OpenedModel>();
  GYRE_RETURN_IF_ERROR(model->Open(bytes, options));
  if (model->is_gguf()) {
    GYRE_RETURN_IF_ERROR(model->OpenGgufTokenizer());
  } else if (!tokenizer_bytes.empty()) {
    GYRE_RETURN_IF_ERROR(model->OpenBinTokenizer(tokenizer_bytes));
  }
  return std::shared_ptr<const Model>(std::move(model));
}

StatusOr<std::shared_ptr<const Tokenizer>> TokenizerFromBytes(std::span<const std::byte> bytes) {
  OpenedModel model;
  GYRE_RETURN_IF_ERROR(model.OpenOnlyTokenizer(bytes));
  if (model.tokenizer() == nullptr) return FailedPrecondition("{}", model.tokenizer_note());
  return model.shared_tokenizer();
}

StatusOr<std::shared_ptr<const Model>> OpenVocabulary(const std::string& path, const OpenOptions& options) {
  auto model = std::make_shared<OpenedModel>();
  if (const std::string folder = HfFolderOf(path); !folder.empty()) {
    model->Keep({}, path);
    GYRE_RETURN_IF_ERROR(Annotate(model->OpenOnlyTokenizer(folder), path));
  } else {
    GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
    GYRE_RETURN_IF_ERROR(Annotate(CheckName(path, file->bytes()), path));
    model->Keep({file}, path);
    if (IsGguf(file->bytes())) {
      GYRE_RETURN_IF_ERROR(Annotate(model->OpenOnlyTokenizer(file->bytes()), path));
    } else {
      GYRE_RETURN_IF_ERROR(Annotate(model->Open(file->bytes(), options), path));
      GYRE_RETURN_IF_ERROR(Annotate(OpenTokenizerFor(*model, path, options), path));
    }
  }
  if (model->tokenizer() == nullptr) return FailedPrecondition("{}: {}", path, model->tokenizer_note());
  return std::shared_ptr<const Model>(std::move(model));
}

StatusOr<std::shared_ptr<const Tokenizer>> OpenTokenizer(const std::string& path, const OpenOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, OpenVocabulary(path, options));
  return std::shared_ptr<const Tokenizer>(model, model->tokenizer());
}

StatusOr<size_t> LayerBytes(const Model& model, int layer) {
  std::unordered_set<std::string> names;  // with it nothing is made
  GYRE_ASSIGN_OR_RETURN(const LayerWeights w, ReadLayer(model.tensors(), model.spec(), layer, &names));
  size_t sum = 0;
  ForEachMatrix(w, [&](const WeightView& v) { sum += v.bytes(); });
  for (const auto& adapter : model.adapters()) sum += adapter->LayerBytes(layer);
  return sum;
}

StatusOr<size_t> MtpBytes(const Model& model) {
  GYRE_ASSIGN_OR_RETURN(const MtpWeights w, ReadMtp(model.tensors(), model.spec()));
  size_t sum = w.join.bytes() + w.output.bytes();
  ForEachMatrix(w.layer, [&](const WeightView& v) { sum += v.bytes(); });
  return sum;
}

StatusOr<size_t> EndBytes(const Model& model, bool first, bool last) {
  size_t sum = 0;
  if (first) {
    GYRE_ASSIGN_OR_RETURN(const WeightView embedding, model.Embedding());
    sum += embedding.bytes();
    if (model.spec().positions > 0) {
      GYRE_ASSIGN_OR_RETURN(const WeightView positions, model.Positions());
      sum += positions.bytes();
    }
  }
  for (const bool at_end : {false, true}) {
    if (model.spec().streams == 1 || !(at_end ? last : first)) continue;
    GYRE_ASSIGN_OR_RETURN(const auto streams, ReadStreams(model.tensors(), model.spec(), at_end));
    for (const WeightView& w : streams) sum += w.bytes();
  }
  if (last && !(first && model.spec().tied_head)) {
    GYRE_ASSIGN_OR_RETURN(const HeadWeights head, model.Head());
    sum += head.output.bytes();
  }
  return sum;
}

}  // namespace gyre
