// Links over TCP: one socket a link, read and written by the threads that use it, without a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/status.h"
#include "transport/link.h"

namespace gyre {

struct TcpOptions {
  uint64_t max_payload = kMaxPayload;  // of a frame that comes in
  // A peer that stands still in the middle of a frame for so long is given up.
  Duration stall = std::chrono::seconds(10);
  int send_buffer = 0, receive_buffer = 0;  // bytes of the socket's buffers; 0 = the system's (tests make them small)
};

// Takes over a connected socket (a file descriptor). `peer` is for messages.
std::unique_ptr<Link> MakeTcpLink(int socket, std::string peer, const TcpOptions& options = {});

// Whether the host is this machine's loopback, by number or as "localhost".
bool IsLoopback(const std::string& host);

// A connected socket with TCP_NODELAY, non-blocking. kUnavailable: refused, unreachable, unknown name;
// kDeadlineExceeded.
StatusOr<int> ConnectTcp(const std::string& address, Deadline deadline);

}  // namespace gyre
