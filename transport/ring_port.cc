#include "transport/ring_port.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/ring_address.h"
#include "transport/framed_link.h"
#include "transport/hello_reader.h"
#include "transport/inproc_link.h"
#include "transport/link_handlers.h"
#include "transport/local_socket.h"
#include "transport/open_peers.h"
#include "transport/pages.h"
#include "transport/ring_dialer.h"
#include "transport/shm_hello.h"
#include "transport/tls_stream.h"
#include "transport/udp_hello.h"
#include "transport/udp_host.h"
#include "transport/udp_wire.h"
#include "transport/unclaimed_links.h"

namespace gyre {
namespace {

// Sending never blocks: the socket is fresh, so an answer fits in.
Status SendReply(int socket, TlsSession* tls, const HelloReply& reply, const Hello& hello) {
  std::vector<std::byte> bytes = HelloFrame(EncodeHelloReply(reply, hello));
  if (tls != nullptr) {
    GYRE_RETURN_IF_ERROR(tls->Seal(bytes));
    bytes.clear();
    tls->TakeOutput(&bytes);
  }
  return SendWithFds(socket, bytes, {});
}

// The carrier of this dialer's link.
Transport ComesOver(const Caller& caller, const Hello& hello) {
  if (caller.local) return Transport::kShm;
  return hello.udp ? Transport::kUdp : Transport::kTcp;
}

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options)
      : options_(options),
        unclaimed_({.timeout = options.unclaimed_timeout,
                    .unverified = options.unverified,
                    .max_verified = options.max_unclaimed,
                    .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); }}),
        dialer_(options_, host_id_, peers_, [this](const Hello& hello) { return unclaimed_.Cancelled(hello); }) {}
  ~Port() override {
    reader_ = nullptr;
    udp_ = nullptr;
  }

  Status Listen();
  const std::string& address() const override { return address_; }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) override {
    return Guarded([&] { return TryDial(address, hello, deadline); });
  }
  StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) override {
    return Guarded([&] { return TryAccept(expected, deadline); });
  }
  void SetBulkHandler(const std::string& name, BulkHandler handler) override {
    handlers_.SetBulk(name, std::move(handler));
  }
  void SetWeightsHandler(const RingKey& key, BulkHandler handler) override {
    handlers_.SetWeights(key, std::move(handler));
  }
  void SetKey(Epoch epoch, const RingKey& key) override {
    for (UnclaimedLink& bulk : unclaimed_.SetKey(epoch, key)) OnBulk(std::move(bulk.connection), bulk.hello);
  }
  void Cancel(Epoch epoch) override { unclaimed_.Cancel(epoch); }
  void Serves(Epoch epoch) override { unclaimed_.Serves(epoch); }
  RingPortStats stats() const override {
    return {.accepted = accepted_, .refused = refused_, .waiting = unclaimed_.size(), .keys = unclaimed_.keys()};
  }

 private:
  template <typename Fn>
  static StatusOr<std::unique_ptr<Link>> Guarded(const Fn& fn) {
    try {
      return fn();
    } catch (const std::exception& e) {
      return ResourceExhausted("a link of the ring: {}", e.what());
    }
  }
  StatusOr<std::unique_ptr<Link>> TryDial(const std::string& address, const Hello& hello, Deadline deadline);
  StatusOr<std::unique_ptr<Link>> TryAccept(const Hello& expected, Deadline deadline);
  // Tells a dialer that it is welcome, and makes the link.
  StatusOr<std::unique_ptr<Link>> Welcome(Connection connection, const Hello& hello, Transport transport,
                                          const std::string& peer, const TcpOptions& options);
  StatusOr<std::unique_ptr<Link>> WelcomeOver(Connection connection, const Hello& hello, Transport transport,
                                              const std::string& peer, const TcpOptions& options);
  // Why a waiting dialer can't be taken for `expected`; "" = it can.
  std::string WhyNot(const UnclaimedLink& found, const Hello& expected) const;

  // Runs on the port's thread.
  void OnHello(Connection connection, Hello hello);
  void OnTick();

  void OnBulk(Connection connection, const Hello& hello);
  void Refused(const Caller& caller, const std::string& why);

  const RingPortOptions options_;
  const std::string host_id_ = HostId();
  std::string address_;

  std::atomic<uint64_t> accepted_{0}, refused_{0};
  Mutex log_mutex_;
  Deadline last_log_ GYRE_GUARDED_BY(log_mutex_) = Deadline::min();
  UnclaimedLinks unclaimed_;

  LinkHandlers handlers_;
  OpenPeers peers_;
  RingDialer dialer_;
  std::unique_ptr<UdpHost> udp_;
  std::shared_ptr<const Identity> identity_;  // as the port's thread saw it last
  std::unique_ptr<HelloReader> reader_;       // its thread uses all the others
};

