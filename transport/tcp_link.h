// Links over TCP: one socket a link, read and written by the threads that use it, without a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/status.h"
#include "transport/link.h"

namespace gyre {

struct TcpOptions {
  uint64_t max_payload = kMaxPayload;  // of a frame that comes in
  // A peer that takes or gives no byte for so long in the middle of a frame is given up. max() = there is no such
  // limit: a stage that computes does not read, so on ring links the sender's deadline and the heartbeats decide.
  Duration silence = Duration::max();
  int send_buffer = 0, receive_buffer = 0;  // bytes of the socket's buffers; 0 = the system's (tests make them small)
};

// Takes over a connected socket (a file descriptor), which is closed if this fails. `peer` is for messages.
// kResourceExhausted: no descriptor is left.
StatusOr<std::unique_ptr<Link>> MakeTcpLink(int socket, std::string peer, const TcpOptions& options = {});

// Whether the host is this machine's loopback, by number or as "localhost".
bool IsLoopback(const std::string& host);

// A connected socket with TCP_NODELAY, non-blocking. `stopped`, if not empty, is asked every 50 ms and ends the
// attempt, in a slow name lookup too. kUnavailable: refused, unreachable, unknown name; kDeadlineExceeded; kCancelled:
// `stopped` said so; kResourceExhausted: no descriptor or no thread is left. Throws nothing.
StatusOr<int> ConnectTcp(const std::string& address, Deadline deadline, const std::function<bool()>& stopped = {});

}  // namespace gyre
