// What a host asks of a GPU besides launches of kernels: the seam between CUDA's runtime and the emulated one.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cuda/stream.h"

namespace gyre::cuda {

// Thread-safe, but for calls of one stream, which one thread at a time makes.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual std::string name() const = 0;  // "cuda:0"
  virtual std::string isa() const = 0;   // the same word: the same bits

  // Memory that holds zeros. Throws OutOfDeviceMemory.
  virtual void* Allocate(size_t bytes) = 0;
  // REQUIRES: no stream uses it any more.
  virtual void Free(void* memory) noexcept = 0;

  virtual Stream NewStream() = 0;
  virtual void EndStream(Stream stream) noexcept = 0;
  // In the order of the stream's calls, after the call returns: bytes > 0.
  virtual void CopyIn(Stream stream, const void* host, void* device, size_t bytes) = 0;
  virtual void CopyOut(Stream stream, const void* device, void* host, size_t bytes) = 0;
  virtual void Copy(Stream stream, const void* from, void* to, size_t bytes) = 0;
  virtual void Zero(Stream stream, void* device, size_t bytes) = 0;
  // After a launch: throws DeviceFailed, which names the op, if it was refused.
  virtual void CheckLaunch(const char* op) = 0;
  // Returns when all is done that was called before. Finish then throws what failed: DeviceFailed, DeviceLost.
  virtual void Idle(Stream stream) noexcept = 0;
  virtual void Finish(Stream stream) = 0;
};

}  // namespace gyre::cuda
