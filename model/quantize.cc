#include "model/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/thread.h"
#include "fmt/core.h"
#include "model/gguf_writer.h"
#include "model/mapped_file.h"
#include "model/quoted.h"
#include "model/scale_name.h"
#include "model/text_pattern.h"

namespace gyre {
namespace {

// Types of the tensors that decide more than others; all layers have them, or (in_part) some layers only.
struct Finer {
  DType values, down;  // attn_v, ffn_down
  bool in_part = false;
  DType output;  // attn_output, in all layers
};
struct Mix {
  const char* name;
  DType base;
  DType head;  // the output matrix
  Finer finer;
  uint32_t file_type;  // general.file_type
};

constexpr Finer AllOf(DType type) { return {type, type, false, type}; }
constexpr Finer InPart(DType base, DType finer) { return {finer, finer, true, base}; }

constexpr Mix kMixes[] = {
    {"F32", DType::kF32, DType::kF32, AllOf(DType::kF32), 0},
    {"F16", DType::kF16, DType::kF16, AllOf(DType::kF16), 1},
    {"BF16", DType::kBF16, DType::kBF16, AllOf(DType::kBF16), 32},
    {"Q8_0", DType::kQ8_0, DType::kQ8_0, AllOf(DType::kQ8_0), 7},
    {"Q4_0", DType::kQ4_0, DType::kQ6_K, AllOf(DType::kQ4_0), 2},
    {"Q4_1", DType::kQ4_1, DType::kQ6_K, AllOf(DType::kQ4_1), 3},
    {"Q5_0", DType::kQ5_0, DType::kQ6_K, AllOf(DType::kQ5_0), 8},
    {"Q5_1", DType::kQ5_1, DType::kQ6_K, AllOf(DType::kQ5_1), 9},
    {"Q2_K", DType::kQ2_K, DType::kQ6_K, {DType::kQ4_K, DType::kQ3_K, false, DType::kQ3_K}, 10},
    {"Q3_K_S", DType::kQ3_K, DType::kQ6_K, AllOf(DType::kQ3_K), 11},
    {"Q3_K_M", DType::kQ3_K, DType::kQ6_K, {DType::kQ4_K, DType::kQ4_K, true, DType::kQ4_K}, 12},
    {"Q3_K_L", DType::kQ3_K, DType::kQ6_K, AllOf(DType::kQ5_K), 13},
    {"Q4_K_S", DType::kQ4_K, DType::kQ6_K, AllOf(DType::kQ4_K), 14},
    {"Q4_K_M", DType::kQ4_K, DType::kQ6_K, InPart(DType::kQ4_K, DType::kQ6_K), 15},
    {"Q5_K_S", DType::kQ5_K, DType::kQ6_K, AllOf(DType::kQ5_K), 16},
    {"Q5_K_M", DType::kQ5_K, DType::kQ6_K, InPart(DType::kQ5_K, DType::kQ6_K), 17},
    {"Q6_K", DType::kQ6_K, DType::kQ6_K, AllOf(DType::kQ6_K), 18},
    {"IQ4_NL", DType::kIQ4_NL, DType::kQ6_K, AllOf(DType::kIQ4_NL), 25},
    {"IQ4_XS", DType::kIQ4_XS, DType::kQ6_K, AllOf(DType::kIQ4_XS), 30},
    {"TQ2_0", DType::kTQ2_0, DType::kQ6_K, AllOf(DType::kTQ2_0), 37},
    {"MXFP4", DType::kMXFP4, DType::kQ8_0, AllOf(DType::kMXFP4), 38},
    {"NVFP4", DType::kNVFP4, DType::kQ8_0, AllOf(DType::kNVFP4), 39},
    {"Q1_0", DType::kQ1_0, DType::kQ6_K, AllOf(DType::kQ1_0), 40},
    {"Q2_0", DType::kQ2_0, DType::kQ6_K, AllOf(DType::kQ2_0), 41},
};

// The numbers of mixes that others make.
constexpr std::pair<int64_t, const char*> kOtherFileTypes[] = {
    {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"}, {23, "IQ3_XXS"}, {24, "IQ1_S"},
    {26, "IQ3_S"},   {27, "IQ3_M"},  {28, "IQ2_S"},  {29, "IQ2_M"},  {31, "IQ1_M"},   {36, "TQ1_0"},
};

// Upper and lower case are equal.
const Mix* FindMix(const std::string& any_case) {
  const std::string name = absl::AsciiStrToUpper(any_case);
  for (const Mix& m : kMixes) {
    if (name == m.name) return &m;
  }
  return nullptr;
}

bool Contains(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

// The layer of "blk.12.ffn_up.weight", or -1.
int LayerOf(const std::string& name) {
  int layer = 0;
  if (name.rfind("blk.", 0) != 0) return -1;
  for (size_t i = 4; i < name.size() && name[i] >= '0' && name[i] <= '9' && layer < 100000; ++i)
    layer = 10 * layer + (name[i] - '0');
  return layer;
}

// llama.cpp's choice of the layers that matter most: the first and the last eighth, and every third between.
bool IsFiner(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Tensors that keep their type: norms, biases and scales of any shape, tensors that decide (routers), and small,
// sensitive ones.
bool Stays(const std::string& name) {
  for (const char* part : {"_norm", "ffn_gate_inp", ".bias", ".scale", "_sinks", "ssm_conv1d", "shortconv.conv",
                           "per_layer_model_proj", "position_embd", "altup_router", "altup_predict", "altup_correct"}) {
    if (Contains(name, part)) return true;
  }
  return name.ends_with(".ssm_a") || name.ends_with(".ssm_d");
}

bool IsFloat(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

// `type`, or for rows that don't divide into its blocks the nearest type with blocks of 32, or else F16.
DType Fitting(DType type, const TensorView& t) {
  if (t.dims[0] % Info(type).block_elems == 0) return type;
  DType small = type;
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_XS: small = DType::kIQ4_NL; break;
    case DType::kQ4_K: small = DType::kQ5_0; break;
    case DType::kQ5_K: small = DType::kQ5_1; break;
    case DType::kQ6_K: small = DType::kQ8_0; break;
    case DType::kNVFP4: small = DType::kMXFP4; break;
    case DType::kTQ2_0:
    case DType::kQ1_0:
    case DType::kQ2_0: small = DType::kQ4_0; break;
    default: break;
  }
  return t.dims[0] % Info(small).block_elems == 0 ? small : DType::kF16;
}

// Whether a tensor of this name and shape may be quantized.
bool MayChange(const std::string& name, const TensorView& t) {
  return t.dims.size() >= 2 && Info(t.type).dequantizes && !Stays(name);
}

struct Error {
  double squared = 0, values = 0;
};

// What an adapter adds to rows of a matrix, expanded: scale * b a.
class Addition {
 public:
  explicit Addition(const RowAddition& added)
      : first_(added.first_row),
        rows_(added.weights.b.n),
        rank_(added.weights.a.n),
        k_(added.weights.a.k),
        a_(rank_ * k_),
        b_(rows_ * rank_) {
    const LowRankWeights& w = added.weights;
    Dequantize(w.a.type, w.a.data, a_.data(), a_.size());
    Dequantize(w.b.type, w.b.data, b_.data(), b_.size());
    for (float& v : b_) v *= w.scale;
  }
  // row [k] += what comes to the matrix's row r. Thread-safe.
  void AddTo(uint64_t r, float* row) const {
    if (r < first_ || r - first_ >= rows_) return;
    std::vector<double> sum(row, row + k_);
    for (uint64_t i = 0; i < rank_; ++i) {
      const double by = static_cast<double>(b_[(r - first_) * rank_ + i]);
      for (uint64_t c = 0; c < k_; ++c) sum[c] += by * static_cast<double>(a_[i * k_ + c]);
    }
    for (uint64_t c = 0; c < k_; ++c) row[c] = static_cast<float>(sum[c]);
  }

 private:
  const uint64_t first_, rows_, rank_, k_;
  std::vector<float> a_, b_;
};

// Whether Quantize makes the type.
bool IsMade(DType type) {
  const std::vector<float> none(Info(type).block_elems);
  std::vector<std::byte> block(Info(type).block_bytes);
  return Quantize(type, none.data(), block.data(), none.size());
}

// NVFP4's scale of the second level: the largest weight is the largest code times the largest scale of a block. 1 if
// there is none but 0.
float SecondScale(float largest) { return largest > 0 ? largest / (6.0f * 448.0f) : 1; }

// How a tensor's rows become those of the new file.
struct Conversion {
  const WeightView from;
  const DType type;
  const std::span<const float> importance;  // of the columns, for `rows` rows of each expert its own; or empty
  const uint64_t rows;                      // of a matrix
  const std::span<const Addition> added;    // what comes to the rows before
  std::vector<float> scales;                // of each matrix, what its weights are divided by; or empty

  void Row(uint64_t r, float* row) const {
    DequantizeRow(from, r, row);
    for (const Addition& a : added) a.AddTo(r, row);
  }
  uint64_t to_bytes() const { return from.k / Info(type).block_elems * Info(type).block_bytes; }
  // The largest magnitude of rows [begin, end).
  float Largest(uint64_t begin, uint64_t end) const {
    std::vector<float> row(from.k);
    float largest = 0;
    for (uint64_t r = begin; r < end; ++r) {
      Row(r, row.data());
      for (const float v : row) largest = std::max(largest, std::fabs(v));
    }
    return largest;
  }
  // Quantizes rows [begin, end) and returns the error.
  Error Rows(uint64_t begin, uint64_t end, std::byte* out) const {
    Error sum;
    std::vector<float> row(from.k), back(from.k);
    for (uint64_t r = begin; r < end; ++r, out += to_bytes()) {
      Row(r, row.data());
      const float scale = scales.empty() ? 1 : scales[r / rows];
      if (scale != 1) {
        for (float& v : row) v /= scale;
      }
      Quantize(type, row.data(), out, from.k, importance.empty() ? nullptr : importance.data() + r / rows * from.k);
      Dequantize(type, out, back.data(), from.k);
      for (size_t i = 0; i < from.k; ++i) {
        const double v = static_cast<double>(row[i]) * static_cast<double>(scale),
                     e = static_cast<double>(back[i]) * static_cast<double>(scale) - v;
        sum.squared += e * e;
        sum.values += v * v;
      }
    }
    return sum;
  }
};

// Calls f(begin, end, number) for up to `threads` shares of the rows [begin, end), each on a thread.
template <typename Fn>
void ForShares(uint64_t begin, uint64_t end, uint64_t share, uint64_t threads, const Fn& f) {
  std::atomic<uint64_t> next{0};
  OnThreads(threads, [&](bool) {
    for (uint64_t w = next++; w < threads; w = next++) {
      const uint64_t from = std::min(end, begin + w * share), to = std::min(end, from + share);
      if (from < to) f(from, to, w);
    }
  });
}

// --tensor-type: tensors whose name has the pattern get the type.
struct TypeRule {
  TextPattern pattern;
  DType type;
  bool Matches(const std::string& name) const {
    TextPattern::Match match;
    return pattern.Find(name, 0, &match);
  }
};
StatusOr<std::vector<TypeRule>> ParseTypeRules(const std::vector<std::string>& texts) {
  std::vector<TypeRule> rules;
  for (const std::string& text : texts) {
    const size_t at = text.rfind('=');
    if (at == std::string::npos || at == 0)
      return InvalidArgument("--tensor-type {}: PATTERN=TYPE is expected, as ffn_down=Q6_K", Printable(text));
    const std::string name = absl::AsciiStrToUpper(text.substr(at + 1));
    const DTypeInfo* info = FindDType(name);
    if (info == nullptr || !IsMade(info->type))
      return InvalidArgument("--tensor-type {}: {} is no type that tensors can get here", Printable(text),
                             Printable(name));
    StatusOr<TextPattern> pattern = TextPattern::Compile(text.substr(0, at));
    if (!pattern.ok()) return Annotate(pattern.status(), fmt::format("--tensor-type {}", Printable(text)));
    rules.push_back({*std::move(pattern), info->type});
  }
  return rules;
}

// An importance matrix has a number for each column, or for each column of each expert.
Status CheckImportance(const Importance& importance, const std::string& name, const TensorView& t) {
  const size_t have = importance.Find(name).size();
  if (have == 0) return absl::OkStatus();
  const uint64_t columns = t.dims[0] * (t.dims.size() > 2 ? t.dims[2] : 1);
  if (have == columns) return absl::OkStatus();
  return InvalidArgument("the importance matrix has {} numbers for tensor {}, expected {}", have, name, columns);
}

std::string QuantizeTypeNames() { return absl::StrJoin(QuantizeTypes(), ", "); }

constexpr uint64_t kChunkBytes = 16 << 20;  // f32 values that a thread works on at once

}  // namespace

const std::vector<std::string>& QuantizeTypes() {
  static const auto* names = [] {
    auto* out = new std::vector<std::string>;
    for (const Mix& m : kMixes) out->emplace_back(m.name);
    return out;
  }();
  return *names;
}

std::string QuantizationName(std::optional<int64_t> file_type, const TensorTable& tensors) {
  for (const Mix& m : kMixes) {
    if (m.file_type == file_type) return m.name;
  }
  for (const auto& [number, name] : kOtherFileTypes) {
    if (number == file_type) return name;
  }
  std::map<DType, uint64_t> bytes;
  for (const auto& [name, t] : tensors.all()) bytes[t.type] += t.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "" : Info(most->first).name;
}

std::string QuantizationOf(const Model& model) {
  std::optional<int64_t> file_type;
  for (const auto& [key, value] : model.DescribeMetadata()) {
    if (key == "general.file_type") file_type = std::atoll(value.c_str());
  }
  return QuantizationName(file_type, model.tensors());
}

Status CheckQuantization(const Model& model, const std::string& wanted) {
  if (wanted.empty()) return absl::OkStatus();
  const std::string name = absl::AsciiStrToUpper(wanted), own = QuantizationOf(model);
  if (name == own) return absl::OkStatus();
  if (name == "GGUF") {
    const auto files = model.files();
    if (!files.empty() && IsGguf(files[0]->bytes())) return absl::OkStatus();
    return InvalidArgument("--quantization gguf: {} is no GGUF file; `gyre convert` makes one of a folder",
                           model.path());
  }
  // Other engines name a method, and here its type has a name. Embeddings, which keep their type, may take more bytes.
  constexpr std::pair<const char*, DType> kMethods[] = {
      {"FP8", DType::kF8E4M3}, {"INT8", DType::kI8}, {"COMPRESSED-TENSORS", DType::kI8}};
  for (const auto& [method, type] : kMethods) {
    if (name != method) continue;
    for (const auto& [tensor, t] : model.tensors().all()) {
      if (t.type == type) return absl::OkStatus();
    }
  }
  const std::string way =
      FindMix(wanted) != nullptr
          ? fmt::format("`gyre quantize` makes a file with {} of one with F32, F16 or BF16", FindMix(wanted)->name)
          : fmt::format("`gyre quantize` makes files with {}", QuantizeTypeNames());
  return InvalidArgument("--quantization {}: the weights of {} are {}; {}", Printable(wanted), model.path(), own, way);
}

DType TypeFor(const std::string& type, const std::string& name, const TensorView& t, int layers, bool tied) {
  const Mix& mix = *FindMix(type);
  if (!MayChange(name, t)) return t.type;
  const int layer = LayerOf(name);
  DType wanted = mix.base;
  if (name == "output.weight" || (tied && name == "token_embd.weight")) wanted = mix.head;
  if (layer >= 0 && (!mix.finer.in_part || IsFiner(layer, layers))) {
    if (Contains(name, "attn_v.")) wanted = mix.finer.values;
    if (Contains(name, "ffn_down")) wanted = mix.finer.down;
  }
  if (layer >= 0 && Contains(name, "attn_output.")) wanted = mix.finer.output;
  return Fitting(wanted, t);
}

StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& o) {
  const Mix* mix = FindMix(o.type);  // null: each tensor keeps its type
  if (mix == nullptr && !o.type.empty()) {
    return InvalidArgument("the type {} is not known, known are {}", Printable(o.type), QuantizeTypeNames());
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<TypeRule> rules, ParseTypeRules(o.tensor_types));
  GYRE_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(in));
  StatusOr<Gguf> parsed = Gguf::Parse(file->bytes());
  if (!parsed.ok()) return Annotate(parsed.status(), in);
  const Gguf& gguf = *parsed;
  GYRE_ASSIGN_OR_RETURN(const auto parts, gguf.Int("split.count", 0, 99999));
  if (parts.value_or(1) > 1) return Unimplemented("{}: one of {} parts of a split model", in, *parts);

  const TensorTable& tensors = gguf.tensors();
  const auto order = tensors.InFileOrder();
  int layers = 0;
  for (const auto& [name, t] : order) layers = std::max(layers, LayerOf(name) + 1);
  const bool tied = !tensors.Has("output.weight");
  QuantizeReport report;
  std::vector<DType> types;
  uint64_t total = 0;
  for (const auto& [name, t] : order) {
    DType type = mix == nullptr ? t->type : TypeFor(o.type, name, *t, layers, tied);
    for (const TypeRule& rule : rules) {
      if (MayChange(name, *t) && rule.Matches(name)) {
        type = Fitting(rule.type, *t);
        break;
      }
    }
    GYRE_RETURN_IF_ERROR(CheckImportance(o.importance, name, *t));
    const bool merges = o.additions.contains(name);
    if (merges && !IsMade(type))
      return Unimplemented("{}: tensor {} is {}, which is read only; quantize the model to another type first", in,
                           name, Info(type).name);
    if ((type != t->type || merges) && !IsFloat(t->type) && !o.requantize) {
      return InvalidArgument(
          "{}: tensor {} is {} already; --requantize quantizes it again, and quality already lost is not recovered", in,
          name, Info(t->type).name);
    }
    if (mix != nullptr && type != t->type && Info(mix->base).block_elems > 32 &&
        t->dims[0] % Info(mix->base).block_elems != 0)
      ++report.fallbacks[type];
    types.push_back(type);
    total += t->bytes;
  }

  for (const auto& [name, added] : o.additions) {
    if (!tensors.Has(name)) return Unimplemented("{}: tensor {} is in another one in this file", in, name);
  }
  NewFileOptions place{.overwrite = o.overwrite, .sources = o.sources};
  place.sources.push_back(file);
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(out, place));
  for (const auto& [key, value] : gguf.metadata()) {
    if ((key != "general.file_type" || mix == nullptr) && key != "general.quantization_version" &&
        key != "general.alignment")
      writer.Add(key, value);
  }
  if (mix != nullptr) writer.Add("general.file_type", mix->file_type);
  writer.Add("general.quantization_version", uint32_t{2});
  // `changes` says which tensors get new codes, and `scaled` which of these get a scale of the second level beside
  // them: those in NVFP4, unless another tensor has the scale's name.
  std::map<std::string, bool> changes, scaled;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [name, t] = order[i];
    changes[name] = types[i] != t->type || o.additions.contains(name);
    const std::string scale = ScaleNameOf(name);
    scaled[name] = changes[name] && types[i] == DType::kNVFP4 && !scale.empty() &&
                   (!tensors.Has(scale) || tensors.ScaledBy(scale) == name);
  }
  const auto matrices = [](const TensorView& t) { return t.dims.size() > 2 ? t.dims[2] : uint64_t{1}; };
  // The scale of a tensor that gets new codes is in these, or in a scale of its own.
  const auto left_out = [&](const std::string& name) {
    const std::string weight = tensors.ScaledBy(name);
    return !weight.empty() && changes.at(weight);
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [name, t] = order[i];
    if (left_out(name)) continue;
    writer.AddTensor(name, types[i], t->dims);
    if (scaled[name]) writer.AddTensor(ScaleNameOf(name), DType::kF32, {matrices(*t)});
  }
  GYRE_RETURN_IF_ERROR(writer.Begin());

