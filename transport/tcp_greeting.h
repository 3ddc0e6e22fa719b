// The dialing side of every carrier that begins at the peer's TCP port: the connection, TLS over it if this end has an
// identity, the hello and its answer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/carrier.h"
#include "transport/fd.h"
#include "transport/hello.h"
#include "transport/link.h"

namespace gyre {

// A TCP connection as this end reads and writes it.
using MakeStreamFn = StatusOr<std::unique_ptr<ByteStream>> (*)(Fd socket, const TcpOptions& limits);

// A link whose hello was answered with a welcome.
struct Greeted {
  DialedLink dialed;
  int socket = -1;  // the link's
  HelloReply reply;
};

// Thread-safe.
class TcpGreeter {
 public:
  TcpGreeter(const CarrierContext& context, MakeStreamFn make_stream) : context_(context), make_stream_(make_stream) {}

  // `to`: "HOST:PORT". The errors are those of RingPort::Dial.
  StatusOr<Greeted> Greet(const std::string& to, const Hello& hello, Deadline deadline) const;

 private:
  // A connection on which nothing but a challenge was said.
  struct Connected {
    DialedLink dialed;
    int socket;
    HelloChallenge challenge{};
  };
  // `reached`: a connection was made, even if it failed later.
  StatusOr<Connected> ConnectOnce(const std::string& to, const Hello& hello, Deadline deadline, bool* reached) const;
  // The payload of the next frame, which must be a hello.
  StatusOr<std::vector<std::byte>> ReceiveHello(Link& link, const Hello& hello, Deadline deadline) const;

  const CarrierContext context_;
  const MakeStreamFn make_stream_;
};

}  // namespace gyre
