#include "transport/udp_host.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/spin.h"
#include "transport/udp_wire.h"

namespace gyre {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kAnswer = seconds(5);    // of a peer that took the link, over UDP
constexpr auto kFarewell = seconds(1);  // for closed links, when their port ends
constexpr auto kUdpSpin = microseconds(20);
// While there is traffic the thread looks at the time by itself, so that a sender need not wake it for each deadline.
constexpr auto kBusyTurn = milliseconds(5), kBusyFor = milliseconds(200);
constexpr uint64_t kWakeTag = 0, kListenTag = 1, kDialTag = 2;
constexpr int kEvents = 32;

// The sockets and the thread's alarm, which streams use too.
struct Wire {
  UdpSocket listening, dialing;
  Fd wake, epoll;
  // When the thread will look at the links again, in ticks of the clock.
  std::atomic<Duration::rep> sleeps_until{0};

  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake.get(), &one, sizeof one);
  }
};

struct UdpConnection {
  UdpConnection(const UdpCoreOptions& options, UdpLinkFacts facts, const std::optional<UdpAddress>& to)
      : id(facts.link),
        dials(to.has_value()),
        keeps_open(std::move(facts.keeps_open)),
        line(std::move(facts.connection)),
        core(options, facts.keys, facts.peer_link, to, Clock::now()) {}

  const uint64_t id;
  const bool dials;
  const std::unique_ptr<Link> keeps_open;
  const Fd line;
  std::atomic<Duration::rep> timer{Duration::max().count()};  // the core's

  Mutex mutex;
  CondVar readable, writable;
  UdpCore core GYRE_GUARDED_BY(mutex);
  bool woken GYRE_GUARDED_BY(mutex) = false;
  bool flushing GYRE_GUARDED_BY(mutex) = false, again GYRE_GUARDED_BY(mutex) = false;
  bool told GYRE_GUARDED_BY(mutex) = false;            // that the peer was heard
  bool orphan GYRE_GUARDED_BY(mutex) = false;          // its port has ended
  bool abandoned GYRE_GUARDED_BY(mutex) = false;       // its stream has ended
  std::atomic<bool> can_read{false}, can_write{true};  // hints for a waiter that spins

  void Tell() GYRE_REQUIRES(mutex) {
    can_read = core.Readable() || woken || orphan;
    can_write = core.Writable() || orphan;
    if (can_read || (dials && !told && core.heard())) readable.SignalAll();
    told = core.heard();
    if (can_write) writable.SignalAll();
  }
};

// Sends all that the link has to send now. One thread at a time does it for a link, so that its datagrams stay in
// order; the lock is not held while they leave.
void FlushLink(Wire& wire, UdpConnection& c) {
  static thread_local UdpBatch batch;
  const UdpSocket& socket = c.dials ? wire.dialing : wire.listening;
  {
    MutexLock lock(&c.mutex);
    c.again = true;
    if (c.flushing) return;
    c.flushing = true;
  }
  for (;;) {
    batch.Clear();
    {
      MutexLock lock(&c.mutex);
      const Deadline now = Clock::now();
      c.again = false;
      try {
        for (std::span<std::byte> room; !c.orphan && !(room = batch.Room()).empty();) {
          const UdpCore::Outgoing out = c.core.Next(room, now);
          if (out.size == 0) break;
          batch.Add(out.size, out.to);
        }
      } catch (...) {
        c.flushing = false;
        throw;
      }
      c.timer = c.core.NextTimer(now).time_since_epoch().count();
      c.Tell();
      if (batch.empty() && !c.again) {
        c.flushing = false;
        break;
      }
    }
    socket.Send(batch, [&c](size_t size) {
      MutexLock lock(&c.mutex);
      c.core.OnTooLarge(size, Clock::now());
    });
  }
  if (c.timer.load() < wire.sleeps_until.load()) wire.Wake();
}

