// Measured speeds of a machine and of the links between machines. Plans are balanced by them.
#pragma once

#include <cstdint>
#include <string>

namespace gyre {

// The speed of one member's machine, with all the threads that the member computes with. 0 = unknown.
struct MachineSpeed {
  double memory_bytes_per_second = 0;  // read from memory
  double operations_per_second = 0;    // multiplications and additions of quantized products
  double disk_bytes_per_second = 0;    // read from where the weights lie, past the page cache
  bool operator==(const MachineSpeed&) const = default;
};

// The result of a measurement: a member dialed another one and pulled some bytes from it.
struct LinkSpeed {
  std::string to;       // the member that was dialed; kCoordinatorName for the coordinator
  std::string failure;  // why it can't be reached; "" = it can
  uint64_t round_trip_us = 0;
  double bytes_per_second = 0;  // towards the member that dialed; 0 = unknown
  bool operator==(const LinkSpeed&) const = default;
};

// The most links that one message describes, and the most that are measured at once.
inline constexpr size_t kMaxLinkSpeeds = 64;

}  // namespace gyre
