#include "transport/tls_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace gyre {
namespace {

// The bytes that are sealed at once: more costs memory, less costs calls.
constexpr size_t kSealed = 256 << 10;
constexpr size_t kSealBytes = 64;  // of a record, beside its plain bytes; TLS needs less
constexpr auto kHandshakeTurn = std::chrono::milliseconds(100);

// Bytes that were sealed but not yet sent.
class Outbox {
 public:
  explicit Outbox(ByteStream& stream) : stream_(stream) {}
  std::vector<std::byte>& bytes() { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  // Returns true if all bytes were sent.
  StatusOr<bool> Send() {
    while (sent_ < bytes_.size()) {
      const iovec part{.iov_base = bytes_.data() + sent_, .iov_len = bytes_.size() - sent_};
      GYRE_ASSIGN_OR_RETURN(const size_t n, stream_.Write({&part, 1}));
      if (n == 0) return false;
      sent_ += n;
    }
    // A carrier may send from where the bytes lie, until it is flushed.
    GYRE_ASSIGN_OR_RETURN(const bool flushed, stream_.Flush());
    if (!flushed) return false;
    bytes_.clear();
    sent_ = 0;
    return true;
  }

 private:
  ByteStream& stream_;
  std::vector<std::byte> bytes_;
  size_t sent_ = 0;
};

class TlsStream : public ByteStream {
 public:
  TlsStream(std::unique_ptr<ByteStream> inner, std::unique_ptr<TlsSession> session)
      : inner_(std::move(inner)),
        session_(std::move(session)),
        outbox_(*inner_),
        received_(std::max(inner_->ReadAhead(), TlsSession::kRecord)) {}

  StatusOr<size_t> Write(std::span<const iovec> parts) override {
    GYRE_ASSIGN_OR_RETURN(const bool room, outbox_.Send());
    if (!room) return size_t{0};
    size_t taken = 0;
    for (const iovec& part : parts) {
      std::span<const std::byte> bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
      bytes = bytes.first(std::min(bytes.size(), kSealed - taken));
      taken += bytes.size();
      GYRE_RETURN_IF_ERROR(Add(bytes));
      if (taken == kSealed) break;
    }
    GYRE_RETURN_IF_ERROR(SealGathered());
    session_->TakeOutput(&outbox_.bytes());
    GYRE_RETURN_IF_ERROR(outbox_.Send().status());
    return taken;
  }
  StatusOr<bool> Flush() override { return outbox_.Send(); }
  size_t Room() const override {
    if (!outbox_.empty()) return 0;
    // The last record may be a short one, and another one may tell of a new key.
    const size_t room = inner_->Room(), seals = (room / TlsSession::kRecord + 2) * kSealBytes;
    return room > seals ? room - seals : 0;
  }

  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) override {
    for (;;) {
      GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> opened, session_->Open(into));
      if (opened) return opened;
      GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> got, inner_->Read(received_));
      // A frame has its length, so an end without TLS's closing message is noticed if it cuts a frame.
      if (!got || *got == 0) return got;
      GYRE_RETURN_IF_ERROR(session_->Feed(std::span(received_).first(*got)));
    }
  }

  Status Wait(Ready direction, Deadline deadline) override { return inner_->Wait(direction, deadline); }
  void Wake() override { inner_->Wake(); }
  void Close() override { inner_->Close(); }
  // TLS has a checksum of its own, but frames are the same over every carrier between hosts.
  bool NeedsChecksum() const override { return inner_->NeedsChecksum(); }
  std::optional<Duration> RoundTrip() const override { return inner_->RoundTrip(); }
  Transport transport() const override { return inner_->transport(); }

 private:
  // Small parts share a record.
  Status Add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (gathered_ == 0 && bytes.size() >= TlsSession::kRecord) {
        const auto whole = bytes.first(bytes.size() / TlsSession::kRecord * TlsSession::kRecord);
        GYRE_RETURN_IF_ERROR(session_->Seal(whole));
        bytes = bytes.subspan(whole.size());
        continue;
      }
      const size_t n = std::min(bytes.size(), TlsSession::kRecord - gathered_);
      std::memcpy(record_.data() + gathered_, bytes.data(), n);
      gathered_ += n;
      bytes = bytes.subspan(n);
      if (gathered_ == TlsSession::kRecord) GYRE_RETURN_IF_ERROR(SealGathered());
    }
    return absl::OkStatus();
  }
  Status SealGathered() {
    if (gathered_ == 0) return absl::OkStatus();
    return session_->Seal(std::span(record_).first(std::exchange(gathered_, 0)));
  }

  const std::unique_ptr<ByteStream> inner_;
  const std::unique_ptr<TlsSession> session_;

  // Only the writer uses this.
  Outbox outbox_;
  std::array<std::byte, TlsSession::kRecord> record_;
  size_t gathered_ = 0;

  std::vector<std::byte> received_;  // the reader's
};

}  // namespace

std::unique_ptr<ByteStream> MakeTlsStream(std::unique_ptr<ByteStream> inner, std::unique_ptr<TlsSession> session) {
  return std::make_unique<TlsStream>(std::move(inner), std::move(session));
}

Status DoHandshake(ByteStream& stream, TlsSession& session, Deadline deadline, const std::function<bool()>& stopped) {
  Outbox outbox(stream);
  std::array<std::byte, 4096> received;
  for (;;) {
    const StatusOr<bool> done = session.Handshake();
    session.TakeOutput(&outbox.bytes());
    const StatusOr<bool> sent = outbox.Send();  // also the reason why the peer is refused
    GYRE_RETURN_IF_ERROR(done.status());
    GYRE_RETURN_IF_ERROR(sent.status());
    if (*done && *sent) return absl::OkStatus();
    if (*sent) {
      GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> got, stream.Read(received));
      if (got && *got == 0) return Unavailable("the peer ended the connection in its handshake of TLS");
      if (got) {
        GYRE_RETURN_IF_ERROR(session.Feed(std::span(received).first(*got)));
        continue;
      }
    }
    if (stopped && stopped()) return absl::CancelledError("the handshake was given up");
    if (Clock::now() >= deadline) return DeadlineExceeded("the handshake of TLS takes too long");
    const auto direction = *sent ? ByteStream::Ready::kRead : ByteStream::Ready::kWrite;
    const Status waited = stream.Wait(direction, std::min(deadline, After(kHandshakeTurn)));
    if (!waited.ok() && !absl::IsDeadlineExceeded(waited)) return waited;
  }
}

}  // namespace gyre
