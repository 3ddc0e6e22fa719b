// A queue of a GPU: each op is a few launches on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/products/products.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace gyre::cuda {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(std::unique_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

  std::string name() const override { return runtime_->name(); }
  std::string isa() const override { return runtime_->isa(); }
  bool prefill_matches_decode() const override { return false; }
  std::unique_ptr<Backend> NewBackend() override;

  Runtime& runtime() { return *runtime_; }
  Stream NewStream();
  void EndStream(Stream stream) noexcept;

 protected:
  std::byte* Take(size_t bytes) override;
  void GiveBack(std::byte* data, size_t bytes) noexcept override;

 private:
  const std::unique_ptr<Runtime> runtime_;
  std::mutex mutex_;
  std::set<Stream> streams_;
};

// A matrix in memory of the device.
struct CudaWeight : PackedWeight {
  uint64_t id = 0;  // no other one of the process has it
  DeviceMemory data, scales;
  Matrix matrix;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(std::shared_ptr<CudaDevice> device);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  // cuda_backend.cc
  Device& device() override { return *device_; }
  void Finish() override;
  void Recycle() override;
  void CopyIn(const void* host, void* device, size_t bytes) override;
  void CopyOut(const void* device, void* host, size_t bytes) override;
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* device, size_t bytes) override;

  // cuda_products.cc
  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override;
  void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) override;
  void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                   size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) override;
  void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                   bool add) override;
  void ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                     uint32_t* experts, float* weights) override;
  void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) override;
  void Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) override;

  // cuda_mixers.cc
  void RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude, float* cos,
                   float* sin) override;
  void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
            RopePairing pairing) override;
  void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) override;
  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                 float* out) override;
  void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                 float* out) override;
  void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                 float* out) override;
  void DecayGates(const float* x, size_t rows, size_t heads, const float* bias, const float* a, float* step,
                  float* decay) override;

  // cuda_rows.cc
  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override;
  void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                    float* out) override;
  void Activate(const float* x, size_t n, Activation act, float* out) override;
  void MultiplyInPlace(float* x, const float* y, size_t n) override;
  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override;
  void AddInPlace(float* x, const float* y, size_t n) override;
  void AddScaled(float* x, const float* y, size_t n, float by) override;
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override;
  void Scale(float* x, size_t n, float by) override;
  void ScaleRows(float* x, size_t rows, size_t dim, const float* by) override;
  void SoftcapInPlace(float* x, size_t n, float cap) override;
  void SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) override;
  void GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width, float* out) override;
  void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                   size_t to_stride) override;
  void EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) override;
  void DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) override;
  void TopK(std::span<const TopKRow> rows, size_t vocab) override;
  void LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) override;
  void Pick(std::span<const PickRow> rows) override;

 protected:
  const void* UploadBytes(const void* host, size_t bytes) override;
  const void* DownloadBytes(const void* device, size_t bytes) override;

 private:
  // Structs that an op takes, copied, as the caller's are only good until the call returns.
  template <typename T>
  const T* Keep(std::span<const T> structs) {
    const auto* bytes = reinterpret_cast<const std::byte*>(structs.data());
    const std::vector<std::byte>& kept = kept_.emplace_back(bytes, bytes + structs.size_bytes());
    return static_cast<const T*>(UploadBytes(kept.data(), kept.size()));
  }
  // After an op's launches: throws if one was refused.
  void Launched(const char* op) { runtime().CheckLaunch(op); }
  Runtime& runtime() { return device_->runtime(); }
  const Codebooks& Books();
  // Rows as the operand of a product, until the next one of these pieces.
  Operand Prepare(Pieces pieces, const OperandSource& from);
  // The matrices as an array on the device, for one launch; null where they are not packed in one form.
  const Matrix* Together(const std::vector<const CudaWeight*>& weights);
  // out[place] = the product of x[place] with a matrix of the place's expert, whose rows lie between its bounds.
  void MultiplyByExperts(std::span<const Ffn> experts, const PackedWeight& (*which)(const Ffn&), const float* x,
                         size_t rows, const uint32_t* bounds, bool exact, float* out);

  const std::shared_ptr<CudaDevice> device_;
  const Stream stream_;
  struct Chunk {
    DeviceMemory memory;
    size_t used = 0;
  };
  std::list<Chunk> uploads_;
  std::list<std::vector<std::byte>> downloads_, kept_;
  DeviceBuffer<float> gate_, up_;  // of feed-forward blocks
  DeviceBuffer<uint8_t> operands_[kPiecesKinds];
  std::map<std::vector<uint64_t>, DeviceMemory> together_;  // by the matrices' ids
  DeviceBuffer<float> gathered_, made_;                     // the rows of experts, by place
  DeviceBuffer<uint32_t> placed_;                           // Places
  DeviceBuffer<float> attention_scratch_;
  DeviceBuffer<uint64_t> top_scratch_;
  DeviceBuffer<double> sum_scratch_;
  DeviceMemory books_memory_;
  Codebooks books_;
};

}  // namespace gyre::cuda