  Error sum;
  uint64_t done = 0;
  const auto threads = static_cast<uint64_t>(std::max(1, o.threads));
  HintRead(file->bytes(), ReadHint::kSequential);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [name, view] = order[i];
    const TensorView& t = *view;
    // The next tensor is read from the disk while this one is quantized.
    if (i + 1 < order.size()) HintRead({order[i + 1].second->data, order[i + 1].second->bytes}, ReadHint::kSoon);
    std::vector<Addition> added;
    if (const auto found = o.additions.find(name); found != o.additions.end()) {
      for (const RowAddition& a : found->second) added.emplace_back(a);
    }
    if (left_out(name)) {
      done += t.bytes;
      continue;
    }
    if (!changes.at(name)) {
      GYRE_RETURN_IF_ERROR(writer.Write({t.data, t.bytes}));
      report.bytes_after += t.bytes;
    } else {
      const std::span<const float> importance = o.importance.Find(name);
      report.with_importance += importance.empty() ? 0 : 1;
      const WeightView all = t.Rows();
      Conversion c{
          .from = all, .type = types[i], .importance = importance, .rows = t.dims[1], .added = added, .scales = {}};
      const uint64_t share = std::max<uint64_t>(1, kChunkBytes / (4 * all.k));  // rows a thread
      if (scaled[name]) {
        for (uint64_t m = 0; m < matrices(t); ++m) {
          std::vector<float> largest(threads);
          for (uint64_t at = m * c.rows; at < (m + 1) * c.rows; at += share * threads) {
            ForShares(at, std::min((m + 1) * c.rows, at + share * threads), share, threads,
                      [&](uint64_t from, uint64_t to, uint64_t w) {
                        largest[w] = std::max(largest[w], c.Largest(from, to));
                      });
          }
          c.scales.push_back(SecondScale(*std::max_element(largest.begin(), largest.end())));
        }
      }
      for (uint64_t at = 0; at < all.n; at += share * threads) {
        const uint64_t end = std::min<uint64_t>(all.n, at + share * threads);
        std::vector<std::byte> bytes((end - at) * c.to_bytes());
        std::vector<Error> errors(threads);
        ForShares(at, end, share, threads, [&](uint64_t from, uint64_t to, uint64_t w) {
          errors[w] = c.Rows(from, to, bytes.data() + (from - at) * c.to_bytes());
        });
        for (const Error& e : errors) sum.squared += e.squared, sum.values += e.values;
        GYRE_RETURN_IF_ERROR(writer.Write(bytes));
        report.bytes_after += bytes.size();
        if (o.progress) GYRE_RETURN_IF_ERROR(o.progress(done + t.bytes * end / all.n, total));
      }
      if (scaled[name]) GYRE_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span<const float>(c.scales))));
    }
    done += t.bytes;
    if (o.progress) GYRE_RETURN_IF_ERROR(o.progress(done, total));
  }
  GYRE_RETURN_IF_ERROR(writer.Finish());
  report.bytes_before = total;
  report.block = mix == nullptr ? 1 : Info(mix->base).block_elems;
  report.relative_error = sum.values > 0 ? std::sqrt(sum.squared / sum.values) : 0;
  return report;
}

}  // namespace gyre
