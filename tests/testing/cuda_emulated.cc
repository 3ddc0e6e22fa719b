#include "tests/testing/cuda_emulated.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "tests/testing/far_queue.h"
#include "tests/testing/simt/global_memory.h"
#include "tests/testing/simt/simt.h"
#include "tests/testing/simt/stream.h"

namespace gyre::testing {
namespace {

constexpr int kNotThereYet = 0xA5;  // what the host reads before a copy is done

// What is called waits for its turn on a thread of the stream, as ops of a FarDevice do.
class EmulatedStream : public CUstream_st {
 public:
  explicit EmulatedStream(std::shared_ptr<EmulatedFaults> faults)
      : faults_(std::move(faults)),
        work_(std::chrono::milliseconds(2)),
        thread_([this] { work_.Loop([this](const std::function<void()>& work, bool last) { Run(work, last); }); }) {}
  ~EmulatedStream() override {
    work_.Stop();
    thread_.join();
  }
  void Enqueue(std::function<void()> work) override {
    if (capturing_ != nullptr) {
      capturing_->push_back(std::move(work));
    } else {
      work_.Call(std::move(work));
    }
  }
  // Calls that are enqueued meanwhile are not executed.
  std::vector<std::function<void()>> Capture(const std::function<void()>& calls) {
    std::vector<std::function<void()>> captured;
    capturing_ = &captured;
    try {
      calls();
    } catch (...) {
      capturing_ = nullptr;
      throw;
    }
    capturing_ = nullptr;
    return captured;
  }
  void Idle() { work_.Idle(); }
  void Rethrow() { work_.Rethrow(); }

 private:
  void Run(const std::function<void()>& work, bool last) {
    if (!batch_) batch_.emplace(simt::GlobalMemory::The());
    // Before anybody hears that the work is done: then the host touches what it may not.
    const auto close = [this, last](const void*) {
      if (last) batch_.reset();
    };
    const std::unique_ptr<const void, decltype(close)> at_end(this, close);
    if (faults_->lost) throw DeviceLost("the emulated GPU is lost");
    if (faults_->fails.exchange(false)) throw DeviceFailed("an op of the emulated GPU failed while it ran");
    try {
      work();
    } catch (const simt::Fault& fault) {
      std::fprintf(stderr, "emulated GPU: %s\n", fault.what());
      std::abort();
    }
  }

  const std::shared_ptr<EmulatedFaults> faults_;
  std::vector<std::function<void()>>* capturing_ = nullptr;
  std::optional<simt::GlobalMemory::Batch> batch_;  // the thread's
  FarWork work_;
  std::thread thread_;
};

class EmulatedRuntime : public cuda::Runtime {
 public:
  explicit EmulatedRuntime(std::shared_ptr<EmulatedFaults> faults) : faults_(std::move(faults)) {}

  std::string name() const override { return "cuda-emulated"; }
  std::string isa() const override { return "cuda-exact-1"; }
  std::string hardware() const override { return "emulated-gpu"; }

  DeviceRoom room() const override {
    const size_t limit = faults_->limit, used = faults_->used;
    return {.total = limit, .free = limit - std::min(limit, used)};
  }
  void* AllocateHost(size_t bytes) override { return ::operator new(bytes, std::align_val_t(64)); }
  void FreeHost(void* memory) noexcept override { ::operator delete(memory, std::align_val_t(64)); }

  void* Allocate(size_t bytes) override {
    if (faults_->lost) throw DeviceLost("the emulated GPU is lost");
    const size_t limit = faults_->limit, used = faults_->used;
    if (bytes > limit || used > limit - bytes)
      throw OutOfDeviceMemory("the emulated GPU has " + std::to_string(limit - std::min(limit, used)) +
                              " bytes free, " + std::to_string(bytes) + " are needed");
    void* memory = simt::AllocateZeros(bytes);
    faults_->used += bytes;
    MutexLock lock(&mutex_);
    sizes_[memory] = bytes;
    return memory;
  }
  void Free(void* memory) noexcept override {
    simt::Free(memory);
    MutexLock lock(&mutex_);
    faults_->used -= sizes_[memory];
    sizes_.erase(memory);
  }

  cuda::Stream NewStream() override { return new EmulatedStream(faults_); }
  void EndStream(cuda::Stream stream) noexcept override { delete stream; }
  void CopyIn(cuda::Stream stream, const void* host, void* device, size_t bytes) override {
    Enqueue(stream, [=] { simt::CopyIn(host, device, bytes); });
  }
  void CopyOut(cuda::Stream stream, const void* device, void* host, size_t bytes) override {
    std::memset(host, kNotThereYet, bytes);
    Enqueue(stream, [=] { simt::CopyOut(device, host, bytes); });
  }
  void Copy(cuda::Stream stream, const void* from, void* to, size_t bytes) override {
    Enqueue(stream, [=] { simt::Copy(from, to, bytes); });
  }
  void Zero(cuda::Stream stream, void* device, size_t bytes) override {
    Enqueue(stream, [=] { simt::Zero(device, bytes); });
  }
  void CheckLaunch(const char* op) override {
    if (faults_->lost) throw DeviceLost("the emulated GPU is lost");
    if (faults_->lost_after > 0 && --faults_->lost_after == 0) faults_->lost = true;
    if (faults_->refuses.exchange(false) || faults_->refuses_all)
      throw DeviceFailed(std::string(op) + " could not be launched: the emulated GPU refuses it");
  }
  // A graph repeats what was captured with the arguments of then: an address that has become another tensor's shows.
  cuda::Graph Capture(cuda::Stream stream, const std::function<void()>& calls) override {
    return new std::vector<std::function<void()>>(static_cast<EmulatedStream*>(stream)->Capture(calls));
  }
  void LaunchGraph(cuda::Stream stream, cuda::Graph graph) override {
    CheckLaunch("the graph of a step");
    ++faults_->graphs;
    for (const auto& work : *static_cast<const std::vector<std::function<void()>>*>(graph)) stream->Enqueue(work);
  }
  void DropGraph(cuda::Graph graph) noexcept override {
    delete static_cast<const std::vector<std::function<void()>>*>(graph);
  }
  void Idle(cuda::Stream stream) noexcept override { static_cast<EmulatedStream*>(stream)->Idle(); }
  void Finish(cuda::Stream stream) override {
    Idle(stream);
    static_cast<EmulatedStream*>(stream)->Rethrow();
  }

 private:
  void Enqueue(cuda::Stream stream, std::function<void()> work) {
    if (faults_->lost) throw DeviceLost("the emulated GPU is lost");
    stream->Enqueue(std::move(work));
  }

  const std::shared_ptr<EmulatedFaults> faults_;
  Mutex mutex_;
  std::map<void*, size_t> sizes_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Device> MakeEmulatedCudaDevice(std::shared_ptr<EmulatedFaults> faults, bool graphs) {
  if (faults == nullptr) faults = std::make_shared<EmulatedFaults>();
  return cuda::MakeCudaDevice(std::make_unique<EmulatedRuntime>(std::move(faults)), {.graphs = graphs});
}

std::shared_ptr<EmulatedFaults>& LastFaults() {
  static std::shared_ptr<EmulatedFaults> faults;
  return faults;
}

}  // namespace gyre::testing