class UdpStream : public ByteStream {
 public:
  UdpStream(std::shared_ptr<Wire> wire, std::shared_ptr<UdpConnection> connection)
      : wire_(std::move(wire)), connection_(std::move(connection)), c_(*connection_) {}
  ~UdpStream() override {
    UdpStream::Close();
    {
      MutexLock lock(&c_.mutex);
      if (LogEnabled(LogLevel::kDebug)) {
        const UdpCoreStats& stats = c_.core.stats();
        Log(LogLevel::kDebug,
            "UDP link to {}: {} packets sent, {} lost, {} late, {} copies, {} probes; {} came, {} dropped; {} bytes "
            "each, {:.0f} MB/s",
            FormatUdpAddress(c_.core.peer()), stats.sent, stats.lost, stats.late, stats.copies, stats.probes,
            stats.received, stats.dropped, c_.core.datagram_size(), c_.core.rate().bytes_per_second() / 1e6);
      }
      c_.abandoned = true;
    }
    wire_->Wake();
  }

  StatusOr<size_t> Write(std::span<const iovec> parts) override {
    StatusOr<size_t> taken = size_t{0};
    {
      MutexLock lock(&c_.mutex);
      if (c_.orphan) return Unavailable("its port has ended");
      taken = c_.core.Write(parts, Clock::now());
      c_.can_write = c_.core.Writable();
    }
    if (taken.ok() && *taken > 0) FlushLink(*wire_, c_);
    return taken;
  }

  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override {
    bool due = false;
    StatusOr<std::optional<size_t>> got = std::optional<size_t>();
    {
      MutexLock lock(&c_.mutex);
      got = c_.core.Read(into);
      c_.can_read = c_.core.Readable() || c_.woken || c_.orphan;
      if (got.ok() && !*got && c_.orphan) return Unavailable("its port has ended");
      const Deadline now = Clock::now();
      due = got.ok() && got->value_or(0) > 0 && c_.core.NextTimer(now) <= now;
    }
    if (due) FlushLink(*wire_, c_);  // a new window
    return got;
  }

  Status Wait(Ready direction, Deadline deadline) override {
    const bool reads = direction == Ready::kRead;
    const std::atomic<bool>& hint = reads ? c_.can_read : c_.can_write;
    const Deadline now = Clock::now();
    if (deadline > now) SpinUntil(std::min(deadline, now + kUdpSpin), [&hint] { return hint.load(); });
    MutexLock lock(&c_.mutex);
    for (;;) {
      const bool ready = c_.orphan || (reads ? c_.core.Readable() || c_.woken : c_.core.Writable());
      if (reads) c_.woken = false;
      if (ready) return absl::OkStatus();
      if (Clock::now() >= deadline) return DeadlineExceeded("not ready");
      (reads ? c_.readable : c_.writable).WaitUntil(&c_.mutex, deadline);
    }
  }

  void Wake() override {
    MutexLock lock(&c_.mutex);
    c_.woken = true;
    c_.can_read = true;
    c_.readable.SignalAll();
  }

  void Close() override {
    {
      MutexLock lock(&c_.mutex);
      c_.core.Close(Clock::now());
    }
    FlushLink(*wire_, c_);
  }

  size_t ReadAhead() const override { return 0; }
  // The seal says more than a checksum.
  bool NeedsChecksum() const override { return false; }
  std::optional<Duration> RoundTrip() const override {
    MutexLock lock(&c_.mutex);
    return c_.core.RoundTrip();
  }
  Transport transport() const override { return Transport::kUdp; }

 private:
  const std::shared_ptr<Wire> wire_;
  const std::shared_ptr<UdpConnection> connection_;
  UdpConnection& c_;
};

class Host : public UdpHost {
 public:
  Host(std::shared_ptr<Wire> wire, const UdpCoreOptions& options) : wire_(std::move(wire)), options_(options) {}
  ~Host() override;
  Status Start();

  uint16_t port() const override { return wire_->listening.port(); }
  StatusOr<std::unique_ptr<ByteStream>> Accept(UdpLinkFacts facts) override {
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<UdpConnection> c, Add(std::move(facts), std::nullopt));
    return std::make_unique<UdpStream>(wire_, std::move(c));
  }
  StatusOr<std::unique_ptr<ByteStream>> Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                             const std::function<bool()>& stopped) override;

 private:
  StatusOr<std::shared_ptr<UdpConnection>> Add(UdpLinkFacts facts, const std::optional<UdpAddress>& to);
  void Loop();
  void Turn();
  void Sleep();
  void Take(const UdpSocket& socket);
  void OnLine(uint64_t id);
  void Mind();
  std::shared_ptr<UdpConnection> Find(uint64_t id) const {
    MutexLock lock(&mutex_);
    const auto it = links_.find(id);
    return it == links_.end() ? nullptr : it->second;
  }

  const std::shared_ptr<Wire> wire_;
  const UdpCoreOptions options_;
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<UdpConnection>> links_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> ends_{false};
  std::atomic<Duration::rep> ends_at_{0};

  // The thread's.
  UdpReceiver receiver_;
  std::array<epoll_event, kEvents> events_{};
  std::vector<std::shared_ptr<UdpConnection>> touched_;
  Deadline busy_until_ = Deadline::min();
  std::thread thread_;
};

