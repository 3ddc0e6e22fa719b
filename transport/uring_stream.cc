#include "transport/uring_stream.h"

#ifdef GYRE_URING

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "transport/tcp_round_trip.h"

namespace gyre {
namespace {

constexpr unsigned kBuffers = 16;  // a power of two
constexpr size_t kBufferBytes = 64 << 10;
constexpr int kGroup = 0;
enum Request : uint64_t { kReceive = 1, kWake = 2, kSend = 3, kRoom = 4 };

Status UringError(int error) { return Unavailable("{}", std::strerror(error)); }

// A submission and a completion queue.
class Uring {
 public:
  ~Uring() {
    if (open_) io_uring_queue_exit(&ring_);
  }
  // Returns 0 or an error number.
  int Open(unsigned entries, unsigned completions) {
    io_uring_params params{};
    params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = completions;
    const int error = -io_uring_queue_init_params(entries, &ring_, &params);
    open_ = error == 0;
    return error;
  }
  io_uring* operator->() { return &ring_; }
  io_uring* get() { return &ring_; }
  io_uring_sqe& Next(Request request) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);  // there is one: every request is submitted at once
    sqe->user_data = request;
    return *sqe;
  }
  // OK: there may be a completion. kDeadlineExceeded.
  Status Wait(Deadline deadline) {
    io_uring_cqe* cqe = nullptr;
    if (io_uring_peek_cqe(&ring_, &cqe) == 0) return absl::OkStatus();
    int error = 0;
    if (deadline == kNoDeadline) {
      error = -io_uring_wait_cqe(&ring_, &cqe);
    } else {
      const auto left =
          std::max<int64_t>(std::chrono::ceil<std::chrono::nanoseconds>(deadline - Clock::now()).count(), 0);
      __kernel_timespec time{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
      error = -io_uring_wait_cqe_timeout(&ring_, &cqe, &time);
    }
    if (error == ETIME && Clock::now() >= deadline) return DeadlineExceeded("not ready");
    if (error != 0 && error != ETIME && error != EINTR && error != EAGAIN) return UringError(error);
    return absl::OkStatus();
  }

 private:
  io_uring ring_{};
  bool open_ = false;
};

// The buffers that the kernel reads into. The memory outlives the ring that uses it.
class Buffers {
 public:
  ~Buffers() {
    if (at_ != MAP_FAILED) ::munmap(at_, kTotal);
  }
  int Open(Uring& ring) {
    at_ = ::mmap(nullptr, kTotal, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) return errno;
    // The queue of buffers comes after them, on a page of its own.
    queue_ = reinterpret_cast<io_uring_buf_ring*>(static_cast<std::byte*>(at_) + kBuffers * kBufferBytes);
    io_uring_buf_ring_init(queue_);
    for (unsigned i = 0; i < kBuffers; ++i) Add(i, i);
    io_uring_buf_ring_advance(queue_, kBuffers);
    io_uring_buf_reg reg{};
    reg.ring_addr = reinterpret_cast<uint64_t>(queue_);
    reg.ring_entries = kBuffers;
    reg.bgid = kGroup;
    return -io_uring_register_buf_ring(ring.get(), &reg, 0);
  }
  std::byte* at(unsigned id) { return static_cast<std::byte*>(at_) + id * kBufferBytes; }
  void GiveBack(unsigned id) {
    Add(id, 0);
    io_uring_buf_ring_advance(queue_, 1);
  }

 private:
  static constexpr size_t kTotal = kBuffers * kBufferBytes + 4096;
  void Add(unsigned id, unsigned offset) {
    io_uring_buf_ring_add(queue_, at(id), kBufferBytes, static_cast<uint16_t>(id), kBuffers - 1,
                          static_cast<int>(offset));
  }
  void* at_ = MAP_FAILED;
  io_uring_buf_ring* queue_ = nullptr;
};

class UringStream : public ByteStream {
 public:
  UringStream(Fd socket, const UringOptions& options) : options_(options), socket_(std::move(socket)) {}
  ~UringStream() override;
  Status Open();

