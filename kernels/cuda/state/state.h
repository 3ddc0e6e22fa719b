// Launches of the ops on recurrent state, declared in kernels/ops.h. Runs lie on the device, and all that structs point
// to. Each element of state is one chain of operations in the order of positions.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"
#include "kernels/op_types.h"

namespace gyre::cuda {

void ShortConv(Stream stream, const float* x, size_t stride, const StateRun* runs, size_t count,
               const ShortConvParams& params, float* out);
void ScanState(Stream stream, const StateScanRows& rows, const StateRun* runs, size_t count,
               const StateScanParams& params, float* out);
void DecayGates(Stream stream, const float* x, size_t rows, size_t heads, size_t width, const float* bias,
                const float* a, DecayStep form, float* step, float* decay);

}  // namespace gyre::cuda
