// OpenModel: whatever the format, one spec, one table of tensors, one tokenizer.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <unordered_set>

#include <xxhash.h>

#include "model/arch.h"
#include "model/bpe.h"
#include "model/foreign_file.h"
#include "model/gguf.h"
#include "model/hf/folder.h"
#include "model/llama2c.h"
#include "model/mapped_file.h"
#include "model/quoted.h"
#include "model/spm.h"
#include "model/tensor_table.h"
#include "model/tokenizer.h"
#include "model/tokenizer_bin.h"
#include "model/unigram.h"
#include "model/weights.h"

namespace gyre {
namespace {

bool IsGguf(std::span<const std::byte> bytes) { return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0; }

// The header whole, and the beginning of each tensor: what tells two files of the same shapes apart.
uint64_t HashContent(std::span<const std::byte> bytes, const TensorTable& tensors, size_t header_bytes) {
  constexpr size_t kSample = 64 << 10;
  // By name: expanded tensors lie wherever the heap put them.
  std::map<std::string_view, const TensorView*> order;
  for (const auto& [name, t] : tensors.all()) order.emplace(name, &t);
  const uint64_t size = bytes.size();
  uint64_t hash = XXH64(&size, sizeof size, 0);
  hash = XXH64(bytes.data(), std::min(header_bytes, bytes.size()), hash);
  for (const auto& [name, t] : order) hash = XXH64(t->data, std::min(kSample, t->bytes), hash);
  return hash;
}

// Rotary tables that old converters left in files.
bool EveryoneSkips(std::string_view name) {
  constexpr std::string_view kSuffix = ".attn_rot_embd.weight";
  return name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix;
}

std::string LayerTensor(int layer, const char* name) { return fmt::format("blk.{}.{}", layer, name); }

constexpr int64_t kMaxParts = 99999;

class OpenedModel : public Model {
 public:
  const ModelSpec& spec() const override { return spec_; }
  const std::string& path() const override { return path_; }
  uint64_t content_hash() const override { return hash_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  const std::string& chat_template() const override { return chat_template_; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const { return tokenizer_; }
  const std::string& tokenizer_note() const override { return tokenizer_note_; }
  const TensorTable& tensors() const override { return gguf_ ? gguf_->tensors() : bin_.tensors; }

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

  StatusOr<LayerWeights> Layer(int layer) const override { return ReadLayer(layer, nullptr); }

  StatusOr<WeightView> Embedding() const override {
    return tensors().Matrix("token_embd.weight", Unsigned(spec_.vocab), Unsigned(spec_.dim));
  }

  StatusOr<HeadWeights> Head() const override {
    HeadWeights head;
    GYRE_ASSIGN_OR_RETURN(head.final_norm, tensors().Vector("output_norm.weight", Unsigned(spec_.dim)));
    const char* name = spec_.tied_head ? "token_embd.weight" : "output.weight";
    GYRE_ASSIGN_OR_RETURN(head.output, tensors().Matrix(name, Unsigned(spec_.vocab), Unsigned(spec_.dim)));
    return head;
  }

  // `parts`: those of a split file that follow `bytes`.
  Status Open(std::span<const std::byte> bytes, const OpenOptions& options, std::span<const Gguf> parts = {}) {
    size_t header_bytes = 256;
    if (IsGguf(bytes)) {
      GYRE_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(bytes));
      gguf_ = std::move(gguf);
      GYRE_ASSIGN_OR_RETURN(const auto count, gguf_->Int("split.count", 0, kMaxParts));
      if (static_cast<size_t>(std::max<int64_t>(count.value_or(0), 1)) != parts.size() + 1) {
        return InvalidArgument("part 1 of {}: the others are needed too, under their names", *count);
      }
      for (const Gguf& part : parts) GYRE_RETURN_IF_ERROR(gguf_->AddTensors(part));
      header_bytes = gguf_->data_offset();
      GYRE_ASSIGN_OR_RETURN(spec_, SpecFromGguf(*gguf_, options.context));
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
    GYRE_RETURN_IF_ERROR(CheckTensors());
    hash_ = HashContent(bytes, tensors(), header_bytes);
    MixInRopeFactors();
    if (!gguf_) {
      const double beyond_the_file[] = {spec_.layers[0].rope.base, static_cast<double>(spec_.final_norm_eps)};
      hash_ = XXH64(beyond_the_file, sizeof beyond_the_file, hash_);
    }
    return absl::OkStatus();
  }

  // A folder of Hugging Face's.
  Status Open(std::unique_ptr<HfFolder> folder, const OpenOptions& options) {
    hf_ = std::move(folder);
    gguf_ = Gguf::FromParts(hf_->metadata.values(), hf_->tensors);
    GYRE_ASSIGN_OR_RETURN(spec_, SpecFromGguf(*gguf_, options.context));
    if (hf_->architecture.permuted) {
      for (LayerSpec& l : spec_.layers) l.rope.pairing = RopePairing::kHalves;
    }
    GYRE_RETURN_IF_ERROR(CheckTensors());
    const auto config = std::as_bytes(std::span(hf_->config));
    hash_ = HashContent(config, tensors(), config.size());
    MixInRopeFactors();
    chat_template_ = hf_->chat_template;
    tokenizer_note_ = hf_->tokenizer_note;
    if (!hf_->tokenizer) return absl::OkStatus();
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, MakeTokenizer(*hf_->tokenizer));
    SetTokenizer(std::move(tokenizer));
    return absl::OkStatus();
  }

  Status OpenGgufTokenizer() {
    GYRE_ASSIGN_OR_RETURN(const auto chat, gguf_->String("tokenizer.chat_template"));
    chat_template_ = chat.value_or("");
    GYRE_ASSIGN_OR_RETURN(const auto kind, gguf_->String("tokenizer.ggml.model"));
    if (!kind || *kind == "none") {
      tokenizer_note_ =
          "the file has no tokenizer: key tokenizer.ggml.model is " + std::string(kind ? "none" : "missing");
      return absl::OkStatus();
    }
    const auto read = *kind == "llama"  ? SpmFromGguf
                      : *kind == "gpt2" ? BpeFromGguf
                      : *kind == "t5"   ? UnigramFromGguf
                                        : nullptr;
    if (read == nullptr) {
      tokenizer_note_ = fmt::format("its tokenizer is of the kind \"{}\", known are \"llama\", \"gpt2\" and \"t5\"",
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

  bool is_gguf() const { return gguf_.has_value(); }
  void Keep(std::vector<std::shared_ptr<const MappedFile>> files, std::string path) {
    files_ = std::move(files);
    path_ = std::move(path);
  }
  // A GGUF file for its tokenizer only.
  Status OpenOnlyTokenizer(std::span<const std::byte> bytes) {
    GYRE_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(bytes));
    gguf_ = std::move(gguf);
    return OpenGgufTokenizer();
  }

 private:
  // Which of two there are in effect depends on the context that is wanted.
  void MixInRopeFactors() {
    if (!tensors().Has("rope_factors_long.weight")) return;
    const auto& factors = spec_.layers[0].rope.frequency_factors;
    hash_ = XXH64(factors.data(), factors.size() * sizeof(float), hash_);
  }
  void SetTokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    tokenizer_note_.clear();
  }
  static uint64_t Unsigned(int v) { return static_cast<uint64_t>(v); }

  // `used` collects the names looked up.
  StatusOr<LayerWeights> ReadLayer(int index, std::unordered_set<std::string>* used) const {
    if (index < 0 || static_cast<size_t>(index) >= spec_.layers.size()) {
      return InvalidArgument("layer {}, expected 0 to {}", index, spec_.layers.size() - 1);
    }
    const LayerSpec& l = spec_.layers[static_cast<size_t>(index)];
    const uint64_t dim = Unsigned(spec_.dim), head_dim = Unsigned(l.head_dim);
    const uint64_t q = Unsigned(l.heads) * head_dim, kv = Unsigned(l.kv_heads) * head_dim;
    LayerWeights w;
    auto named = [&](const char* name) {
      std::string full = LayerTensor(index, name);
      if (used != nullptr) used->insert(full);
      return full;
    };
    auto vector = [&](bool wanted, const char* name, uint64_t n, std::vector<float>* out) -> Status {
      if (!wanted) return absl::OkStatus();
      GYRE_ASSIGN_OR_RETURN(*out, tensors().Vector(named(name), n));
      return absl::OkStatus();
    };
    auto matrix = [&](const char* name, uint64_t n, uint64_t k, WeightView* out) -> Status {
      GYRE_ASSIGN_OR_RETURN(*out, tensors().Matrix(named(name), n, k));
      return absl::OkStatus();
    };
    // Several matrices in one tensor, the rows of one after those of the other.
    auto fused = [&](const char* name, uint64_t k,
                     std::initializer_list<std::pair<uint64_t, WeightView*>> parts) -> Status {
      uint64_t n = 0;
      for (const auto& [rows, out] : parts) n += rows;
      WeightView all;
      GYRE_RETURN_IF_ERROR(matrix(name, n, k, &all));
      n = 0;
      for (const auto& [rows, out] : parts) {
        *out = RowsOf(all, n, rows);
        n += rows;
      }
      return absl::OkStatus();
    };
    GYRE_RETURN_IF_ERROR(vector(true, "attn_norm.weight", dim, &w.attn_norm));
    GYRE_RETURN_IF_ERROR(vector(true, "ffn_norm.weight", dim, &w.ffn_norm));
    GYRE_RETURN_IF_ERROR(vector(l.post_norms, "post_attention_norm.weight", dim, &w.attn_post_norm));
    GYRE_RETURN_IF_ERROR(vector(l.post_norms, "post_ffw_norm.weight", dim, &w.ffn_post_norm));
    GYRE_RETURN_IF_ERROR(vector(l.qk_norm, "attn_q_norm.weight", head_dim, &w.q_norm));
    GYRE_RETURN_IF_ERROR(vector(l.qk_norm, "attn_k_norm.weight", head_dim, &w.k_norm));
    GYRE_RETURN_IF_ERROR(vector(l.qkv_bias, "attn_q.bias", q, &w.q_bias));
    GYRE_RETURN_IF_ERROR(vector(l.qkv_bias, "attn_k.bias", kv, &w.k_bias));
    GYRE_RETURN_IF_ERROR(vector(l.qkv_bias, "attn_v.bias", kv, &w.v_bias));
    auto has = [&](const char* name) { return tensors().Has(LayerTensor(index, name)); };
    if (has("attn_qkv.weight") || !(has("attn_q.weight") || has("attn_k.weight") || has("attn_v.weight"))) {
      GYRE_RETURN_IF_ERROR(fused("attn_qkv.weight", dim, {{q, &w.q}, {kv, &w.k}, {kv, &w.v}}));
    } else {
      GYRE_RETURN_IF_ERROR(matrix("attn_q.weight", q, dim, &w.q));
      GYRE_RETURN_IF_ERROR(matrix("attn_k.weight", kv, dim, &w.k));
      GYRE_RETURN_IF_ERROR(matrix("attn_v.weight", kv, dim, &w.v));
    }
    GYRE_RETURN_IF_ERROR(matrix("attn_output.weight", dim, q, &w.o));
    if (l.experts.count == 0) {
      const uint64_t ffn = Unsigned(l.ffn);
      const TensorView* up = tensors().Find(LayerTensor(index, "ffn_up.weight"));
      const bool both = up == nullptr || (up->dims.size() == 2 && up->dims[1] == 2 * ffn);
      if (!has("ffn_gate.weight") && both) {
        GYRE_RETURN_IF_ERROR(fused("ffn_up.weight", dim, {{ffn, &w.ffn.gate}, {ffn, &w.ffn.up}}));
      } else {
        GYRE_RETURN_IF_ERROR(matrix("ffn_gate.weight", ffn, dim, &w.ffn.gate));
        GYRE_RETURN_IF_ERROR(matrix("ffn_up.weight", ffn, dim, &w.ffn.up));
      }
      GYRE_RETURN_IF_ERROR(matrix("ffn_down.weight", dim, ffn, &w.ffn.down));
      return w;
    }
    const uint64_t experts = Unsigned(l.experts.count), ffn = Unsigned(l.experts.ffn);
    GYRE_RETURN_IF_ERROR(matrix("ffn_gate_inp.weight", experts, dim, &w.router));
    w.experts.resize(experts);
    // All in one tensor, or one by one, as older files and safetensors have them.
    auto each = [&](const std::string& name, uint64_t n, uint64_t k, WeightView FfnWeights::*part) -> Status {
      if (has((name + ".0.weight").c_str())) {
        for (uint64_t e = 0; e < experts; ++e) {
          GYRE_RETURN_IF_ERROR(matrix(fmt::format("{}.{}.weight", name, e).c_str(), n, k, &(w.experts[e].*part)));
        }
        return absl::OkStatus();
      }
      GYRE_ASSIGN_OR_RETURN(const WeightView all,
                            tensors().Matrices(named((name + "_exps.weight").c_str()), experts, n, k));
      for (uint64_t e = 0; e < experts; ++e) w.experts[e].*part = RowsOf(all, e * n, n);
      return absl::OkStatus();
    };
    GYRE_RETURN_IF_ERROR(each("ffn_gate", ffn, dim, &FfnWeights::gate));
    GYRE_RETURN_IF_ERROR(each("ffn_up", ffn, dim, &FfnWeights::up));
    GYRE_RETURN_IF_ERROR(each("ffn_down", dim, ffn, &FfnWeights::down));
    if (l.ffn > 0) {
      const uint64_t shared = Unsigned(l.ffn);
      GYRE_RETURN_IF_ERROR(vector(true, "ffn_gate_inp_shexp.weight", dim, &w.shared_gate));
      GYRE_RETURN_IF_ERROR(matrix("ffn_gate_shexp.weight", shared, dim, &w.ffn.gate));
      GYRE_RETURN_IF_ERROR(matrix("ffn_up_shexp.weight", shared, dim, &w.ffn.up));
      GYRE_RETURN_IF_ERROR(matrix("ffn_down_shexp.weight", dim, shared, &w.ffn.down));
    }
    return w;
  }

  // Every tensor that the spec names is there and right, and no other is: one that nothing reads would be a part of the
  // model silently left out.
  Status CheckTensors() const {
    std::unordered_set<std::string> used = {"token_embd.weight", "output_norm.weight", "rope_freqs.weight",
                                            "rope_factors_long.weight", "rope_factors_short.weight"};
    if (!spec_.tied_head) used.insert("output.weight");
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      GYRE_RETURN_IF_ERROR(ReadLayer(static_cast<int>(i), &used).status());
    }
    GYRE_RETURN_IF_ERROR(Embedding().status());
    GYRE_RETURN_IF_ERROR(Head().status());
    std::set<std::string_view> unread;
    for (const auto& [name, t] : tensors().all()) {
      if (used.count(name) == 0 && !EveryoneSkips(name)) unread.insert(name);
    }
    if (unread.empty()) return absl::OkStatus();
    std::string names;
    size_t named = 0;
    for (std::string_view name : unread) {
      if (++named > 4) break;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", Printable(name));
    }
    return Unimplemented("{} tensors have no place in the architecture {}: {}{}", unread.size(), spec_.architecture,
                         names, unread.size() > 4 ? ", ..." : "");
  }

  std::string path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::unique_ptr<HfFolder> hf_;
  std::optional<Gguf> gguf_;
  Llama2cFile bin_;
  ModelSpec spec_;
  uint64_t hash_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string chat_template_;
  std::string tokenizer_note_ = "the file has no tokenizer";
};

// tokenizer.bin, or the only tok*.bin, beside a .bin model.
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

// NAME-00002-of-00003.gguf: all parts in order, whichever is named. Any other name: itself.
StatusOr<std::vector<std::string>> PartsOf(const std::string& path) {
  constexpr size_t kTail = 20;  // "-00002-of-00003.gguf"
  auto number = [&](size_t at) {
    int v = 0;
    for (size_t i = at; i < at + 5; ++i) {
      if (path[i] < '0' || path[i] > '9') return -1;
      v = 10 * v + (path[i] - '0');
    }
    return v;
  };
  if (path.size() <= kTail) return std::vector<std::string>{path};
  const size_t at = path.size() - kTail;
  if (path[at] != '-' || path.compare(at + 6, 4, "-of-") != 0 || path.compare(at + 15, 5, ".gguf") != 0) {
    return std::vector<std::string>{path};
  }
  const int count = number(at + 10), own = number(at + 1);
  if (count < 1 || own < 1 || own > count) return std::vector<std::string>{path};
  std::vector<std::string> out;
  std::string missing;
  for (int i = 1; i <= count; ++i) {
    out.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, at), i, count));
    std::error_code error;
    if (!std::filesystem::exists(out.back(), error)) missing += (missing.empty() ? "" : ", ") + out.back();
  }
  if (!missing.empty()) return NotFound("parts of the model are missing: {}", missing);
  return out;
}

