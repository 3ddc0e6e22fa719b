// The ISA level NEON with the dot product extension (ARMv8.2).
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/isa/neon-inl.h"

namespace gyre::cpu {

const IsaOps* NeonDotOps() { return &kOps; }

}  // namespace gyre::cpu
