// The fast CPU backends: one driver for all, with a table of inner loops per ISA.
#pragma once

#include <memory>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The table of an instruction set; null for the reference, and for one that this build does not have.
const IsaOps* OpsOf(Isa isa);

std::unique_ptr<Backend> MakeCpuBackend(std::shared_ptr<Device> device, const IsaOps& ops, int threads,
                                        std::vector<int> cpus);

}  // namespace gyre::cpu