Status Host::Start() {
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::exception& e) {
    return ResourceExhausted("no thread for UDP: {}", e.what());
  }
  return absl::OkStatus();
}

Host::~Host() {
  if (!thread_.joinable()) return;
  ends_at_ = After(kFarewell).time_since_epoch().count();
  ends_ = true;
  wire_->Wake();
  thread_.join();
  MutexLock lock(&mutex_);
  for (auto& [id, c] : links_) {
    MutexLock link(&c->mutex);
    c->orphan = true;
    c->Tell();
  }
}

StatusOr<std::shared_ptr<UdpConnection>> Host::Add(UdpLinkFacts facts, const std::optional<UdpAddress>& to) {
  if (facts.link <= kDialTag) return Internal("a link id of {}", facts.link);
  auto c = std::make_shared<UdpConnection>(options_, std::move(facts), to);
  {
    MutexLock lock(&mutex_);
    if (!links_.emplace(c->id, c).second) return Internal("a link id twice");
  }
  if (c->line.ok()) {
    // Not its bytes: TLS says goodbye with some.
    epoll_event event{.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = c->id}};
    ::epoll_ctl(wire_->epoll.get(), EPOLL_CTL_ADD, c->line.get(), &event);
  }
  FlushLink(*wire_, *c);
  return c;
}

StatusOr<std::unique_ptr<ByteStream>> Host::Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                                 const std::function<bool()>& stopped) {
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<UdpConnection> c, Add(std::move(facts), to));
  auto stream = std::make_unique<UdpStream>(wire_, c);
  const Deadline until = After(kAnswer);
  for (;;) {
    {
      MutexLock lock(&c->mutex);
      if (c->core.heard()) return std::unique_ptr<ByteStream>(std::move(stream));
      c->readable.WaitUntil(&c->mutex, std::min({deadline, until, After(milliseconds(50))}));
      if (c->core.heard()) return std::unique_ptr<ByteStream>(std::move(stream));
    }
    if (stopped && stopped()) return absl::CancelledError("the attempt to connect was given up");
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: no answer over UDP", FormatUdpAddress(to));
    if (Clock::now() >= until) {
      return Unavailable("{}: it answers over TCP, but no datagram comes from it in {} s: is UDP blocked on the way?",
                         FormatUdpAddress(to), kAnswer.count());
    }
  }
}

void Host::Loop() {
  pthread_setname_np(pthread_self(), "udp");
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // pacing needs times finer than the usual 50 us
  for (;;) {
    try {
      if (ends_) {
        MutexLock lock(&mutex_);
        bool closed = true;
        for (const auto& [id, c] : links_) {
          MutexLock link(&c->mutex);
          closed = closed && !c->abandoned;
        }
        // Links that are still used end with the port.
        if (closed || Clock::now().time_since_epoch().count() >= ends_at_.load()) return;
      }
      Turn();
    } catch (const std::exception& e) {  // no memory, say: what came is lost, as datagrams are
      Log(LogLevel::kError, "UDP links: {}", e.what());
    }
  }
}

