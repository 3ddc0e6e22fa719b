// A queue of a GPU: each op is a few launches on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/step_graphs.h"
#include "kernels/cuda/step_log.h"
#include "kernels/ops.h"

namespace gyre::cuda {

class CudaDevice : public Device {
 public:
  CudaDevice(std::unique_ptr<Runtime> runtime, const CudaOptions& options)
      : runtime_(std::move(runtime)), options_(options) {}

  std::string name() const override { return runtime_->name(); }
  std::string isa() const override { return runtime_->isa(); }
  bool prefill_matches_decode() const override { return false; }
  std::optional<DeviceRoom> room() const override { return runtime_->room(); }
  std::string hardware() const override { return runtime_->hardware(); }
  DeviceSpeed Measure() override;
  std::unique_ptr<Backend> NewBackend() override;

  Runtime& runtime() { return *runtime_; }
  const CudaOptions& options() const { return options_; }
  // Held while a stream is captured, which nobody may wait for then.
  std::mutex& capturing() { return capturing_; }
  Stream NewStream();
  void EndStream(Stream stream) noexcept;

 protected:
  std::byte* Take(size_t bytes) override;
  void GiveBack(std::byte* data, size_t bytes) noexcept override;

 private:
  const std::unique_ptr<Runtime> runtime_;
  const CudaOptions options_;
  std::mutex capturing_;
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

  Stream stream() const { return stream_; }
  const StepGraphs::Counts& graph_counts() const { return graphs_.counts(); }

  // cuda_backend.cc
  Device& device() override { return *device_; }
  void Finish() override;
  void Recycle() override;
  void Rehearse(const std::function<void()>& ops) override;
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
  void DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                  DecayStep form, float* step, float* decay) override;

  // cuda_rows.cc
  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override;
  void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                    float* out) override;
  void Center(const float* x, size_t rows, size_t dim, float* out) override;
  void Xielu(float* x, size_t n, const XieluParams& params) override;
  void Activate(const float* x, size_t n, Activation act, float* out) override;
  void MultiplyInPlace(float* x, const float* y, size_t n) override;
  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override;
  void AddInPlace(float* x, const float* y, size_t n) override;
  void AddScaled(float* x, const float* y, size_t n, float by) override;
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override;
  void ScaleColumns(float* x, size_t rows, size_t dim, const float* by) override;
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
    return static_cast<const T*>(UploadBytes(structs.data(), structs.size_bytes()));
  }
  // After an op's launches: throws if one was refused.
  void Launched(const char* op) {
    Do([this, op] { runtime().CheckLaunch(op); }, op);
  }
  Runtime& runtime() { return device_->runtime(); }
  // Does a call now, or with the step; `told` tells it from others.
  template <typename Call, typename... Told>
  void Do(const Call& call, const Told&... told) {
    StepLog* const log = StepLog::Of(stream_);
    if (log == nullptr) return call();
    (log->Tell(told), ...);
    log->Add(call);
  }
  // Does what was put off, as a graph where it came before. Calls are done at once from here on.
  void Flush();
  // Brings to the device what was uploaded and is not marked as sent.
  void SendUploads();
  void MarkSent() {
    for (Image& image : uploads_) image.sent = image.used;
  }
  std::byte* DownloadRoom(size_t bytes);

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
  // Memory of the host that copies reach directly.
  class HostMemory {
   public:
    HostMemory(Runtime& runtime, size_t bytes)
        : runtime_(&runtime), data_(static_cast<std::byte*>(runtime.AllocateHost(bytes))), bytes_(bytes) {}
    HostMemory(HostMemory&& other) noexcept
        : runtime_(other.runtime_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
    HostMemory& operator=(HostMemory&&) = delete;
    ~HostMemory() {
      if (data_ != nullptr) runtime_->FreeHost(data_);
    }
    std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }

   private:
    Runtime* runtime_;
    std::byte* data_;
    size_t bytes_;
  };
  // The image of a step: what it uploads, on the host as on the device. Pieces are cut from the front in every step, so
  // that equal steps have equal addresses.
  struct Image {
    HostMemory host;
    DeviceMemory device;
    size_t used = 0, sent = 0;
  };
  struct Area {
    HostMemory host;
    size_t used = 0;
  };
  // Bytes for memory of the caller, which came elsewhere: a graph has no address that ends with a step.
  struct Landing {
    const std::byte* from;
    void* to;
    size_t bytes;
  };
  std::list<Image> uploads_;
  std::list<Area> downloads_;
  std::vector<Landing> landings_;
  StepLog log_;
  StepGraphs graphs_;
  std::exception_ptr failed_;  // of a flush by StepLog::FlushCurrent; Finish throws it
  bool rehearses_ = false;
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
