// Launches that a mixture of experts is made of, around its products. All pointers are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/op_types.h"

namespace gyre::cuda {

inline constexpr size_t kMostExperts = 2048;

// Backend::ChooseExperts. REQUIRES: params.count <= kMostExperts.
void ChooseExperts(Stream stream, const float* scores, size_t rows, const RouterParams& params,
                   const float* choice_bias, uint32_t* experts, float* weights);

// The order in which experts have their rows: entry i of chosen [rows][used] gets the place places[i]. Expert e has the
// places bounds[e] .. bounds[e + 1] - 1, its rows rising. rows_of[place] is a row's number.
struct Places {
  uint32_t* places = nullptr;   // [rows][used]
  uint32_t* rows_of = nullptr;  // [rows][used]
  uint32_t* bounds = nullptr;   // [experts + 1]
};
// REQUIRES: experts <= kMostExperts.
void PlaceRows(Stream stream, const uint32_t* chosen, size_t rows, size_t used, size_t experts, const Places& places);
// The rows [first, end) of `rows`: bounds[0] .. bounds[1] - 1, or all where bounds is null.
// x[row] += bias.
void AddBiasToPlaces(Stream stream, float* x, size_t rows, const uint32_t* bounds, size_t dim, const float* bias);
// gate[row] = act(gate[row]) * up[row]; in a block without a gate, up[row] = act(up[row]).
void ActivatePlaces(Stream stream, float* gate, float* up, size_t rows, const uint32_t* bounds, size_t dim,
                    Activation act, bool gated);
// out[r] = the sum over the row's experts, in the order of their numbers, of weight * scale * made[place]; made
// [rows * used][dim], scales [experts] or null.
void SumExperts(Stream stream, const float* made, size_t rows, size_t used, size_t dim, const uint32_t* chosen,
                const float* weights, const float* scales, const uint32_t* places, float* out);

}  // namespace gyre::cuda