Status CheckPart(const Gguf& part, size_t index, size_t count) {
  GYRE_ASSIGN_OR_RETURN(const auto number, part.Int("split.no", 0, kMaxParts));
  GYRE_ASSIGN_OR_RETURN(const auto parts, part.Int("split.count", 0, kMaxParts));
  if (number && parts && static_cast<size_t>(*number) == index && static_cast<size_t>(*parts) == count)
    return absl::OkStatus();
  return DataLoss("inside it is part {} of {}, expected part {} of {}", number.value_or(0) + 1, parts.value_or(1),
                  index + 1, count);
}

// Parts of different models, or of different splits of one, do not add up.
Status CheckTogether(const std::vector<Gguf>& parts) {
  int64_t sum = 0;
  for (const Gguf& part : parts) sum += static_cast<int64_t>(part.tensors().all().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    GYRE_ASSIGN_OR_RETURN(const auto total, parts[i].Int("split.tensors.count", 0, INT32_MAX));
    if (!total || *total == sum) continue;
    return DataLoss("part {} belongs to a model of {} tensors, the parts have {} together", i + 1, *total, sum);
  }
  return absl::OkStatus();
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
  // Found, not asked for: it may belong to another model.
  model.NoTokenizer(Message(status));
  return absl::OkStatus();
}