void Host::Turn() {
  const Deadline now = Clock::now();
  Deadline until = now < busy_until_ ? now + kBusyTurn : kNoDeadline;
  if (ends_) until = std::min(until, now + kBusyTurn);
  wire_->sleeps_until = until.time_since_epoch().count();
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, c] : links_) {
      until = std::min(until, Deadline(Duration(c->timer.load())));
    }
  }
  wire_->sleeps_until = until.time_since_epoch().count();
  int n = 0;
  if (until == kNoDeadline) {
    n = ::epoll_wait(wire_->epoll.get(), events_.data(), kEvents, -1);
  } else {
    const auto left = std::max(until - Clock::now(), Duration::zero());
    const auto whole = std::chrono::duration_cast<seconds>(left);
    const timespec time{.tv_sec = whole.count(), .tv_nsec = (left - whole).count()};
    n = ::epoll_pwait2(wire_->epoll.get(), events_.data(), kEvents, &time, nullptr);
    if (n < 0 && errno == ENOSYS) {  // before Linux 5.11
      const auto ms = std::chrono::ceil<milliseconds>(left);
      n = ::epoll_wait(wire_->epoll.get(), events_.data(), kEvents, static_cast<int>(ms.count()));
    }
  }
  touched_.clear();
  for (int i = 0; i < n; ++i) {
    const uint64_t tag = events_[static_cast<size_t>(i)].data.u64;
    if (tag == kWakeTag) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(wire_->wake.get(), &count, sizeof count);
    } else if (tag == kListenTag || tag == kDialTag) {
      Take(tag == kListenTag ? wire_->listening : wire_->dialing);
    } else {
      OnLine(tag);
    }
  }
  for (const auto& c : touched_) FlushLink(*wire_, *c);
  Mind();
}

void Host::Take(const UdpSocket& socket) {
  std::shared_ptr<UdpConnection> last;
  const Deadline now = Clock::now();
  const bool any = receiver_.Receive(socket, [&](std::span<std::byte> datagram, const UdpAddress& from) {
    const auto header = ReadUdpHeader(datagram);
    if (!header) return;
    if (last == nullptr || last->id != header->link) {
      last = Find(header->link);
      if (last == nullptr) return;
      if (std::find(touched_.begin(), touched_.end(), last) == touched_.end()) touched_.push_back(last);
    }
    MutexLock lock(&last->mutex);
    last->core.OnDatagram(datagram, from, now);
  });
  if (any) busy_until_ = now + kBusyFor;
}

// The connection that carries nothing has ended.
void Host::OnLine(uint64_t id) {
  const std::shared_ptr<UdpConnection> c = Find(id);
  if (c == nullptr) return;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(c->line.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  // Another error is the network's, which the link may survive.
  if (error != 0 && error != ECONNRESET) return;
  {
    MutexLock lock(&c->mutex);
    c->core.OnPeerGone(Clock::now());
  }
  touched_.push_back(c);
}

// Links whose time has come, and those that are done.
void Host::Mind() {
  std::vector<std::shared_ptr<UdpConnection>> due, gone;
  const auto now = Clock::now().time_since_epoch().count();
  {
    MutexLock lock(&mutex_);
    for (auto it = links_.begin(); it != links_.end();) {
      UdpConnection& c = *it->second;
      bool done = false;
      {
        MutexLock link(&c.mutex);
        done = c.abandoned && c.core.done() && !c.flushing;
      }
      if (done) {
        gone.push_back(std::move(it->second));
        it = links_.erase(it);
        continue;
      }
      if (c.timer.load() <= now) due.push_back(it->second);
      ++it;
    }
  }
  for (const auto& c : due) FlushLink(*wire_, *c);
}

}  // namespace

StatusOr<std::unique_ptr<UdpHost>> UdpHost::Open(const std::string& listen, const UdpCoreOptions& options) {
  auto wire = std::make_shared<Wire>();
  GYRE_ASSIGN_OR_RETURN(HostPort at, ParseHostPort(listen));
  StatusOr<UdpSocket> listening = UdpSocket::Open(listen);
  if (absl::IsUnavailable(listening.status()) && at.port != 0) {
    listening = UdpSocket::Open(FormatHostPort(at.host, 0));
  }
  if (!listening.ok()) return listening.status();
  wire->listening = *std::move(listening);
  GYRE_ASSIGN_OR_RETURN(wire->dialing, UdpSocket::Open(""));
  wire->wake = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  wire->epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!wire->wake.ok() || !wire->epoll.ok()) return ResourceExhausted("no event for UDP: {}", std::strerror(errno));
  const std::array<std::pair<int, uint64_t>, 3> watched = {
      {{wire->wake.get(), kWakeTag}, {wire->listening.fd(), kListenTag}, {wire->dialing.fd(), kDialTag}}};
  for (const auto& [fd, tag] : watched) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
    if (::epoll_ctl(wire->epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ResourceExhausted("no event for UDP: {}", std::strerror(errno));
    }
  }
  auto host = std::make_unique<Host>(std::move(wire), options);
  GYRE_RETURN_IF_ERROR(host->Start());
  return std::unique_ptr<UdpHost>(std::move(host));
}

}  // namespace gyre
