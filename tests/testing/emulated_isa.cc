// Linked into a program: it may be asked to compute with amx-emulated, as the program `gyre` may not.
#include "kernels/isa.h"

namespace gyre::testing {
namespace {

[[maybe_unused]] const bool kAllowed = (AllowEmulation(), true);

}  // namespace
}  // namespace gyre::testing