Status Port::Listen() {
  GYRE_RETURN_IF_ERROR(CheckCarrier(options_.transport));
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.listen));
  HelloReaderOptions reader{
      .listen = options_.listen,
      .hello_timeout = options_.hello_timeout,
      .limits = options_.unverified,
      .identity = options_.identity,
      .handshakes = options_.handshakes,
      .on_hello = [this](Connection c, Hello h) { OnHello(std::move(c), std::move(h)); },
      .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); },
      .on_tick = [this] { OnTick(); }};
  RingAddress address;
  if (options_.transport == Transport::kAuto || options_.transport == Transport::kShm) {
    const std::string name = RandomSocketName();
    StatusOr<Fd> local = host_id_.empty() ? Unavailable("the host has no boot id") : ListenLocal(name);
    if (local.ok()) {
      reader.local = *std::move(local);
      address.shm = fmt::format("{}@{}", name, host_id_);
    } else if (options_.transport == Transport::kShm) {
      return Annotate(local.status(), "--transport shm");
    } else {
      Log(LogLevel::kWarn, "no link of this process goes over shared memory: {}", Message(local.status()));
    }
  }
  GYRE_ASSIGN_OR_RETURN(reader_, HelloReader::Listen(std::move(reader)));
  if (options_.transport == Transport::kAuto || options_.transport == Transport::kUdp) {
    StatusOr<std::unique_ptr<UdpHost>> udp = UdpHost::Open(FormatHostPort(at.host, reader_->port()));
    if (udp.ok()) {
      udp_ = *std::move(udp);
      dialer_.UseUdp(udp_.get());
      address.udp = udp_->port();
      address.only_udp = options_.transport == Transport::kUdp;
    } else if (options_.transport == Transport::kUdp) {
      return Annotate(udp.status(), "--transport udp");
    } else {
      Log(LogLevel::kInfo, "no link of this process goes over UDP: {}", Message(udp.status()));
    }
  }
  const std::string& host = options_.advertise_host;
  // The port is then at all addresses, as other machines know best how they reach this one.
  const bool any = host.empty() && reader_->any_address();
  address.tcp =
      any ? fmt::format(":{}", reader_->port()) : FormatHostPort(host.empty() ? at.host : host, reader_->port());
  address_ = FormatRingAddress(address);
  // The reader starts last, as its thread reads the fields that were set here.
  return reader_->Start();
}

void Port::OnTick() {
  unclaimed_.DropDead();
  if (options_.identity == nullptr) return;
  const std::shared_ptr<const Identity> now = options_.identity->current();
  if (std::exchange(identity_, now) != now) peers_.EndRevoked(*now);
}

void Port::OnHello(Connection connection, Hello hello) {
  const Caller& caller = connection.caller;
  if (caller.who) {
    if (const Status member = CheckMember(*caller.who, hello.from); !member.ok()) {
      return Refused(caller, fmt::format("its hello comes from {}: {}", hello.from, Message(member)));
    }
  }
  if (hello.role == LinkRole::kWeights) {
    const std::optional<RingKey> key = handlers_.weights_key();
    if (!key || !Proves(hello, *key)) {
      SendReply(connection.socket.get(), connection.tls.get(),
                {.refusal = "it gives no weights to links with this key"}, hello)
          .IgnoreError();
      return Refused(caller, "its hello for weights has a wrong key");
    }
    hello.key = *key;
    return OnBulk(std::move(connection), hello);
  }
  const KeyCheck check = unclaimed_.Check(&hello);
  if (check == KeyCheck::kWrong) return Refused(caller, "its hello has a wrong key");
  if (hello.role == LinkRole::kBulk) {
    if (check == KeyCheck::kRight) return OnBulk(std::move(connection), hello);
    if (check == KeyCheck::kUnknownTerm) return Refused(caller, "its hello has a term whose key is not known here");
  }
  // Until the key of a plan is known here, its hellos wait.
  if (unclaimed_.Add({.hello = hello, .connection = std::move(connection)})) ++accepted_;
}

