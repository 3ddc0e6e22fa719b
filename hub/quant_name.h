// Names of quantizations, as Q4_K_M, in the names of GGUF files. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gyre {

// What is taken where no quantization is asked for.
inline constexpr char kDefaultQuant[] = "Q4_K_M";

// The quantization that a file's path tells, in capitals: "a/Model-7B.q4_k_m.gguf" gives "Q4_K_M". The last one in the
// file's name counts, else the last one in a folder's. "" = none.
std::string QuantOf(const std::string& path);

// About how many bits a weight takes; 0 = not a quantization's name.
double BitsOf(const std::string& quant);

// Whether both name the same quantization, whatever the case, and whatever prefix a publisher puts in front (UD-).
bool SameQuant(const std::string& a, const std::string& b);

// The index of the one in `quants` that is nearest to `wanted` by bits, the larger of two as near; an equal name wins.
// quants.size() where none of them has known bits.
size_t NearestQuant(const std::vector<std::string>& quants, const std::string& wanted);

}  // namespace gyre
