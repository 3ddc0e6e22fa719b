#include "transport/udp_link.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "base/log.h"
#include "base/spin.h"

namespace gyre {
namespace {

constexpr auto kUdpSpin = std::chrono::microseconds(20);
// The host's thread checks links with an active reader this often; it is woken if it sleeps longer.
constexpr auto kReaderTurn = std::chrono::milliseconds(5);

}  // namespace

void UdpLink::Tell() {
  can_read = core.Readable() || woken || orphan;
  can_write = core.Writable() || orphan;
  if (can_read || (dials && !told && core.heard())) {
    readable.SignalAll();
    if (sleeps) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof one);
    }
  }
  told = core.heard();
  if (can_write) writable.SignalAll();
}

void UdpLink::UseSocket(const UdpWire& wire, UdpSocket own) {
  epoll_event watch{.events = EPOLLIN, .data = {.u64 = tag + 1}};
  if (socket != nullptr) ::epoll_ctl(wire.epoll.get(), EPOLL_CTL_DEL, socket->fd(), &watch);
  socket = std::make_shared<UdpSocket>(std::move(own));
  connected = core.peer();
  by_reader = false;
  ::epoll_ctl(wire.epoll.get(), EPOLL_CTL_ADD, socket->fd(), &watch);
}

void UdpLink::ReadByReader(const UdpWire& wire, bool reader) {
  if (by_reader == reader || socket == nullptr) return;
  by_reader = reader;
  epoll_event watch{.events = EPOLLIN, .data = {.u64 = tag + 1}};
  ::epoll_ctl(wire.epoll.get(), reader ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, socket->fd(), &watch);
}

void FlushUdpLink(const UdpWire& wire, UdpLink& c) {
  static thread_local UdpBatch batch;
  std::shared_ptr<const UdpSocket> own;
  {
    MutexLock lock(&c.mutex);
    c.again = true;
    if (c.flushing) return;
    c.flushing = true;
    own = c.socket;
  }
  const UdpSocket& socket = own != nullptr ? *own : wire.listening;
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
    try {
      socket.Send(batch, [&c](size_t size) {
        MutexLock lock(&c.mutex);
        c.core.OnTooLarge(size, Clock::now());
      });
    } catch (...) {
      MutexLock lock(&c.mutex);
      c.flushing = false;
      throw;
    }
  }
  if (c.timer.load() < wire.sleeps_until.load()) wire.Wake();
}

bool TakeDatagrams(const UdpWire& wire, const UdpSocket& socket, UdpReceiver& receiver,
                   std::vector<std::shared_ptr<UdpLink>>* touched) {
  std::shared_ptr<UdpLink> last;
  const Deadline now = Clock::now();
  return receiver.Receive(socket, [&](std::span<std::byte> datagram, const UdpAddress& from) {
    const auto header = ReadUdpHeader(datagram);
    if (!header) return;
    if (last == nullptr || last->id != header->link) {
      last = wire.Find(header->link);
      if (last == nullptr) return;
      if (std::find(touched->begin(), touched->end(), last) == touched->end()) touched->push_back(last);
    }
    MutexLock lock(&last->mutex);
    last->core.OnDatagram(datagram, from, now);
  });
}

namespace {

class UdpStream : public ByteStream {
 public:
  UdpStream(std::shared_ptr<UdpWire> wire, std::shared_ptr<UdpLink> link)
      : wire_(std::move(wire)), link_(std::move(link)), c_(*link_) {}
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
      c_.ReadByReader(*wire_, false);
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
    if (taken.ok() && *taken > 0) FlushUdpLink(*wire_, c_);
    return taken;
  }

  size_t Room() const override {
    MutexLock lock(&c_.mutex);
    return c_.core.Room();
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
    if (due) FlushUdpLink(*wire_, c_);  // a new window
    return got;
  }

  Status Wait(Ready direction, Deadline deadline) override {
    if (direction == Ready::kRead) {
      std::shared_ptr<const UdpSocket> socket;
      {
        MutexLock lock(&c_.mutex);
        socket = c_.socket;
        if (socket != nullptr) c_.ReadByReader(*wire_, true);
      }
      if (socket != nullptr) return WaitAndRead(*socket, deadline);
    }
    return WaitForThread(direction, deadline);
  }

  void Wake() override {
    MutexLock lock(&c_.mutex);
    c_.woken = true;
    c_.Tell();
  }

  void Close() override {
    {
      MutexLock lock(&c_.mutex);
      c_.core.Close(Clock::now());
    }
    FlushUdpLink(*wire_, c_);
  }