  StatusOr<size_t> Write(std::span<const iovec> parts) override;
  // What is sent without a copy waits until the peer has it.
  size_t Room() const override {
    const size_t copied = options_.zero_copy_from > 0 ? options_.zero_copy_from - 1 : 0;
    return std::min(room_.Bytes(socket_.get()), copied);
  }
  StatusOr<bool> Flush() override;
  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override;
  Status Wait(Ready direction, Deadline deadline) override;
  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
  }
  void Close() override {
    ::shutdown(socket_.get(), SHUT_RDWR);
    Wake();
  }
  size_t ReadAhead() const override { return 0; }  // what came lies in this process already
  std::optional<Duration> RoundTrip() const override { return TcpRoundTrip(socket_.get()); }
  Transport transport() const override { return Transport::kKernel; }

 private:
  // For the reader: submits requests for bytes and for wakes, unless they are under way.
  Status Ask();
  // Handles one completion; returns false if there is none.
  bool TakeIn();
  // For the writer: handles completions; returns the result of a send, if there was one.
  std::optional<int> Reap();

  const UringOptions options_;
  const Fd socket_;
  Fd event_;  // ends a reader's Wait

  // The reader's data. The buffers are declared first, so that they are destroyed last.
  Buffers buffers_;
  Uring in_;
  bool receives_ = false, hears_wakes_ = false;  // requests under way
  bool ended_ = false;
  int failed_ = 0;
  unsigned buffer_ = 0;          // that bytes come from
  size_t from_ = 0, until_ = 0;  // of them

  // The writer's data.
  Uring out_;
  mutable SocketRoom room_;
  bool needs_room_ = false, hears_room_ = false;
  unsigned unacknowledged_ = 0;  // sends whose bytes the kernel still reads
};

Status UringStream::Open() {
  event_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event_.ok()) return ResourceExhausted("no event for a link: {}", std::strerror(errno));
  int error = in_.Open(8, 4 * kBuffers);
  if (error == 0) error = out_.Open(8, 64);
  if (error == 0) error = buffers_.Open(in_);
  if (error == 0) return absl::OkStatus();
  if (error == ENOMEM || error == EMFILE || error == ENFILE) {
    return ResourceExhausted("io_uring: {}", std::strerror(error));
  }
  return FailedPrecondition("io_uring can't be used here: {}", std::strerror(error));
}

// The kernel must have ended reading into the buffers before they are freed.
UringStream::~UringStream() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  for (const Deadline end = After(std::chrono::seconds(1)); receives_ && Clock::now() < end;) {
    if (!TakeIn() && !in_.Wait(end).ok()) break;
    if (until_ > 0) buffers_.GiveBack(buffer_);
    from_ = until_ = 0;
  }
}

Status UringStream::Ask() {
  if (!receives_ && !ended_ && failed_ == 0) {
    io_uring_sqe& sqe = in_.Next(kReceive);
    io_uring_prep_recv_multishot(&sqe, socket_.get(), nullptr, 0, 0);
    sqe.user_data = kReceive;
    sqe.flags |= IOSQE_BUFFER_SELECT;
    sqe.buf_group = kGroup;
    receives_ = true;
  }
  if (!hears_wakes_) {
    io_uring_sqe& sqe = in_.Next(kWake);
    io_uring_prep_poll_multishot(&sqe, event_.get(), POLLIN);
    sqe.user_data = kWake;
    hears_wakes_ = true;
  }
  const int n = io_uring_submit(in_.get());
  return n >= 0 || n == -EINTR ? absl::OkStatus() : UringError(-n);
}

bool UringStream::TakeIn() {
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(in_.get(), &cqe) != 0) return false;
  const bool goes_on = (cqe->flags & IORING_CQE_F_MORE) != 0;
  if (cqe->user_data == kWake) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
    hears_wakes_ = goes_on;
  } else {
    receives_ = goes_on;
    const int result = cqe->res;
    if (result > 0) {
      buffer_ = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
      from_ = 0;
      until_ = static_cast<size_t>(result);
    } else if (result == 0) {
      ended_ = true;
    } else if (result != -ENOBUFS && result != -ECANCELED && result != -EINTR && result != -EAGAIN) {
      failed_ = -result;  // otherwise it is asked again: the buffers were full, or the asking thread has ended
    }
  }
  io_uring_cqe_seen(in_.get(), cqe);
  return true;
}

