// This machine's memory, as the kernel tells it.
#pragma once

#include <cstdint>

namespace gyre {

// Bytes that could still be allocated without swapping (MemAvailable of /proc/meminfo); 0 = unknown.
uint64_t AvailableMemory();
// Bytes of this process that lie in memory; 0 = unknown.
uint64_t ResidentBytes();

}  // namespace gyre
