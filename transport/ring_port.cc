#include "transport/ring_port.h"

#include <atomic>
#include <map>

#include "base/log.h"
#include "base/mutex.h"
#include "transport/hello_reader.h"
#include "transport/inproc_link.h"
#include "transport/pages.h"
#include "transport/unclaimed_links.h"

namespace gyre {
namespace {

std::string Describe(const Hello& h) {
  return h.role == LinkRole::kRing ? fmt::format("hop {} of plan {}", h.hop, h.epoch.number)
                                   : fmt::format("the bulk link to {}", h.to);
}

Status SendReply(Link& link, const HelloReply& reply) {
  const auto payload = EncodeHelloReply(reply);
  const ByteSpan parts[] = {payload};
  return link.Send({.kind = FrameKind::kHello}, parts, After(std::chrono::seconds(1)));
}

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options)
      : options_(options),
        unclaimed_({.timeout = options.unclaimed_timeout,
                    .unverified = options.unverified,
                    .max_verified = options.max_unclaimed,
                    .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); }}) {}
  ~Port() override { reader_ = nullptr; }

  Status Listen();
  const std::string& address() const override { return address_; }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) override {
    return Guarded([&] { return TryDial(address, hello, deadline); });
  }
  StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) override {
    return Guarded([&] { return TryAccept(expected, deadline); });
  }
  void SetBulkHandler(const std::string& name, BulkHandler handler) override;
  void SetKey(uint64_t term, const RingKey& key) override { unclaimed_.SetKey(term, key); }
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
  TcpOptions Tcp(LinkRole role) const;

  // On the port's thread.
  void OnHello(Fd fd, const Caller& caller, const Hello& hello);
  void OnBulk(Fd fd, const Caller& caller, const Hello& hello);

  // kNotFound: nobody of that name is here; `link` is not called. Hands over what it returns otherwise.
  Status HandOver(const std::string& to, const std::function<StatusOr<std::unique_ptr<Link>>()>& link);
  void Refused(const Caller& caller, const std::string& why);

  const RingPortOptions options_;
  std::string address_;

  std::atomic<uint64_t> accepted_{0}, refused_{0};
  Mutex log_mutex_;
  Deadline last_log_ GYRE_GUARDED_BY(log_mutex_) = Deadline::min();
  UnclaimedLinks unclaimed_;

  Mutex bulk_mutex_;
  CondVar bulk_called_;
  std::map<std::string, Bulk> bulk_ GYRE_GUARDED_BY(bulk_mutex_);

  std::unique_ptr<HelloReader> reader_;  // its thread uses all the others
};

Status Port::Listen() {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.listen));
  GYRE_ASSIGN_OR_RETURN(
      reader_,
      HelloReader::Listen(
          {.listen = options_.listen,
           .hello_timeout = options_.hello_timeout,
           .limits = options_.unverified,
           .on_hello = [this](Fd fd, const Caller& caller, const Hello& h) { OnHello(std::move(fd), caller, h); },
           .on_refused = [this](const Caller& caller, const std::string& why) { Refused(caller, why); },
           .on_tick = [this] { unclaimed_.DropDead(); }}));
  const std::string& host = options_.advertise_host;
  // At all addresses: others know best how they reach this machine.
  const bool any = host.empty() && reader_->any_address();
  address_ = any ? fmt::format(":{}", reader_->port()) : FormatHostPort(host.empty() ? at.host : host, reader_->port());
  return absl::OkStatus();
}

TcpOptions Port::Tcp(LinkRole role) const {
  TcpOptions tcp = options_.tcp;
  if (role == LinkRole::kBulk) tcp.silence = options_.bulk_silence;
  return tcp;
}

void Port::OnHello(Fd fd, const Caller& caller, const Hello& hello) {
  const KeyCheck check = unclaimed_.Check(hello);
  if (check == KeyCheck::kWrong) return Refused(caller, "its hello has a wrong key");
  if (hello.role == LinkRole::kBulk) {
    if (check == KeyCheck::kRight) return OnBulk(std::move(fd), caller, hello);
    return Refused(caller, "its hello has a term whose key is not known here");
  }
  // Before the key of a term is known here its hellos wait.
  if (unclaimed_.Add({.hello = hello, .caller = caller, .socket = std::move(fd)})) ++accepted_;
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
  Log(LogLevel::kWarn, "ring port {}: refused {}: {} ({} refused since the start)", address_, caller.peer, why,
      refused);
}

