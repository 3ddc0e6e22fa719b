#include "transport/shm_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/spin.h"
#include "transport/poll_timeout.h"

namespace gyre {
namespace {

constexpr uint64_t kMagic = 0x314D485345525947;  // "GYRESHM1" in memory
constexpr auto kSpin = std::chrono::microseconds(20);
// With slices the reader sees a large frame's first bytes while the last ones are still being copied.
constexpr size_t kSlice = 16 << 10;
// A writer without room sleeps until there is enough room to be worth a wake-up.
constexpr size_t kWorthwhileRoom = kShmRingBytes / 4;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Each field has its own cache line, or two, if the processor fetches pairs.
struct RingIndices {
  alignas(128) std::atomic<uint64_t> written;
  alignas(128) std::atomic<uint64_t> read;
  alignas(128) std::atomic<uint32_t> reader_sleeps;
  alignas(128) std::atomic<uint32_t> writer_sleeps;
  alignas(128) std::atomic<uint32_t> closed;
  // Nanoseconds of the machine's steady clock; 0 = not known. The writer stamps what it writes into an empty ring, and
  // the reader, where it waited for that, says how long it took to get there.
  alignas(128) std::atomic<int64_t> written_at;
  alignas(128) std::atomic<int64_t> latency;
  std::byte unused[1024 - 7 * 128];
};
struct ShmLayout {
  uint64_t magic;
  uint64_t ring_bytes;
  alignas(1024) RingIndices rings[2];
  alignas(4096) std::byte data[2][kShmRingBytes];
};
static_assert(sizeof(RingIndices) == 1024 && offsetof(ShmLayout, rings) == 1024 && offsetof(ShmLayout, data) == 4096);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class Mapping {
 public:
  explicit Mapping(int memory)
      : at_(::mmap(nullptr, sizeof(ShmLayout), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0)) {}
  ~Mapping() {
    if (ok()) ::munmap(at_, sizeof(ShmLayout));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool ok() const { return at_ != MAP_FAILED; }
  ShmLayout& layout() const { return *static_cast<ShmLayout*>(at_); }

 private:
  void* const at_;
};

// The least latency of the last minutes, as a busy processor delays some samples.
class LeastLatency {
 public:
  int64_t Add(int64_t sample, Deadline now) {
    constexpr auto kSpan = std::chrono::minutes(1);
    if (now - since_ > kSpan) {
      since_ = now;
      before_ = std::exchange(least_, INT64_MAX);
    }
    least_ = std::min(least_, sample);
    return std::min(least_, before_);
  }

 private:
  Deadline since_{};
  int64_t least_ = INT64_MAX, before_ = INT64_MAX;
};

int64_t Nanoseconds(Deadline at) { return Duration(at.time_since_epoch()).count(); }

// Sends one byte to a sleeping peer. If the socket is full, there are bytes for the peer already.
void RingBell(int socket) {
  const char byte = 1;
  [[maybe_unused]] const ssize_t n = ::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

class ShmStream : public ByteStream {
 public:
  ShmStream(ShmSide side, std::shared_ptr<Mapping> mapping, ShmBells bells, Fd event)
      : mapping_(std::move(mapping)),
        out_(mapping_->layout().rings[static_cast<int>(side)]),
        in_(mapping_->layout().rings[1 - static_cast<int>(side)]),
        out_data_(mapping_->layout().data[static_cast<int>(side)]),
        in_data_(mapping_->layout().data[1 - static_cast<int>(side)]),
        bells_(std::move(bells)),
        event_(std::move(event)) {}

  StatusOr<size_t> Write(std::span<const iovec> parts) override;
  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override;
  size_t Room() const override {
    const uint64_t used = written_ - out_.read.load(std::memory_order_acquire);
    return used < kShmRingBytes ? kShmRingBytes - used : 0;
  }
  Status Wait(Ready direction, Deadline deadline) override;
  void Wake() override {
    woken_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
  }
  void Close() override {
    if (closed_.exchange(true)) return;
    out_.closed.store(1);
    ::shutdown(bells_.data.get(), SHUT_RDWR);
    ::shutdown(bells_.room.get(), SHUT_RDWR);
    Wake();
  }
  size_t ReadAhead() const override { return 0; }
  bool NeedsChecksum() const override { return false; }
  Transport transport() const override { return Transport::kShm; }
  std::optional<Duration> RoundTrip() const override;

 private:
  bool Ended() const { return closed_ || gone_ || in_.closed.load() != 0; }
  void Publish();
  void MeasureLatency();
  bool Readable() const { return in_.written.load() != read_ || woken_ || Ended(); }
  // An invalid index counts as room: the next Write finds it.
  bool Writable() const { return kShmRingBytes - (written_ - out_.read.load()) >= kWorthwhileRoom || Ended(); }
  // Reads the wake-up socket empty; its end is the peer's end.
  void Drain(int bell);

  const std::shared_ptr<Mapping> mapping_;
  RingIndices& out_;
  RingIndices& in_;
  std::byte* const out_data_;
  const std::byte* const in_data_;
  const ShmBells bells_;
  const Fd event_;  // ends a reader's Wait
  std::atomic<bool> closed_{false}, gone_{false}, woken_{false};
  uint64_t written_ = 0;  // the writer's
  uint64_t read_ = 0;     // the reader's
  bool waited_ = false;   // likewise: for what it reads next
  LeastLatency least_;    // likewise
};

// There and back, as the way back to here is as long: the other direction may carry nothing.
std::optional<Duration> ShmStream::RoundTrip() const {
  constexpr int64_t kLongest = 60'000'000'000;  // another process wrote it
  const int64_t latency = out_.latency.load(std::memory_order_relaxed);
  if (latency <= 0 || latency > kLongest) return std::nullopt;
  return Duration(2 * latency);
}

void ShmStream::MeasureLatency() {
  const Deadline now = Clock::now();
  const int64_t at = in_.written_at.load(std::memory_order_relaxed);
  if (at <= 0 || at > Nanoseconds(now)) return;
  in_.latency.store(least_.Add(std::max<int64_t>(1, Nanoseconds(now) - at), now), std::memory_order_relaxed);
}

// A sleeper sets its flag before its last look at the index, and a thread that changes the index looks at the flag
// afterwards: all in one total order, so one of the two sees the other.
void ShmStream::Publish() {
  out_.written.store(written_);
  if (out_.reader_sleeps.load() != 0 && out_.reader_sleeps.exchange(0) != 0) RingBell(bells_.data.get());
}

StatusOr<size_t> ShmStream::Write(std::span<const iovec> parts) {
  if (Ended()) return Unavailable("the peer closed the link");
  const uint64_t used = written_ - out_.read.load(std::memory_order_acquire);
  if (used > kShmRingBytes) return Unavailable("an index in the shared memory is beyond its ring");
  if (used == 0) out_.written_at.store(Nanoseconds(Clock::now()), std::memory_order_relaxed);
  size_t room = kShmRingBytes - used, taken = 0, unpublished = 0;
  for (const iovec& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    for (size_t left = part.iov_len; left > 0 && room > 0;) {
      const size_t at = written_ % kShmRingBytes;
      const size_t n = std::min({left, room, kShmRingBytes - at, kSlice - unpublished});
      std::memcpy(out_data_ + at, from, n);
      from += n;
      left -= n;
      room -= n;
      written_ += n;
      taken += n;
      unpublished += n;
      if (unpublished < kSlice) continue;
      Publish();
      unpublished = 0;
    }
  }
  if (unpublished > 0) Publish();
  return taken;
}

StatusOr<std::optional<size_t>> ShmStream::Read(std::span<std::byte> into) {
  // The end is checked first, so that all that was written before it is seen.
  const bool ended = Ended();
  const uint64_t there = in_.written.load(std::memory_order_acquire) - read_;
  if (there > kShmRingBytes) return DataLoss("an index in the shared memory is beyond its ring");
  if (there == 0) return ended ? std::optional<size_t>(0) : std::nullopt;
  if (std::exchange(waited_, false)) MeasureLatency();
  const size_t n = std::min<size_t>(there, into.size()), at = read_ % kShmRingBytes;
  const size_t first = std::min(n, kShmRingBytes - at);
  std::memcpy(into.data(), in_data_ + at, first);
  std::memcpy(into.data() + first, in_data_, n - first);
  read_ += n;
  in_.read.store(read_);
  if (in_.writer_sleeps.load() != 0 && kShmRingBytes - (there - n) >= kWorthwhileRoom &&
      in_.writer_sleeps.exchange(0) != 0) {
    RingBell(bells_.room.get());
  }
  return std::optional<size_t>(n);
}

void ShmStream::Drain(int bell) {
  char bytes[64];
  const ssize_t n = ::recv(bell, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) gone_ = true;
}

Status ShmStream::Wait(Ready direction, Deadline deadline) {
  const bool reads = direction == Ready::kRead;
  const auto ready = [&] { return reads ? Readable() : Writable(); };
  const Deadline now = Clock::now();
  if (reads && in_.written.load() == read_) waited_ = true;
  bool is_ready = deadline > now ? SpinUntil(std::min(deadline, now + kSpin), ready) : ready();
  if (!is_ready) {
    std::atomic<uint32_t>& sleeps = reads ? in_.reader_sleeps : out_.writer_sleeps;
    sleeps.store(1);
    int n = 1;
    const int bell = reads ? bells_.data.get() : bells_.room.get();
    if (!ready()) {
      std::array<pollfd, 2> fds{
          {{.fd = bell, .events = POLLIN, .revents = 0}, {.fd = event_.get(), .events = POLLIN, .revents = 0}}};
      n = ::poll(fds.data(), reads ? 2 : 1, PollTimeout(deadline));
      if (n < 0 && errno != EINTR) return Unavailable("{}", std::strerror(errno));
      if (n > 0 && fds[0].revents != 0) Drain(bell);
      if (n > 0 && fds[1].revents != 0) {
        uint64_t count;
        [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
      }
    }
    sleeps.store(0);
    is_ready = n != 0 || Clock::now() < deadline || ready();
  }
  if (reads) woken_ = false;
  if (!is_ready) return DeadlineExceeded("not ready");
  return absl::OkStatus();
}

Status NoMemory(const char* what) { return ResourceExhausted("shared memory: {}: {}", what, std::strerror(errno)); }

StatusOr<std::unique_ptr<ByteStream>> Make(ShmSide side, std::shared_ptr<Mapping> mapping, ShmBells bells) {
  Fd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.ok()) return NoMemory("no event");
  return std::make_unique<ShmStream>(side, std::move(mapping), std::move(bells), std::move(event));
}

StatusOr<std::shared_ptr<Mapping>> Map(int memory) {
  // If the size could change, access to a page that is gone would end this process.
  struct stat facts {};
  const int seals = ::fcntl(memory, F_GET_SEALS);
  if (::fstat(memory, &facts) != 0 || facts.st_size != sizeof(ShmLayout) || (seals & kSeals) != kSeals || seals < 0) {
    return DataLoss("what the peer shares is no memory of {} bytes with a sealed size", sizeof(ShmLayout));
  }
  auto mapping = std::make_shared<Mapping>(memory);
  if (!mapping->ok()) return NoMemory("it can't be mapped");
  if (mapping->layout().magic != kMagic || mapping->layout().ring_bytes != kShmRingBytes) {
    return DataLoss("the memory that the peer shares has another layout");
  }
  return mapping;
}

}  // namespace

StatusOr<Fd> MakeShmMemory() {
  Fd memory(::memfd_create("gyre-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.ok()) return NoMemory("memfd_create");
  // Pages that are allocated now can't be missing later, when access to them would end the process.
  if (::ftruncate(memory.get(), sizeof(ShmLayout)) != 0 || ::fallocate(memory.get(), 0, 0, sizeof(ShmLayout)) != 0) {
    return NoMemory("no pages for it");
  }
  const uint64_t head[] = {kMagic, kShmRingBytes};
  if (::pwrite(memory.get(), head, sizeof head, 0) != sizeof head) return NoMemory("it can't be written");
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return NoMemory("it can't be sealed");
  return memory;
}

StatusOr<std::unique_ptr<ByteStream>> MakeShmStream(ShmSide side, int memory, ShmBells bells) {
  try {
    GYRE_ASSIGN_OR_RETURN(std::shared_ptr<Mapping> mapping, Map(memory));
    return Make(side, std::move(mapping), std::move(bells));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a link");
  }
}

StatusOr<std::pair<std::unique_ptr<ByteStream>, std::unique_ptr<ByteStream>>> MakeShmPair(bool one_mapping) {
  GYRE_ASSIGN_OR_RETURN(const Fd memory, MakeShmMemory());
  ShmBells bells_here, bells_there;
  for (Fd ShmBells::*bell : {&ShmBells::data, &ShmBells::room}) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return NoMemory("no sockets");
    bells_here.*bell = Fd(ends[0]);
    bells_there.*bell = Fd(ends[1]);
  }
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<Mapping> here, Map(memory.get()));
  std::shared_ptr<Mapping> there = here;
  if (!one_mapping) {
    GYRE_ASSIGN_OR_RETURN(there, Map(memory.get()));
  }
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> a, Make(ShmSide::kDialer, std::move(here), std::move(bells_here)));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> b,
                        Make(ShmSide::kAcceptor, std::move(there), std::move(bells_there)));
  return std::pair(std::move(a), std::move(b));
}

}  // namespace gyre
