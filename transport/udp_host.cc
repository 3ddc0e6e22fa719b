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
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/udp_link.h"
#include "transport/udp_wire.h"

namespace gyre {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kAnswer = seconds(5);    // of a peer that took the link, over UDP
constexpr auto kFarewell = seconds(1);  // for closed links, when their port ends
// While there is traffic, the thread checks the time by itself, so that a sender need not wake it for each deadline.
constexpr auto kBusyTurn = milliseconds(5), kBusyFor = milliseconds(200);
constexpr auto kReaderAway = milliseconds(2);  // so long after its last wait a reader does not read any more
constexpr uint64_t kWakeTag = 0, kListenTag = 1, kFirstTag = 2;
constexpr int kEvents = 32;

class Host : public UdpHost {
 public:
  Host(std::shared_ptr<UdpWire> wire, const UdpCoreOptions& options) : wire_(std::move(wire)), options_(options) {}
  ~Host() override;
  Status Start();

  uint16_t port() const override { return wire_->listening.port(); }
  StatusOr<std::unique_ptr<ByteStream>> Accept(UdpLinkFacts facts) override {
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<UdpLink> c, Add(std::move(facts), std::nullopt, std::nullopt));
    return MakeUdpStream(wire_, std::move(c));
  }
  StatusOr<std::unique_ptr<ByteStream>> Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                             const std::function<bool()>& stopped) override;

 private:
  // `socket`: the dialer's, or none.
  StatusOr<std::shared_ptr<UdpLink>> Add(UdpLinkFacts facts, const std::optional<UdpAddress>& to,
                                         std::optional<UdpSocket> socket);
  void Loop();
  void Turn();
  void Sleep();
  void OnEvent(uint64_t tag);
  void Take(const UdpSocket& socket);
  void FollowPeer(UdpLink& c);
  void OnLine(const std::shared_ptr<UdpLink>& c);
  void Mind();

  const std::shared_ptr<UdpWire> wire_;
  const UdpCoreOptions options_;
  std::atomic<uint64_t> next_tag_{kFirstTag};
  std::atomic<bool> ends_{false};
  std::atomic<Duration::rep> ends_at_{0};

  // Only the thread uses these.
  UdpReceiver receiver_;
  std::array<epoll_event, kEvents> events_{};
  std::vector<std::shared_ptr<UdpLink>> touched_;
  Deadline busy_until_ = Deadline::min();
  std::thread thread_;
};

Status Host::Start() {
  GYRE_ASSIGN_OR_RETURN(thread_, StartThread("udp", [this] { Loop(); }));
  return absl::OkStatus();
}

Host::~Host() {
  if (!thread_.joinable()) return;
  ends_at_ = After(kFarewell).time_since_epoch().count();
  ends_ = true;
  wire_->Wake();
  thread_.join();
  MutexLock lock(&wire_->mutex);
  for (auto& [id, c] : wire_->links) {
    MutexLock link(&c->mutex);
    c->orphan = true;
    c->Tell();
  }
}

StatusOr<std::shared_ptr<UdpLink>> Host::Add(UdpLinkFacts facts, const std::optional<UdpAddress>& to,
                                             std::optional<UdpSocket> socket) {
  Fd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.ok()) return ResourceExhausted("no event for a UDP link: {}", std::strerror(errno));
  auto c = std::make_shared<UdpLink>(options_, std::move(facts), std::move(wake), next_tag_.fetch_add(2), to);
  {
    MutexLock lock(&wire_->mutex);
    if (!wire_->links.emplace(c->id, c).second) return Internal("a link id twice");
  }
  if (socket) {
    MutexLock lock(&c->mutex);
    c->UseSocket(*wire_, *std::move(socket));
  }
  if (c->line.ok()) {
    // The event is the connection's end, not its bytes, as TLS ends with some bytes.
    epoll_event event{.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = c->tag}};
    ::epoll_ctl(wire_->epoll.get(), EPOLL_CTL_ADD, c->line.get(), &event);
  }
  FlushUdpLink(*wire_, *c);
  return c;
}

