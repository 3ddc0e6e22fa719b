#include "model/recommended_sampling.h"

#include "base/log.h"

namespace gyre {
namespace {

template <typename T>
std::optional<T> Within(const Gguf& gguf, const char* key, double least, double most) {
  if (!gguf.Has(key)) return std::nullopt;
  StatusOr<std::optional<double>> value = gguf.Float(key);
  if (!value.ok()) {
    // Whole numbers may stand for others.
    const StatusOr<std::optional<int64_t>> whole = gguf.Int(key, INT32_MIN, INT32_MAX);
    if (whole.ok()) value = static_cast<double>(**whole);
  }
  if (value.ok() && **value >= least && **value <= most) return static_cast<T>(**value);
  Log(LogLevel::kWarn, "the key {} is not used: {}", key,
      value.ok() ? fmt::format("it is {}, and may be {} to {}", **value, least, most) : Message(value.status()));
  return std::nullopt;
}

}  // namespace

RecommendedSampling ReadRecommendedSampling(const Gguf& gguf) {
  RecommendedSampling out;
  out.temperature = Within<float>(gguf, "general.sampling.temp", 0, 100);
  out.top_k = Within<int>(gguf, "general.sampling.top_k", 0, INT32_MAX);
  out.top_p = Within<float>(gguf, "general.sampling.top_p", 1e-9, 1);
  out.min_p = Within<float>(gguf, "general.sampling.min_p", 0, 1);
  out.repetition_penalty = Within<float>(gguf, "general.sampling.penalty_repeat", 0.01, 100);
  out.penalty_last_n = Within<int>(gguf, "general.sampling.penalty_last_n", -1, INT32_MAX);
  return out;
}

}  // namespace gyre
