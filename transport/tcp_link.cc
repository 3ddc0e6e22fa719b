#include "transport/tcp_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/crc32c.h"
#include "transport/fd.h"
#include "transport/tcp_round_trip.h"

namespace gyre {
namespace {

constexpr size_t kReadAhead = 64 << 10;
// Memory for a payload is taken as it comes in, not as it is announced.
constexpr size_t kFirstPayload = 1 << 20;
// A frame that was begun is finished with at least this patience, however short the sender's deadline is.
constexpr auto kLeastPatience = std::chrono::seconds(10);

// Milliseconds for poll, rounded up; -1 = for ever.
int PollTimeout(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

class TcpLink : public Link {
 public:
  TcpLink(Fd socket, Fd event, std::string peer, const TcpOptions& options)
      : socket_(std::move(socket)),
        event_(std::move(event)),
        fd_(socket_.get()),
        peer_(std::move(peer)),
        options_(options) {
    buffer_.resize(kReadAhead);
  }
  ~TcpLink() override { TcpLink::Close(); }

  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline,
              const std::function<void()>& while_full) override;
  StatusOr<Frame> Recv(Deadline deadline) override;

  void Wake() override {
    woken_ = true;
    Signal();
  }
  void Close() override {
    if (closed_.exchange(true)) return;
    // What was sent before still reaches the peer, then the end.
    ::shutdown(fd_, SHUT_RDWR);
    Signal();
  }
  std::optional<Duration> RoundTrip() const override { return TcpRoundTrip(fd_); }

 private:
  void Signal() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
  }
  Status Gone(const char* what) {
    Close();
    return Unavailable("{}: {}", peer_, what);
  }
  Status Broken(int error) {
    Close();
    return Unavailable("{}: {}", peer_, std::strerror(error));
  }
  // Waits for the socket; kCancelled by Wake (receivers only). kDeadlineExceeded.
  Status WaitFor(short events, Deadline deadline);
  // True: bytes came into [from_, to_) or into the payload. False: none are there. Errors end the link.
  StatusOr<bool> ReadSome();
  StatusOr<bool> TakeHeader();
  StatusOr<Frame> TakeFrame();
  StatusOr<Frame> Receive(Deadline deadline);

  const Fd socket_;
  const Fd event_;  // ends a Recv that waits
  const int fd_;    // socket_
  const std::string peer_;
  const TcpOptions options_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> woken_{false};

  // Used by the receiving thread only.
  std::vector<std::byte> buffer_;
  size_t from_ = 0, to_ = 0;  // unread bytes of buffer_
  bool in_frame_ = false;
  Frame frame_;
  size_t filled_ = 0;  // of frame_.payload
  Deadline progress_ = Clock::now();
};

Status TcpLink::WaitFor(short events, Deadline deadline) {
  const bool receives = events == POLLIN;
  std::array<pollfd, 2> fds{
      {{.fd = fd_, .events = events, .revents = 0}, {.fd = event_.get(), .events = POLLIN, .revents = 0}}};
  const int n = ::poll(fds.data(), receives ? 2 : 1, PollTimeout(deadline));
  if (n < 0 && errno != EINTR) return Broken(errno);
  if (receives && fds[1].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  }
  if (n == 0 && Clock::now() >= deadline) return DeadlineExceeded("{}: nothing came", peer_);
  return absl::OkStatus();
}

Status TcpLink::Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline,
                     const std::function<void()>& while_full) {
  uint64_t length = 0;
  uint32_t crc = 0;
  for (ByteSpan part : parts) {
    length += part.size();
    crc = Crc32c(part, crc);
  }
  if (length > kMaxPayload) return InvalidArgument("a payload of {} bytes, at most {} fit", length, kMaxPayload);
  header.length = length;
  header.payload_crc = crc;
  const auto head = EncodeHeader(header);

  std::vector<iovec> rest;
  rest.push_back({const_cast<std::byte*>(head.data()), head.size()});
  for (ByteSpan part : parts) {
    if (!part.empty()) rest.push_back({const_cast<std::byte*>(part.data()), part.size()});
  }
  size_t first = 0;
  bool started = false;
  // The limit of silence holds within a frame; without one it is the time that the caller gave for the beginning.
  Duration patience = options_.silence;
  if (patience == Duration::max() && deadline != kNoDeadline) {
    patience = std::max<Duration>(deadline - Clock::now(), kLeastPatience);
  }
  Deadline until = deadline;
  while (first < rest.size()) {
    if (closed_) return Unavailable("{}: the link is closed", peer_);
    msghdr message{};
    message.msg_iov = rest.data() + first;
    message.msg_iovlen = std::min<size_t>(rest.size() - first, 64);
    const ssize_t n = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return Broken(errno);
    if (n <= 0) {
      if (started && Clock::now() >= until) return Gone("takes nothing in, in the middle of a frame");
      if (while_full) while_full();
      const Deadline turn = while_full ? std::min(until, After(std::chrono::milliseconds(1))) : until;
      const Status status = WaitFor(POLLOUT, turn);
      if (absl::IsDeadlineExceeded(status) && Clock::now() >= until && !started) {
        return DeadlineExceeded("{}: the peer takes nothing in", peer_);
      }
      if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
      continue;
    }
    started = true;
    until = patience == Duration::max() ? kNoDeadline : After(patience);
    auto sent = static_cast<size_t>(n);
    while (first < rest.size() && sent >= rest[first].iov_len) sent -= rest[first++].iov_len;
    if (first < rest.size()) {
      rest[first].iov_base = static_cast<std::byte*>(rest[first].iov_base) + sent;
      rest[first].iov_len -= sent;
    }
  }
  return absl::OkStatus();
}

