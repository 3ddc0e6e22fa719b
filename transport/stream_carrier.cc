#include "transport/stream_carrier.h"

#include "transport/tls_stream.h"

namespace gyre {

StatusOr<DialedLink> StreamCarrier::Dial(const RingAddress& to, const Hello& hello, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(Greeted greeted, greeter_.Greet(to.tcp, hello, deadline));
  return std::move(greeted.dialed);
}

StatusOr<std::unique_ptr<ByteStream>> StreamCarrier::Accept(Connection connection, const Hello& hello,
                                                            const TcpOptions& limits) {
  const int fd = connection.socket.get();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, make_stream_(std::move(connection.socket), limits));
  GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {}, hello));
  if (connection.tls != nullptr) stream = MakeTlsStream(std::move(stream), std::move(connection.tls));
  return stream;
}

}  // namespace gyre
