#include "transport/ring_port.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "base/ring_address.h"
#include "transport/hello_reader.h"
#include "transport/inproc_link.h"
#include "transport/local_socket.h"
#include "transport/pages.h"
#include "transport/shm_hello.h"
#include "transport/tls_stream.h"
#include "transport/udp_hello.h"
#include "transport/udp_host.h"
#include "transport/udp_wire.h"
#include "transport/unclaimed_links.h"
#include "transport/uring_stream.h"

namespace gyre {
namespace {

constexpr auto kDialAgain = std::chrono::seconds(10);

std::string Describe(const Hello& h) {
  return h.role == LinkRole::kRing
             ? fmt::format("hop {} of plan {}", h.hop, h.epoch.number)
             : fmt::format("the {} link to {}", h.role == LinkRole::kBulk ? "bulk" : "weights", h.to);
}

// Where the handler of links for weights stands among those of workers, none of which has this name.
const std::string kWeightsName = "@weights";

// The socket is fresh, so an answer fits in.
Status SendReply(int socket, TlsSession* tls, const HelloReply& reply) {
  std::vector<std::byte> bytes = HelloFrame(EncodeHelloReply(reply));
  if (tls != nullptr) {
    GYRE_RETURN_IF_ERROR(tls->Seal(bytes));
    bytes.clear();
    tls->TakeOutput(&bytes);
  }
  return SendWithFds(socket, bytes, {});
}

// A TCP connection, as this end wishes to read and write it.
StatusOr<std::unique_ptr<ByteStream>> StreamOf(Fd socket, Transport transport, const TcpOptions& options) {
  return transport == Transport::kKernel ? MakeUringStream(std::move(socket), options)
                                         : MakeTcpStream(std::move(socket), options);
}

// What carries the link of this dialer.
Transport ComesOver(const Caller& caller, const Hello& hello) {
  if (caller.local) return Transport::kShm;
  return hello.udp ? Transport::kUdp : Transport::kTcp;
}

Status CheckCarrier(Transport transport) {
  return transport == Transport::kKernel ? Annotate(CheckUring(), "--transport kernel") : absl::OkStatus();
}

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options)
      : options_(options),
        unclaimed_({.timeout = options.unclaimed_timeout,
                    .unverified = options.unverified,
                    .max_verified = options.max_unclaimed,
                    .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); }}) {}
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
  void SetBulkHandler(const std::string& name, BulkHandler handler) override;
  void SetWeightsHandler(const RingKey& key, BulkHandler handler) override;
  void SetKey(Epoch epoch, const RingKey& key) override {
    for (UnclaimedLink& bulk : unclaimed_.SetKey(epoch, key)) OnBulk(std::move(bulk.connection), bulk.hello);
  }
  void Cancel(Epoch epoch) override { unclaimed_.Cancel(epoch); }
  RingPortStats stats() const override {
    return {.accepted = accepted_, .refused = refused_, .waiting = unclaimed_.size()};
  }

 private:
  struct Bulk {
    BulkHandler handler;
    int calls = 0;
  };

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
  // `transport`: kTcp, or kKernel for this end.
  StatusOr<std::unique_ptr<Link>> DialTcp(const std::string& to, Transport transport, const Hello& hello,
                                          Deadline deadline);
  // A connection, with TLS if this end has an identity: both ends are who they should be then.
  struct Dialed {
    std::unique_ptr<ByteStream> stream;
    int socket;  // the stream's
  };
  StatusOr<Dialed> DialStream(const std::string& to, Transport transport, const Hello& hello, Deadline deadline);
  // kUnavailable: this dialer and `to` share no memory, and the message says why.
  StatusOr<std::unique_ptr<Link>> DialShm(const RingAddress& to, const Hello& hello, Deadline deadline);
  StatusOr<std::unique_ptr<Link>> DialUdp(const RingAddress& to, Hello hello, Deadline deadline);
  // A link whose hello was answered, and not refused.
  struct Greeted {
    std::unique_ptr<Link> link;
    int socket;  // the link's
    HelloReply reply;
  };
  StatusOr<Greeted> Greet(const std::string& to, Transport transport, const Hello& hello, Deadline deadline);
  // The link of a dialer that is welcome, and it is told so.
  StatusOr<std::unique_ptr<Link>> Welcome(Connection connection, const Hello& hello, Transport transport,
                                          const std::string& peer, const TcpOptions& options);
  // Why a dialer that waits can't be taken for `expected`; "" = it can.
  std::string WhyNot(const UnclaimedLink& found, const Hello& expected) const;
  TcpOptions Tcp(LinkRole role) const;

  // On the port's thread.
  void OnHello(Connection connection, const Hello& hello);
  void OnBulk(Connection connection, const Hello& hello);

  // kNotFound: nobody of that name is here; `link` is not called. Hands over what it returns otherwise.
  Status HandOver(const std::string& to, const std::function<StatusOr<std::unique_ptr<Link>>()>& link);
  void Refused(const Caller& caller, const std::string& why);

  const RingPortOptions options_;
  const std::string host_id_ = HostId();
  std::string address_;

  std::atomic<uint64_t> accepted_{0}, refused_{0};
  Mutex log_mutex_;
  Deadline last_log_ GYRE_GUARDED_BY(log_mutex_) = Deadline::min();
  UnclaimedLinks unclaimed_;

  Mutex bulk_mutex_;
  CondVar bulk_called_;
  std::map<std::string, Bulk> bulk_ GYRE_GUARDED_BY(bulk_mutex_);  // by worker; and kWeightsName
  RingKey weights_key_ GYRE_GUARDED_BY(bulk_mutex_){};             // counts while that one has a handler

  std::unique_ptr<UdpHost> udp_;
  std::unique_ptr<HelloReader> reader_;  // its thread uses all the others
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
      .on_hello = [this](Connection c, const Hello& h) { OnHello(std::move(c), h); },
      .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); },
      .on_tick = [this] { unclaimed_.DropDead(); }};
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
      address.udp = udp_->port();
      address.only_udp = options_.transport == Transport::kUdp;
    } else if (options_.transport == Transport::kUdp) {
      return Annotate(udp.status(), "--transport udp");
    } else {
      Log(LogLevel::kInfo, "no link of this process goes over UDP: {}", Message(udp.status()));
    }
  }
  const std::string& host = options_.advertise_host;
  // At all addresses: others know best how they reach this machine.
  const bool any = host.empty() && reader_->any_address();
  address.tcp =
      any ? fmt::format(":{}", reader_->port()) : FormatHostPort(host.empty() ? at.host : host, reader_->port());
  address_ = FormatRingAddress(address);
  // Not before: its thread reads what was set here.
  return reader_->Start();
}

