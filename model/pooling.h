// How a text becomes one vector.
#pragma once

#include <cstdint>

namespace gyre {

// The way in which the hidden states of a prompt's rows, after the final norm, become one vector.
// kFirst: the first row's alone, which in a model that reads forwards knows the first token only.
enum class Pooling : uint8_t { kMean, kLast, kFirst };

}  // namespace gyre
