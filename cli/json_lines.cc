#include "cli/json_lines.h"

#include <iostream>

#include "fmt/format.h"

namespace gyre {

Status EachInputLine(const std::function<Status(const std::string& line)>& each) {
  size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (line.empty()) continue;
    if (const Status done = each(line); !done.ok()) return Annotate(done, fmt::format("line {}", number));
  }
  return absl::OkStatus();
}

}  // namespace gyre
