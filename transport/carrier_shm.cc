// Memory that two processes of one host share: the hello and its answer go over a Unix socket (docs/wire.md, "Shared
// memory").
#include "transport/carrier.h"
#include "transport/framed_link.h"
#include "transport/local_socket.h"
#include "transport/shm_hello.h"

namespace gyre {
namespace {

class ShmCarrier : public Carrier {
 public:
  ShmCarrier(const CarrierRow& row, const CarrierContext& context) : Carrier(row, context) {}

  Status Offer(const HostPort&, HelloReader& reader, RingAddress* address) override {
    if (context_.host_id.empty()) return Unavailable("the host has no boot id");
    const std::string name = RandomSocketName();
    GYRE_ASSIGN_OR_RETURN(Fd local, ListenLocal(name));
    reader.ListenAlso(std::move(local));
    address->shm = fmt::format("{}@{}", name, context_.host_id);
    return absl::OkStatus();
  }
  Status Reaches(const RingAddress& to) const override {
    if (to.shm.empty()) return Unavailable("it offers no shared memory");
    const bool here = to.shm.substr(to.shm.find('@') + 1) == context_.host_id;
    return here ? absl::OkStatus() : Unavailable("it is on another host");
  }
  StatusOr<DialedLink> Dial(const RingAddress& to, const Hello& hello, Deadline deadline) override;
  bool Brings(const Caller& caller, const Hello&) const override { return caller.local; }
  StatusOr<std::unique_ptr<ByteStream>> Accept(Connection connection, const Hello& hello, const TcpOptions&) override {
    return WelcomeWithMemory(std::move(connection.socket), hello);
  }
};

StatusOr<DialedLink> ShmCarrier::Dial(const RingAddress& to, const Hello& hello, Deadline deadline) {
  const auto stopped = [this, &hello] { return context_.cancelled(hello); };
  StatusOr<Fd> socket = ConnectLocal(to.shm.substr(0, to.shm.find('@')), deadline, stopped);
  if (absl::IsFailedPrecondition(socket.status())) return Unavailable("{}", Message(socket.status()));
  if (!socket.ok()) return socket.status();
  StatusOr<ShmAnswer> answer = SayHelloForMemory(*std::move(socket), hello, deadline, stopped);
  if (!answer.ok()) return Annotate(answer.status(), Describe(hello));
  if (answer->stream == nullptr) {
    return FailedPrecondition("{} refuses {}: {}", to.tcp, Describe(hello), answer->refusal);
  }
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        MakeFramedLink(std::move(answer->stream), to.tcp, LimitsOf(context_.options, hello.role)));
  return DialedLink{.link = std::move(link), .serial = {}};
}

}  // namespace

std::unique_ptr<Carrier> MakeShmCarrier(const CarrierRow& row, const CarrierContext& context) {
  return std::make_unique<ShmCarrier>(row, context);
}

}  // namespace gyre
