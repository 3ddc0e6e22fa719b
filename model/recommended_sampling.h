// The settings of sampling that a model's files recommend.
#pragma once

#include <span>
#include <string_view>

#include "model/gguf.h"
#include "model/weights.h"

namespace gyre {

// A setting that files may recommend.
struct SamplingAdvice {
  std::string_view name;  // of the sampling option, and of the key in generation_config.json
  const char* gguf_key;
  double least, most;  // what it may be; another value is not used
  bool whole = false;
  bool in_folders = true;  // generation_config.json knows it
};
std::span<const SamplingAdvice> SamplingAdviceKeys();

// Of the keys general.sampling.*. One that can't be read, or that no sampler takes, is left out, and the log says so:
// it is advice only.
RecommendedSampling ReadRecommendedSampling(const Gguf& gguf);

}  // namespace gyre
