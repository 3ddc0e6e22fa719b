// What a host asks of a GPU besides launches of kernels: the seam between CUDA's runtime and the emulated one.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "kernels/cuda/stream.h"
#include "kernels/device.h"

namespace gyre::cuda {

using Graph = void*;

// Thread-safe, but for calls of one stream, which one thread at a time makes. Each call makes the GPU the current one
// of the calling thread, so a thread calls one of these before its first launch.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual std::string name() const = 0;      // "cuda:0"
  virtual std::string isa() const = 0;       // the same word: the same bits
  virtual std::string hardware() const = 0;  // Device::hardware

  // The memory that Allocate gives out, and how much of it is free.
  virtual DeviceRoom room() const = 0;
  // Memory that holds zeros. Throws OutOfDeviceMemory.
  virtual void* Allocate(size_t bytes) = 0;
  // REQUIRES: no stream uses it any more.
  virtual void Free(void* memory) noexcept = 0;
  // Memory of the host that copies reach without a detour. Throws std::bad_alloc.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) noexcept = 0;

  virtual Stream NewStream() = 0;
  virtual void EndStream(Stream stream) noexcept = 0;
  // In the order of the stream's calls, after the call returns: bytes > 0.
  virtual void CopyIn(Stream stream, const void* host, void* device, size_t bytes) = 0;
  virtual void CopyOut(Stream stream, const void* device, void* host, size_t bytes) = 0;
  virtual void Copy(Stream stream, const void* from, void* to, size_t bytes) = 0;
  virtual void Zero(Stream stream, void* device, size_t bytes) = 0;
  // After a launch: throws DeviceFailed, which names the op, if it was refused.
  virtual void CheckLaunch(const char* op) = 0;
  // A graph of what `calls` launches and copies on the stream, which is not done meanwhile; null: the runtime can't
  // capture it, and nothing was done. Arguments stay as they were then. Throws what `calls` throws.
  virtual Graph Capture(Stream stream, const std::function<void()>& calls) = 0;
  virtual void LaunchGraph(Stream stream, Graph graph) = 0;
  // REQUIRES: it does not run.
  virtual void DropGraph(Graph graph) noexcept = 0;
  // Returns when all is done that was called before. Finish then throws what failed: DeviceFailed, DeviceLost.
  virtual void Idle(Stream stream) noexcept = 0;
  virtual void Finish(Stream stream) = 0;
};

}  // namespace gyre::cuda
