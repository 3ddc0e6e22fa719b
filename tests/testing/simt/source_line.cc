#include "tests/testing/simt/source_line.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

namespace gyre::simt {
namespace {

struct Program {
  uintptr_t base = 0;                                  // what its addresses in the file lack
  std::vector<std::pair<uintptr_t, uintptr_t>> fixed;  // segments that nobody can write
};

const Program& ThisProgram() {
  static const Program kProgram = [] {
    Program program;
    // The program itself comes first, and ends the walk.
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          auto& found = *static_cast<Program*>(to);
          found.base = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
            const uintptr_t begin = found.base + segment.p_vaddr;
            found.fixed.emplace_back(begin, begin + segment.p_memsz);
          }
          return 1;
        },
        &program);
    return program;
  }();
  return kProgram;
}

}  // namespace

uint32_t CodeAt(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) - ThisProgram().base);
}

bool IsConstant(const void* address, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const auto& [begin, end] : ThisProgram().fixed) {
    if (at >= begin && at + bytes <= end) return true;
  }
  return false;
}

std::string SourceLine(uint32_t code) {
  char program[4096] = {}, command[4200], line[4096];
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) program[0] = 0;
  // The call ends before the return address.
  std::snprintf(command, sizeof command, "addr2line -i -s -e '%s' %#x 2>/dev/null", program, code - 1);
  std::string found;
  if (FILE* lines = popen(command, "r")) {
    while (found.empty() && std::fgets(line, sizeof line, lines) != nullptr) {
      std::string frame = line;
      frame.resize(frame.find_last_not_of(" \n") + 1);
      frame.resize(std::min(frame.size(), frame.find(" (discriminator")));
      if (frame.starts_with("vocabulary.") || frame.starts_with("gpu.cuh") || frame.starts_with("??")) continue;
      found = frame;
    }
    while (std::fgets(line, sizeof line, lines) != nullptr) {
    }
    pclose(lines);
  }
  if (!found.empty()) return found;
  std::snprintf(line, sizeof line, "address %#x of the program", code);
  return line;
}

}  // namespace gyre::simt
