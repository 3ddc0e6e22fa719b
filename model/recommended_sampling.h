// The settings of sampling that a model's file recommends.
#pragma once

#include "model/gguf.h"
#include "model/weights.h"

namespace gyre {

// Of the keys general.sampling.*. One that can't be read, or that no sampler takes, is left out, and the log says so:
// it is advice only.
RecommendedSampling ReadRecommendedSampling(const Gguf& gguf);

}  // namespace gyre
