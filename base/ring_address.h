// The address of a ring port: its TCP address, and its other carriers (docs/wire.md). Standard library and
// Status only.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace gyre {

struct RingAddress {
  std::string tcp;        // "HOST:PORT", or ":PORT" = the host that the reader knows
  std::string shm;        // "NAME@HOST" of its Unix socket; "" = it shares no memory
  uint16_t udp = 0;       // the UDP port of the same host; 0 = it takes no datagrams
  bool only_udp = false;  // whoever leaves the choice to it comes over UDP
  bool operator==(const RingAddress&) const = default;
};

std::string FormatRingAddress(const RingAddress& address);
// The text may come from an unauthenticated peer. kInvalidArgument: no HOST:PORT, a shm part that is not 32 digits,
// '@', 16 digits, a udp part that is no port, or more than 1,024 bytes.
StatusOr<RingAddress> ParseRingAddress(const std::string& text);
// The part before the first comma. Messages for people show it, as people dial nothing else.
std::string TcpPart(const std::string& address);

}  // namespace gyre
