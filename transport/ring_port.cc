#include "transport/ring_port.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "transport/hello_reader.h"
#include "transport/inproc_link.h"
#include "transport/pages.h"

namespace gyre {
namespace {

// A hop's receiving end that nobody has claimed yet.
struct UnclaimedLink {
  uint64_t id = 0;
  Hello hello;
  Caller caller;
  bool verified = false;  // its key is the term's
  Deadline since = Clock::now();
  Fd socket;
  std::unique_ptr<Link> link;  // of a hop within this process, instead of the socket
};

std::string Describe(const Hello& h) {
  return h.role == LinkRole::kRing ? fmt::format("hop {} of plan {}", h.hop, h.epoch.number)
                                   : fmt::format("the bulk link to {}", h.to);
}

Status SendReply(Link& link, const HelloReply& reply) {
  const auto payload = EncodeHelloReply(reply);
  const ByteSpan parts[] = {payload};
  return link.Send({.kind = FrameKind::kHello}, parts, After(std::chrono::seconds(1)));
}

// A dialer that waits to be claimed sends nothing: what can be read is its end, or garbage.
bool StillWaits(int fd) {
  char byte;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options) : options_(options) {}
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
  void SetKey(uint64_t term, const RingKey& key) override;
  void Cancel(Epoch epoch) override;
  RingPortStats stats() const override {
    MutexLock lock(&mutex_);
    RingPortStats stats = stats_;
    stats.waiting = unclaimed_.size();
    return stats;
  }

 private:
  using Unclaimed = std::list<UnclaimedLink>;
  struct Key {
    uint64_t term;
    RingKey key;
  };
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
  StatusOr<UnclaimedLink> Claim(const Hello& expected, Deadline deadline);
  TcpOptions Tcp(LinkRole role) const;

  // On the port's thread.
  void OnHello(Fd fd, const Caller& caller, const Hello& hello);
  void KeepUnclaimed(UnclaimedLink u);
  void OnBulk(Fd fd, const Caller& caller, const Hello& hello);
  void DropDead();

  // False: nobody of that name is here. Hands the link over otherwise; `link` is only asked for then.
  Status HandOver(const std::string& to, const std::function<StatusOr<std::unique_ptr<Link>>()>& link);
  void Refused(const Caller& caller, const std::string& why);
  bool Cancelled(Epoch epoch) const {
    MutexLock lock(&mutex_);
    return CancelledLocked(epoch);
  }
  bool CancelledLocked(Epoch epoch) const GYRE_REQUIRES(mutex_) {
    return epoch.term == cancelled_.term && epoch.number <= cancelled_.number;
  }

  const RingPortOptions options_;
  std::string address_;

  mutable Mutex mutex_;
  CondVar changed_;
  Unclaimed unclaimed_ GYRE_GUARDED_BY(mutex_);  // the oldest first
  uint64_t next_id_ GYRE_GUARDED_BY(mutex_) = 1;
  Epoch cancelled_ GYRE_GUARDED_BY(mutex_);
  std::optional<Key> key_ GYRE_GUARDED_BY(mutex_);
  RingPortStats stats_ GYRE_GUARDED_BY(mutex_);
  Deadline last_log_ GYRE_GUARDED_BY(mutex_) = Deadline::min();

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
           .on_tick = [this] { DropDead(); }}));
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
  bool known = false, right = false;
  {
    MutexLock lock(&mutex_);
    known = key_ && hello.epoch.term == key_->term;
    right = known && SameKey(hello.key, key_->key);
  }
  if (known && !right) return Refused(caller, "its hello has a wrong key");
  if (hello.role == LinkRole::kBulk) {
    if (!known) return Refused(caller, "its hello has a term whose key is not known here");
    return OnBulk(std::move(fd), caller, hello);
  }
  // Before the key of a term is known here its hellos wait.
  UnclaimedLink u;
  u.hello = hello;
  u.caller = caller;
  u.verified = right;
  u.socket = std::move(fd);
  KeepUnclaimed(std::move(u));
}

void Port::KeepUnclaimed(UnclaimedLink u) {
  DropDead();
  Unclaimed displaced;
  {
    MutexLock lock(&mutex_);
    if (CancelledLocked(u.hello.epoch)) return;
    // The key may have come meanwhile.
    if (key_ && u.hello.epoch.term == key_->term) u.verified = SameKey(u.hello.key, key_->key);
    std::vector<std::string> addresses;
    std::vector<Unclaimed::iterator> unverified;
    size_t verified = 0;
    for (auto it = unclaimed_.begin(); it != unclaimed_.end(); ++it) {
      verified += it->verified ? 1 : 0;
      if (it->verified) continue;
      addresses.push_back(it->caller.address);
      unverified.push_back(it);
    }
    if (u.verified && verified >= options_.max_unclaimed) {
      displaced.push_back(std::move(u));
    } else {
      if (!u.verified) {
        if (const auto i = GivesWay(addresses, u.caller.address, options_.unverified)) {
          displaced.splice(displaced.end(), unclaimed_, unverified[*i]);
        }
      }
      ++stats_.accepted;
      u.id = next_id_++;
      unclaimed_.push_back(std::move(u));
      changed_.SignalAll();
    }
  }
  for (const UnclaimedLink& d : displaced) Refused(d.caller, "too many links wait to be claimed");
}

