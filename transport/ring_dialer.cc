#include "transport/ring_dialer.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "transport/framed_link.h"
#include "transport/local_socket.h"
#include "transport/shm_hello.h"
#include "transport/tls_stream.h"
#include "transport/udp_hello.h"
#include "transport/udp_wire.h"
#include "transport/uring_stream.h"

namespace gyre {
namespace {

// A machine that lives answers at once, whatever its process does.
constexpr auto kConnect = std::chrono::seconds(10);
constexpr auto kDialAgain = std::chrono::seconds(10);
// Waits are cut into turns, so that giving up a plan ends them.
constexpr auto kAnswerTurn = std::chrono::milliseconds(100);

Status GivenUp() { return absl::CancelledError("the plan was given up"); }

}  // namespace

std::string Describe(const Hello& h) {
  return h.role == LinkRole::kRing
             ? fmt::format("hop {} of plan {}", h.hop, h.epoch.number)
             : fmt::format("the {} link to {}", h.role == LinkRole::kBulk ? "bulk" : "weights", h.to);
}

TcpOptions LimitsOf(const RingPortOptions& options, LinkRole role) {
  TcpOptions tcp = options.tcp;
  if (role != LinkRole::kRing) tcp.silence = options.bulk_silence;
  return tcp;
}

StatusOr<std::unique_ptr<ByteStream>> StreamOf(Fd socket, Transport transport, const TcpOptions& options) {
  return transport == Transport::kKernel ? MakeUringStream(std::move(socket), options)
                                         : MakeTcpStream(std::move(socket), options);
}

Status CheckCarrier(Transport transport) {
  return transport == Transport::kKernel ? Annotate(CheckUring(), "--transport kernel") : absl::OkStatus();
}

StatusOr<std::unique_ptr<Link>> RingDialer::Dial(const std::string& address, const Hello& hello, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(const RingAddress to, ParseRingAddress(address));
  StatusOr<Transport> transport = AgreedTransport(hello.transport, options_.transport);
  if (!transport.ok()) return Annotate(transport.status(), Describe(hello));
  GYRE_RETURN_IF_ERROR(CheckCarrier(*transport));
  if (*transport == Transport::kTcp || *transport == Transport::kKernel) {
    return DialTcp(to.tcp, *transport, hello, deadline);
  }
  if (*transport == Transport::kUdp || (*transport == Transport::kAuto && to.only_udp))
    return DialUdp(to, hello, deadline);
  StatusOr<std::unique_ptr<Link>> shared = DialShm(to, hello, deadline);
  if (!absl::IsUnavailable(shared.status())) return shared;
  if (*transport == Transport::kShm) {
    return FailedPrecondition("{} is to go over shared memory (--transport shm) to {}: {}", Describe(hello), to.tcp,
                              Message(shared.status()));
  }
  const bool same_host = !to.shm.empty() && to.shm.substr(to.shm.find('@') + 1) == host_id_;
  Log(same_host ? LogLevel::kWarn : LogLevel::kInfo, "{} goes to {} over tcp: {}", Describe(hello), to.tcp,
      Message(shared.status()));
  return DialTcp(to.tcp, Transport::kTcp, hello, deadline);
}

StatusOr<std::unique_ptr<Link>> RingDialer::DialShm(const RingAddress& to, const Hello& hello, Deadline deadline) {
  if (to.shm.empty()) return Unavailable("it offers no shared memory");
  const size_t split = to.shm.find('@');
  if (to.shm.substr(split + 1) != host_id_) return Unavailable("it is on another host");
  const auto stopped = [this, &hello] { return cancelled_(hello); };
  StatusOr<Fd> socket = ConnectLocal(to.shm.substr(0, split), deadline, stopped);
  if (absl::IsFailedPrecondition(socket.status())) return Unavailable("{}", Message(socket.status()));
  if (!socket.ok()) return socket.status();
  StatusOr<ShmAnswer> answer = SayHelloForMemory(*std::move(socket), hello, deadline, stopped);
  if (!answer.ok()) return Annotate(answer.status(), Describe(hello));
  if (answer->stream == nullptr) {
    return FailedPrecondition("{} refuses {}: {}", to.tcp, Describe(hello), answer->refusal);
  }
  return MakeFramedLink(std::move(answer->stream), to.tcp, LimitsOf(options_, hello.role));
}

StatusOr<std::unique_ptr<Link>> RingDialer::DialUdp(const RingAddress& to, Hello hello, Deadline deadline) {
  if (udp_ == nullptr || to.udp == 0) {
    return FailedPrecondition("{} is to go over UDP (--transport udp) to {}: {} takes no datagrams", Describe(hello),
                              to.tcp, udp_ == nullptr ? "this process" : "it");
  }
  GYRE_ASSIGN_OR_RETURN(const UdpGreeting greeting, UdpGreeting::Make());
  hello.udp = greeting.offer();
  GYRE_ASSIGN_OR_RETURN(Greeted greeted, Greet(to.tcp, Transport::kTcp, hello, deadline));
  if (!greeted.reply.udp) return FailedPrecondition("{} takes {} but no datagrams", to.tcp, Describe(hello));
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(greeted.dialed.socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return Unavailable("{}: {}", to.tcp, std::strerror(errno));
  }
  const UdpAddress at = WithPort(ToUdpAddress(reinterpret_cast<const sockaddr*>(&peer), size), to.udp);
  UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = greeted.reply.udp->link};
  GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *greeted.reply.udp, true));
  facts.connection = Fd(::fcntl(greeted.dialed.socket, F_DUPFD_CLOEXEC, 0));
  if (facts.connection.get() < 0) return ResourceExhausted("{}: {}", to.tcp, std::strerror(errno));
  GYRE_ASSIGN_OR_RETURN(facts.local, LocalAddressOf(greeted.dialed.socket));
  facts.keeps_open = std::move(greeted.dialed.link);
  const auto stopped = [this, &hello] { return cancelled_(hello); };
  StatusOr<std::unique_ptr<ByteStream>> stream = udp_->Dial(std::move(facts), at, deadline, stopped);
  if (!stream.ok()) return Annotate(stream.status(), Describe(hello));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        MakeFramedLink(*std::move(stream), to.tcp, LimitsOf(options_, hello.role)));
  return Watched(std::move(link), hello, greeted.dialed.serial);
}

