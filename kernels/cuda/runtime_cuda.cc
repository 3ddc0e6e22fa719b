#include "kernels/cuda/runtime_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "kernels/cuda/arena.h"
#include "kernels/cuda/errors.h"

namespace gyre::cuda {
namespace {

static_assert(error::kSuccess == cudaSuccess && error::kInvalidValue == cudaErrorInvalidValue &&
              error::kMemory == cudaErrorMemoryAllocation &&
              error::kInvalidConfiguration == cudaErrorInvalidConfiguration &&
              error::kInvalidDeviceFunction == cudaErrorInvalidDeviceFunction &&
              error::kNoDevice == cudaErrorNoDevice &&
              error::kNoKernelImageForDevice == cudaErrorNoKernelImageForDevice &&
              error::kLaunchOutOfResources == cudaErrorLaunchOutOfResources);

std::string Describe(cudaError_t e) {
  return std::string(cudaGetErrorName(e)) + " (" + std::to_string(static_cast<int>(e)) + "), " + cudaGetErrorString(e);
}

// Throws what `e` means. `what`: the beginning of a sentence, as "Attention could not be launched".
void Check(cudaError_t e, const std::string& what) {
  switch (SeverityOf(e)) {
    case Severity::kNone: return;
    case Severity::kMemory: throw OutOfDeviceMemory(what + ": " + Describe(e));
    case Severity::kOp: throw DeviceFailed(what + ": " + Describe(e));
    case Severity::kDevice: throw DeviceLost(what + ": " + Describe(e));
  }
}

std::string UuidOf(const cudaUUID_t& uuid) {
  std::string text;
  for (const char byte : uuid.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

class CudaRuntime : public Runtime {
 public:
  CudaRuntime(const Gpu& gpu, size_t budget) : gpu_(gpu), arena_(budget) {
    Use();
    Check(cudaMalloc(reinterpret_cast<void**>(&memory_), budget),
          "no memory of " + name() + " for --device-memory: " + std::to_string(budget) + " bytes are needed, " +
              std::to_string(FreeMemory(gpu)) + " are free");
    budget_ = arena_.free();
    if (const cudaError_t e = cudaStreamCreateWithFlags(&zeros_, cudaStreamNonBlocking); e != cudaSuccess) {
      cudaFree(memory_);
      Check(e, "a stream of " + name() + " can't be made");
    }
  }
  ~CudaRuntime() override {
    cudaSetDevice(gpu_.number);
    cudaStreamDestroy(zeros_);
    cudaFree(memory_);
  }

  std::string name() const override { return "cuda:" + std::to_string(gpu_.number); }
  std::string isa() const override {
    return "cuda-sm" + std::to_string(gpu_.major) + std::to_string(gpu_.minor) + "-1";
  }
  std::string hardware() const override {
    std::string word = gpu_.name + "-" + gpu_.uuid;
    std::replace(word.begin(), word.end(), ' ', '-');
    return word;
  }

  DeviceRoom room() const override {
    const std::lock_guard lock(mutex_);
    return {.total = budget_, .free = arena_.free()};
  }
  void* Allocate(size_t bytes) override {
    Use();
    std::byte* piece = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const std::optional<size_t> offset = arena_.Take(bytes);
      if (!offset) {
        throw OutOfDeviceMemory(name() + " has " + std::to_string(arena_.free()) + " bytes free (the largest piece " +
                                std::to_string(arena_.largest()) + "), " + std::to_string(bytes) + " are needed");
      }
      piece = memory_ + *offset;
    }
    // No stream of ops may come to the memory before the zeros do.
    cudaError_t e = cudaMemsetAsync(piece, 0, bytes, zeros_);
    if (e == cudaSuccess) e = cudaStreamSynchronize(zeros_);
    if (e != cudaSuccess) {
      Free(piece);
      Check(e, "memory could not be cleared");
    }
    return piece;
  }
  void Free(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    arena_.GiveBack(static_cast<size_t>(static_cast<std::byte*>(memory) - memory_));
  }
  void* AllocateHost(size_t bytes) override {
    Use();
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) != cudaSuccess) {
      cudaGetLastError();
      throw std::bad_alloc();
    }
    return memory;
  }
  void FreeHost(void* memory) noexcept override { cudaFreeHost(memory); }

