// The ISA level NEON: the baseline of 64-bit ARM.
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/isa/neon-inl.h"

namespace gyre::cpu {

const IsaOps* NeonOps() { return &kOps; }

}  // namespace gyre::cpu