StatusOr<bool> TcpLink::ReadSome() {
  // A payload that is larger than the read-ahead goes to its place directly.
  if (in_frame_ && from_ == to_) {
    const size_t left = frame_.header.length - filled_;
    if (left >= kReadAhead) {
      if (filled_ == frame_.payload.size()) {
        frame_.payload.resize(std::min<size_t>(frame_.header.length, std::max(kFirstPayload, 2 * filled_)));
      }
      const ssize_t n = ::recv(fd_, frame_.payload.data() + filled_, frame_.payload.size() - filled_, MSG_DONTWAIT);
      if (n > 0) filled_ += static_cast<size_t>(n);
      if (n > 0) return true;
      if (n == 0) return Gone("closed the link in the middle of a frame");
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
      return Broken(errno);
    }
  }
  if (from_ == to_) from_ = to_ = 0;
  if (from_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + from_, to_ - from_);
    to_ -= from_;
    from_ = 0;
  }
  const ssize_t n = ::recv(fd_, buffer_.data() + to_, buffer_.size() - to_, MSG_DONTWAIT);
  if (n > 0) to_ += static_cast<size_t>(n);
  if (n > 0) return true;
  if (n == 0) return Gone(in_frame_ || to_ > 0 ? "closed the link in the middle of a frame" : "closed the link");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
  return Broken(errno);
}

// True: frame_.header is there.
StatusOr<bool> TcpLink::TakeHeader() {
  if (in_frame_) return true;
  if (to_ - from_ < kFrameHeaderBytes) return false;
  StatusOr<FrameHeader> header =
      DecodeHeader(std::span(buffer_).subspan(from_, kFrameHeaderBytes), options_.max_payload);
  if (!header.ok()) {
    Close();
    return Annotate(header.status(), peer_);
  }
  from_ += kFrameHeaderBytes;
  frame_.header = *header;
  frame_.payload.clear();
  frame_.payload.resize(std::min<size_t>(header->length, kFirstPayload));
  filled_ = 0;
  in_frame_ = true;
  return true;
}

// REQUIRES: the payload is whole.
StatusOr<Frame> TcpLink::TakeFrame() {
  in_frame_ = false;
  if (Crc32c(frame_.payload) != frame_.header.payload_crc) {
    Close();
    return DataLoss("{}: a payload's checksum is wrong", peer_);
  }
  return std::move(frame_);
}

StatusOr<Frame> TcpLink::Recv(Deadline deadline) {
  try {
    return Receive(deadline);
  } catch (const std::bad_alloc&) {
    Close();
    return ResourceExhausted("{}: no memory for a payload of {} bytes", peer_, frame_.header.length);
  }
}

StatusOr<Frame> TcpLink::Receive(Deadline deadline) {
  for (;;) {
    if (woken_.exchange(false)) return absl::CancelledError("woken");
    GYRE_ASSIGN_OR_RETURN(const bool has_header, TakeHeader());
    if (has_header) {
      const size_t take = std::min<size_t>(to_ - from_, frame_.header.length - filled_);
      if (take > 0) {
        if (filled_ + take > frame_.payload.size()) frame_.payload.resize(frame_.header.length);
        std::memcpy(frame_.payload.data() + filled_, buffer_.data() + from_, take);
        filled_ += take;
        from_ += take;
      }
      if (filled_ == frame_.header.length) {
        frame_.payload.resize(frame_.header.length);
        return TakeFrame();
      }
    }
    GYRE_ASSIGN_OR_RETURN(const bool more, ReadSome());
    if (more) {
      progress_ = Clock::now();
      continue;
    }
    if (closed_) return Unavailable("{}: the link is closed", peer_);
    const bool partial = in_frame_ || to_ > from_;
    const bool limited = partial && options_.silence != Duration::max();
    const Deadline silent = limited ? progress_ + options_.silence : kNoDeadline;
    const Status status = WaitFor(POLLIN, std::min(deadline, silent));
    if (!absl::IsDeadlineExceeded(status)) {
      if (!status.ok()) return status;
      continue;
    }
    if (Clock::now() >= silent) return Gone("stands still in the middle of a frame");
    if (Clock::now() >= deadline) return status;
  }
}

}  // namespace

StatusOr<std::unique_ptr<Link>> MakeTcpLink(int socket, std::string peer, const TcpOptions& options) {
  Fd fd(socket);
  Fd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.ok()) return ResourceExhausted("{}: no event for its link: {}", peer, std::strerror(errno));
  auto set = [&fd](int level, int name, int value) { ::setsockopt(fd.get(), level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer whose machine vanished is noticed after 15 + 4 * 5 s where nothing is on the way, else by retransmission.
  // A living peer that does not read answers the probes, so a long step ends nothing; TCP_USER_TIMEOUT would.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (options.send_buffer > 0) set(SOL_SOCKET, SO_SNDBUF, options.send_buffer);
  if (options.receive_buffer > 0) set(SOL_SOCKET, SO_RCVBUF, options.receive_buffer);
  try {
    return std::make_unique<TcpLink>(std::move(fd), std::move(event), std::move(peer), options);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a link");
  }
}

}  // namespace gyre