  Stream NewStream() override {
    Use();
    cudaStream_t stream = nullptr;
    Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream of " + name() + " can't be made");
    return stream;
  }
  void EndStream(Stream stream) noexcept override { cudaStreamDestroy(stream); }
  void CopyIn(Stream stream, const void* host, void* device, size_t bytes) override {
    Use();
    Check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "a copy to the GPU was refused");
  }
  void CopyOut(Stream stream, const void* device, void* host, size_t bytes) override {
    Use();
    Check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "a copy from the GPU was refused");
  }
  void Copy(Stream stream, const void* from, void* to, size_t bytes) override {
    Use();
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy within the GPU was refused");
  }
  void Zero(Stream stream, void* device, size_t bytes) override {
    Use();
    Check(cudaMemsetAsync(device, 0, bytes, stream), "memory could not be cleared");
  }
  void CheckLaunch(const char* op) override { Check(cudaGetLastError(), std::string(op) + " could not be launched"); }
  Graph Capture(Stream stream, const std::function<void()>& calls) override {
    Use();
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return nullptr;
    cudaGraph_t graph = nullptr;
    try {
      calls();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    cudaGraphExec_t exec = nullptr;
    cudaError_t e = cudaStreamEndCapture(stream, &graph);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    return e == cudaSuccess ? exec : nullptr;
  }
  void LaunchGraph(Stream stream, Graph graph) override {
    Use();
    Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream), "the graph of a step could not be launched");
  }
  void DropGraph(Graph graph) noexcept override { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }
  void Idle(Stream stream) noexcept override {
    cudaSetDevice(gpu_.number);
    cudaStreamSynchronize(stream);
  }
  void Finish(Stream stream) override {
    Use();
    Check(cudaStreamSynchronize(stream), "an op failed while it ran");
  }

 private:
  void Use() const { Check(cudaSetDevice(gpu_.number), name() + " can't be used"); }

  const Gpu gpu_;
  std::byte* memory_ = nullptr;
  size_t budget_ = 0;
  cudaStream_t zeros_ = nullptr;
  mutable std::mutex mutex_;
  Arena arena_;  // guarded by mutex_
};

}  // namespace

Gpus FindGpus() {
  Gpus found;
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver > 0) found.driver = VersionName(driver);
  const cudaError_t counted = cudaGetDeviceCount(&count);
  cudaGetLastError();  // it is told here, and not by the first launch
  if (counted != cudaSuccess || count == 0) {
    found.why_none = WhyNoGpu(counted, driver, CUDART_VERSION, count);
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    found.gpus.push_back({.number = i,
                          .name = p.name,
                          .uuid = UuidOf(p.uuid),
                          .major = p.major,
                          .minor = p.minor,
                          .total = p.totalGlobalMem});
  }
  cudaGetLastError();
  if (found.gpus.empty()) found.why_none = "the driver describes none of its GPUs";
  return found;
}

std::string BuiltFor() { return "CUDA " + VersionName(CUDART_VERSION) + " (" GYRE_CUDA_ARCHITECTURES ")"; }

uint64_t FreeMemory(const Gpu& gpu) {
  size_t free = 0, total = 0;
  const bool known = cudaSetDevice(gpu.number) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaGetLastError();
  return known ? free : 0;
}

std::unique_ptr<Runtime> OpenGpu(const Gpu& gpu, size_t budget) {
  return std::make_unique<CudaRuntime>(gpu, budget != 0 ? budget : FreeMemory(gpu) / 10 * 9);
}

}  // namespace gyre::cuda
