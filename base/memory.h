// This machine's memory, as the operating system reports it.
#pragma once

#include <cstdint>
#include <string>

namespace gyre {

// Bytes that can be allocated without swapping: what the machine has, or less where a control group, as of a container,
// limits this process. 0 = unknown.
uint64_t AvailableMemory();
// What the control groups of this process leave, at least 1; UINT64_MAX = no limit. Tests change where they are.
uint64_t RoomInGroups(const std::string& root = "/sys/fs/cgroup", const std::string& own = "/proc/self/cgroup");
// Bytes of this process in physical memory; 0 = unknown.
uint64_t ResidentBytes();
// Of these, the bytes that nobody else can have while this process keeps them: no pages of files. 0 = unknown.
uint64_t PrivateBytes();

}  // namespace gyre
