#include "transport/framed_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/crc32c.h"

namespace gyre {
namespace {

// Memory for a payload is allocated as its bytes come in, not by its announced size.
constexpr size_t kFirstPayload = 1 << 20;
// A frame that has begun gets at least this time to be finished, however short the sender's deadline is.
constexpr auto kLeastIdleTimeout = std::chrono::seconds(10);
constexpr size_t kMaxParts = 64;  // of one Write

class FramedLink : public Link {
 public:
  FramedLink(std::unique_ptr<ByteStream> stream, std::string peer, const FramedLinkOptions& options)
      : stream_(std::move(stream)),
        peer_(std::move(peer)),
        options_(options),
        checksum_(stream_->NeedsChecksum()),
        read_ahead_(std::max(stream_->ReadAhead(), kFrameHeaderBytes)) {
    buffer_.resize(read_ahead_);
  }
  ~FramedLink() override { FramedLink::Close(); }

  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override;
  size_t Room() const override {
    if (closed_) return kMaxPayload;  // Send says so at once
    const size_t room = stream_->Room();
    return room > kFrameHeaderBytes ? room - kFrameHeaderBytes : 0;
  }
  StatusOr<Frame> Recv(Deadline deadline) override;

  void GiveBack(std::vector<std::byte> payload) override {
    if (!in_frame_) frame_.payload = std::move(payload);
  }
  void Wake() override {
    woken_ = true;
    stream_->Wake();
  }
  void Close() override {
    if (!closed_.exchange(true)) stream_->Close();
  }
  std::optional<Duration> RoundTrip() const override { return stream_->RoundTrip(); }
  Transport transport() const override { return stream_->transport(); }
  uint64_t received() const override { return received_; }

 private:
  Status Gone(const char* what) {
    Close();
    return Unavailable("{}: {}", peer_, what);
  }
  Status Broken(const Status& why) {
    Close();
    return Annotate(why, peer_);
  }
  // Returns OK or kDeadlineExceeded; any other error has ended the link.
  Status WaitFor(ByteStream::Ready direction, Deadline deadline);
  // True: bytes came into [from_, to_) or into the payload. False: there are none. Errors end the link.
  StatusOr<bool> ReadSome();
  StatusOr<bool> TakeHeader();
  StatusOr<Frame> TakeFrame();
  StatusOr<Frame> Receive(Deadline deadline);

  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const FramedLinkOptions options_;
  const bool checksum_;
  const size_t read_ahead_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> woken_{false};
  std::atomic<uint64_t> received_{0};

  // Only the receiving thread uses these.
  std::vector<std::byte> buffer_;
  size_t from_ = 0, to_ = 0;  // unread bytes of buffer_
  bool in_frame_ = false;
  Frame frame_;
  size_t filled_ = 0;  // of frame_.payload
  Deadline progress_ = Clock::now();
};

Status FramedLink::WaitFor(ByteStream::Ready direction, Deadline deadline) {
  const Status status = stream_->Wait(direction, deadline);
  if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
  return Broken(status);
}

// The part of a frame that has not left yet.
class Rest {
 public:
  Rest(std::span<const std::byte> head, std::span<const ByteSpan> parts) {
    pieces_.reserve(1 + parts.size());
    Add(head);
    for (ByteSpan part : parts) Add(part);
  }
  bool empty() const { return first_ == pieces_.size(); }
  std::span<const iovec> pieces() const {
    return {pieces_.data() + first_, std::min(pieces_.size() - first_, kMaxParts)};
  }
  void Drop(size_t sent) {
    while (first_ < pieces_.size() && sent >= pieces_[first_].iov_len) sent -= pieces_[first_++].iov_len;
    if (first_ == pieces_.size()) return;
    pieces_[first_].iov_base = static_cast<std::byte*>(pieces_[first_].iov_base) + sent;
    pieces_[first_].iov_len -= sent;
  }