// The first refusal is logged at once, later ones as one line per minute with their number.
void Port::Refused(const Caller& caller, const std::string& why) {
  const uint64_t refused = ++refused_;
  {
    MutexLock lock(&log_mutex_);
    const Deadline now = Clock::now();
    if (last_log_ != Deadline::min() && now < last_log_ + std::chrono::minutes(1)) return;
    last_log_ = now;
  }
  Log(LogLevel::kWarn, "ring port {}: refused {}: {} ({} refused since the start)", TcpPart(address_), caller.peer, why,
      refused);
}

void Port::OnBulk(Connection connection, const Hello& hello) {
  if (unclaimed_.Cancelled(hello)) return;
  const Caller caller = connection.caller;
  const auto refuse = [&](const std::string& why) {
    SendReply(connection.socket.get(), connection.tls.get(), {.refusal = why}, hello).IgnoreError();
  };
  const Transport comes = ComesOver(caller, hello), own = options_.transport;
  if ((own == Transport::kShm || own == Transport::kUdp) && comes != own) {
    refuse(fmt::format("this end takes {} only (--transport)", TransportName(own)));
    return Refused(caller, fmt::format("its bulk link comes over {}", TransportName(comes)));
  }
  TcpOptions options = LimitsOf(options_, LinkRole::kBulk);
  options.max_payload = kMaxPullRequest;
  Status failed;
  const Status status = handlers_.HandOver(hello, [&]() -> StatusOr<std::unique_ptr<Link>> {
    auto link = Welcome(std::move(connection), hello, options_.transport,
                        fmt::format("{} ({})", hello.from, caller.peer), options);
    failed = link.status();
    if (link.ok()) ++accepted_;
    if (link.ok() && caller.who) (*link)->SetCertifiedPeer(hello.from);
    return link;
  });
  if (!failed.ok()) return Refused(caller, Message(failed));
  if (absl::IsNotFound(status)) refuse(Message(status));
}

StatusOr<std::unique_ptr<Link>> Port::Welcome(Connection connection, const Hello& hello, Transport transport,
                                              const std::string& peer, const TcpOptions& options) {
  if (connection.tls == nullptr) return WelcomeOver(std::move(connection), hello, transport, peer, options);
  std::string serial = connection.tls->peer_serial();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                        WelcomeOver(std::move(connection), hello, transport, peer, options));
  link = peers_.Watch(std::move(link), hello.from, std::move(serial));
  peers_.EndRevoked(*options_.identity->current());  // a list may have come since the handshake
  return link;
}

StatusOr<std::unique_ptr<Link>> Port::WelcomeOver(Connection connection, const Hello& hello, Transport transport,
                                                  const std::string& peer, const TcpOptions& options) {
  if (hello.udp) {
    if (udp_ == nullptr) return Unavailable("this end takes no datagrams");
    GYRE_ASSIGN_OR_RETURN(const UdpGreeting greeting, UdpGreeting::Make());
    UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = hello.udp->link};
    GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *hello.udp, false));
    const int fd = connection.socket.get();
    GYRE_ASSIGN_OR_RETURN(facts.local, LocalAddressOf(fd));
    facts.connection = std::move(connection.socket);
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, udp_->Accept(std::move(facts)));
    GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {.udp = greeting.offer()}, hello));
    return MakeFramedLink(std::move(stream), peer, options);
  }
  if (connection.caller.local) {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, WelcomeWithMemory(std::move(connection.socket), hello));
    return MakeFramedLink(std::move(stream), peer, options);
  }
  const int fd = connection.socket.get();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, StreamOf(std::move(connection.socket), transport, options));
  GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {}, hello));
  if (connection.tls != nullptr) stream = MakeTlsStream(std::move(stream), std::move(connection.tls));
  return MakeFramedLink(std::move(stream), peer, options);
}

