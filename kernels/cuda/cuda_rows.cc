// Ops on rows: norms, what is done element by element, rows on the wire, rows of logits.
#include <algorithm>
#include <string>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/wire_rows.h"

namespace gyre::cuda {

void CudaBackend::RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) {
  cuda::RmsNorm(stream_, x, rows, 1, dim, w, eps, out);
  Launched("RmsNorm");
}
void CudaBackend::GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                               float* out) {
  cuda::RmsNorm(stream_, x, rows * groups, groups, dim, w, eps, out);
  Launched("GroupRmsNorm");
}
void CudaBackend::Center(const float* x, size_t rows, size_t dim, float* out) {
  cuda::Center(stream_, x, rows, dim, out);
  Launched("Center");
}
void CudaBackend::Xielu(float* x, size_t n, const XieluParams& params) {
  cuda::Xielu(stream_, x, n, params);
  Launched("Xielu");
}
void CudaBackend::Activate(const float* x, size_t n, Activation act, float* out) {
  cuda::Activate(stream_, x, n, act, out);
  Launched("Activate");
}
void CudaBackend::MultiplyInPlace(float* x, const float* y, size_t n) {
  cuda::MultiplyInPlace(stream_, x, y, n);
  Launched("MultiplyInPlace");
}
void CudaBackend::GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) {
  cuda::GatedActivation(stream_, gate, up, n, act, out);
  Launched("GatedActivation");
}
void CudaBackend::AddInPlace(float* x, const float* y, size_t n) {
  cuda::AddInPlace(stream_, x, y, n);
  Launched("AddInPlace");
}
void CudaBackend::AddScaled(float* x, const float* y, size_t n, float by) {
  cuda::AddScaled(stream_, x, y, n, by);
  Launched("AddScaled");
}
void CudaBackend::AddBias(float* x, size_t rows, size_t dim, const float* bias) {
  cuda::AddBias(stream_, x, rows, dim, bias);
  Launched("AddBias");
}
void CudaBackend::ScaleColumns(float* x, size_t rows, size_t dim, const float* by) {
  cuda::ScaleColumns(stream_, x, rows, dim, by);
  Launched("ScaleColumns");
}
void CudaBackend::Scale(float* x, size_t n, float by) {
  cuda::Scale(stream_, x, n, by);
  Launched("Scale");
}
void CudaBackend::ScaleRows(float* x, size_t rows, size_t dim, const float* by) {
  cuda::ScaleRows(stream_, x, rows, dim, by);
  Launched("ScaleRows");
}
void CudaBackend::SoftcapInPlace(float* x, size_t n, float cap) {
  cuda::SoftcapInPlace(stream_, x, n, cap);
  Launched("SoftcapInPlace");
}
void CudaBackend::SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) {
  cuda::SigmoidDot(stream_, x, rows, dim, w, out);
  Launched("SigmoidDot");
}
void CudaBackend::GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width,
                             float* out) {
  cuda::GatherRows(stream_, x, stride, numbers.data(), numbers.size(), width, out);
  Launched("GatherRows");
}
void CudaBackend::CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                              size_t to_stride) {
  cuda::CopyColumns(stream_, from, rows, from_stride, width, to, to_stride);
  Launched("CopyColumns");
}

void CudaBackend::EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) {
  if (type == DType::kF32) return Copy(x, out, rows * WireRowBytes(type, dim));
  cuda::EncodeRows(stream_, type, x, rows, dim, out, saturated);
  Launched("EncodeRows");
}
void CudaBackend::DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) {
  if (type == DType::kF32) return Copy(in, x, rows * WireRowBytes(type, dim));
  cuda::DecodeRows(stream_, type, in, rows, dim, x);
  Launched("DecodeRows");
}

void CudaBackend::TopK(std::span<const TopKRow> rows, size_t vocab) {
  if (rows.empty()) return;
  uint32_t most = 0;
  for (const TopKRow& row : rows) most = std::max(most, row.k);
  if (most > kMostBest)
    throw DeviceFailed("TopK could not be launched: " + std::to_string(most) + " best ids, at most " +
                       std::to_string(kMostBest) + " are possible");
  uint64_t* scratch = top_scratch_.EnsureCapacity(*device_, TopKScratch(rows.size(), vocab, most));
  cuda::TopK(stream_, Keep(rows), rows.size(), vocab, most, scratch);
  Launched("TopK");
}
void CudaBackend::LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) {
  if (rows.empty()) return;
  double* scratch = sum_scratch_.EnsureCapacity(*device_, LogSumExpScratch(rows.size(), vocab));
  cuda::LogSumExp(stream_, Keep(rows), rows.size(), vocab, scratch);
  Launched("LogSumExp");
}
void CudaBackend::Pick(std::span<const PickRow> rows) {
  if (rows.empty()) return;
  cuda::Pick(stream_, Keep(rows), rows.size());
  Launched("Pick");
}

}  // namespace gyre::cuda
