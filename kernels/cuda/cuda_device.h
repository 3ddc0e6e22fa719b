// A GPU as a device: docs/cuda.md, docs/device.md.
#pragma once

#include <memory>

#include "kernels/cuda/runtime.h"
#include "kernels/device.h"

namespace gyre::cuda {

struct CudaOptions {
  bool graphs = true;  // steps that come again are a graph: the same kernels in the same order, launched at once
};

std::shared_ptr<Device> MakeCudaDevice(std::unique_ptr<Runtime> runtime, const CudaOptions& options = {});

}  // namespace gyre::cuda
