// Unix sockets with abstract names, by which processes of one host, one network namespace and one user connect, and
// descriptors that they pass to each other.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/fd.h"

namespace gyre {

// An id that all processes of this host know, 16 hexadecimal digits; "" = unknown.
std::string HostId();
// 32 random hexadecimal digits, which nobody can guess.
std::string RandomSocketName();

// Non-blocking, as all sockets here. kUnavailable: the name is taken. kResourceExhausted.
StatusOr<Fd> ListenLocal(const std::string& name);
// `stopped` is asked every 50 ms while the queue there is full. kUnavailable: nobody has that name on this host and in
// this network namespace; kFailedPrecondition: another user listens; kCancelled; kDeadlineExceeded; kResourceExhausted.
StatusOr<Fd> ConnectLocal(const std::string& name, Deadline deadline, const std::function<bool()>& stopped);

struct LocalPeer {
  int pid = 0;
  bool same_user = false;
};
LocalPeer PeerOf(int socket);

// Sends all bytes at once, the descriptors with the first one. kUnavailable: the peer is gone or does not read.
Status SendWithFds(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// Reads exactly `into.size()` bytes; descriptors with them are added to `fds` while it has fewer than `most`, and
// are closed otherwise. `stopped` is asked every 100 ms. kUnavailable, kDeadlineExceeded, kCancelled.
Status ReceiveWithFds(int socket, std::span<std::byte> into, std::vector<Fd>* fds, size_t most, Deadline deadline,
                      const std::function<bool()>& stopped);

}  // namespace gyre