TcpOptions Port::Tcp(LinkRole role) const {
  TcpOptions tcp = options_.tcp;
  if (role != LinkRole::kRing) tcp.silence = options_.bulk_silence;
  return tcp;
}

void Port::OnHello(Connection connection, const Hello& hello) {
  const Caller& caller = connection.caller;
  if (caller.who) {
    if (const Status member = CheckMember(*caller.who, hello.from); !member.ok()) {
      return Refused(caller, fmt::format("its hello comes from {}: {}", hello.from, Message(member)));
    }
  }
  if (hello.role == LinkRole::kWeights) {
    bool right = false;
    {
      MutexLock lock(&bulk_mutex_);
      right = SameKey(hello.key, weights_key_) && bulk_[kWeightsName].handler;
    }
    if (!right) {
      SendReply(connection.socket.get(), connection.tls.get(),
                {.refusal = "it gives no weights to links with this key"})
          .IgnoreError();
      return Refused(caller, "its hello for weights has a wrong key");
    }
    return OnBulk(std::move(connection), hello);
  }
  const KeyCheck check = unclaimed_.Check(hello);
  if (check == KeyCheck::kWrong) return Refused(caller, "its hello has a wrong key");
  if (hello.role == LinkRole::kBulk) {
    if (check == KeyCheck::kRight) return OnBulk(std::move(connection), hello);
    if (check == KeyCheck::kUnknownTerm) return Refused(caller, "its hello has a term whose key is not known here");
  }
  // Before the key of a plan is known here its hellos wait.
  if (unclaimed_.Add({.hello = hello, .connection = std::move(connection)})) ++accepted_;
}

