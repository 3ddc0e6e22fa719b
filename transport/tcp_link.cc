#include "transport/tcp_link.h"

namespace gyre {

StatusOr<std::unique_ptr<Link>> MakeTcpLink(int socket, std::string peer, const TcpOptions& options) {
  StatusOr<std::unique_ptr<ByteStream>> stream = MakeTcpStream(Fd(socket), options);
  if (!stream.ok()) return Annotate(stream.status(), peer);
  return MakeFramedLink(*std::move(stream), std::move(peer), options);
}

}  // namespace gyre
