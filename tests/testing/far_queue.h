// A queue of a FarDevice. The arguments of a call are copied, and a thread passes them to the queue of the device
// inside, later, with addresses that it may access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/ops.h"
#include "tests/testing/far_device.h"

namespace gyre::testing {

// The calls of a queue on their way to its thread, and what became of them. Thread-safe.
class FarWork {
 public:
  explicit FarWork(Duration lag) : lag_(lag) {}
  void Call(std::function<void()> work) {
    MutexLock lock(&mutex_);
    if (called_ == done_) late_ = After(lag_);
    ++called_;
    work_.push_back(std::move(work));
    changed_.SignalAll();
  }
  // Waits until the earlier calls are done, also if they failed.
  void Idle() {
    MutexLock lock(&mutex_);
    ++waiting_;
    changed_.SignalAll();
    const uint64_t called = called_;
    while (done_ < called) changed_.Wait(&mutex_);
    --waiting_;
  }
  // Throws the first error since the last call.
  void Rethrow() {
    MutexLock lock(&mutex_);
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void Stop() {
    MutexLock lock(&mutex_);
    stopping_ = true;
    ++waiting_;
    changed_.SignalAll();
  }
  // The queue's thread: run(work, whether it is the last of those that are there).
  template <typename Fn>
  void Loop(const Fn& run) {
    for (;;) {
      std::deque<std::function<void()>> now;
      {
        MutexLock lock(&mutex_);
        while (work_.empty() && !stopping_) changed_.Wait(&mutex_);
        if (work_.empty()) return;
        while (waiting_ == 0 && Clock::now() < late_) changed_.WaitUntil(&mutex_, late_);
        now.swap(work_);
      }
      for (auto& work : now) {
        std::exception_ptr error;
        try {
          run(work, &work == &now.back());
        } catch (...) {
          error = std::current_exception();
        }
        work = nullptr;
        MutexLock lock(&mutex_);
        if (error != nullptr && error_ == nullptr) error_ = error;
        ++done_;
        changed_.SignalAll();
      }
    }
  }

 private:
  const Duration lag_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ GYRE_GUARDED_BY(mutex_);
  uint64_t called_ GYRE_GUARDED_BY(mutex_) = 0, done_ GYRE_GUARDED_BY(mutex_) = 0;
  int waiting_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline late_ GYRE_GUARDED_BY(mutex_);
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GYRE_GUARDED_BY(mutex_);
};

class FarQueue : public Backend {
 public:
  FarQueue(std::shared_ptr<FarDevice> device, std::unique_ptr<Backend> inner);
  ~FarQueue() override;
  FarQueue(const FarQueue&) = delete;
  FarQueue& operator=(const FarQueue&) = delete;

  Device& device() override { return *device_; }
  int threads() const override { return inner_->threads(); }

  // far_queue.cc
  void Finish() override;
  void Recycle() override;
  void Rehearse(const std::function<void()>& ops) override { inner_->Rehearse(ops); }
  void CopyIn(const void* host, void* device, size_t bytes) override;
  void CopyOut(const void* device, void* host, size_t bytes) override;
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* device, size_t bytes) override;
  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override;

  // far_products.cc
  void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) override;
  void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                   size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) override;
  void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                   bool add) override;
  void ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                     uint32_t* experts, float* weights) override;
  void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) override;
  void Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) override;

  // far_mixers.cc
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

  // far_rows.cc
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
  struct Chunk {
    DeviceMemory memory;
    size_t used = 0;
  };

  // Runs on the calling thread, so that a debugger shows the caller with a wrong address.
  void Check(const void* address, size_t bytes) const { device_->Find(address, bytes); }
  void CheckAll(size_t floats, std::initializer_list<const float*> addresses) const {
    for (const float* address : addresses) Check(address, floats * sizeof(float));
  }
  // Runs on the queue's thread.
  template <typename T>
  T* At(T* address, size_t bytes = 1) const {
    if constexpr (std::is_void_v<std::remove_const_t<T>>)
      return device_->Find(address, bytes);
    else
      return reinterpret_cast<T*>(device_->Find(address, bytes));
  }
  template <typename T>
  static std::vector<T> Copied(std::span<const T> span) {
    return {span.begin(), span.end()};
  }
  template <typename T>
  std::span<const T> Here(std::span<const T> span) const {
    return span.empty() ? span : std::span(At(span.data()), span.size());
  }
  // Block tables are on the device too. Valid until the next call.
  std::span<const KvRow> Here(std::span<const KvRow> rows) {
    rows_.clear();
    const KvRow* from = rows.empty() ? nullptr : At(rows.data(), rows.size_bytes());
    for (size_t i = 0; i < rows.size(); ++i) rows_.push_back({At(from[i].table), from[i].position});
    return rows_;
  }
  KvView Here(KvView kv) const {
    kv.k = At(kv.k);
    kv.v = At(kv.v);
    return kv;
  }
  Ffn Here(const Ffn& w) const {
    return {w.gate, w.up, w.down, At(w.gate_bias), At(w.up_bias), At(w.down_bias), w.gate_limit, w.up_limit};
  }
  std::vector<StateRun> Here(std::vector<StateRun> runs) const {
    for (StateRun& run : runs) run.state = At(run.state);
    return runs;
  }

  // Hands work to the thread. Throws DeviceLost.
  void Call(std::function<void()> work);
  // On the thread.
  void Run(const std::function<void()>& work);

  const std::shared_ptr<FarDevice> device_;
  const std::unique_ptr<Backend> inner_;
  std::vector<KvRow> rows_;                      // the thread's
  std::list<Chunk> uploads_;                     // the caller's
  std::list<std::vector<std::byte>> downloads_;  // the caller's
  const std::shared_ptr<FarWork> work_;
  std::thread thread_;
};

}  // namespace gyre::testing
