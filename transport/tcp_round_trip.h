// The round trip to the peer of a TCP connection, as the kernel has measured it.
#pragma once

#include <optional>

#include "base/clock.h"

namespace gyre {

// The shortest round trip of the last minutes; nullopt: not a connected TCP socket, or the kernel does not report it.
// The mean would count the 40 ms for which a receiver with nothing to send may hold its acknowledgement back.
std::optional<Duration> TcpRoundTrip(int socket);

}  // namespace gyre
