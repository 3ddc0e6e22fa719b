// Linked into a program of tests that starts rings: it and the programs that it starts have a folder of caches of their
// own. There each member of a ring finds that it is as fast as the others, so no plan depends on the processor, and
// none of them has to measure.
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/testing/known_speeds.h"

namespace gyre::testing {
namespace {

class EqualMachines {
 public:
  EqualMachines() {
    AllowEmulation();  // its speed is as any other
    const unsigned cores = std::thread::hardware_concurrency();
    KeepSpeeds(folder_ / "gyre", {1, 2, 3, 4, cores / 2, cores}, 1e10, 1e12);
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~EqualMachines() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

 private:
  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / fmt::format("gyre-equal-{}", getpid());
};

[[maybe_unused]] const EqualMachines kEqualMachines;

}  // namespace
}  // namespace gyre::testing
