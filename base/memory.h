// This machine's memory, as the operating system reports it.
#pragma once

#include <cstdint>

namespace gyre {

// Bytes that can be allocated without swapping (MemAvailable in /proc/meminfo); 0 = unknown.
uint64_t AvailableMemory();
// Bytes of this process in physical memory; 0 = unknown.
uint64_t ResidentBytes();
// Of these, the bytes that nobody else can have while this process keeps them: no pages of files. 0 = unknown.
uint64_t PrivateBytes();

}  // namespace gyre
