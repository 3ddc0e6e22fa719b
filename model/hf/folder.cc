#include "model/hf/folder.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "fmt/ranges.h"
#include "kernels/quant.h"
#include "model/arch.h"
#include "model/hf/generation_config.h"
#include "model/hf/json_file.h"
#include "model/hf/rearrange.h"
#include "model/hf/safetensors.h"
#include "model/hf/tensor_names.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

StatusOr<std::vector<float>> ToFloats(const SafeTensor& t) {
  const std::optional<DType> type = FloatDType(t.dtype);
  if (!type) return Unimplemented("the type {}, expected floats", Printable(t.dtype));
  std::vector<float> out(t.bytes.size() / Info(*type).block_bytes);
  Dequantize(*type, t.bytes.data(), out.data(), out.size());
  return out;
}

class Loader {
 public:
  explicit Loader(HfFolder* f) : f_(*f) {}

  Status Files(const fs::path& dir) {
    std::set<std::string> names;
    std::error_code error;
    if (fs::exists(dir / "model.safetensors.index.json", error)) {
      GYRE_ASSIGN_OR_RETURN(const json::object index, ReadJsonFile(dir / "model.safetensors.index.json"));
      const json::value* map = index.if_contains("weight_map");
      if (map == nullptr || !map->is_object()) return DataLoss("model.safetensors.index.json has no weight_map");
      for (const auto& item : map->get_object()) {
        if (!item.value().is_string()) return DataLoss("model.safetensors.index.json: a shard without a name");
        const std::string name(item.value().get_string().data(), item.value().get_string().size());
        if (name.find('/') != std::string::npos)
          return DataLoss("model.safetensors.index.json names {}, which is not in the folder", Printable(name));
        names.insert(name);
      }
    } else {
      names.insert("model.safetensors");
    }
    std::string missing;
    for (const std::string& name : names) {
      if (!fs::exists(dir / name, error)) missing += (missing.empty() ? "" : ", ") + name;
    }
    if (!missing.empty()) return NotFound("missing: {}", missing);
    for (const std::string& name : names) {
      GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open((dir / name).string()));
      f_.files.push_back(file);
      StatusOr<std::map<std::string, SafeTensor>> tensors = ParseSafetensors(file->bytes());
      if (!tensors.ok()) return Annotate(tensors.status(), name);
      for (auto& [tensor, view] : *tensors) {
        if (!all_.emplace(tensor, std::move(view)).second)
          return DataLoss("{}: tensor {} is in another shard too", name, Printable(tensor));
      }
    }
    return absl::OkStatus();
  }

  Status Tensors(bool tied) {
    for (const auto& [name, t] : all_) {
      // Scales are read with their weights; those of activations and of a cache are not used.
      constexpr std::string_view kBeside[] = {".weight_scale_inv",
                                              ".weight_scale",
                                              ".weight_scale_2",
                                              ".weight_global_scale",
                                              ".weight_shape",
                                              ".input_scale",
                                              ".input_global_scale",
                                              ".activation_scale",
                                              ".k_proj.k_scale",
                                              ".v_proj.v_scale",
                                              "_scales"};
      if (std::any_of(std::begin(kBeside), std::end(kBeside),
                      [&of = name](std::string_view end) { return Ends(of, end); }))
        continue;
      f_.draft_tensors += IsDraftName(name) ? 1 : 0;
      if (Ends(name, "_proj_blocks") || Ends(name, "_proj_bias")) {
        GYRE_RETURN_IF_ERROR(Annotate(AddPackedExperts(name, t), "tensor " + Printable(name)));
        continue;
      }
      const std::string weight = WeightName(name);
      const auto renamed = GgufName(weight, f_.architecture.after_attention);
      if (!renamed)
        return Unimplemented("tensor {} has no place in the architecture {}", Printable(name), f_.architecture.name);
      if (renamed->empty() || (tied && *renamed == "output.weight")) continue;
      GYRE_RETURN_IF_ERROR(Annotate(Add(weight, *renamed, t), "tensor " + Printable(name)));
    }
    return absl::OkStatus();
  }

 private:
  static bool Ends(const std::string& s, std::string_view tail) {
    return s.size() > tail.size() && s.compare(s.size() - tail.size(), tail.size(), tail) == 0;
  }

  // Codes of 4 bits, two neighbours a byte, in GGUF's order: the first half in the low bits of `bytes` bytes.
  static void PutFp4Codes(const std::byte* from, uint64_t bytes, std::byte* to) {
    const auto code = [from](uint64_t i) { return from[i / 2] >> (i % 2 * 4) & std::byte{15}; };
    for (uint64_t j = 0; j < bytes; ++j) to[j] = code(j) | code(j + bytes) << 4;
  }
  // Codes of 4 bits may be named "X.weight_packed".
  static std::string WeightName(const std::string& name) {
    return Ends(name, ".weight_packed") ? name.substr(0, name.rfind('_')) : name;
  }

  Status Add(const std::string& name, const std::string& renamed, const SafeTensor& t) {
    TensorView v;
    v.dims.assign(t.shape.rbegin(), t.shape.rend());
    if (renamed.find("ffn_gate_inp_shexp") != std::string::npos && v.dims.size() == 2 && v.dims[1] == 1)
      v.dims.pop_back();
    if (Ends(renamed, ".ssm_conv1d.weight") && v.dims.size() == 3 && v.dims[1] == 1) v.dims = {v.dims[0], v.dims[2]};
    v.data = t.bytes.data();
    v.bytes = t.bytes.size();
    if (const std::optional<DType> type = FloatDType(t.dtype)) {
      v.type = *type;
      if (f_.architecture.added_one && Ends(renamed, "norm.weight") && !Ends(renamed, ".ssm_norm.weight"))
        GYRE_RETURN_IF_ERROR(MapFloats(
            t, [](float w) { return w + 1; }, &v));
      else if (Ends(renamed, ".ssm_a"))
        GYRE_RETURN_IF_ERROR(MapFloats(
            t, [](float log) { return -std::exp(log); }, &v));
    } else if (t.dtype == "F8_E4M3") {
      GYRE_RETURN_IF_ERROR(BlockFp8(name, t, &v));
    } else if (t.dtype == "I8") {
      GYRE_RETURN_IF_ERROR(ChannelInt8(name, t, &v));
    } else if (t.dtype == "U8" && all_.contains(name + "_scale")) {
      if (Ends(renamed, ".attn_qkvz.weight") || Ends(renamed, ".attn_kv_b.weight"))
        return Unimplemented("4-bit floats in a tensor whose rows are reordered");
      // What layers have is made when they are read.
      if (!renamed.starts_with("blk.") || renamed.find(".nextn.") != std::string::npos)
        return Unimplemented("4-bit floats in an embedding or an output matrix");
      GYRE_RETURN_IF_ERROR(PackedFp4(name, t, &v));
    } else {
      return Unimplemented(
          "the type {}, known are F32, F16, BF16, F8_E4M3 with weight_scale_inv, I8 with weight_scale, and U8 with a "
          "weight_scale of NVFP4 or MXFP4",
          Printable(t.dtype));
    }
    if (Ends(renamed, ".attn_qkvz.weight")) return AddQkvz(renamed, v);
    if (Ends(renamed, ".attn_kv_b.weight")) return AddLatent(renamed, v);
    return f_.tensors.Add(renamed, std::move(v));
  }

  uint64_t Number(const char* key) const { return f_.metadata.Number(f_.architecture.name + "." + key); }
  // Its bytes are made when a layer is read. What they were made of is not read again, and would count twice in memory.
  void MakeLater(std::vector<std::span<const std::byte>> sources, std::function<std::vector<std::byte>()> make,
                 TensorView* v) {
    v->data = nullptr;
    v->made = std::make_shared<const MadeTensor>(sources, [sources, make = std::move(make), files = &f_.files] {
      std::vector<std::byte> made = make();
      for (const auto& source : sources) {
        for (const auto& file : *files) file->Drop(source);
      }
      return made;
    });
  }

  // Splits Qwen3-Next's queries, keys, values and gates, which are stored one key head after the other.
  Status AddQkvz(const std::string& renamed, const TensorView& all) {
    const DeltaHeads heads{Number("ssm.group_count"), Number("ssm.time_step_rank"), Number("ssm.state_size")};
    const std::string layer = renamed.substr(0, renamed.size() - std::string_view("attn_qkvz.weight").size());
    const uint64_t rows = 2 * (heads.keys + heads.values) * heads.size;
    if (heads.keys == 0 || heads.values % heads.keys != 0 || all.dims.size() != 2 || all.dims[0] == 0 ||
        all.dims[1] != rows)
      return DataLoss("its shape is {}, expected {} rows", DescribeDims(all.dims), rows);
    for (const auto& [part, runs] : {std::pair("attn_qkv", QkvRuns(heads)), {"attn_gate", GateRuns(heads)}}) {
      TensorView v = all;
      v.dims[1] = 0;
      for (const RowRun& run : runs) v.dims[1] += run.count;
      v.bytes = all.bytes / rows * v.dims[1];
      if (all.scales != nullptr) {
        GYRE_ASSIGN_OR_RETURN(std::vector<float> scales, GatherScales(all, runs));
        f_.owned_floats.push_back(std::move(scales));
        v.scales = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
      }
      MakeLater(
          {{all.data, all.bytes}}, [all, part_runs = runs] { return GatherRows(all, part_runs); }, &v);
      GYRE_RETURN_IF_ERROR(f_.tensors.Add(layer + part + ".weight", std::move(v)));
    }
    return absl::OkStatus();
  }

  Status AddLatent(const std::string& renamed, const TensorView& all) {
    const std::string layer = renamed.substr(0, renamed.size() - std::string_view("attn_kv_b.weight").size());
    const uint64_t heads = Number("attention.head_count"), rank = Number("attention.kv_lora_rank"),
                   value = Number("attention.value_length_mla"), rotated = Number("rope.dimension_count"),
                   key = Number("attention.key_length_mla") - rotated;
    if (heads == 0 || rank == 0 || value == 0 || key == 0 || rotated >= Number("attention.key_length_mla"))
      return Unimplemented("it has no place in the architecture {}", f_.architecture.name);
    if (all.dims != std::vector<uint64_t>{rank, heads * (key + value)}) {
      return DataLoss("its shape is {}, expected {} x {} * ({} + {})", DescribeDims(all.dims), rank, heads, key, value);
    }
    const LatentHeads sizes{heads, key, value, rank};
    const DType type = LatentType(all);
    TensorView k{.type = type, .dims = {key, rank, heads}, .bytes = heads * key * rank * Info(type).block_bytes},
        v{.type = type, .dims = {rank, value, heads}, .bytes = heads * value * rank * Info(type).block_bytes};
    MakeLater(
        {{all.data, all.bytes}}, [all, sizes] { return LatentKeys(all, sizes); }, &k);
    MakeLater(
        {{all.data, all.bytes}}, [all, sizes] { return LatentValues(all, sizes); }, &v);
    GYRE_RETURN_IF_ERROR(f_.tensors.Add(layer + "attn_k_b.weight", std::move(k)));
    return f_.tensors.Add(layer + "attn_v_b.weight", std::move(v));
  }

  // gpt-oss has a layer's experts in two tensors: "mlp.experts.gate_up_proj", whose rows alternate between gate and up,
  // and "mlp.experts.down_proj"; of each the blocks [experts][rows][k / 32][16] and scales of MXFP4, and a bias
  // [experts][rows].
  Status AddPackedExperts(const std::string& name, const SafeTensor& t) {
    const size_t at = name.find(".mlp.experts.");
    const bool gate_up = name.find(".gate_up_proj_") != std::string::npos;
    const auto prefix = at == name.npos ? std::nullopt : GgufName(name.substr(0, at) + ".self_attn.sinks", false);
    if (!prefix || (!gate_up && name.find(".down_proj_") == std::string::npos)) {
      return Unimplemented("it has no place in the architecture {}", f_.architecture.name);
    }
    const std::string layer = prefix->substr(0, prefix->find("attn_sinks"));
    std::vector<const char*> parts = {"ffn_down_exps"};
    if (gate_up) parts = {"ffn_gate_exps", "ffn_up_exps"};
    if (t.shape.size() < 2 || t.shape[1] % parts.size() != 0) return DataLoss("its shape is not that of experts");
    for (size_t i = 0; i < parts.size(); ++i) {
      TensorView v;
      if (Ends(name, "_bias"))
        GYRE_RETURN_IF_ERROR(PackedBias(t, i, parts.size(), &v));
      else
        GYRE_RETURN_IF_ERROR(PackedBlocks(name, t, i, parts.size(), &v));
      const char* kind = Ends(name, "_bias") ? ".bias" : ".weight";
      GYRE_RETURN_IF_ERROR(f_.tensors.Add(layer + parts[i] + kind, std::move(v)));
    }
    return absl::OkStatus();
  }

  // Takes the rows first, first + step, ... of each expert.
  Status PackedBias(const SafeTensor& t, size_t first, size_t step, TensorView* v) {
    if (t.shape.size() != 2) return DataLoss("it has {} dimensions, expected 2", t.shape.size());
    GYRE_ASSIGN_OR_RETURN(const std::vector<float> all, ToFloats(t));
    std::vector<float> out;
    for (size_t i = first; i < all.size(); i += step) out.push_back(all[i]);
    v->dims = {t.shape[1] / step, t.shape[0]};
    Own(std::move(out), v);
    return absl::OkStatus();
  }

  // Does the same for blocks. GGUF's order is a scale, then the first 16 codes in the low bits of 16 bytes and the
  // others in the high bits; here two neighbouring codes share a byte, and the scales are separate.
  Status PackedBlocks(const std::string& name, const SafeTensor& t, size_t first, size_t step, TensorView* v) {
    const auto it = all_.find(name.substr(0, name.size() - std::string_view("blocks").size()) + "scales");
    if (it == all_.end() || t.shape.size() != 4 || t.shape[3] != 16 || t.dtype != "U8" || it->second.dtype != "U8" ||
        it->second.shape != std::vector<uint64_t>(t.shape.begin(), t.shape.begin() + 3)) {
      return DataLoss("blocks of MXFP4 and their scales are expected, as bytes");
    }
    const uint64_t rows = t.shape[0] * t.shape[1], blocks = t.shape[2];
    v->type = DType::kMXFP4;
    v->dims = {blocks * 32, t.shape[1] / step, t.shape[0]};
    v->bytes = rows / step * blocks * 17;
    const std::span<const std::byte> codes = t.bytes, scales = it->second.bytes;
    MakeLater(
        {codes, scales},
        [=] {
          std::vector<std::byte> out(rows / step * blocks * 17);
          std::byte* to = out.data();
          for (uint64_t r = first; r < rows; r += step) {
            for (uint64_t b = 0; b < blocks; ++b, to += 17) {
              to[0] = scales[r * blocks + b];
              PutFp4Codes(codes.data() + (r * blocks + b) * 16, 16, to + 1);
            }
          }
          return out;
        },
        v);
    return absl::OkStatus();
  }

  template <typename Fn>
  Status MapFloats(const SafeTensor& t, Fn fn, TensorView* v) {
    GYRE_ASSIGN_OR_RETURN(std::vector<float> values, ToFloats(t));
    for (float& f : values) f = fn(f);
    Own(std::move(values), v);
    return absl::OkStatus();
  }
  void Own(std::vector<float> values, TensorView* v) {
    f_.owned_floats.push_back(std::move(values));
    v->type = DType::kF32;
    v->data = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
    v->bytes = 4 * f_.owned_floats.back().size();
  }

  // weight_scale_inv has a factor for each block of 128 x 128, or one; weight_scale, as ModelOpt and compressed-tensors
  // write it, has one. The bytes stay in the file.
  Status BlockFp8(const std::string& name, const SafeTensor& t, TensorView* v) {
    constexpr uint64_t kSide = 128;
    auto it = all_.find(name + "_scale_inv");
    if (it == all_.end()) it = all_.find(name + "_scale");
    if (t.shape.size() != 2 || it == all_.end())
      return Unimplemented("8-bit floats without {}_scale_inv or {}_scale", name, name);
    const uint64_t n = t.shape[0], k = t.shape[1], down = (n + kSide - 1) / kSide, across = (k + kSide - 1) / kSide;
    GYRE_ASSIGN_OR_RETURN(std::vector<float> scales, ToFloats(it->second));
    if (scales.size() == 1) {  // one for the whole tensor, as Ministral 3 has it
      if (!(scales[0] > 0) || !std::isfinite(scales[0]))
        return DataLoss("{} is {}, expected a number above 0", it->first, scales[0]);
      scales.assign(down * across, scales[0]);
    } else if (Ends(it->first, "_scale")) {
      return Unimplemented(
          "8-bit floats with {} scales, known are one for the tensor and one for each block of 128 x 128",
          scales.size());
    } else if (it->second.shape != std::vector<uint64_t>{down, across}) {
      return DataLoss("its scales are no {} x {}", down, across);
    }
    f_.owned_floats.push_back(std::move(scales));
    v->type = DType::kF8E4M3;
    v->scales = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
    v->group = kSide;
    return absl::OkStatus();
  }

  // Codes of 4 bits (E2M1), two neighbours a byte. NVFP4 has an E4M3 for each 16 and a factor of the whole tensor, as
  // ModelOpt writes it, or its inverse, as compressed-tensors does; MXFP4 an exponent for each 32. The tensor gets
  // GGUF's blocks, in which codes of the lower halves of bytes come before those of the upper ones.
  Status PackedFp4(const std::string& name, const SafeTensor& t, TensorView* v) {
    const SafeTensor& s = all_.at(name + "_scale");
    const bool nv = s.dtype == "F8_E4M3";
    const uint64_t group = nv ? 16 : 32, each = nv ? 4 : 1;  // groups of a block
    const DType type = nv ? DType::kNVFP4 : DType::kMXFP4;
    if (!nv && s.dtype != "U8")
      return Unimplemented("{}_scale has the type {}, expected F8_E4M3 or U8", name, Printable(s.dtype));
    if (t.shape.size() != 2 || t.shape[1] == 0 || t.shape[1] % (group * each / 2) != 0)
      return Unimplemented("4-bit floats of the shape {}, expected rows of whole blocks of {}",
                           fmt::join(t.shape, " x "), group * each);
    const uint64_t n = t.shape[0], groups = t.shape[1] * 2 / group;
    if (s.shape != std::vector<uint64_t>{n, groups})
      return DataLoss("its scales have the shape {}, expected {} x {}", fmt::join(s.shape, " x "), n, groups);
    v->type = type;
    v->dims = {groups * group, n};
    v->bytes = n * groups / each * Info(type).block_bytes;
    if (nv) {
      GYRE_ASSIGN_OR_RETURN(const float second, SecondScale(name));
      f_.owned_floats.push_back({second});
      v->scales = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
      v->group = n * groups * group;
    }
    const std::span<const std::byte> codes = t.bytes, scales = s.bytes;
    MakeLater(
        {codes, scales},
        [=] {
          std::vector<std::byte> out;
          out.reserve(n * groups / each * Info(type).block_bytes);
          const uint64_t half = group / 2;
          for (uint64_t g = 0; g < n * groups; g += each) {
            out.insert(out.end(), scales.data() + g, scales.data() + g + each);
            for (const std::byte* from = codes.data() + g * half; from < codes.data() + (g + each) * half;
                 from += half) {
              out.resize(out.size() + half);
              PutFp4Codes(from, half, &out[out.size() - half]);
            }
          }
          return out;
        },
        v);
    return absl::OkStatus();
  }
  StatusOr<float> SecondScale(const std::string& name) const {
    for (const auto& [end, inverse] : {std::pair("_scale_2", false), {"_global_scale", true}}) {
      const auto it = all_.find(name + end);
      if (it == all_.end()) continue;
      GYRE_ASSIGN_OR_RETURN(const std::vector<float> values, ToFloats(it->second));
      if (values.size() != 1 || !(values[0] > 0) || !std::isfinite(1 / values[0]))
        return DataLoss("{}{} has {} numbers, expected one above 0", name, end, values.size());
      return inverse ? 1 / values[0] : values[0];
    }
    return DataLoss("{}_scale_2 and {}_global_scale are missing", name, name);
  }

  // The compressed-tensors format: weight_scale has a factor for each row. The integers are used as they are.
  Status ChannelInt8(const std::string& name, const SafeTensor& t, TensorView* v) {
    const auto it = all_.find(name + "_scale");
    if (t.shape.size() != 2 || it == all_.end()) return Unimplemented("8-bit integers without {}_scale", name);
    GYRE_ASSIGN_OR_RETURN(std::vector<float> scales, ToFloats(it->second));
    if (scales.size() != t.shape[0]) return DataLoss("{} scales for {} rows", scales.size(), t.shape[0]);
    f_.owned_floats.push_back(std::move(scales));
    v->type = DType::kI8;
    v->scales = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
    v->group = t.shape[1];
    return absl::OkStatus();
  }

  HfFolder& f_;
  std::map<std::string, SafeTensor> all_;
};