StatusOr<std::unique_ptr<Link>> RingDialer::DialTcp(const std::string& to, Transport transport, const Hello& hello,
                                                    Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(Greeted greeted, Greet(to, transport, hello, deadline));
  return Watched(std::move(greeted.dialed.link), hello, greeted.dialed.serial);
}

std::unique_ptr<Link> RingDialer::Watched(std::unique_ptr<Link> link, const Hello& hello, const std::string& serial) {
  if (options_.identity == nullptr) return link;
  link = peers_.Watch(std::move(link), hello.to, serial);
  peers_.EndRevoked(*options_.identity->current());  // a list may have come since the handshake
  return link;
}

StatusOr<RingDialer::Dialed> RingDialer::DialOnce(const std::string& to, Transport transport, const Hello& hello,
                                                  Deadline deadline, bool* reached) {
  const auto stopped = [this, &hello] { return cancelled_(hello); };
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(to, std::min(deadline, After(kConnect)), stopped));
  *reached = true;
  const TcpOptions limits = LimitsOf(options_, hello.role);
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, StreamOf(Fd(fd), transport, limits));
  if (options_.identity == nullptr) {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeFramedLink(std::move(stream), to, limits));
    Dialed dialed{.link = std::move(link), .socket = fd};
    const Deadline until = std::min(deadline, After(options_.hello_timeout));
    StatusOr<std::vector<std::byte>> payload = ReceiveHello(*dialed.link, hello, until);
    StatusOr<HelloChallenge> challenge =
        payload.ok() ? DecodeChallenge(*payload) : StatusOr<HelloChallenge>(payload.status());
    if (!challenge.ok()) return Annotate(challenge.status(), fmt::format("{}: {}", to, Describe(hello)));
    dialed.challenge = *challenge;
    return dialed;
  }
  GYRE_ASSIGN_OR_RETURN(auto session, TlsSession::Make(options_.identity->current(), TlsSide::kClient));
  Status shaken = DoHandshake(*stream, *session, std::min(deadline, After(options_.hello_timeout)), stopped);
  // The check comes before anything is sent.
  if (shaken.ok()) shaken = CheckMember(session->peer(), hello.to);
  if (!shaken.ok()) return Annotate(shaken, fmt::format("{}: {}", to, Describe(hello)));
  std::string serial = session->peer_serial();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        MakeFramedLink(MakeTlsStream(std::move(stream), std::move(session)), to, limits));
  return Dialed{.link = std::move(link), .socket = fd, .challenge = {}, .serial = std::move(serial)};
}

StatusOr<RingDialer::Greeted> RingDialer::Greet(const std::string& to, Transport transport, const Hello& hello,
                                                Deadline deadline) {
  // A flood of strangers may have closed the connection before its hello was read, so the dialer tries again.
  const Deadline last_try = std::min(deadline, After(kDialAgain));
  bool reached = false;
  StatusOr<Dialed> dial = DialOnce(to, transport, hello, deadline, &reached);
  while ((reached || options_.identity != nullptr) && absl::IsUnavailable(dial.status()) && Clock::now() < last_try) {
    std::this_thread::sleep_for(kAnswerTurn);
    if (cancelled_(hello)) return GivenUp();
    dial = DialOnce(to, transport, hello, deadline, &reached);
  }
  GYRE_ASSIGN_OR_RETURN(Dialed dialed, std::move(dial));
  Hash256 said;
  const auto payload = EncodeHello(hello, dialed.challenge, &said);
  const ByteSpan parts[] = {payload};
  GYRE_RETURN_IF_ERROR(dialed.link->Send({.kind = FrameKind::kHello, .epoch = hello.epoch}, parts, deadline));
  const StatusOr<std::vector<std::byte>> answer = ReceiveHello(*dialed.link, hello, deadline);
  if (!answer.ok()) return Annotate(answer.status(), Describe(hello));
  GYRE_ASSIGN_OR_RETURN(HelloReply reply, DecodeHelloReply(*answer, hello.key, said));
  if (!reply.refusal.empty()) return FailedPrecondition("{} refuses {}: {}", to, Describe(hello), reply.refusal);
  if (!reply.proven) return FailedPrecondition("{} welcomes {}, but does not know its key", to, Describe(hello));
  return Greeted{.dialed = std::move(dialed), .reply = std::move(reply)};
}

StatusOr<std::vector<std::byte>> RingDialer::ReceiveHello(Link& link, const Hello& hello, Deadline deadline) {
  for (;;) {
    StatusOr<Frame> frame = link.Recv(std::min(deadline, After(kAnswerTurn)));
    if (frame.ok()) {
      if (frame->header.kind != FrameKind::kHello) return DataLoss("it answered a hello with another frame");
      return std::move(frame->payload);
    }
    if (!absl::IsDeadlineExceeded(frame.status())) return frame.status();
    if (Clock::now() >= deadline) return DeadlineExceeded("it did not answer");
    if (cancelled_(hello)) return GivenUp();
  }
}

}  // namespace gyre
