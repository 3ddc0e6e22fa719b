// Names of quantizations, as Q4_K_M, in the names of GGUF files. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gyre {

// The default quantization.
inline constexpr char kDefaultQuant[] = "Q4_K_M";

// The quantization in a file's path, in capitals: "a/Model-7B.q4_k_m.gguf" gives "Q4_K_M". The last one in the
// file's name counts, else the last one in a folder's. "" = none.
std::string QuantOf(const std::string& path);

// The approximate number of bits of a weight; 0 = not a quantization's name.
double BitsOf(const std::string& quant);

// Whether both names are the same quantization, in upper or lower case, with or without a publisher's prefix (UD-).
bool SameQuant(const std::string& a, const std::string& b);

// The index of the one in `quants` that is nearest to `wanted` by bits; of two as near, the larger; an equal name wins.
// quants.size() if none of them has known bits.
size_t NearestQuant(const std::vector<std::string>& quants, const std::string& wanted);

}  // namespace gyre
