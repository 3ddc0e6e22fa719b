#include "model/old_tensors.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/hf/rearrange.h"
#include "model/scale_name.h"

namespace gyre {
namespace {

constexpr int64_t kMostUnits = 1 << 20;

TensorView MadeView(DType type, std::vector<uint64_t> dims, const TensorView& source,
                    std::function<std::vector<std::byte>()> make) {
  uint64_t elements = 1;
  for (const uint64_t d : dims) elements *= d;
  TensorView v{.type = type, .dims = std::move(dims)};
  v.bytes = elements / Info(type).block_elems * Info(type).block_bytes;
  if (type == source.type) {  // one for all of it
    v.scales = source.scales;
    if (source.scales != nullptr) v.group = elements;
  }
  v.made = std::make_shared<const MadeTensor>(std::vector<std::span<const std::byte>>{{source.data, source.bytes}},
                                              std::move(make));
  return v;
}

// The key "<architecture>.<name>", or the second one where the file lacks the first.
StatusOr<uint64_t> SizeOf(const Gguf& gguf, const std::string& arch, const char* name, const char* other = nullptr) {
  for (const char* key : {name, other}) {
    if (key == nullptr) continue;
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf.Int(arch + "." + key, 1, kMostUnits));
    if (v) return static_cast<uint64_t>(*v);
  }
  return DataLoss("key {}.{} is missing", arch, name);
}

Status CheckShape(const std::string& name, const TensorView& t, uint64_t rows, std::optional<uint64_t> columns) {
  if (t.dims.size() == 2 && t.dims[0] > 0 && t.dims[1] == rows && t.dims[0] == columns.value_or(t.dims[0])) {
    return absl::OkStatus();
  }
  return DataLoss("tensor {} has the shape {}, expected {} rows{}", name, DescribeDims(t.dims), rows,
                  columns ? fmt::format(" of {}", *columns) : "");
}

Status SplitLatent(const std::string& layer, const std::string& name, Gguf* gguf) {
  const TensorView t = *gguf->tensors().Find(name);
  LatentHeads h;
  GYRE_ASSIGN_OR_RETURN(h.heads, SizeOf(*gguf, "deepseek2", "attention.head_count"));
  GYRE_ASSIGN_OR_RETURN(h.rank, SizeOf(*gguf, "deepseek2", "attention.kv_lora_rank"));
  GYRE_ASSIGN_OR_RETURN(h.value, SizeOf(*gguf, "deepseek2", "attention.value_length_mla", "attention.value_length"));
  GYRE_ASSIGN_OR_RETURN(const uint64_t key,
                        SizeOf(*gguf, "deepseek2", "attention.key_length_mla", "attention.key_length"));
  GYRE_ASSIGN_OR_RETURN(const uint64_t rotated, SizeOf(*gguf, "deepseek2", "rope.dimension_count"));
  if (rotated >= key) return DataLoss("{} of the {} elements of a key are rotated", rotated, key);
  h.key = key - rotated;
  GYRE_RETURN_IF_ERROR(CheckShape(name, t, h.heads * (h.key + h.value), h.rank));
  const DType type = LatentType(t);
  return gguf->Replace(
      name,
      {{layer + "attn_k_b.weight", MadeView(type, {h.key, h.rank, h.heads}, t, [=] { return LatentKeys(t, h); })},
       {layer + "attn_v_b.weight", MadeView(type, {h.rank, h.value, h.heads}, t, [=] { return LatentValues(t, h); })}});
}

Status SplitState(const std::string& layer, const std::string& name, Gguf* gguf) {
  const TensorView t = *gguf->tensors().Find(name);
  DeltaHeads h;
  GYRE_ASSIGN_OR_RETURN(h.keys, SizeOf(*gguf, "qwen3next", "ssm.group_count"));
  GYRE_ASSIGN_OR_RETURN(h.values, SizeOf(*gguf, "qwen3next", "ssm.time_step_rank"));
  GYRE_ASSIGN_OR_RETURN(h.size, SizeOf(*gguf, "qwen3next", "ssm.state_size"));
  if (h.values % h.keys != 0) return DataLoss("{} value heads for {} key heads", h.values, h.keys);
  GYRE_RETURN_IF_ERROR(CheckShape(name, t, 2 * (h.keys + h.values) * h.size, std::nullopt));
  const uint64_t values = h.values * h.size;
  return gguf->Replace(name, {{layer + "attn_qkv.weight", MadeView(t.type, {t.dims[0], 2 * h.keys * h.size + values}, t,
                                                                   [=] { return GatherRows(t, QkvRuns(h)); })},
                              {layer + "attn_gate.weight",
                               MadeView(t.type, {t.dims[0], values}, t, [=] { return GatherRows(t, GateRuns(h)); })}});
}

}  // namespace

Status SplitOldTensors(Gguf* gguf) {
  GYRE_ASSIGN_OR_RETURN(const auto arch, gguf->String("general.architecture"));
  const bool latent = arch == "deepseek2";
  if (!latent && arch != "qwen3next") return absl::OkStatus();
  const std::string old = latent ? "attn_kv_b.weight" : "ssm_in.weight", now = latent ? "attn_k_b" : "attn_qkv";
  std::vector<std::string> layers;
  for (const auto& [name, t] : gguf->tensors().all()) {
    if (!name.starts_with("blk.") || !name.ends_with("." + old) || !Info(t.type).dequantizes) continue;
    const std::string layer = name.substr(0, name.size() - old.size());
    if (!gguf->tensors().Has(layer + now + ".weight")) layers.push_back(layer);
  }
  for (const std::string& layer : layers) {
    const std::string stem = layer + old.substr(0, old.rfind('.'));
    const bool scaled = gguf->tensors().ScaledBy(ScaleNameOf(layer + old)) == layer + old;
    GYRE_RETURN_IF_ERROR((latent ? SplitLatent : SplitState)(layer, layer + old, gguf));
    // The tensors that were made have it.
    for (const char* end : {".scale", ".input_scale"}) {
      if (scaled && gguf->tensors().Has(stem + end)) GYRE_RETURN_IF_ERROR(gguf->Replace(stem + end, {}));
    }
  }
  return absl::OkStatus();
}

}  // namespace gyre