  size_t ReadAhead() const override { return 0; }
  // The seal protects more than a checksum.
  bool NeedsChecksum() const override { return false; }
  std::optional<Duration> RoundTrip() const override {
    MutexLock lock(&c_.mutex);
    return c_.core.RoundTrip();
  }
  Transport transport() const override { return Transport::kUdp; }

 private:
  // Waits while the host's thread reads the socket.
  Status WaitForThread(Ready direction, Deadline deadline) {
    const bool reads = direction == Ready::kRead;
    const std::atomic<bool>& hint = reads ? c_.can_read : c_.can_write;
    {
      // This thread may be the link's reader too.
      MutexLock lock(&c_.mutex);
      if (!c_.waits) c_.ReadByReader(*wire_, false);
    }
    const Deadline now = Clock::now();
    if (deadline > now) SpinUntil(std::min(deadline, now + kUdpSpin), [&hint] { return hint.load(); });
    MutexLock lock(&c_.mutex);
    for (;;) {
      if (TakeReady(reads)) return absl::OkStatus();
      if (Clock::now() >= deadline) return DeadlineExceeded("not ready");
      (reads ? c_.readable : c_.writable).WaitUntil(&c_.mutex, deadline);
    }
  }
  bool TakeReady(bool reads) GYRE_REQUIRES(c_.mutex) {
    const bool ready = c_.orphan || (reads ? c_.core.Readable() || c_.woken : c_.core.Writable());
    if (reads) c_.woken = false;
    return ready;
  }

  // Waits and reads the socket on this thread.
  Status WaitAndRead(const UdpSocket& socket, Deadline deadline) {
    c_.waits = true;
    const Status status = ReadUntilReady(socket, deadline);
    const Deadline now = Clock::now();
    c_.waited_at = now.time_since_epoch().count();
    c_.waits = false;
    // From now on the host's thread must check whether this thread comes back.
    if (wire_->sleeps_until.load() > (now + kReaderTurn).time_since_epoch().count()) wire_->Wake();
    return status;
  }
  Status ReadUntilReady(const UdpSocket& socket, Deadline deadline) {
    const auto take = [&] {
      if (c_.can_read) return true;
      TakeAndSettle(socket);
      return c_.can_read.load();
    };
    take();
    for (;;) {
      {
        MutexLock lock(&c_.mutex);
        if (TakeReady(true)) return absl::OkStatus();
        if (Clock::now() >= deadline) return DeadlineExceeded("not ready");
        c_.sleeps = true;
      }
      std::array<pollfd, 2> fds{{{.fd = socket.fd(), .events = POLLIN, .revents = 0},
                                 {.fd = c_.event.get(), .events = POLLIN, .revents = 0}}};
      const auto left = std::max(deadline - Clock::now(), Duration::zero());
      const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec time{.tv_sec = whole.count(), .tv_nsec = (left - whole).count()};
      ::ppoll(fds.data(), fds.size(), deadline == kNoDeadline ? nullptr : &time, nullptr);
      c_.sleeps = false;
      uint64_t count;
      if (fds[1].revents != 0) {
        [[maybe_unused]] const ssize_t n = ::read(c_.event.get(), &count, sizeof count);
      }
      take();
    }
  }
  void TakeAndSettle(const UdpSocket& socket) {
    static thread_local UdpReceiver receiver;
    static thread_local std::vector<std::shared_ptr<UdpLink>> touched;
    touched.clear();
    if (!TakeDatagrams(*wire_, socket, receiver, &touched)) return;
    for (const auto& link : touched) {
      bool due = false;
      {
        MutexLock lock(&link->mutex);
        const Deadline now = Clock::now();
        const Deadline next = link->core.NextTimer(now);
        due = next <= now;
        link->timer = next.time_since_epoch().count();
        link->Tell();
      }
      if (due) {
        FlushUdpLink(*wire_, *link);
      } else if (link->timer.load() < wire_->sleeps_until.load()) {
        wire_->Wake();
      }
    }
    touched.clear();
  }

  const std::shared_ptr<UdpWire> wire_;
  const std::shared_ptr<UdpLink> link_;
  UdpLink& c_;
};

}  // namespace

std::unique_ptr<ByteStream> MakeUdpStream(std::shared_ptr<UdpWire> wire, std::shared_ptr<UdpLink> link) {
  return std::make_unique<UdpStream>(std::move(wire), std::move(link));
}

}  // namespace gyre
