#include "model/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/thread.h"
#include "fmt/core.h"
#include "model/gguf_writer.h"
#include "model/mapped_file.h"
#include "model/quoted.h"

namespace gyre {
namespace {

struct Mix {
  const char* name;
  DType base;
  DType finer;         // type of attn_v, ffn_down and the output matrix
  bool in_part;        // `finer` in some layers only (_M), else in none (_S)
  uint32_t file_type;  // general.file_type
};

constexpr Mix kMixes[] = {
    {"F32", DType::kF32, DType::kF32, false, 0},       {"F16", DType::kF16, DType::kF16, false, 1},
    {"BF16", DType::kBF16, DType::kBF16, false, 32},   {"Q8_0", DType::kQ8_0, DType::kQ8_0, false, 7},
    {"Q4_0", DType::kQ4_0, DType::kQ6_K, false, 2},    {"Q4_1", DType::kQ4_1, DType::kQ6_K, false, 3},
    {"Q5_0", DType::kQ5_0, DType::kQ6_K, false, 8},    {"Q5_1", DType::kQ5_1, DType::kQ6_K, false, 9},
    {"Q4_K_S", DType::kQ4_K, DType::kQ6_K, false, 14}, {"Q4_K_M", DType::kQ4_K, DType::kQ6_K, true, 15},
    {"Q5_K_S", DType::kQ5_K, DType::kQ6_K, false, 16}, {"Q5_K_M", DType::kQ5_K, DType::kQ6_K, true, 17},
    {"Q6_K", DType::kQ6_K, DType::kQ6_K, false, 18},
};

// The numbers of mixes that others make.
constexpr std::pair<int64_t, const char*> kOtherFileTypes[] = {
    {10, "Q2_K"},   {11, "Q3_K_S"},  {12, "Q3_K_M"}, {13, "Q3_K_L"}, {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"},
    {22, "IQ3_XS"}, {23, "IQ3_XXS"}, {24, "IQ1_S"},  {25, "IQ4_NL"}, {26, "IQ3_S"},   {27, "IQ3_M"},  {28, "IQ2_S"},
    {29, "IQ2_M"},  {30, "IQ4_XS"},  {31, "IQ1_M"},  {36, "TQ1_0"},  {37, "TQ2_0"},   {38, "MXFP4"},
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
bool Finer(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Tensors that keep their type: norms, biases and scales of any shape, tensors that decide (routers), and small,
// sensitive ones.
bool Stays(const std::string& name) {
  for (const char* part :
       {"_norm", "ffn_gate_inp", ".bias", ".scale", "_sinks", "ssm_conv1d", "shortconv.conv", "per_layer_model_proj"}) {
    if (Contains(name, part)) return true;
  }
  return name.ends_with(".ssm_a") || name.ends_with(".ssm_d");
}

bool IsFloat(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

// `type`, or for rows that don't divide into its blocks of 256 the nearest type with blocks of 32, or else F16.
DType Fitting(DType type, const TensorView& t) {
  if (t.dims[0] % Info(type).block_elems == 0) return type;
  const DType small = type == DType::kQ4_K   ? DType::kQ5_0
                      : type == DType::kQ5_K ? DType::kQ5_1
                      : type == DType::kQ6_K ? DType::kQ8_0
                                             : type;
  return t.dims[0] % Info(small).block_elems == 0 ? small : DType::kF16;
}

struct Error {
  double squared = 0, values = 0;
};

// Quantizes rows [begin, end) of k elements and returns the error.
Error Convert(const TensorView& t, DType type, uint64_t k, uint64_t begin, uint64_t end, std::byte* out) {
  Error sum;
  std::vector<float> row(k), back(k);
  const size_t from = k / Info(t.type).block_elems * Info(t.type).block_bytes,
               to = k / Info(type).block_elems * Info(type).block_bytes;
  for (uint64_t r = begin; r < end; ++r) {
    Dequantize(t.type, t.data + r * from, row.data(), k);
    std::byte* dst = out + (r - begin) * to;
    Quantize(type, row.data(), dst, k);
    Dequantize(type, dst, back.data(), k);
    for (size_t i = 0; i < k; ++i) {
      const double v = static_cast<double>(row[i]), e = static_cast<double>(back[i]) - v;
      sum.squared += e * e;
      sum.values += v * v;
    }
  }
  return sum;
}

std::string KnownTypes() { return absl::StrJoin(QuantizeTypes(), ", "); }

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
          : fmt::format("`gyre quantize` makes files with {}", KnownTypes());
  return InvalidArgument("--quantization {}: the weights of {} are {}; {}", Printable(wanted), model.path(), own, way);
}

DType TypeFor(const std::string& type, const std::string& name, const TensorView& t, int layers, bool tied) {
  const Mix& mix = *FindMix(type);
  if (t.dims.size() < 2 || !Info(t.type).dequantizes || Stays(name)) return t.type;
  const int layer = LayerOf(name);
  DType wanted = mix.base;
  if (name == "output.weight" || (tied && name == "token_embd.weight")) wanted = mix.finer;
  if (mix.in_part && layer >= 0 && Finer(layer, layers) && (Contains(name, "attn_v.") || Contains(name, "ffn_down")))
    wanted = mix.finer;
  return Fitting(wanted, t);
}

StatusOr<QuantizeReport> QuantizeFile(const std::string& in, const std::string& out, const QuantizeOptions& o) {
  const Mix* mix = FindMix(o.type);
  if (mix == nullptr) {
    return InvalidArgument("the type {} is not known, known are {}", Printable(o.type), KnownTypes());
  }
  GYRE_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(in));
  StatusOr<Gguf> parsed = Gguf::Parse(file->bytes());
  if (!parsed.ok()) return Annotate(parsed.status(), in);
  const Gguf& gguf = *parsed;
  GYRE_ASSIGN_OR_RETURN(const auto parts, gguf.Int("split.count", 0, 99999));
  if (parts.value_or(1) > 1) return Unimplemented("{}: one of {} parts of a split model", in, *parts);

  std::vector<std::pair<std::string, const TensorView*>> order;
  for (const auto& [name, t] : gguf.tensors().all()) order.emplace_back(name, &t);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second->data < b.second->data; });
  int layers = 0;
  for (const auto& [name, t] : order) layers = std::max(layers, LayerOf(name) + 1);
  const bool tied = !gguf.tensors().Has("output.weight");
  QuantizeReport report;
  std::vector<DType> types;
  uint64_t total = 0;
  for (const auto& [name, t] : order) {
    const DType type = TypeFor(o.type, name, *t, layers, tied);
    if (type != t->type && !IsFloat(t->type) && !o.requantize) {
      return InvalidArgument(
          "{}: tensor {} is {} already; --requantize quantizes it again, and quality already lost is not recovered", in,
          name, Info(t->type).name);
    }
    if (type != t->type && Info(mix->base).block_elems == 256 && Info(type).block_elems != 256) {
      ++report.fallbacks[type];
    }
    types.push_back(type);
    total += t->bytes;
  }

  NewFileOptions place{.overwrite = o.overwrite, .sources = o.sources};
  place.sources.push_back(file);
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(out, place));
  for (const auto& [key, value] : gguf.metadata()) {
    if (key != "general.file_type" && key != "general.quantization_version" && key != "general.alignment")
      writer.Add(key, value);
  }
  writer.Add("general.file_type", mix->file_type);
  writer.Add("general.quantization_version", uint32_t{2});
  for (size_t i = 0; i < order.size(); ++i) writer.AddTensor(order[i].first, types[i], order[i].second->dims);
  GYRE_RETURN_IF_ERROR(writer.Begin());

