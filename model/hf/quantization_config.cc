#include "model/hf/quantization_config.h"

#include <string>
#include <string_view>

#include "model/hf/json.h"
#include "model/hf/model_types.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Which layers are quantized, with which rounding, and how a program is to multiply: the tensors show the first, and
// the others do not change what the weights are.
constexpr std::string_view kFp8Keys[] = {"quant_method",
                                         "fmt",
                                         "weight_block_size",
                                         "activation_scheme",
                                         "scale_fmt",
                                         "dequantize",
                                         "modules_to_not_convert",
                                         "ignored_layers",
                                         "_*"};
constexpr std::string_view kMxfp4Keys[] = {"quant_method", "modules_to_not_convert", "dequantize", "_*"};
constexpr std::string_view kCompressedKeys[] = {"quant_method",
                                                "format",
                                                "config_groups",
                                                "ignore",
                                                "version",
                                                "quantization_status",
                                                "global_compression_ratio",
                                                "_*"};
constexpr std::string_view kModelOptKeys[] = {"quant_method",    "quant_algo", "config_groups",   "ignore",
                                              "exclude_modules", "group_size", "kv_cache_scheme", "kv_cache_quant_algo",
                                              "producer",        "_*"};
constexpr std::string_view kGroupKeys[] = {"targets", "weights", "input_activations", "format"};
constexpr std::string_view kWeightKeys[] = {"num_bits",    "type",     "strategy",        "symmetric",
                                            "dynamic",     "observer", "observer_kwargs", "group_size",
                                            "scale_dtype", "zp_dtype"};

// What config_groups may say of weights, as JSON lists of values.
struct WeightScheme {
  std::string_view format;  // of compressed-tensors
  const char *num_bits, *type, *strategy, *group_size;
};
constexpr WeightScheme kSchemes[] = {{"int-quantized", "[8]", R"(["int"])", R"(["channel"])", "[]"},
                                     {"float-quantized", "[8]", R"(["float"])", R"(["tensor"])", "[]"},
                                     {"nvfp4-pack-quantized", "[4]", R"(["float"])", R"(["tensor_group"])", "[16]"},
                                     {"mxfp4-pack-quantized", "[4]", R"(["float"])", R"(["group"])", "[32]"}};
constexpr const WeightScheme &kFp8Scheme = kSchemes[1], &kNvFp4Scheme = kSchemes[2];
constexpr char kFormats[] =
    R"(["int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "dense"])";
const WeightScheme* SchemeOf(std::string_view format) {
  for (const WeightScheme& s : kSchemes) {
    if (s.format == format) return &s;
  }
  return nullptr;
}

// `weights`, of a group of the config.
Status CheckScheme(const json::object& weights, const WeightScheme& scheme, const std::string& where) {
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "num_bits", scheme.num_bits, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "type", scheme.type, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "strategy", scheme.strategy, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "group_size", scheme.group_size, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "symmetric", "[true]", where));
  GYRE_RETURN_IF_ERROR(OnlyValues(weights, "dynamic", "[false]", where));
  return OnlyKeys(weights, kWeightKeys, where);
}

Status CheckFp8(const json::object& q, std::string_view where) {
  GYRE_RETURN_IF_ERROR(OnlyKeys(q, kFp8Keys, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(q, "fmt", R"(["e4m3", "float8_e4m3fn"])", where));
  return OnlyValues(q, "weight_block_size", "[[128, 128]]", where);
}

// The groups of config_groups; `stated` is the scheme that holds where a group has no format.
Status CheckGroups(const json::object& q, const WeightScheme* stated, std::string_view where) {
  const json::object* groups = Object(q, "config_groups");
  if (groups == nullptr) return absl::OkStatus();
  for (const auto& item : *groups) {
    const std::string name =
        fmt::format("{}.config_groups.{}", where, Printable({item.key().data(), item.key().size()}));
    const json::object* group = item.value().if_object();
    if (group == nullptr) return DataLoss("{} is {}, expected an object", name, Shown(item.value()));
    GYRE_RETURN_IF_ERROR(OnlyKeys(*group, kGroupKeys, name));
    GYRE_RETURN_IF_ERROR(OnlyValues(*group, "format", kFormats, name));
    const WeightScheme* scheme = SchemeOf(Text(group->if_contains("format")));
    if (scheme == nullptr) scheme = stated;
    const json::object* weights = Object(*group, "weights");
    if (weights != nullptr && scheme != nullptr)
      GYRE_RETURN_IF_ERROR(CheckScheme(*weights, *scheme, name + ".weights"));
  }
  return absl::OkStatus();
}

Status CheckCompressed(const json::object& q, std::string_view where) {
  GYRE_RETURN_IF_ERROR(OnlyKeys(q, kCompressedKeys, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(q, "format", kFormats, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(q, "quantization_status", R"(["compressed"])", where));
  const WeightScheme* stated = SchemeOf(Text(q.if_contains("format")));
  return CheckGroups(q, stated != nullptr ? stated : &kSchemes[0], where);
}

Status CheckModelOpt(const json::object& q, std::string_view where) {
  GYRE_RETURN_IF_ERROR(OnlyKeys(q, kModelOptKeys, where));
  GYRE_RETURN_IF_ERROR(OnlyValues(q, "quant_algo", R"(["NVFP4", "FP8"])", where));
  return CheckGroups(q, Text(q.if_contains("quant_algo")) == "FP8" ? &kFp8Scheme : &kNvFp4Scheme, where);
}

}  // namespace

Status CheckQuantization(const json::object& config) {
  // MLX writes the key "quantization"; its groups of integers have other names and layouts.
  if (const json::value* v = config.if_contains("quantization"); v != nullptr && !IsEmpty(*v)) {
    return Unimplemented("quantization is {}: weights in MLX's format are not known", Shown(*v));
  }
  for (const char* where : {"quantization_config", "compression_config"}) {
    const json::value* v = config.if_contains(where);
    if (v == nullptr || IsEmpty(*v)) continue;
    if (!v->is_object()) return DataLoss("{} is {}, expected an object", where, Shown(*v));
    const json::object& q = v->get_object();
    const std::string method = Text(q.if_contains("quant_method"));
    if (method == "fp8") {
      GYRE_RETURN_IF_ERROR(CheckFp8(q, where));
    } else if (method == "mxfp4") {
      GYRE_RETURN_IF_ERROR(OnlyKeys(q, kMxfp4Keys, where));
    } else if (method == "compressed-tensors") {
      GYRE_RETURN_IF_ERROR(CheckCompressed(q, where));
    } else if (method == "modelopt") {
      GYRE_RETURN_IF_ERROR(CheckModelOpt(q, where));
    } else {
      const json::value* stated = q.if_contains("quant_method");
      return Unimplemented(
          "{}.quant_method is {}, known are fp8 (in blocks of 128 x 128, or with one scale for each tensor), mxfp4, "
          "modelopt with NVFP4 or FP8, and compressed-tensors with NVFP4, MXFP4, FP8 with one scale for each tensor, "
          "or 8-bit "
          "integers with one for each row",
          where, stated != nullptr ? Shown(*stated) : "missing");
    }
  }
  return absl::OkStatus();
}

}  // namespace gyre
