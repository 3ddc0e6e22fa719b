// Random numbers of tests that try many cases.
#pragma once

#include <random>

namespace gyre::testing {

using RandomBits = std::mt19937_64;

// A number from low to high, both included.
inline int Between(RandomBits& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

inline bool Chance(RandomBits& random, double p) { return std::uniform_real_distribution<double>(0, 1)(random) < p; }

}  // namespace gyre::testing