  Error sum;
  uint64_t done = 0;
  const auto threads = static_cast<uint64_t>(std::max(1, o.threads));
  HintRead(file->bytes(), ReadHint::kSequential);
  for (size_t i = 0; i < order.size(); ++i) {
    const TensorView& t = *order[i].second;
    // The next tensor is read from the disk while this one is quantized.
    if (i + 1 < order.size()) HintRead({order[i + 1].second->data, order[i + 1].second->bytes}, ReadHint::kSoon);
    if (types[i] == t.type) {
      GYRE_RETURN_IF_ERROR(writer.Write({t.data, t.bytes}));
      report.bytes_after += t.bytes;
    } else {
      const uint64_t k = t.dims[0];
      uint64_t rows = 1;
      for (size_t d = 1; d < t.dims.size(); ++d) rows *= t.dims[d];
      const uint64_t row_bytes = k / Info(types[i]).block_elems * Info(types[i]).block_bytes;
      const uint64_t share = std::max<uint64_t>(1, kChunkBytes / (4 * k));  // rows a thread
      for (uint64_t at = 0; at < rows; at += share * threads) {
        const uint64_t end = std::min(rows, at + share * threads);
        std::vector<std::byte> bytes((end - at) * row_bytes);
        std::vector<Error> errors(threads);
        std::atomic<uint64_t> next{0};
        OnThreads(threads, [&](bool) {
          for (uint64_t w = next++; w < threads; w = next++) {
            const uint64_t from = std::min(end, at + w * share), to = std::min(end, from + share);
            if (from < to) errors[w] = Convert(t, types[i], k, from, to, bytes.data() + (from - at) * row_bytes);
          }
        });
        for (const Error& e : errors) sum.squared += e.squared, sum.values += e.values;
        GYRE_RETURN_IF_ERROR(writer.Write(bytes));
        report.bytes_after += bytes.size();
        if (o.progress) GYRE_RETURN_IF_ERROR(o.progress(done + t.bytes * end / rows, total));
      }
    }
    done += t.bytes;
    if (o.progress) GYRE_RETURN_IF_ERROR(o.progress(done, total));
  }
  GYRE_RETURN_IF_ERROR(writer.Finish());
  report.bytes_before = total;
  report.relative_error = sum.values > 0 ? std::sqrt(sum.squared / sum.values) : 0;
  return report;
}

}  // namespace gyre
