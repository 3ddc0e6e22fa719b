// Reads the rotation of queries and keys from a file's metadata.
#include <cmath>

#include "model/architecture.h"
#include "model/quoted.h"
#include "model/rope_scaling.h"

namespace gyre {
namespace {

StatusOr<std::vector<float>> FrequencyFactors(const Gguf& gguf, const char* tensor, int dims) {
  if (!gguf.tensors().Has(tensor)) return std::vector<float>();
  GYRE_ASSIGN_OR_RETURN(auto factors, gguf.tensors().Vector(tensor, {static_cast<uint64_t>(dims / 2)}));
  for (float f : factors) {
    if (!std::isfinite(f) || f <= 0) return DataLoss("tensor {} holds {}, expected positive numbers", tensor, f);
  }
  return factors;
}

StatusOr<RopeScaling> ReadScaling(const SpecSource& from, int context) {
  const Gguf& gguf = from.gguf;
  const Keys& keys = from.keys;
  RopeScaling s;
  GYRE_ASSIGN_OR_RETURN(const auto type, gguf.String(keys.Name("rope.scaling.type")));
  auto number = [&](const char* key, double fallback) -> StatusOr<double> {
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    return value.value_or(fallback);
  };
  // The older key has the same meaning; converters write 0 for none. If no type is given, a factor is linear.
  GYRE_ASSIGN_OR_RETURN(const double older, number("rope.scale_linear", 1));
  GYRE_ASSIGN_OR_RETURN(s.factor, number("rope.scaling.factor", older));
  if (s.factor == 0) s.factor = 1;
  const std::string kind = type.value_or(s.factor == 1 ? "none" : "linear");
  if (kind == "none") {
    s.kind = RopeScalingKind::kNone;
  } else if (kind == "linear") {
    s.kind = RopeScalingKind::kLinear;
  } else if (kind == "ntk") {
    s.kind = RopeScalingKind::kNtk;
  } else if (kind == "yarn") {
    s.kind = RopeScalingKind::kYarn;
  } else if (kind == "llama3") {
    s.kind = RopeScalingKind::kLlama3;
  } else if (kind != "longrope") {  // longrope has its factors in tensors
    return Unimplemented("{} is \"{}\", known are none, linear, ntk, yarn, llama3 and longrope",
                         keys.Name("rope.scaling.type"), Printable(kind));
  }
  GYRE_ASSIGN_OR_RETURN(s.original_context, number("rope.scaling.original_context_length", context));
  GYRE_ASSIGN_OR_RETURN(s.beta_fast, number("rope.scaling.yarn_beta_fast", 32));
  GYRE_ASSIGN_OR_RETURN(s.beta_slow, number("rope.scaling.yarn_beta_slow", 1));
  GYRE_ASSIGN_OR_RETURN(s.extrapolation, number("rope.scaling.yarn_ext_factor", 1));
  if (s.extrapolation < 0) s.extrapolation = 1;  // "as the method says"
  GYRE_ASSIGN_OR_RETURN(s.low_frequency_factor, number("rope.scaling.low_freq_factor", 1));
  GYRE_ASSIGN_OR_RETURN(s.high_frequency_factor, number("rope.scaling.high_freq_factor", 4));
  GYRE_ASSIGN_OR_RETURN(const double plain, number("rope.scaling.attn_factor", 1));
  GYRE_ASSIGN_OR_RETURN(const double yarn, number("rope.scaling.yarn_attn_factor", 1));
  if (!(plain > 0) || !(yarn > 0))
    return DataLoss("{} is {}, expected a positive number", keys.Name("rope.scaling.attn_factor"), plain);
  s.attention_factor = plain * yarn;
  GYRE_ASSIGN_OR_RETURN(const auto truncates, gguf.Bool(kYarnTruncateKey));
  s.fractions = truncates ? !*truncates : from.arch.yarn_fractions;
  if (from.arch.yarn_log_multiplier) {
    GYRE_ASSIGN_OR_RETURN(const double multiplier, keys.Number("rope.scaling.yarn_log_multiplier", 0));
    if (s.kind == RopeScalingKind::kYarn && s.factor > 0)
      s.attention_factor /= 1 + multiplier * (YarnAttention(s.factor) - 1);
  }
  return s;
}

}  // namespace

StatusOr<RopeSpec> ReadRope(const SpecSource& from, int head_dim, int trained, const char* base_key) {
  const Gguf& gguf = from.gguf;
  const Keys& keys = from.keys;
  RopeSpec rope;
  rope.pairing = from.arch.pairing;
  if (from.arch.rope_sections && keys.HasNonZero("rope.dimension_sections")) rope.pairing = RopePairing::kHalves;
  GYRE_ASSIGN_OR_RETURN(const auto follows, gguf.Bool(kRopeFollowsLengthKey));
  if (follows.value_or(false) && from.context > trained) {
    return InvalidArgument(
        "a context of {} positions: beyond {} this model's rotation follows the length of the text, which is not "
        "computed; expected at most {}",
        from.context, trained, trained);
  }
  GYRE_ASSIGN_OR_RETURN(rope.dims, keys.Int("rope.dimension_count", head_dim, head_dim));
  if (rope.dims % 2 != 0)
    return DataLoss("{} is {}, expected an even number", keys.Name("rope.dimension_count"), rope.dims);
  GYRE_ASSIGN_OR_RETURN(rope.base, keys.Positive(base_key, 10000.0));
  GYRE_ASSIGN_OR_RETURN(const RopeScaling scaling, ReadScaling(from, trained));
  GYRE_RETURN_IF_ERROR(Annotate(ApplyRopeScaling(scaling, &rope), keys.Name("rope.scaling")));
  const char* tensor = "rope_freqs.weight";
  if (gguf.tensors().Has("rope_factors_long.weight") || gguf.tensors().Has("rope_factors_short.weight")) {  // longrope
    tensor = from.context > scaling.original_context ? "rope_factors_long.weight" : "rope_factors_short.weight";
    if (!gguf.tensors().Has(tensor)) return DataLoss("tensor {} is missing", tensor);
    rope.magnitude = static_cast<float>(scaling.attention_factor);
  }
  GYRE_ASSIGN_OR_RETURN(const auto factors, FrequencyFactors(gguf, tensor, rope.dims));
  if (rope.frequency_factors.empty()) {
    rope.frequency_factors = factors;
  } else {
    for (size_t i = 0; i < factors.size(); ++i) rope.frequency_factors[i] *= factors[i];
  }
  return rope;
}

}  // namespace gyre
