// The GPUs of this machine, by the CUDA runtime. Only a build with nvcc has runtime_cuda.cc (docs/cuda.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace gyre::cuda {

struct Gpu {
  int number = 0;  // of "cuda:N"
  std::string name, uuid;
  int major = 0, minor = 0;                   // compute capability
  uint64_t total = 0;                         // bytes of memory
  bool usable() const { return major >= 8; }  // kernels are compiled for 8.0 and later
};
struct Gpus {
  std::vector<Gpu> gpus;
  std::string driver;    // the newest CUDA that it knows, as "13.0"; "" = there is no driver
  std::string why_none;  // a clause, where there is no GPU
};
// Starts the driver, where there is one, but takes no memory of a GPU. Never throws for a missing driver or GPU.
// Thread-safe.
Gpus FindGpus();
// Bytes of its memory that nobody has; 0: it can't be asked. Asking takes some of that memory for this process.
uint64_t FreeMemory(const Gpu& gpu);

// "CUDA 13.0 (sm_80 sm_90 sm_120)": what kernels are compiled for.
std::string BuiltFor();

// Reserves `budget` bytes of the GPU's memory for tensors; 0: nine tenths of what is free. Throws DeviceFailed and
// OutOfDeviceMemory. REQUIRES: FindGpus() has the GPU, and it is usable.
std::unique_ptr<Runtime> OpenGpu(const Gpu& gpu, size_t budget);

}  // namespace gyre::cuda
