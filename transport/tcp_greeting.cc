#include "transport/tcp_greeting.h"

#include <algorithm>
#include <thread>

#include "transport/framed_link.h"
#include "transport/tls_stream.h"

namespace gyre {
namespace {

// A machine that lives answers at once, whatever its process does.
constexpr auto kConnect = std::chrono::seconds(10);
constexpr auto kDialAgain = std::chrono::seconds(10);
// Waits are cut into turns, so that giving up a plan ends them.
constexpr auto kAnswerTurn = std::chrono::milliseconds(100);

Status GivenUp() { return absl::CancelledError("the plan was given up"); }

}  // namespace

StatusOr<Greeted> TcpGreeter::Greet(const std::string& to, const Hello& hello, Deadline deadline) const {
  // A flood of unauthenticated peers may have closed the connection before its hello was read, so the dialer tries
  // again.
  const Deadline last_try = std::min(deadline, After(kDialAgain));
  bool reached = false;
  StatusOr<Connected> connected = ConnectOnce(to, hello, deadline, &reached);
  while ((reached || context_.options.identity != nullptr) && absl::IsUnavailable(connected.status()) &&
         Clock::now() < last_try) {
    std::this_thread::sleep_for(kAnswerTurn);
    if (context_.cancelled(hello)) return GivenUp();
    connected = ConnectOnce(to, hello, deadline, &reached);
  }
  if (!connected.ok()) return connected.status();
  Link& link = *connected->dialed.link;
  Hash256 said;
  const auto payload = EncodeHello(hello, connected->challenge, &said);
  const ByteSpan parts[] = {payload};
  GYRE_RETURN_IF_ERROR(link.Send({.kind = FrameKind::kHello, .epoch = hello.epoch}, parts, deadline));
  const StatusOr<std::vector<std::byte>> answer = ReceiveHello(link, hello, deadline);
  if (!answer.ok()) return Annotate(answer.status(), Describe(hello));
  GYRE_ASSIGN_OR_RETURN(HelloReply reply, DecodeHelloReply(*answer, hello.key, said));
  if (!reply.refusal.empty()) return FailedPrecondition("{} refuses {}: {}", to, Describe(hello), reply.refusal);
  if (!reply.proven) return FailedPrecondition("{} welcomes {}, but does not know its key", to, Describe(hello));
  return Greeted{.dialed = std::move(connected->dialed), .socket = connected->socket, .reply = std::move(reply)};
}

StatusOr<TcpGreeter::Connected> TcpGreeter::ConnectOnce(const std::string& to, const Hello& hello, Deadline deadline,
                                                        bool* reached) const {
  const RingPortOptions& options = context_.options;
  const auto stopped = [this, &hello] { return context_.cancelled(hello); };
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(to, std::min(deadline, After(kConnect)), stopped));
  *reached = true;
  const TcpOptions limits = LimitsOf(options, hello.role);
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, make_stream_(Fd(fd), limits));
  if (options.identity == nullptr) {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeFramedLink(std::move(stream), to, limits));
    Connected connected{.dialed = {.link = std::move(link), .serial = {}}, .socket = fd};
    const Deadline until = std::min(deadline, After(options.hello_timeout));
    StatusOr<std::vector<std::byte>> payload = ReceiveHello(*connected.dialed.link, hello, until);
    StatusOr<HelloChallenge> challenge =
        payload.ok() ? DecodeChallenge(*payload) : StatusOr<HelloChallenge>(payload.status());
    if (!challenge.ok()) return Annotate(challenge.status(), fmt::format("{}: {}", to, Describe(hello)));
    connected.challenge = *challenge;
    return connected;
  }
  GYRE_ASSIGN_OR_RETURN(auto session, TlsSession::Make(options.identity->current(), TlsSide::kClient));
  Status shaken = DoHandshake(*stream, *session, std::min(deadline, After(options.hello_timeout)), stopped);
  // The check comes before anything is sent.
  if (shaken.ok()) shaken = CheckMember(session->peer(), hello.to);
  if (!shaken.ok()) return Annotate(shaken, fmt::format("{}: {}", to, Describe(hello)));
  std::string serial = session->peer_serial();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        MakeFramedLink(MakeTlsStream(std::move(stream), std::move(session)), to, limits));
  return Connected{.dialed = {.link = std::move(link), .serial = std::move(serial)}, .socket = fd};
}

StatusOr<std::vector<std::byte>> TcpGreeter::ReceiveHello(Link& link, const Hello& hello, Deadline deadline) const {
  for (;;) {
    StatusOr<Frame> frame = link.Recv(std::min(deadline, After(kAnswerTurn)));
    if (frame.ok()) {
      if (frame->header.kind != FrameKind::kHello) return DataLoss("it answered a hello with another frame");
      return std::move(frame->payload);
    }
    if (!absl::IsDeadlineExceeded(frame.status())) return frame.status();
    if (Clock::now() >= deadline) return DeadlineExceeded("it did not answer");
    if (context_.cancelled(hello)) return GivenUp();
  }
}

}  // namespace gyre
