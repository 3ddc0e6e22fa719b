// The backend of this machine's vector units: one driver for every instruction set.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace gyre {

// REQUIRES: isa is not kRef and IsaMissing(isa) is empty, threads >= 1.
std::unique_ptr<Backend> MakeCpuBackend(Isa isa, int threads);

}  // namespace gyre