StatusOr<std::unique_ptr<ByteStream>> Host::Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                                 const std::function<bool()>& stopped) {
  // The socket is bound to the address that reaches the peer over TCP.
  GYRE_ASSIGN_OR_RETURN(UdpSocket socket, UdpSocket::Connect(WithPort(facts.local, 0), to));
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<UdpLink> c, Add(std::move(facts), to, std::move(socket)));
  std::unique_ptr<ByteStream> stream = MakeUdpStream(wire_, c);
  const Deadline until = After(kAnswer);
  for (;;) {
    {
      MutexLock lock(&c->mutex);
      if (c->core.heard()) return stream;
      c->readable.WaitUntil(&c->mutex, std::min({deadline, until, After(milliseconds(50))}));
      if (c->core.heard()) return stream;
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
        MutexLock lock(&wire_->mutex);
        bool closed = true;
        for (const auto& [id, c] : wire_->links) {
          MutexLock link(&c->mutex);
          closed = closed && !c->abandoned;
        }
        // Links that are still in use end with the port.
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
    MutexLock lock(&wire_->mutex);
    for (const auto& [id, c] : wire_->links) {
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
    } else if (tag == kListenTag) {
      Take(wire_->listening);
    } else {
      OnEvent(tag);
    }
  }
  for (const auto& c : touched_) {
    FollowPeer(*c);
    FlushUdpLink(*wire_, *c);
  }
  Mind();
}

void Host::OnEvent(uint64_t tag) {
  std::shared_ptr<UdpLink> c;
  {
    MutexLock lock(&wire_->mutex);
    for (const auto& [id, link] : wire_->links) {
      if (link->tag == tag || link->tag + 1 == tag) c = link;
    }
  }
  if (c == nullptr) return;
  if (tag == c->tag) return OnLine(c);
  std::shared_ptr<const UdpSocket> socket;
  {
    MutexLock lock(&c->mutex);
    if (!c->by_reader) socket = c->socket;
  }
  if (socket != nullptr) Take(*socket);
}

void Host::Take(const UdpSocket& socket) {
  if (TakeDatagrams(*wire_, socket, receiver_, &touched_)) busy_until_ = After(kBusyFor);
}

// Makes an acceptor's socket: from the address that the dialer asked, to its present one.
void Host::FollowPeer(UdpLink& c) {
  MutexLock lock(&c.mutex);
  const UdpAddress& peer = c.core.peer();
  if (c.dials || peer.size == 0 || peer == c.connected || c.local.size == 0) return;
  StatusOr<UdpSocket> socket = UdpSocket::Connect(WithPort(c.local, port()), peer);
  if (socket.ok()) return c.UseSocket(*wire_, *std::move(socket));
  c.connected = peer;  // the host's socket serves too, if it is bound to the address that was asked
  Log(LogLevel::kWarn, "a UDP link to {} has no socket of its own: {}", FormatUdpAddress(peer),
      Message(socket.status()));
}

// Called when the connection, which carries nothing, has ended.
void Host::OnLine(const std::shared_ptr<UdpLink>& c) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(c->line.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  // Any other error is the network's, and the link may survive it.
  if (error != 0 && error != ECONNRESET) return;
  {
    MutexLock lock(&c->mutex);
    c->core.OnPeerGone(Clock::now());
  }
  touched_.push_back(c);
}

// Handles links with a due timer, and those that are done.
void Host::Mind() {
  std::vector<std::shared_ptr<UdpLink>> due, gone;
  const auto now = Clock::now().time_since_epoch().count();
  {
    MutexLock lock(&wire_->mutex);
    for (auto it = wire_->links.begin(); it != wire_->links.end();) {
      UdpLink& c = *it->second;
      bool done = false;
      {
        MutexLock link(&c.mutex);
        done = c.abandoned && c.core.done() && !c.flushing;
        const auto waited = c.waited_at.load();
        if (c.by_reader && waited > now - Duration(kBusyFor).count()) busy_until_ = After(kBusyFor);
        if (c.by_reader && !c.waits && waited < now - Duration(kReaderAway).count()) c.ReadByReader(*wire_, false);
      }
      if (done) {
        gone.push_back(std::move(it->second));
        it = wire_->links.erase(it);
        continue;
      }
      if (c.timer.load() <= now) due.push_back(it->second);
      ++it;
    }
  }
  for (const auto& c : due) FlushUdpLink(*wire_, *c);
}

}  // namespace

StatusOr<std::unique_ptr<UdpHost>> UdpHost::Open(const std::string& listen, const UdpCoreOptions& options) {
  auto wire = std::make_shared<UdpWire>();
  GYRE_ASSIGN_OR_RETURN(HostPort at, ParseHostPort(listen));
  StatusOr<UdpSocket> listening = UdpSocket::Open(listen);
  if (absl::IsUnavailable(listening.status()) && at.port != 0) {
    listening = UdpSocket::Open(FormatHostPort(at.host, 0));
  }
  if (!listening.ok()) return listening.status();
  wire->listening = *std::move(listening);
  wire->wake = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  wire->epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!wire->wake.ok() || !wire->epoll.ok()) return ResourceExhausted("no event for UDP: {}", std::strerror(errno));
  const std::array<std::pair<int, uint64_t>, 2> watched = {
      {{wire->wake.get(), kWakeTag}, {wire->listening.fd(), kListenTag}}};
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
