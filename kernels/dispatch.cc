#include "kernels/ref/ref_backend.h"

namespace gyre {
const char* IsaName(Isa isa) {
  static constexpr const char* kNames[] = {"ref", "avx2", "avx512", "avx512vnni"};
  return kNames[static_cast<int>(isa)];
}
Isa DetectIsa() { return Isa::kRef; }
std::string IsaMissing(Isa isa) { return isa == Isa::kRef ? "" : "not built"; }
std::unique_ptr<Backend> MakeBackend(Isa, int) { return MakeRefBackend(); }
}  // namespace gyre
