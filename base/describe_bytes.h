#pragma once

#include <cstdint>
#include <string>

namespace gyre {

// "4.58 GiB", "12.3 MiB", "512 bytes".
std::string DescribeBytes(uint64_t bytes);

}  // namespace gyre