// A file named so is not meant as another kind: kDataLoss or kInvalidArgument say what it is instead.
Status CheckName(const std::string& path, std::span<const std::byte> bytes) {
  if (!path.ends_with(".gguf") || IsGguf(bytes)) return absl::OkStatus();
  return Gguf::Parse(bytes).status();
}

// A folder, or a .safetensors file in one; "" otherwise.
std::string HfFolderOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path;
  const std::filesystem::path p(path);
  if (p.extension() != ".safetensors") return "";
  return p.has_parent_path() ? p.parent_path().string() : ".";
}

}  // namespace

StatusOr<std::shared_ptr<const Model>> OpenModel(const std::string& path, const OpenOptions& options) {
  if (const std::string folder = HfFolderOf(path); !folder.empty()) {
    GYRE_ASSIGN_OR_RETURN(auto hf, OpenHfFolder(folder));
    auto model = std::make_shared<OpenedModel>();
    model->Keep({}, path);
    GYRE_RETURN_IF_ERROR(Annotate(model->Open(std::move(hf), options), path));
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
  GYRE_RETURN_IF_ERROR(Annotate(OpenTokenizerFor(*model, path, options), path));
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
  if (!HfFolderOf(path).empty()) return OpenModel(path, options);
  GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  GYRE_RETURN_IF_ERROR(Annotate(CheckName(path, file->bytes()), path));
  auto model = std::make_shared<OpenedModel>();
  model->Keep({file}, path);
  if (IsGguf(file->bytes())) {
    GYRE_RETURN_IF_ERROR(Annotate(model->OpenOnlyTokenizer(file->bytes()), path));
  } else {
    GYRE_RETURN_IF_ERROR(Annotate(model->Open(file->bytes(), options), path));
    GYRE_RETURN_IF_ERROR(Annotate(OpenTokenizerFor(*model, path, options), path));
  }
  if (model->tokenizer() == nullptr) return FailedPrecondition("{}: {}", path, model->tokenizer_note());
  return std::shared_ptr<const Model>(std::move(model));
}

StatusOr<std::shared_ptr<const Tokenizer>> OpenTokenizer(const std::string& path, const OpenOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, OpenVocabulary(path, options));
  return std::shared_ptr<const Tokenizer>(model, model->tokenizer());
}

StatusOr<size_t> LayerBytes(const Model& model, int layer) {
  GYRE_ASSIGN_OR_RETURN(const LayerWeights w, model.Layer(layer));
  size_t sum = 0;
  ForEachMatrix(w, [&](const WeightView& v) { sum += v.bytes(); });
  return sum;
}

StatusOr<size_t> EndBytes(const Model& model, bool first, bool last) {
  size_t sum = 0;
  if (first) {
    GYRE_ASSIGN_OR_RETURN(const WeightView embedding, model.Embedding());
    sum += embedding.bytes();
  }
  if (last && !(first && model.spec().tied_head)) {
    GYRE_ASSIGN_OR_RETURN(const HeadWeights head, model.Head());
    sum += head.output.bytes();
  }
  return sum;
}

}  // namespace gyre