// Those whose dialer has gone, and those that nobody gave a key in time.
void Port::DropDead() {
  std::vector<std::pair<uint64_t, int>> sockets;
  const Deadline limit = Clock::now() - options_.unclaimed_timeout;
  {
    MutexLock lock(&mutex_);
    for (const UnclaimedLink& u : unclaimed_) {
      if (u.socket.ok()) sockets.emplace_back(u.id, u.socket.get());
    }
  }
  // A socket that is claimed meanwhile may be another one by now; then its id is gone.
  std::erase_if(sockets, [](const auto& s) { return StillWaits(s.second); });
  Unclaimed gone, late;
  {
    MutexLock lock(&mutex_);
    for (auto it = unclaimed_.begin(); it != unclaimed_.end();) {
      const auto next = std::next(it);
      const bool dead = std::any_of(sockets.begin(), sockets.end(), [&it](const auto& s) { return s.first == it->id; });
      if (dead) {
        gone.splice(gone.end(), unclaimed_, it);
      } else if (!it->verified && it->since < limit) {
        late.splice(late.end(), unclaimed_, it);
      }
      it = next;
    }
  }
  for (const UnclaimedLink& u : late) Refused(u.caller, "its hello has a term whose key did not come in time");
}

// One line for the first, then a line a minute with their number.
void Port::Refused(const Caller& caller, const std::string& why) {
  uint64_t refused = 0;
  {
    MutexLock lock(&mutex_);
    refused = ++stats_.refused;
    const Deadline now = Clock::now();
    if (last_log_ != Deadline::min() && now < last_log_ + std::chrono::minutes(1)) return;
    last_log_ = now;
  }
  Log(LogLevel::kWarn, "ring port {}: refused {}: {} ({} refused since the start)", address_, caller.peer, why,
      refused);
}

void Port::OnBulk(Fd fd, const Caller& caller, const Hello& hello) {
  if (Cancelled(hello.epoch)) return;
  TcpOptions tcp = Tcp(LinkRole::kBulk);
  tcp.max_payload = kMaxPullRequest;
  StatusOr<std::unique_ptr<Link>> link =
      MakeTcpLink(fd.release(), fmt::format("{} ({})", hello.from, caller.peer), tcp);
  if (!link.ok()) return Refused(caller, Message(link.status()));
  {
    MutexLock lock(&mutex_);
    ++stats_.accepted;
  }
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

void Port::SetKey(uint64_t term, const RingKey& key) {
  Unclaimed wrong;
  {
    MutexLock lock(&mutex_);
    key_ = Key{.term = term, .key = key};
    for (auto it = unclaimed_.begin(); it != unclaimed_.end();) {
      const auto next = std::next(it);
      const bool was = it->verified;
      if (it->link == nullptr) it->verified = it->hello.epoch.term == term && SameKey(it->hello.key, key);
      const bool drop = it->hello.epoch.term == term || was;
      if (!it->verified && drop) wrong.splice(wrong.end(), unclaimed_, it);
      it = next;
    }
  }
  for (const UnclaimedLink& u : wrong) Refused(u.caller, "its hello has a wrong key");
}

StatusOr<UnclaimedLink> Port::Claim(const Hello& expected, Deadline deadline) {
  MutexLock lock(&mutex_);
  for (;;) {
    if (CancelledLocked(expected.epoch)) return absl::CancelledError("the plan was given up");
    for (auto it = unclaimed_.begin(); it != unclaimed_.end(); ++it) {
      if (it->hello.epoch != expected.epoch || it->hello.hop != expected.hop) continue;
      UnclaimedLink found = std::move(*it);
      unclaimed_.erase(it);
      return found;
    }
    if (!changed_.WaitUntil(&mutex_, deadline) && Clock::now() >= deadline) {
      return DeadlineExceeded("{}: nobody dialed it", Describe(expected));
    }
  }
}

StatusOr<std::unique_ptr<Link>> Port::TryAccept(const Hello& expected, Deadline deadline) {
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(UnclaimedLink found, Claim(expected, deadline));
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
  if (Cancelled(hello.epoch)) return given_up;
  if (address == address_) {
    auto [here, there] = MakeInprocLinkPair({});
    if (hello.role == LinkRole::kBulk) {
      std::unique_ptr<Link> end = std::move(there);
      GYRE_RETURN_IF_ERROR(HandOver(hello.to, [&end]() -> StatusOr<std::unique_ptr<Link>> { return std::move(end); }));
    } else {
      UnclaimedLink u;
      u.hello = hello;
      u.verified = true;
      u.link = std::move(there);
      MutexLock lock(&mutex_);
      if (CancelledLocked(hello.epoch)) return given_up;
      u.id = next_id_++;
      ++stats_.accepted;
      unclaimed_.push_back(std::move(u));
      changed_.SignalAll();
    }
    return std::move(here);
  }
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(address, deadline, [this, &hello] { return Cancelled(hello.epoch); }));
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
    if (Cancelled(hello.epoch)) return given_up;
  }
}

void Port::Cancel(Epoch epoch) {
  Unclaimed dropped;
  MutexLock lock(&mutex_);
  if (cancelled_.term != epoch.term || cancelled_.number < epoch.number) cancelled_ = epoch;
  for (auto it = unclaimed_.begin(); it != unclaimed_.end();) {
    const auto next = std::next(it);
    if (CancelledLocked(it->hello.epoch)) dropped.splice(dropped.end(), unclaimed_, it);
    it = next;
  }
  changed_.SignalAll();
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
