#include "model/hf/peft.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "model/hf/json.h"
#include "model/hf/json_file.h"
#include "model/hf/model_types.h"
#include "model/hf/safetensors.h"
#include "model/hf/tensor_names.h"
#include "model/quoted.h"
#include "model/text_pattern.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";

// The keys that are read here, those that say how the adapter was trained, and those that the tensors show, too.
constexpr std::string_view kAdapterKeys[] = {"peft_type",
                                             "r",
                                             "lora_alpha",
                                             "use_rslora",
                                             "rank_pattern",
                                             "alpha_pattern",
                                             "bias",
                                             "fan_in_fan_out",
                                             "use_dora",
                                             "use_qalora",
                                             "lora_bias",
                                             "ensure_weight_tying",
                                             "alora_invocation_tokens",
                                             "task_type",
                                             "inference_mode",
                                             "base_model_name_or_path",
                                             "base_model_class",
                                             "parent_library",
                                             "revision",
                                             "auto_mapping",
                                             "peft_version",
                                             "lora_dropout",
                                             "init_lora_weights",
                                             "target_modules",
                                             "exclude_modules",
                                             "layers_to_transform",
                                             "layers_pattern",
                                             "qalora_group_size",
                                             "megatron_config",
                                             "megatron_core",
                                             "runtime_config",
                                             "loftq_config",
                                             "eva_config",
                                             "corda_config"};

bool Eat(std::string_view* s, std::string_view tail) {
  if (!s->ends_with(tail)) return false;
  s->remove_suffix(tail.size());
  return true;
}

// PEFT's get_pattern_key: a key is an expression of the end of a module's name.
StatusOr<std::optional<double>> PatternValue(const json::object& config, const char* list, std::string_view module) {
  const json::object* patterns = Object(config, list);
  if (patterns == nullptr) return std::optional<double>();
  for (const auto& item : *patterns) {
    const std::string key(item.key().data(), item.key().size());
    StatusOr<TextPattern> pattern = TextPattern::Compile("^(?:.*\\.)?(?:" + key + ")$");
    if (!pattern.ok()) return Annotate(pattern.status(), fmt::format("{}.{}", list, Printable(key)));
    TextPattern::Match match;
    if (!pattern->Find(module, 0, &match)) continue;
    if (!item.value().is_number()) return DataLoss("{}.{} is {}", list, Printable(key), Shown(item.value()));
    return std::optional(item.value().to_number<double>());
  }
  return std::optional<double>();
}

Status CheckConfig(const json::object& config) {
  constexpr std::string_view where = "adapter_config";
  if (Text(config.if_contains("peft_type")) != "LORA") {
    const json::value* type = config.if_contains("peft_type");
    return Unimplemented("peft_type is {}, expected \"LORA\"", type == nullptr ? "missing" : Shown(*type));
  }
  GYRE_RETURN_IF_ERROR(OnlyKeys(config, kAdapterKeys, where));
  for (const char* key :
       {"fan_in_fan_out", "use_dora", "use_qalora", "lora_bias", "ensure_weight_tying", "alora_invocation_tokens"})
    GYRE_RETURN_IF_ERROR(OnlyValues(config, key, "[false]", where));
  // Others change the model's own weights before the adapter is trained.
  GYRE_RETURN_IF_ERROR(
      OnlyValues(config, "init_lora_weights", R"([true, false, "gaussian", "eva", "orthogonal"])", where));
  return OnlyValues(config, "bias", R"(["none"])", where);
}

}  // namespace

StatusOr<PeftAdapter> ReadPeft(const std::string& path) {
  PeftAdapter out;
  std::error_code error;
  fs::path tensor_path(path), config_path = tensor_path;
  if (fs::is_directory(tensor_path, error)) {
    config_path = tensor_path / kConfig;
    tensor_path /= kTensors;
  } else if (!fs::exists(config_path.replace_extension(".json"), error)) {
    config_path.replace_filename(kConfig);
  }
  GYRE_ASSIGN_OR_RETURN(const json::object config, ReadJsonFile(config_path));
  GYRE_RETURN_IF_ERROR(Annotate(CheckConfig(config), kConfig));
  const json::value* alpha = config.if_contains("lora_alpha");
  if (alpha == nullptr || !alpha->is_number()) return DataLoss("{} has no number lora_alpha", kConfig);
  for (const fs::path& name : {tensor_path, config_path}) {
    GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(name.string()));
    out.files.push_back(std::move(file));
  }
  StatusOr<std::map<std::string, SafeTensor>> tensors = ParseSafetensors(out.files[0]->bytes());
  if (!tensors.ok()) return Annotate(tensors.status(), kTensors);
  for (const auto& [name, t] : *tensors) {
    std::string_view module(name);
    (void)Eat(&module, ".weight");
    (void)Eat(&module, ".default");  // the adapter's name in the program that trained it
    const bool a = Eat(&module, ".lora_A"), b = !a && Eat(&module, ".lora_B");
    constexpr std::string_view kPrefix = "base_model.model.";
    if (module.starts_with(kPrefix)) module.remove_prefix(kPrefix.size());
    const auto renamed = a || b ? GgufName(std::string(module) + ".weight", false) : std::optional<std::string>();
    if (!renamed || renamed->empty())
      return Unimplemented("{}: tensor {} is no part of an adapter that is known here", kTensors, Printable(name));
    TensorView v;
    v.dims.assign(t.shape.rbegin(), t.shape.rend());
    v.data = t.bytes.data();
    v.bytes = t.bytes.size();
    const std::optional<DType> type = FloatDType(t.dtype);
    if (!type)
      return Unimplemented("{}: tensor {} has the type {}, expected floats", kTensors, Printable(name),
                           Printable(t.dtype));
    v.type = *type;
    if (a && v.dims.size() == 2 && v.dims[1] > 0) {
      GYRE_ASSIGN_OR_RETURN(const std::optional<double> own, PatternValue(config, "alpha_pattern", module));
      const auto rank = static_cast<double>(v.dims[1]);
      out.scales[*renamed] = static_cast<float>(own.value_or(alpha->to_number<double>()) /
                                                (Flag(config, "use_rslora") ? std::sqrt(rank) : rank));
    }
    GYRE_RETURN_IF_ERROR(out.tensors.Add(*renamed + (a ? ".lora_a" : ".lora_b"), std::move(v)));
  }
  return out;
}

}  // namespace gyre