StatusOr<std::optional<size_t>> UringStream::Read(std::span<std::byte> into) {
  for (bool asked = false; until_ == 0;) {
    if (ended_) return std::optional<size_t>(0);
    if (failed_ != 0) return UringError(failed_);
    if (TakeIn()) continue;
    if (asked || (receives_ && hears_wakes_)) return std::optional<size_t>();
    GYRE_RETURN_IF_ERROR(Ask());
    asked = true;
  }
  const size_t n = std::min(into.size(), until_ - from_);
  std::memcpy(into.data(), buffers_.at(buffer_) + from_, n);
  from_ += n;
  if (from_ == until_) {
    buffers_.GiveBack(buffer_);
    from_ = until_ = 0;
  }
  return std::optional<size_t>(n);
}

std::optional<int> UringStream::Reap() {
  std::optional<int> sent;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(out_.get(), &cqe) == 0) {
    if ((cqe->flags & IORING_CQE_F_NOTIF) != 0) {
      --unacknowledged_;
    } else if (cqe->user_data == kRoom) {
      hears_room_ = false;
    } else {
      sent = cqe->res;
      if ((cqe->flags & IORING_CQE_F_MORE) != 0) ++unacknowledged_;
    }
    io_uring_cqe_seen(out_.get(), cqe);
  }
  return sent;
}

StatusOr<size_t> UringStream::Write(std::span<const iovec> parts) {
  size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  io_uring_sqe& sqe = out_.Next(kSend);
  // Without waiting, the request is done when it has been submitted, and nothing of it outlives this call.
  if (bytes >= options_.zero_copy_from) {
    io_uring_prep_sendmsg_zc(&sqe, socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    io_uring_prep_sendmsg(&sqe, socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  sqe.user_data = kSend;
  std::optional<int> sent;
  for (int n = io_uring_submit(out_.get()); !(sent = Reap());) {
    if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) return UringError(-n);
    n = io_uring_submit_and_wait(out_.get(), 1);
  }
  needs_room_ = *sent <= 0;
  if (*sent >= 0) {
    room_.Wrote(static_cast<size_t>(*sent));
    return static_cast<size_t>(*sent);
  }
  if (*sent == -EAGAIN || *sent == -EINTR || *sent == -ENOBUFS) return size_t{0};
  return UringError(-*sent);
}

StatusOr<bool> UringStream::Flush() {
  if (unacknowledged_ > 0) Reap();
  return unacknowledged_ == 0;
}

Status UringStream::Wait(Ready direction, Deadline deadline) {
  if (direction == Ready::kRead) {
    if (until_ > 0 || ended_ || failed_ != 0) return absl::OkStatus();
    if (!receives_ || !hears_wakes_) {
      GYRE_RETURN_IF_ERROR(Ask());
    }
    return in_.Wait(deadline);
  }
  if (needs_room_ && !hears_room_) {
    io_uring_sqe& sqe = out_.Next(kRoom);
    io_uring_prep_poll_add(&sqe, socket_.get(), POLLOUT);
    sqe.user_data = kRoom;
    if (const int n = io_uring_submit(out_.get()); n < 0 && n != -EINTR) return UringError(-n);
    hears_room_ = true;
  }
  // A link that is closed meanwhile has no completion for threads that wait for acknowledgements.
  const Status status = out_.Wait(std::min(deadline, After(std::chrono::milliseconds(50))));
  if (!absl::IsDeadlineExceeded(status)) {
    if (status.ok()) Reap();
    return status;
  }
  return Clock::now() < deadline ? absl::OkStatus() : status;
}

}  // namespace

Status CheckUring() {
  static const Status usable = [] {
    UringStream stream(Fd(), {});
    return stream.Open();
  }();
  return usable;
}

StatusOr<std::unique_ptr<ByteStream>> MakeUringStream(Fd socket, const TcpStreamOptions& tcp,
                                                      const UringOptions& options) {
  try {
    SetTcpOptions(socket.get(), tcp);
    auto stream = std::make_unique<UringStream>(std::move(socket), options);
    GYRE_RETURN_IF_ERROR(stream->Open());
    return stream;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a link");
  }
}

}  // namespace gyre

#else

namespace gyre {

Status CheckUring() { return Unimplemented("this gyre was built without liburing"); }

StatusOr<std::unique_ptr<ByteStream>> MakeUringStream(Fd, const TcpStreamOptions&, const UringOptions&) {
  return CheckUring();
}

}  // namespace gyre

#endif