// One line for the first, then a line a minute with their number.
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
  if (unclaimed_.Cancelled(hello.epoch)) return;
  const Caller caller = connection.caller;
  const auto refuse = [&connection](const std::string& why) {
    SendReply(connection.socket.get(), connection.tls.get(), {.refusal = why}).IgnoreError();
  };
  const Transport comes = ComesOver(caller, hello), own = options_.transport;
  if ((own == Transport::kShm || own == Transport::kUdp) && comes != own) {
    refuse(fmt::format("this end takes {} only (--transport)", TransportName(own)));
    return Refused(caller, fmt::format("its bulk link comes over {}", TransportName(comes)));
  }
  TcpOptions options = Tcp(LinkRole::kBulk);
  options.max_payload = kMaxPullRequest;
  Status failed;
  const std::string& to = hello.role == LinkRole::kWeights ? kWeightsName : hello.to;
  const Status status = HandOver(to, [&]() -> StatusOr<std::unique_ptr<Link>> {
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
  if (hello.udp) {
    if (udp_ == nullptr) return Unavailable("this end takes no datagrams");
    GYRE_ASSIGN_OR_RETURN(const UdpGreeting greeting, UdpGreeting::Make());
    UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = hello.udp->link};
    GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *hello.udp, false));
    const int fd = connection.socket.get();
    facts.connection = std::move(connection.socket);
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, udp_->Accept(std::move(facts)));
    GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {.udp = greeting.offer()}));
    return MakeFramedLink(std::move(stream), peer, options);
  }
  if (connection.caller.local) {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, WelcomeWithMemory(std::move(connection.socket)));
    return MakeFramedLink(std::move(stream), peer, options);
  }
  const int fd = connection.socket.get();
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, StreamOf(std::move(connection.socket), transport, options));
  GYRE_RETURN_IF_ERROR(SendReply(fd, connection.tls.get(), {}));
  if (connection.tls != nullptr) stream = MakeTlsStream(std::move(stream), std::move(connection.tls));
  return MakeFramedLink(std::move(stream), peer, options);
}

Status Port::HandOver(const std::string& to, const std::function<StatusOr<std::unique_ptr<Link>>()>& link) {
  BulkHandler handler;
  {
    MutexLock lock(&bulk_mutex_);
    const auto it = bulk_.find(to);
    if (it == bulk_.end() || !it->second.handler) return NotFound("no worker {} here", to);
    handler = it->second.handler;
    ++it->second.calls;
  }
  Status status;
  try {
    StatusOr<std::unique_ptr<Link>> made = link();
    status = made.status();
    if (made.ok()) handler(*std::move(made));
  } catch (const std::exception& e) {
    status = ResourceExhausted("{}: {}", to, e.what());
  }
  MutexLock lock(&bulk_mutex_);
  --bulk_[to].calls;
  bulk_called_.SignalAll();
  return status;
}

void Port::SetBulkHandler(const std::string& name, BulkHandler handler) {
  MutexLock lock(&bulk_mutex_);
  Bulk& bulk = bulk_[name];
  bulk.handler = std::move(handler);
  while (!bulk.handler && bulk.calls > 0) bulk_called_.Wait(&bulk_mutex_);
}

