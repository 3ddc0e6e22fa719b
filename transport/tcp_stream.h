// A connected stream socket as a byte stream.
#pragma once

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
// records of packets, less the bytes that the peer has not acknowledged.
size_t SocketRoom(int socket);

// kResourceExhausted: no descriptor or no memory is left.
StatusOr<std::unique_ptr<ByteStream>> MakeTcpStream(Fd socket, const TcpStreamOptions& options = {});

}  // namespace gyre
