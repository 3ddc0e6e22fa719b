// Launches of the ops on rows: norms, rotary positions, and what is done element by element. Each is declared, with its
// shapes, as the op of its name in kernels/ops.h; all pointers are the device's. Nothing happens for 0 elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/op_types.h"
#include "kernels/ops.h"

namespace gyre::cuda {

// norm.cu: w [groups][dim], or null. `vectors` counts all groups of all rows.
void RmsNorm(Stream stream, const float* x, size_t vectors, size_t groups, size_t dim, const float* w, float eps,
             float* out);

void Center(Stream stream, const float* x, size_t rows, size_t dim, float* out);

// rope.cu
void RotaryTable(Stream stream, const KvRow* rows, size_t count, const double* frequencies, size_t half,
                 float magnitude, float* cos, float* sin);
void Rope(Stream stream, float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
          RopePairing pairing);

// elementwise.cu
void Activate(Stream stream, const float* x, size_t n, Activation act, float* out);
void Xielu(Stream stream, float* x, size_t n, const XieluParams& params);
// x = low if x < low, high if x > high.
void Limit(Stream stream, float* x, size_t n, float low, float high);
void GatedActivation(Stream stream, const float* gate, const float* up, size_t n, Activation act, float* out);
void MultiplyInPlace(Stream stream, float* x, const float* y, size_t n);
void AddInPlace(Stream stream, float* x, const float* y, size_t n);
void AddScaled(Stream stream, float* x, const float* y, size_t n, float by);
void AddBias(Stream stream, float* x, size_t rows, size_t dim, const float* bias);
void ScaleColumns(Stream stream, float* x, size_t rows, size_t dim, const float* by);
void Scale(Stream stream, float* x, size_t n, float by);
void ScaleRows(Stream stream, float* x, size_t rows, size_t dim, const float* by);
void SoftcapInPlace(Stream stream, float* x, size_t n, float cap);
void CopyColumns(Stream stream, const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                 size_t to_stride);
void GatherRows(Stream stream, const float* x, size_t stride, const uint32_t* numbers, size_t count, size_t width,
                float* out);
void SigmoidDot(Stream stream, const float* x, size_t rows, size_t dim, const float* w, float* out);

// wire.cu: kF16 and kQ8_0; rows of kF32 are a copy.
void EncodeRows(Stream stream, DType type, const float* x, size_t rows, size_t dim, std::byte* out,
                uint64_t* saturated);
void DecodeRows(Stream stream, DType type, const std::byte* in, size_t rows, size_t dim, float* x);

}  // namespace gyre::cuda