void Port::SetWeightsHandler(const RingKey& key, BulkHandler handler) {
  {
    MutexLock lock(&bulk_mutex_);
    weights_key_ = key;
  }
  SetBulkHandler(kWeightsName, std::move(handler));
}

std::string Port::WhyNot(const UnclaimedLink& found, const Hello& expected) const {
  if (found.hello.from != expected.from) {
    return fmt::format("it comes from {}, the plan gives this hop to {}", found.hello.from, expected.from);
  }
  if (!SameKey(found.hello.key, expected.key)) return "the ring's key is another one";
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
      StatusOr<std::unique_ptr<Link>> link =
          Welcome(std::move(connection), found.hello, transport, peer, Tcp(LinkRole::kRing));
      // A dialer over TCP has no other way, so the plan fails with this reason.
      if (link.ok() || (absl::IsResourceExhausted(link.status()) && !local)) return link;
      why = Message(link.status());
    } else {
      SendReply(connection.socket.get(), connection.tls.get(), {.refusal = why}).IgnoreError();
    }
    Log(LogLevel::kWarn, "{} from {}: {}", Describe(expected), found.hello.from, why);
  }
}

StatusOr<std::unique_ptr<Link>> Port::TryDial(const std::string& address, const Hello& hello, Deadline deadline) {
  if (unclaimed_.Cancelled(hello.epoch)) return absl::CancelledError("the plan was given up");
  if (address == address_) {
    auto [here, there] = MakeInprocLinkPair({});
    if (hello.role != LinkRole::kRing) {
      std::unique_ptr<Link> end = std::move(there);
      const std::string& to_name = hello.role == LinkRole::kWeights ? kWeightsName : hello.to;
      GYRE_RETURN_IF_ERROR(HandOver(to_name, [&end]() -> StatusOr<std::unique_ptr<Link>> { return std::move(end); }));
    } else {
      if (!unclaimed_.Add({.hello = hello, .link = std::move(there)})) {
        return absl::CancelledError("the plan was given up");
      }
      ++accepted_;
    }
    return std::move(here);
  }
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

StatusOr<std::unique_ptr<Link>> Port::DialShm(const RingAddress& to, const Hello& hello, Deadline deadline) {
  if (to.shm.empty()) return Unavailable("it offers no shared memory");
  const size_t split = to.shm.find('@');
  if (to.shm.substr(split + 1) != host_id_) return Unavailable("it is on another host");
  const auto stopped = [this, &hello] { return unclaimed_.Cancelled(hello.epoch); };
  StatusOr<Fd> socket = ConnectLocal(to.shm.substr(0, split), deadline, stopped);
  if (absl::IsFailedPrecondition(socket.status())) return Unavailable("{}", Message(socket.status()));
  if (!socket.ok()) return socket.status();
  StatusOr<ShmAnswer> answer = SayHelloForMemory(*std::move(socket), hello, deadline, stopped);
  if (!answer.ok()) return Annotate(answer.status(), Describe(hello));
  if (answer->stream == nullptr) {
    return FailedPrecondition("{} refuses {}: {}", to.tcp, Describe(hello), answer->refusal);
  }
  return MakeFramedLink(std::move(answer->stream), to.tcp, Tcp(hello.role));
}

StatusOr<std::unique_ptr<Link>> Port::DialUdp(const RingAddress& to, Hello hello, Deadline deadline) {
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
  if (::getpeername(greeted.socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    return Unavailable("{}: {}", to.tcp, std::strerror(errno));
  }
  const UdpAddress at = WithPort(ToUdpAddress(reinterpret_cast<const sockaddr*>(&peer), size), to.udp);
  UdpLinkFacts facts{.link = greeting.offer().link, .peer_link = greeted.reply.udp->link};
  GYRE_ASSIGN_OR_RETURN(facts.keys, greeting.Keys(hello.key, *greeted.reply.udp, true));
  facts.connection = Fd(::fcntl(greeted.socket, F_DUPFD_CLOEXEC, 0));
  if (facts.connection.get() < 0) return ResourceExhausted("{}: {}", to.tcp, std::strerror(errno));
  facts.keeps_open = std::move(greeted.link);
  const auto stopped = [this, &hello] { return unclaimed_.Cancelled(hello.epoch); };
  StatusOr<std::unique_ptr<ByteStream>> stream = udp_->Dial(std::move(facts), at, deadline, stopped);
  if (!stream.ok()) return Annotate(stream.status(), Describe(hello));
  return MakeFramedLink(*std::move(stream), to.tcp, Tcp(hello.role));
}

StatusOr<std::unique_ptr<Link>> Port::DialTcp(const std::string& to, Transport transport, const Hello& hello,
                                              Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(Greeted greeted, Greet(to, transport, hello, deadline));
  return std::move(greeted.link);
}

StatusOr<Port::Dialed> Port::DialStream(const std::string& to, Transport transport, const Hello& hello,
                                        Deadline deadline) {
  const auto stopped = [this, &hello] { return unclaimed_.Cancelled(hello.epoch); };
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(to, deadline, stopped));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, StreamOf(Fd(fd), transport, Tcp(hello.role)));
  if (options_.identity == nullptr) return Dialed{.stream = std::move(stream), .socket = fd};
  GYRE_ASSIGN_OR_RETURN(auto session, TlsSession::Make(options_.identity->current(), TlsSide::kClient));
  Status shaken = DoHandshake(*stream, *session, std::min(deadline, After(options_.hello_timeout)), stopped);
  // Before anything is said.
  if (shaken.ok()) shaken = CheckMember(session->peer(), hello.to);
  if (!shaken.ok()) return Annotate(shaken, fmt::format("{}: {}", to, Describe(hello)));
  return Dialed{.stream = MakeTlsStream(std::move(stream), std::move(session)), .socket = fd};
}