void AddFactors(const std::vector<float>& factors, const char* name, HfFolder* f) {
  if (factors.empty()) return;
  f->owned_floats.push_back(factors);
  TensorView v;
  v.dims = {factors.size()};
  v.data = reinterpret_cast<const std::byte*>(f->owned_floats.back().data());
  v.bytes = 4 * factors.size();
  (void)f->tensors.Add(name, std::move(v));
}

// Checks that the tensors are those that config.json announces.
Status CheckAnnounced(const HfFolder& f) {
  const auto has = [&](std::initializer_list<const char*> ends) {
    return std::any_of(f.tensors.all().begin(), f.tensors.all().end(), [&](const auto& item) {
      return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return item.first.ends_with(end); });
    });
  };
  const std::optional<bool> bias = f.architecture.attention_bias, norm = f.architecture.qk_norm;
  if (bias && *bias != has({".attn_q.bias", ".attn_k.bias", ".attn_v.bias"}))
    return DataLoss("attention_bias is {}, but the tensors {} biases of queries, keys and values", *bias,
                    *bias ? "have no" : "have");
  if (norm && *norm != has({".attn_q_norm.weight", ".attn_k_norm.weight"}))
    return DataLoss("use_qk_norm is {}, but the tensors {} norms of queries and keys", *norm,
                    *norm ? "have no" : "have");
  return absl::OkStatus();
}

