// UDP: the hello and its answer go over a TCP connection, which then stays open and carries nothing (docs/wire.md,
// "UDP").
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "transport/carrier.h"
#include "transport/framed_link.h"
#include "transport/tcp_greeting.h"
#include "transport/tcp_stream.h"
#include "transport/udp_hello.h"
#include "transport/udp_host.h"
#include "transport/udp_wire.h"

namespace gyre {
namespace {

class UdpCarrier : public Carrier {
 public:
  UdpCarrier(const CarrierRow& row, const CarrierContext& context)
      : Carrier(row, context), greeter_(context, [](Fd socket, const TcpOptions& limits) {
          return MakeTcpStream(std::move(socket), limits);
        }) {}

  Status Offer(const HostPort& at, HelloReader&, RingAddress* address) override {
    GYRE_ASSIGN_OR_RETURN(host_, UdpHost::Open(FormatHostPort(at.host, at.port)));
    address->udp = host_->port();
    address->only_udp = context_.options.transport == Transport::kUdp;
    return absl::OkStatus();
  }
  Status Reaches(const RingAddress& to) const override {
    if (host_ == nullptr) return Unavailable("this process takes no datagrams");
    return to.udp == 0 ? Unavailable("it takes no datagrams") : absl::OkStatus();
  }
  StatusOr<DialedLink> Dial(const RingAddress& to, const Hello& hello, Deadline deadline) override;
  bool Brings(const Caller& caller, const Hello& hello) const override { return !caller.local && hello.udp; }
  StatusOr<std::unique_ptr<ByteStream>> Accept(Connection connection, const Hello& hello,
                                               const TcpOptions& limits) override;

 private:
  const TcpGreeter greeter_;
  std::unique_ptr<UdpHost> host_;  // null: no datagrams
};

StatusOr<DialedLink> UdpCarrier::Dial(const RingAddress& to, const Hello& asked, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(const UdpGreeting greeting, UdpGreeting::Make());
  Hello hello = asked;
  hello.udp = greeting.offer();
  GYRE_ASSIGN_OR_RETURN(Greeted greeted, greeter_.Greet(to.tcp, hello, deadline));
  if (!greeted.reply.udp) return FailedPrecondition("{} takes {} but no datagrams", to.tcp, Describe(hello));
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(greeted.socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return Unavailable("{}: {}", to.tcp, std::strerror(errno));
  }
  const UdpAddress at = WithPort(ToUdpAddress(reinterpret_cast<const sockaddr*>(&peer), size), to.udp);
  UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = greeted.reply.udp->link};
  GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *greeted.reply.udp, true));
  facts.connection = Fd(::fcntl(greeted.socket, F_DUPFD_CLOEXEC, 0));
  if (facts.connection.get() < 0) return ResourceExhausted("{}: {}", to.tcp, std::strerror(errno));
  GYRE_ASSIGN_OR_RETURN(facts.local, LocalAddressOf(greeted.socket));
  facts.keeps_open = std::move(greeted.dialed.link);
  const auto stopped = [this, &hello] { return context_.cancelled(hello); };
  StatusOr<std::unique_ptr<ByteStream>> stream = host_->Dial(std::move(facts), at, deadline, stopped);
  if (!stream.ok()) return Annotate(stream.status(), Describe(hello));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        MakeFramedLink(*std::move(stream), to.tcp, LimitsOf(context_.options, hello.role)));
  return DialedLink{.link = std::move(link), .serial = std::move(greeted.dialed.serial)};
}

StatusOr<std::unique_ptr<ByteStream>> UdpCarrier::Accept(Connection connection, const Hello& hello, const TcpOptions&) {
  if (host_ == nullptr) return Unavailable("this end takes no datagrams");
  GYRE_ASSIGN_OR_RETURN(const UdpGreeting greeting, UdpGreeting::Make());
  UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = hello.udp->link};
  GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *hello.udp, false));
  const int fd = connection.socket.get();
  GYRE_ASSIGN_OR_RETURN(facts.local, LocalAddressOf(fd));
  facts.connection = std::move(connection.socket);
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, host_->Accept(std::move(facts)));
  GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {.udp = greeting.offer()}, hello));
  return stream;
}

}  // namespace

std::unique_ptr<Carrier> MakeUdpCarrier(const CarrierRow& row, const CarrierContext& context) {
  return std::make_unique<UdpCarrier>(row, context);
}

}  // namespace gyre
