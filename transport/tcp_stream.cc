#include "transport/tcp_stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "transport/poll_timeout.h"
#include "transport/tcp_round_trip.h"

namespace gyre {
namespace {

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Status Broken(int error) { return Unavailable("{}", std::strerror(error)); }

class TcpStream : public ByteStream {
 public:
  TcpStream(Fd socket, Fd event) : socket_(std::move(socket)), event_(std::move(event)) {}

  StatusOr<size_t> Write(std::span<const iovec> parts) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return Later(errno) ? StatusOr<size_t>(size_t{0}) : Broken(errno);
    room_.Wrote(static_cast<size_t>(n));
    return static_cast<size_t>(n);
  }

  size_t Room() const override { return room_.Bytes(socket_.get()); }

  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override {
    const ssize_t n = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (n >= 0) return std::optional<size_t>(static_cast<size_t>(n));
    if (Later(errno)) return std::optional<size_t>();
    return Broken(errno);
  }

  Status Wait(Ready direction, Deadline deadline) override {
    const bool reads = direction == Ready::kRead;
    std::array<pollfd, 2> fds{
        {{.fd = socket_.get(), .events = static_cast<short>(reads ? POLLIN : POLLOUT), .revents = 0},
         {.fd = event_.get(), .events = POLLIN, .revents = 0}}};
    const int n = ::poll(fds.data(), reads ? 2 : 1, PollTimeout(deadline));
    if (n < 0 && errno != EINTR) return Broken(errno);
    if (reads && fds[1].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
    }
    if (n == 0 && Clock::now() >= deadline) return DeadlineExceeded("not ready");
    return absl::OkStatus();
  }

  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
  }
  void Close() override {
    ::shutdown(socket_.get(), SHUT_RDWR);
    Wake();
  }
  std::optional<Duration> RoundTrip() const override { return TcpRoundTrip(socket_.get()); }
  Transport transport() const override { return Transport::kTcp; }

 private:
  const Fd socket_;
  const Fd event_;  // ends a reader's Wait
  mutable SocketRoom room_;
};

}  // namespace

void SocketRoom::Ask(int socket) {
  int size = 0, queued = 0;
  socklen_t length = sizeof size;
  room_ = 0;
  if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, &length) != 0) return;
  most_ = static_cast<size_t>(size / 2);
  if (::ioctl(socket, SIOCOUTQ, &queued) != 0 || queued > size / 2) return;
  room_ = most_ - static_cast<size_t>(queued);
}

void SetTcpOptions(int socket, const TcpStreamOptions& options) {
  auto set = [socket](int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer whose machine vanished is noticed after 15 + 4 * 5 s if no bytes are on the way, else by retransmission.
  // A living peer that does not read answers the probes, so a long step ends nothing; TCP_USER_TIMEOUT would end it.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (options.send_buffer > 0) set(SOL_SOCKET, SO_SNDBUF, options.send_buffer);
  if (options.receive_buffer > 0) set(SOL_SOCKET, SO_RCVBUF, options.receive_buffer);
}

StatusOr<std::unique_ptr<ByteStream>> MakeTcpStream(Fd socket, const TcpStreamOptions& options) {
  Fd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.ok()) return ResourceExhausted("no event for a link: {}", std::strerror(errno));
  SetTcpOptions(socket.get(), options);
  try {
    return std::make_unique<TcpStream>(std::move(socket), std::move(event));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a link");
  }
}

}  // namespace gyre
