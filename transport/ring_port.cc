#include "transport/ring_port.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/ring_address.h"
#include "transport/carrier.h"
#include "transport/framed_link.h"
#include "transport/hello_reader.h"
#include "transport/inproc_link.h"
#include "transport/link_handlers.h"
#include "transport/local_socket.h"
#include "transport/open_peers.h"
#include "transport/pages.h"
#include "transport/ring_dialer.h"
#include "transport/unclaimed_links.h"

namespace gyre {
namespace {

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options)
      : options_(options),
        unclaimed_({.timeout = options.unclaimed_timeout,
                    .unverified = options.unverified,
                    .max_verified = options.max_unclaimed,
                    .on_refused = [this](const Caller& caller, const std::string& why,
                                         bool late) { Refused(caller, why, late); }}),
        carriers_({.options = options_, .host_id = host_id_, .cancelled = cancelled_}),
        dialer_(options_, carriers_, peers_) {}

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
                                          const std::string& peer, const TcpOptions& limits);
  // Why a link over this carrier can't be taken where `wanted` was agreed on; "" = it can.
  std::string WhyNot(const Carrier& comes, Transport wanted) const;
  // Why a waiting dialer can't be taken for `expected`; "" = it can.
  std::string WhyNot(const UnclaimedLink& found, const Hello& expected) const;

  // Runs on the port's thread.
  void OnHello(Connection connection, Hello hello);
  void OnTick();

  void OnBulk(Connection connection, const Hello& hello);
  // late: as UnclaimedLinks::Options has it.
  void Refused(const Caller& caller, const std::string& why, bool late = false);

  const RingPortOptions options_;
  const std::string host_id_ = HostId();
  std::string address_;

  std::atomic<uint64_t> accepted_{0}, refused_{0};
  Mutex log_mutex_;
  Deadline last_log_ GYRE_GUARDED_BY(log_mutex_) = Deadline::min();
  UnclaimedLinks unclaimed_;

  LinkHandlers handlers_;
  OpenPeers peers_;
  const std::function<bool(const Hello&)> cancelled_ = [this](const Hello& h) { return unclaimed_.Cancelled(h); };
  const Carriers carriers_;
  RingDialer dialer_;
  std::shared_ptr<const Identity> identity_;  // as the port's thread saw it last
  std::unique_ptr<HelloReader> reader_;       // its thread uses all the others
};

Status Port::Listen() {
  GYRE_RETURN_IF_ERROR(carriers_.CheckUsable(options_.transport));
  GYRE_ASSIGN_OR_RETURN(HostPort at, ParseHostPort(options_.listen));
  HelloReaderOptions reader{
      .listen = options_.listen,
      .hello_timeout = options_.hello_timeout,
      .limits = options_.unverified,
      .identity = options_.identity,
      .handshakes = options_.handshakes,
      .on_hello = [this](Connection c, Hello h) { OnHello(std::move(c), std::move(h)); },
      .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); },
      .on_tick = [this] { OnTick(); }};
  GYRE_ASSIGN_OR_RETURN(reader_, HelloReader::Listen(std::move(reader)));
  at.port = reader_->port();
  RingAddress address;
  GYRE_RETURN_IF_ERROR(carriers_.Offer(at, *reader_, &address));
  const std::string& host = options_.advertise_host;
  // The port is then at all addresses, as other machines know best how they reach this one.
  const bool any = host.empty() && reader_->any_address();
  address.tcp = any ? fmt::format(":{}", at.port) : FormatHostPort(host.empty() ? at.host : host, at.port);
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
    // It has not heard its coordinator's welcome yet. The peer, which has, tries again soon and is not unauthenticated.
    if (!key) return;
    if (!Proves(hello, *key)) {
      // It may be a worker that heard of the coordinator's restart before this process, or has not yet.
      Refused(caller, "its hello for weights has the key of another start of a coordinator");
      SendReply(connection.socket.get(), connection.tls.get(),
                {.refusal = "it gives no weights to links with this key"}, hello)
          .IgnoreError();
      return;
    }
    hello.key = *key;
    return OnBulk(std::move(connection), hello);
  }
  // Until the key of a plan is known here, its hellos wait.
  UnclaimedLink link{.hello = std::move(hello), .connection = std::move(connection)};
  switch (unclaimed_.Add(&link)) {
    case Arrival::kReady: return OnBulk(std::move(link.connection), link.hello);
    case Arrival::kWaits: ++accepted_; return;
    case Arrival::kRefused: return;
  }
}

