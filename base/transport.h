// The carriers of a hop between two members, and their names in options, messages and the status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// The numbers never change: plans and heartbeats carry them.
enum class Transport : uint8_t {
  kAuto = 0,    // as a preference: the fastest that both ends have; in a status: unknown, there is no link
  kTcp = 1,     // plain TCP
  kUdp = 2,     // datagrams, sealed and sent again where they are lost
  kShm = 3,     // memory that two processes of one host share
  kKernel = 4,  // TCP over io_uring
  kMemory = 5,  // both ends are in one process; never a preference
};

// "auto", "tcp", "udp", "shm", "kernel", "memory"; "?" for a number that has no name.
std::string_view TransportName(Transport transport);
// The names that options may choose.
std::vector<std::string> TransportPreferences();
// Parses a transport that options may choose. kInvalidArgument says what is expected.
StatusOr<Transport> ParseTransport(std::string_view name);
// For numbers from outside: whether a plan or a worker can ask for it, and whether a link can have it (kAuto: none).
bool IsTransportPreference(Transport transport);
bool IsTransport(Transport transport);

// The transport of a member that asks for `own` in a cluster that asks for `cluster`. kFailedPrecondition: they
// contradict each other.
StatusOr<Transport> AgreedTransport(Transport cluster, Transport own);

}  // namespace gyre