Status ReadTokenizer(const fs::path& dir, const json::object& config, HfFolder* f) {
  const TensorView* embedding = f->tensors.Find("token_embd.weight");
  const int rows = embedding != nullptr && embedding->dims.size() == 2
                       ? static_cast<int>(std::min<uint64_t>(embedding->dims[1], 1 << 24))
                       : 0;
  GYRE_ASSIGN_OR_RETURN(f->vocabulary, ReadHfVocabulary(dir, config, rows));
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<HfFolder>> OpenHfFolder(const std::string& path) {
  const fs::path dir(path);
  auto f = std::make_unique<HfFolder>();
  f->path = path;
  std::error_code error;
  if (!fs::exists(dir, error)) return NotFound("{}: no such folder", path);
  if (!fs::is_directory(dir, error)) {
    return InvalidArgument("{}: a file, expected a folder with config.json and *.safetensors", path);
  }
  if (!fs::exists(dir / "config.json", error)) return NotFound("{}: the folder has no config.json", path);
  GYRE_ASSIGN_OR_RETURN(f->config, ReadTextFile(dir / "config.json"));
  GYRE_ASSIGN_OR_RETURN(const json::object config, ParseJsonFile(f->config, dir / "config.json"));
  StatusOr<HfArchitecture> arch = ReadHfConfig(config, &f->metadata);
  if (!arch.ok()) return Annotate(arch.status(), (dir / "config.json").string());
  f->architecture = *std::move(arch);
  const std::string name = fs::weakly_canonical(dir).filename().string();
  f->metadata.Set("general.name", std::string_view(name));
  Loader loader(f.get());
  GYRE_RETURN_IF_ERROR(Annotate(loader.Files(dir), path));
  GYRE_RETURN_IF_ERROR(Annotate(loader.Tensors(f->architecture.tied), path));
  GYRE_RETURN_IF_ERROR(Annotate(CheckAnnounced(*f), (dir / "config.json").string()));
  // They were read already, and belong to the model's files.
  std::vector<fs::path> read = HfVocabularyFiles(dir);
  read.insert(read.end(), {dir / "config.json", dir / "model.safetensors.index.json"});
  for (const fs::path& text : read) {
    if (auto file = MappedFile::Open(text.string()); file.ok()) f->files.push_back(*std::move(file));
  }
  AddFactors(f->architecture.rope_long, "rope_factors_long.weight", f.get());
  AddFactors(f->architecture.rope_short, "rope_factors_short.weight", f.get());
  AddFactors(f->architecture.rope_factors, "rope_freqs.weight", f.get());
  if (fs::exists(dir / "generation_config.json", error)) {
    GYRE_ASSIGN_OR_RETURN(const json::object generation, ReadJsonFile(dir / "generation_config.json"));
    SetSampling(generation, &f->metadata);
    auto unused = UnusedAdvice(generation);
    if (!unused.ok()) return Annotate(unused.status(), (dir / "generation_config.json").string());
    if (!unused->empty())
      Log(LogLevel::kWarn, "{}: generation_config.json asks for {}, which is not applied", path,
          fmt::join(*unused, ", "));
  }
  GYRE_RETURN_IF_ERROR(Annotate(ReadTokenizer(dir, config, f.get()), path));
  return f;
}

StatusOr<ModelSpec> SpecOf(const HfFolder& folder, int context) {
  const Gguf gguf = Gguf::FromParts(folder.metadata.values(), folder.tensors);
  GYRE_ASSIGN_OR_RETURN(ModelSpec spec, SpecFromGguf(gguf, context));
  for (LayerSpec& l : spec.layers) {
    AttentionSpec* a = l.attention();
    if (a != nullptr && folder.architecture.permuted) a->rope.pairing = RopePairing::kHalves;
    auto* d = std::get_if<DeltaNetSpec>(&l.mixer);
    if (d != nullptr && folder.architecture.consecutive_heads) d->consecutive = true;
  }
  return spec;
}

}  // namespace gyre
