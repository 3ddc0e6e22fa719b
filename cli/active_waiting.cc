#include "cli/active_waiting.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace gyre {

void LimitActiveWaiting(char** argv) {
#ifdef __clang__
  return;  // another OpenMP
#endif
  if (getauxval(AT_SECURE) != 0) return;  // with rights of another's: nothing is started by a path that could change
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  [[maybe_unused]] constexpr double kNanoseconds = 20'000;
  long looks = 20'000;
#if defined(__x86_64__)
  // One look is a `pause`: 10 cycles on one processor, 140 on another.
  constexpr int kPauses = 300;
  double each = 1e9;
  for (int turn = 0; turn < 4; ++turn) {  // the shortest, as others may take the processor meanwhile
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
    each = std::min(
        each, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kPauses);
  }
  looks = std::clamp(static_cast<long>(kNanoseconds / std::max(each, 1.0)), 500L, looks);
#endif
  // The program is started by its path: as /proc/self/exe the process would be called "exe".
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return;
  path[length] = 0;
  // If another program (a loader) started this one, nothing is done: it would take the arguments for its own.
  const auto* const started = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (started == nullptr || argv[0] == nullptr) return;
  std::error_code error;
  if (std::filesystem::canonical(started, error) != path || error) return;
  if (std::filesystem::path(started).filename() != std::filesystem::path(argv[0]).filename()) return;
  if (setenv("GOMP_SPINCOUNT", std::to_string(looks).c_str(), 1) == 0) execv(path, argv);
  // If the program can't be started anew, it runs on with longer waits.
}

}  // namespace gyre
