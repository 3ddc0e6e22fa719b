// The common base of backends whose device is the host: nothing is copied, and cheap ops are plain loops.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ops.h"

namespace gyre {

class HostBackend : public Backend {
 public:
  explicit HostBackend(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Device& device() override { return *device_; }
  void Finish() override {}
  void Recycle() override {}
  void CopyIn(const void* host, void* device, size_t bytes) override { Copy(host, device, bytes); }
  void CopyOut(const void* device, void* host, size_t bytes) override { Copy(device, host, bytes); }
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* device, size_t bytes) override;

  void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                   bool add) override;
  void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                   size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) override;
  void ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                     uint32_t* experts, float* weights) override;
  void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) override;
  void RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude, float* cos,
                   float* sin) override;
  void Center(const float* x, size_t rows, size_t dim, float* out) override;
  void Xielu(float* x, size_t n, const XieluParams& params) override;
  void AddScaled(float* x, const float* y, size_t n, float by) override;
  void ScaleRows(float* x, size_t rows, size_t dim, const float* by) override;
  void SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) override;
  void GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width, float* out) override;
  void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                   size_t to_stride) override;
  void EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) override;
  void DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) override;
  void Pick(std::span<const PickRow> rows) override;

 protected:
  // FeedForward of a gated block without biases and limits.
  virtual void GatedFeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic,
                                float* out, bool add) = 0;
  // Applies the limits of a gated block to its products, n each.
  virtual void LimitProducts(float* gate, float* up, size_t n, const Ffn& w);
  const void* UploadBytes(const void* host, size_t) override { return host; }
  const void* DownloadBytes(const void* device, size_t) override { return device; }

 private:
  const std::shared_ptr<Device> device_;
  DeviceBuffer<float> inner_;                   // of a feed-forward block
  DeviceBuffer<float> gathered_, made_;         // an expert's rows, or a head's
  std::vector<Arithmetic> arithmetics_;         // of each row
  std::vector<std::vector<size_t>> chosen_by_;  // of each expert: indices of [rows][used]
};

// Applies the limits of a gated block to its products, n each.
void Limit(float* gate, float* up, size_t n, const Backend::Ffn& w);

// The ids that were selected for a row, best first.
void SaveTop(const TopKRow& row, std::span<const TokenId> ids);

}  // namespace gyre
