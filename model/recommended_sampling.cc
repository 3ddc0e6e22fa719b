#include "model/recommended_sampling.h"

#include <cstdint>
#include <string>

#include "base/log.h"

namespace gyre {
namespace {

constexpr SamplingAdvice kAdvice[] = {
    {.name = "temperature", .gguf_key = "general.sampling.temp", .least = 0, .most = 100},
    {.name = "top_k", .gguf_key = "general.sampling.top_k", .least = 0, .most = INT32_MAX, .whole = true},
    {.name = "top_p", .gguf_key = "general.sampling.top_p", .least = 1e-9, .most = 1},
    {.name = "min_p", .gguf_key = "general.sampling.min_p", .least = 0, .most = 1},
    {.name = "repetition_penalty", .gguf_key = "general.sampling.penalty_repeat", .least = 0.01, .most = 100},
    {.name = "penalty_last_n",
     .gguf_key = "general.sampling.penalty_last_n",
     .least = -1,
     .most = INT32_MAX,
     .whole = true,
     .in_folders = false},
};

}  // namespace

std::span<const SamplingAdvice> SamplingAdviceKeys() { return kAdvice; }

RecommendedSampling ReadRecommendedSampling(const Gguf& gguf) {
  RecommendedSampling out;
  for (const SamplingAdvice& advice : kAdvice) {
    const char* key = advice.gguf_key;
    if (!gguf.Has(key)) continue;
    StatusOr<std::optional<double>> value = gguf.Float(key);
    if (!value.ok()) {
      // A whole number is allowed where a fraction is expected.
      const StatusOr<std::optional<int64_t>> whole = gguf.Int(key, INT32_MIN, INT32_MAX);
      if (whole.ok()) value = static_cast<double>(**whole);
    }
    if (value.ok() && **value >= advice.least && **value <= advice.most) {
      out[std::string(advice.name)] = **value;
      continue;
    }
    Log(LogLevel::kWarn, "the key {} is not used: {}", key,
        value.ok() ? fmt::format("it is {}, and may be {} to {}", **value, advice.least, advice.most)
                   : Message(value.status()));
  }
  return out;
}

}  // namespace gyre