// The first refusal is logged at once, later ones as one line per minute with their number. It is counted before the
// peer hears of it, so that whoever was refused finds itself in the count.
void Port::Refused(const Caller& caller, const std::string& why, bool late) {
  const uint64_t refused = ++refused_;
  if (late) return Log(LogLevel::kDebug, "ring port {}: {} comes late: {}", TcpPart(address_), caller.peer, why);
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
  if (const std::string why = WhyNot(carriers_.Of(caller, hello), options_.transport); !why.empty()) {
    Refused(caller, fmt::format("its bulk link: {}", why));
    return refuse(why);
  }
  TcpOptions limits = LimitsOf(options_, LinkRole::kBulk);
  limits.max_payload = kMaxPullRequest;
  Status failed;
  const Status status = handlers_.HandOver(hello, [&]() -> StatusOr<std::unique_ptr<Link>> {
    auto link = Welcome(std::move(connection), hello, options_.transport,
                        fmt::format("{} ({})", hello.from, caller.peer), limits);
    failed = link.status();
    if (link.ok()) ++accepted_;
    if (link.ok() && caller.who) (*link)->SetCertifiedPeer(hello.from);
    return link;
  });
  if (!failed.ok()) return Refused(caller, Message(failed));
  if (absl::IsNotFound(status)) refuse(Message(status));
}

StatusOr<std::unique_ptr<Link>> Port::Welcome(Connection connection, const Hello& hello, Transport transport,
                                              const std::string& peer, const TcpOptions& limits) {
  Carrier* carrier = &carriers_.Of(connection.caller, hello);
  // Of the carriers that are the same to the dialer, this end takes the one that it chose.
  if (transport != Transport::kAuto && carriers_.Of(transport).row().to_peer == carrier->row().to_peer) {
    carrier = &carriers_.Of(transport);
  }
  std::string serial = connection.tls == nullptr ? "" : connection.tls->peer_serial();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, carrier->Accept(std::move(connection), hello, limits));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeFramedLink(std::move(stream), peer, limits));
  if (serial.empty()) return link;
  link = peers_.Watch(std::move(link), hello.from, std::move(serial));
  peers_.EndRevoked(*options_.identity->current());  // a list may have come since the handshake
  return link;
}

std::string Port::WhyNot(const Carrier& comes, Transport wanted) const {
  if (wanted == Transport::kAuto || carriers_.Of(wanted).row().to_peer == comes.row().to_peer) return "";
  return fmt::format("it comes over {}, this end takes {} only (--transport)", TransportName(comes.row().transport),
                     TransportName(wanted));
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
  return WhyNot(carriers_.Of(found.connection.caller, found.hello), *transport);
}

StatusOr<std::unique_ptr<Link>> Port::TryAccept(const Hello& expected, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(const Transport transport, AgreedTransport(expected.transport, options_.transport));
  GYRE_RETURN_IF_ERROR(carriers_.CheckUsable(transport));
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(UnclaimedLink found, unclaimed_.Claim(expected, deadline));
    if (found.link != nullptr) return std::move(found.link);
    Connection& connection = found.connection;
    if (!StillWaits(connection.socket.get())) continue;  // its dialer gave up meanwhile
    const bool last = carriers_.Of(connection.caller, found.hello).row().begins_with_tcp;
    const std::string peer = fmt::format("{} ({})", found.hello.from, connection.caller.peer);
    std::string why = WhyNot(found, expected);
    if (why.empty()) {
      found.hello.key = expected.key;
      StatusOr<std::unique_ptr<Link>> link =
          Welcome(std::move(connection), found.hello, transport, peer, LimitsOf(options_, LinkRole::kRing));
      // Its dialer tries no other carrier then, so the plan fails with this reason.
      if (link.ok() || (absl::IsResourceExhausted(link.status()) && last)) return link;
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
      UnclaimedLink end{.hello = hello, .link = std::move(there)};
      if (unclaimed_.Add(&end) != Arrival::kWaits) return absl::CancelledError("the plan was given up");
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
