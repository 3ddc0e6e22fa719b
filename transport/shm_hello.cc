#include "transport/shm_hello.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "transport/local_socket.h"
#include "transport/shm_stream.h"

namespace gyre {

StatusOr<std::unique_ptr<ByteStream>> WelcomeWithMemory(Fd socket, const Hello& hello) {
  GYRE_ASSIGN_OR_RETURN(const Fd memory, MakeShmMemory());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ResourceExhausted("no sockets for shared memory: {}", std::strerror(errno));
  }
  Fd own(ends[0]);
  const Fd theirs(ends[1]);
  const int connection = socket.get();
  ShmBells bells{.data = std::move(socket), .room = std::move(own)};
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream,
                        MakeShmStream(ShmSide::kAcceptor, memory.get(), std::move(bells)));
  const int fds[] = {memory.get(), theirs.get()};
  GYRE_RETURN_IF_ERROR(SendWithFds(connection, HelloFrame(EncodeHelloReply({}, hello)), fds));
  return stream;
}

namespace {

// Sends the dialer's hello; returns the answer, with up to `most` descriptors that come with it.
StatusOr<HelloReply> SayHello(int socket, const Hello& hello, Deadline deadline, const std::function<bool()>& stopped,
                              std::vector<Fd>* fds, size_t most) {
  Hash256 said;
  GYRE_RETURN_IF_ERROR(SendWithFds(socket, HelloFrame(EncodeHello(hello, {}, &said), hello.epoch), {}));
  std::array<std::byte, kFrameHeaderBytes> head{};
  GYRE_RETURN_IF_ERROR(ReceiveWithFds(socket, head, fds, most, deadline, stopped));
  GYRE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(head, kMaxHello));
  if (header.kind != FrameKind::kHello) return DataLoss("it answered a hello with another frame");
  std::vector<std::byte> payload(header.length);
  GYRE_RETURN_IF_ERROR(ReceiveWithFds(socket, payload, fds, most, deadline, stopped));
  if (Crc32c(payload) != header.payload_crc) return DataLoss("the checksum of its answer is wrong");
  return DecodeHelloReply(payload, hello.key, said);
}

}  // namespace

StatusOr<ShmAnswer> SayHelloForMemory(Fd socket, const Hello& hello, Deadline deadline,
                                      const std::function<bool()>& stopped) {
  std::vector<Fd> fds;
  GYRE_ASSIGN_OR_RETURN(const HelloReply reply, SayHello(socket.get(), hello, deadline, stopped, &fds, 2));
  if (!reply.refusal.empty()) return ShmAnswer{.stream = nullptr, .refusal = reply.refusal};
  if (!reply.proven) return FailedPrecondition("it welcomes this process, but does not know the ring's key");
  if (fds.size() != 2) return DataLoss("its welcome came with {} descriptors, expected 2", fds.size());
  ShmBells bells{.data = std::move(socket), .room = std::move(fds[1])};
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream,
                        MakeShmStream(ShmSide::kDialer, fds[0].get(), std::move(bells)));
  return ShmAnswer{.stream = std::move(stream), .refusal = {}};
}

}  // namespace gyre
