// A connected stream socket as a byte stream.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"

namespace gyre {

struct TcpStreamOptions {
  int send_buffer = 0, receive_buffer = 0;  // bytes of the socket's buffers; 0 = the system's (tests make them small)
};

// Sets the options of every TCP connection of a link, whoever reads and writes it: no delay of packets, keepalive.
void SetTcpOptions(int socket, const TcpStreamOptions& options);

// What ByteStream::Room gives for a TCP socket. It is the half of the buffer that the kernel does not keep for its own
// records of packets, less the bytes that the peer has not acknowledged. Their number only falls between two writes, so
// the room as it was, less what was written since, is a lower bound: the kernel is asked again only where that bound is
// below half of the most. Asking takes two system calls, which each token would pay on each hop. For the writing
// thread.
class SocketRoom {
 public:
  size_t Bytes(int socket) {
    if (room_ <= most_ / 2) Ask(socket);
    return room_;
  }
  void Wrote(size_t bytes) { room_ -= bytes < room_ ? bytes : room_; }

 private:
  void Ask(int socket);
  size_t room_ = 0, most_ = 0;
};

// kResourceExhausted: no descriptor or no memory is left.
StatusOr<std::unique_ptr<ByteStream>> MakeTcpStream(Fd socket, const TcpStreamOptions& options = {});

}  // namespace gyre