std::string Port::WhyNot(const UnclaimedLink& found, const Hello& expected) const {
  if (found.hello.from != expected.from) {
    return fmt::format("it comes from {}, the plan gives this hop to {}", found.hello.from, expected.from);
  }
  if (!Proves(found.hello, expected.key)) return "the ring's key is another one";
  if (found.hello.model_hash != expected.model_hash) return "the model is another one";
  if (found.hello.wire != expected.wire) {
    return fmt::format("its activations would come as {}, the plan's are {} (--wire)", WireTypeName(found.hello.wire),
                       WireTypeName(expected.wire));
  }
  const StatusOr<Transport> transport = AgreedTransport(expected.transport, options_.transport);
  if (!transport.ok()) return Message(transport.status());
  const Transport comes = ComesOver(found.connection.caller, found.hello);
  const Transport wanted = *transport == Transport::kKernel ? Transport::kTcp : *transport;  // TCP to the other end
  if (wanted != Transport::kAuto && wanted != comes) {
    return fmt::format("it comes over {}, this end takes {} only (--transport)", TransportName(comes),
                       TransportName(*transport));
  }
  return "";
}

StatusOr<std::unique_ptr<Link>> Port::TryAccept(const Hello& expected, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(const Transport transport, AgreedTransport(expected.transport, options_.transport));
  GYRE_RETURN_IF_ERROR(CheckCarrier(transport));
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(UnclaimedLink found, unclaimed_.Claim(expected, deadline));
    if (found.link != nullptr) return std::move(found.link);
    Connection& connection = found.connection;
    if (!StillWaits(connection.socket.get())) continue;  // its dialer gave up meanwhile
    const bool local = connection.caller.local;
    const std::string peer = fmt::format("{} ({})", found.hello.from, connection.caller.peer);
    std::string why = WhyNot(found, expected);
    if (why.empty()) {
      found.hello.key = expected.key;
      StatusOr<std::unique_ptr<Link>> link =
          Welcome(std::move(connection), found.hello, transport, peer, LimitsOf(options_, LinkRole::kRing));
      // A dialer over TCP has no other carrier, so the plan fails with this reason.
      if (link.ok() || (absl::IsResourceExhausted(link.status()) && !local)) return link;
      why = Message(link.status());
    } else {
      SendReply(connection.socket.get(), connection.tls.get(), {.refusal = why}, found.hello).IgnoreError();
    }
    Log(LogLevel::kWarn, "{} from {}: {}", Describe(expected), found.hello.from, why);
  }
}

StatusOr<std::unique_ptr<Link>> Port::TryDial(const std::string& address, const Hello& hello, Deadline deadline) {
  if (unclaimed_.Cancelled(hello)) return absl::CancelledError("the plan was given up");
  if (address == address_) {
    auto [here, there] = MakeInprocLinkPair({});
    if (hello.role != LinkRole::kRing) {
      std::unique_ptr<Link> end = std::move(there);
      GYRE_RETURN_IF_ERROR(
          handlers_.HandOver(hello, [&end]() -> StatusOr<std::unique_ptr<Link>> { return std::move(end); }));
    } else {
      if (!unclaimed_.Add({.hello = hello, .link = std::move(there)})) {
        return absl::CancelledError("the plan was given up");
      }
      ++accepted_;
    }
    return std::move(here);
  }
  return dialer_.Dial(address, hello, deadline);
}

}  // namespace

StatusOr<std::unique_ptr<RingPort>> RingPort::Open(const RingPortOptions& options) {
  try {
    auto port = std::make_unique<Port>(options);
    if (!options.listen.empty()) GYRE_RETURN_IF_ERROR(port->Listen());
    return std::unique_ptr<RingPort>(std::move(port));
  } catch (const std::exception& e) {
    return ResourceExhausted("a ring port: {}", e.what());
  }
}

}  // namespace gyre