 private:
  void Add(ByteSpan bytes) {
    if (!bytes.empty()) pieces_.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
  std::vector<iovec> pieces_;
  size_t first_ = 0;
};

Status FramedLink::Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) {
  uint64_t length = 0;
  uint32_t crc = 0;
  for (ByteSpan part : parts) {
    length += part.size();
    if (checksum_) crc = Crc32c(part, crc);
  }
  GYRE_RETURN_IF_ERROR(CheckPayload(length));
  header.length = length;
  header.payload_crc = crc;
  const auto head = EncodeHeader(header);

  Rest rest(head, parts);
  bool started = false;
  // The limit of silence holds within a frame; without one it is the time that the caller gave for the beginning.
  Duration idle_timeout = options_.silence;
  if (idle_timeout == Duration::max() && deadline != kNoDeadline) {
    idle_timeout = std::max<Duration>(deadline - Clock::now(), kLeastIdleTimeout);
  }
  Deadline until = deadline;
  for (;;) {
    if (closed_) return Unavailable("{}: the link is closed", peer_);
    if (rest.empty()) {
      const StatusOr<bool> flushed = stream_->Flush();
      if (!flushed.ok()) return Broken(flushed.status());
      if (*flushed) return absl::OkStatus();
    } else {
      const StatusOr<size_t> sent = stream_->Write(rest.pieces());
      if (!sent.ok()) return Broken(sent.status());
      if (*sent > 0) {
        started = true;
        until = idle_timeout == Duration::max() ? kNoDeadline : After(idle_timeout);
        rest.Drop(*sent);
        continue;
      }
    }
    if (started && Clock::now() >= until) return Gone("takes nothing in, in the middle of a frame");
    const Status status = WaitFor(ByteStream::Ready::kWrite, until);
    if (absl::IsDeadlineExceeded(status) && Clock::now() >= until && !started) {
      return DeadlineExceeded("{}: the peer takes nothing in", peer_);
    }
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
  }
}

StatusOr<bool> FramedLink::ReadSome() {
  // A payload that is larger than the read-ahead is read directly into its place.
  const bool direct = in_frame_ && from_ == to_ && frame_.header.length - filled_ >= read_ahead_;
  std::span<std::byte> into;
  if (direct) {
    if (filled_ == frame_.payload.size()) {
      const size_t more = std::max({kFirstPayload, 2 * filled_, frame_.payload.capacity()});
      frame_.payload.resize(std::min<size_t>(frame_.header.length, more));
    }
    into = std::span(frame_.payload).subspan(filled_);
  } else {
    if (from_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + from_, to_ - from_);
      to_ -= from_;
      from_ = 0;
    }
    into = std::span(buffer_).subspan(to_);
  }
  const StatusOr<std::optional<size_t>> got = stream_->Read(into);
  if (!got.ok()) return Broken(got.status());
  if (!*got) return false;
  if (**got == 0) return Gone(in_frame_ || to_ > 0 ? "closed the link in the middle of a frame" : "closed the link");
  (direct ? filled_ : to_) += **got;
  received_ += **got;
  return true;
}

// Returns true if frame_.header is complete.
StatusOr<bool> FramedLink::TakeHeader() {
  if (in_frame_) return true;
  if (to_ - from_ < kFrameHeaderBytes) return false;
  StatusOr<FrameHeader> header =
      DecodeHeader(std::span(buffer_).subspan(from_, kFrameHeaderBytes), options_.max_payload);
  if (!header.ok()) return Broken(header.status());
  from_ += kFrameHeaderBytes;
  frame_.header = *header;
  frame_.payload.clear();
  frame_.payload.resize(std::min<size_t>(header->length, kFirstPayload));
  filled_ = 0;
  in_frame_ = true;
  return true;
}

// REQUIRES: the payload is complete.
StatusOr<Frame> FramedLink::TakeFrame() {
  in_frame_ = false;
  if (checksum_ && Crc32c(frame_.payload) != frame_.header.payload_crc) {
    Close();
    return DataLoss("{}: a payload's checksum is wrong", peer_);
  }
  return std::move(frame_);
}

StatusOr<Frame> FramedLink::Recv(Deadline deadline) {
  try {
    return Receive(deadline);
  } catch (const std::bad_alloc&) {
    Close();
    return ResourceExhausted("{}: no memory for a payload of {} bytes", peer_, frame_.header.length);
  }
}

StatusOr<Frame> FramedLink::Receive(Deadline deadline) {
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
    if (woken_) continue;  // a stream's Read may have taken the event that would end the wait
    const bool partial = in_frame_ || to_ > from_;
    const bool limited = partial && options_.silence != Duration::max();
    const Deadline silent = limited ? progress_ + options_.silence : kNoDeadline;
    // A caller that does not wait makes no system call, and no sender is asked to wake it.
    if (const Deadline now = Clock::now(); deadline <= now && now < silent) return DeadlineExceeded("nothing came");
    const Status status = WaitFor(ByteStream::Ready::kRead, std::min(deadline, silent));
    if (!absl::IsDeadlineExceeded(status)) {
      if (!status.ok()) return status;
      continue;
    }
    if (Clock::now() >= silent) return Gone("stands still in the middle of a frame");
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: nothing came", peer_);
  }
}

}  // namespace

StatusOr<std::unique_ptr<Link>> MakeFramedLink(std::unique_ptr<ByteStream> stream, std::string peer,
                                               const FramedLinkOptions& options) {
  try {
    return std::make_unique<FramedLink>(std::move(stream), std::move(peer), options);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a link");
  }
}

}  // namespace gyre
