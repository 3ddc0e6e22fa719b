// The points that indices of the IQ types stand for: constants of the format (from ggml, by I. Kawrakow, under the
// license in codebooks.cc), packed. A word holds the coordinates of one point, the first one in the lowest bits.
#pragma once

#include <cstdint>

namespace gyre::codebooks {

// 8 coordinates of 2 bits; the bits 0, 1, 2 mean 8, 25, 43.
extern const uint16_t kIq2Xxs[256], kIq2Xs[512], kIq2S[1024];
// 4 coordinates of 3 bits; the bits 0 ... 7 mean 4, 12, 20, 28, 36, 44, 52, 62.
extern const uint16_t kIq3Xxs[256];
// 4 coordinates of 3 bits; bits c mean 2 c + 1.
extern const uint16_t kIq3S[512];
// 8 coordinates of 2 bits; bits c mean c - 1.
extern const uint16_t kIq1S[2048];

}  // namespace gyre::codebooks
