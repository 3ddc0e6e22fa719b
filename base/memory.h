// This machine's memory, as the operating system reports it.
#pragma once

#include <cstdint>
#include <string>

namespace gyre {

// Bytes that can be allocated without swapping: the machine's, or fewer where a control group, as of a container,
// limits this process. 0 = unknown.
uint64_t AvailableMemory();
// The bytes that this process's control groups still allow, at least 1; UINT64_MAX = no limit. Tests pass other paths.
uint64_t RoomInGroups(const std::string& root = "/sys/fs/cgroup", const std::string& own = "/proc/self/cgroup");
// Bytes of this process in physical memory; 0 = unknown.
uint64_t ResidentBytes();
// The bytes of ResidentBytes that belong to this process alone: no pages of files. 0 = unknown.
uint64_t PrivateBytes();

}  // namespace gyre
