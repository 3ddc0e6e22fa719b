// The scalar reference: Isa::kRef.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace gyre {

std::unique_ptr<Backend> MakeRefBackend(std::shared_ptr<Device> device);

}  // namespace gyre
