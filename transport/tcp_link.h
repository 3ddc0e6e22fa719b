// Links over TCP: one socket per link, and the connections for them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/status.h"
#include "transport/framed_link.h"
#include "transport/tcp_stream.h"

namespace gyre {

struct TcpOptions : FramedLinkOptions, TcpStreamOptions {};

// Takes over a connected socket (a file descriptor), which is closed if this fails. `peer` is for messages.
// kResourceExhausted: no descriptor is left.
StatusOr<std::unique_ptr<Link>> MakeTcpLink(int socket, std::string peer, const TcpOptions& options = {});

// Whether the host is this machine's loopback, by number or as "localhost".
bool IsLoopback(const std::string& host);

// A connected socket with TCP_NODELAY, non-blocking. `stopped`, if not empty, is asked every 50 ms and ends the
// attempt, also during a slow name lookup. kUnavailable: refused, unreachable, unknown name; kDeadlineExceeded;
// kCancelled: `stopped`; kResourceExhausted: no descriptor or no thread is left. Throws nothing.
StatusOr<int> ConnectTcp(const std::string& address, Deadline deadline, const std::function<bool()>& stopped = {});

}  // namespace gyre
