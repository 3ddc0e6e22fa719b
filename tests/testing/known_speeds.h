// Machines whose speeds are known: no plan of a test depends on how fast the processor is.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/files.h"
#include "fmt/format.h"
#include "kernels/isa.h"

namespace gyre::testing {

// Writes to the cache folder what `gyre` keeps there of the machine that it has measured with each of these numbers of
// threads: bytes of memory and operations in a second (limits/machine_speed.h).
inline void KeepSpeeds(const std::filesystem::path& folder, const std::set<unsigned>& threads, double memory_rate,
                       double operations) {
  std::filesystem::create_directories(folder);
  std::string boot = ReadSmallFile("/proc/sys/kernel/random/boot_id").value_or("");
  boot = boot.substr(0, boot.find('\n'));
  std::ofstream out(folder / "machine-speeds");
  for (const Isa isa : NamedIsas()) {
    for (const unsigned n : threads) {
      out << fmt::format("{0} {1} {2} memory {3:.0f}\n{0} {1} {2} operations {4:.0f}\n", boot, IsaName(isa), n,
                         memory_rate, operations);
    }
  }
}

}  // namespace gyre::testing