StatusOr<Port::Greeted> Port::Greet(const std::string& to, Transport transport, const Hello& hello, Deadline deadline) {
  // A stranger's flood may have had it closed unheard: it comes again.
  const Deadline last_try = std::min(deadline, After(kDialAgain));
  StatusOr<Dialed> shaken = DialStream(to, transport, hello, deadline);
  while (options_.identity != nullptr && absl::IsUnavailable(shaken.status()) && Clock::now() < last_try) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (unclaimed_.Cancelled(hello.epoch)) return absl::CancelledError("the plan was given up");
    shaken = DialStream(to, transport, hello, deadline);
  }
  GYRE_ASSIGN_OR_RETURN(Dialed dialed, std::move(shaken));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeFramedLink(std::move(dialed.stream), to, Tcp(hello.role)));
  const auto payload = EncodeHello(hello);
  const ByteSpan parts[] = {payload};
  GYRE_RETURN_IF_ERROR(link->Send({.kind = FrameKind::kHello, .epoch = hello.epoch}, parts, deadline));
  for (;;) {
    // In turns, so that a plan that was given up ends the wait.
    StatusOr<Frame> frame = link->Recv(std::min(deadline, After(std::chrono::milliseconds(100))));
    if (frame.ok()) {
      if (frame->header.kind != FrameKind::kHello) return DataLoss("{} answered a hello with another frame", to);
      GYRE_ASSIGN_OR_RETURN(HelloReply reply, DecodeHelloReply(frame->payload));
      if (!reply.refusal.empty()) return FailedPrecondition("{} refuses {}: {}", to, Describe(hello), reply.refusal);
      return Greeted{.link = std::move(link), .socket = dialed.socket, .reply = std::move(reply)};
    }
    if (!absl::IsDeadlineExceeded(frame.status())) return Annotate(frame.status(), Describe(hello));
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: {} was not answered", to, Describe(hello));
    if (unclaimed_.Cancelled(hello.epoch)) return absl::CancelledError("the plan was given up");
  }
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
