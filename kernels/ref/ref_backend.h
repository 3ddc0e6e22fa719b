// The scalar reference behind MakeBackend(Isa::kRef, ...).
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace gyre {

std::unique_ptr<Backend> MakeRefBackend();

}  // namespace gyre
