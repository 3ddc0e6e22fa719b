// A GPU as a device: docs/cuda.md, docs/device.md.
#pragma once

#include <memory>

#include "kernels/cuda/runtime.h"
#include "kernels/device.h"

namespace gyre::cuda {

std::shared_ptr<Device> MakeCudaDevice(std::unique_ptr<Runtime> runtime);

}  // namespace gyre::cuda