void Port::OnBulk(Fd fd, const Caller& caller, const Hello& hello) {
  if (unclaimed_.Cancelled(hello.epoch)) return;
  TcpOptions tcp = Tcp(LinkRole::kBulk);
  tcp.max_payload = kMaxPullRequest;
  StatusOr<std::unique_ptr<Link>> link =
      MakeTcpLink(fd.release(), fmt::format("{} ({})", hello.from, caller.peer), tcp);
  if (!link.ok()) return Refused(caller, Message(link.status()));
  ++accepted_;
  const Status status = HandOver(hello.to, [&]() -> StatusOr<std::unique_ptr<Link>> {
    GYRE_RETURN_IF_ERROR(SendReply(**link, {}));
    return std::move(*link);
  });
  if (absl::IsNotFound(status)) SendReply(**link, {.refusal = Message(status)}).IgnoreError();
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

StatusOr<std::unique_ptr<Link>> Port::TryAccept(const Hello& expected, Deadline deadline) {
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(UnclaimedLink found, unclaimed_.Claim(expected, deadline));
    if (found.link != nullptr) return std::move(found.link);
    if (!StillWaits(found.socket.get())) continue;  // its dialer gave up meanwhile
    const std::string peer = fmt::format("{} ({})", found.hello.from, found.caller.peer);
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeTcpLink(found.socket.release(), peer, Tcp(LinkRole::kRing)));
    std::string refusal;
    if (!SameKey(found.hello.key, expected.key)) {
      refusal = "the ring's key is another one";
    } else if (found.hello.model_hash != expected.model_hash) {
      refusal = "the model is another one";
    } else if (found.hello.wire != expected.wire) {
      refusal = fmt::format("its activations would come as {}, the plan's are {} (--wire)",
                            WireTypeName(found.hello.wire), WireTypeName(expected.wire));
    }
    const Status sent = SendReply(*link, {.refusal = refusal});
    if (refusal.empty() && sent.ok()) return link;
    Log(LogLevel::kWarn, "{} from {}: {}", Describe(expected), found.hello.from,
        refusal.empty() ? Message(sent) : refusal);
  }
}

StatusOr<std::unique_ptr<Link>> Port::TryDial(const std::string& address, const Hello& hello, Deadline deadline) {
  const Status given_up = absl::CancelledError("the plan was given up");
  if (unclaimed_.Cancelled(hello.epoch)) return given_up;
  if (address == address_) {
    auto [here, there] = MakeInprocLinkPair({});
    if (hello.role == LinkRole::kBulk) {
      std::unique_ptr<Link> end = std::move(there);
      GYRE_RETURN_IF_ERROR(HandOver(hello.to, [&end]() -> StatusOr<std::unique_ptr<Link>> { return std::move(end); }));
    } else {
      if (!unclaimed_.Add({.hello = hello, .link = std::move(there)})) return given_up;
      ++accepted_;
    }
    return std::move(here);
  }
  GYRE_ASSIGN_OR_RETURN(const int fd,
                        ConnectTcp(address, deadline, [this, &hello] { return unclaimed_.Cancelled(hello.epoch); }));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, MakeTcpLink(fd, address, Tcp(hello.role)));
  const auto payload = EncodeHello(hello);
  const ByteSpan parts[] = {payload};
  GYRE_RETURN_IF_ERROR(link->Send({.kind = FrameKind::kHello, .epoch = hello.epoch}, parts, deadline));
  for (;;) {
    // In turns, so that a plan that was given up ends the wait.
    StatusOr<Frame> frame = link->Recv(std::min(deadline, After(std::chrono::milliseconds(100))));
    if (frame.ok()) {
      if (frame->header.kind != FrameKind::kHello) return DataLoss("{} answered a hello with another frame", address);
      GYRE_ASSIGN_OR_RETURN(const HelloReply reply, DecodeHelloReply(frame->payload));
      if (!reply.refusal.empty())
        return FailedPrecondition("{} refuses {}: {}", address, Describe(hello), reply.refusal);
      return link;
    }
    if (!absl::IsDeadlineExceeded(frame.status())) return Annotate(frame.status(), Describe(hello));
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: {} was not answered", address, Describe(hello));
    if (unclaimed_.Cancelled(hello.epoch)) return given_up;
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
