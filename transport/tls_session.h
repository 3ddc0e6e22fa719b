// The state of one TLS connection: bytes in, bytes out, and no socket. Its owner carries the bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "identity/identity.h"

namespace gyre {

struct TlsSessionOptions {
  // A sender changes its key after this many records or this time (RFC 8446, 5.5 allows 2^24.5 records for AES-GCM).
  uint64_t records_a_key = uint64_t{1} << 23;
  Duration key_life = std::chrono::hours(1);
};

// One thread seals and takes the output, and one feeds and opens, at a time. Errors are final and do not name the peer;
// none of them leaves anything in OpenSSL's queue of errors.
class TlsSession {
 public:
  static constexpr size_t kRecord = 16 << 10;  // bytes

  // Returns the owner of the peer's certificate, or why it is refused. Called once, after signature and dates are
  // checked.
  using CheckPeer = std::function<StatusOr<Principal>(X509* peer)>;

  // A session between two identities. kResourceExhausted: no memory is left.
  static StatusOr<std::unique_ptr<TlsSession>> Make(std::shared_ptr<const Identity> identity, TlsSide side,
                                                    const TlsSessionOptions& options = {});
  // `protocol` is the one of `context`. An empty `check`: the peer has no certificate.
  static StatusOr<std::unique_ptr<TlsSession>> Make(SSL_CTX* context, TlsSide side, const char* protocol,
                                                    CheckPeer check, const TlsSessionOptions& options = {});

  // Continues the handshake. True: it is done. kFailedPrecondition, kInvalidArgument: the peer is refused.
  // kDataLoss: the bytes are no handshake, or the peer refuses this end.
  StatusOr<bool> Handshake();
  // Valid after the handshake. The name is empty if the peer has no certificate.
  const Principal& peer() const { return peer_; }
  const std::string& peer_serial() const { return peer_serial_; }  // of the peer's certificate; "" where it has none

  // Takes bytes that came from the peer.
  Status Feed(std::span<const std::byte> bytes);
  // Returns plain bytes of the fed ones; nullopt: no record is complete yet; 0: the peer's end. kDataLoss.
  StatusOr<std::optional<size_t>> Open(std::span<std::byte> into);
  // Seals all bytes, in records of at most kRecord bytes. REQUIRES: not empty.
  Status Seal(std::span<const std::byte> plain);
  // Appends the bytes to be sent to `out`.
  void TakeOutput(std::vector<std::byte>* out);

  uint64_t key_updates() const { return key_updates_; }  // of this end's sending key

 private:
  TlsSession() = default;
  Status CheckPeerNow();
  Status RenewKey() GYRE_REQUIRES(mutex_);
  Status Failed(int result) GYRE_REQUIRES(mutex_);

  std::shared_ptr<const Identity> identity_;  // owns the context
  TlsSessionOptions options_;
  std::string protocol_;
  CheckPeer check_;
  Principal peer_;
  std::string peer_serial_;
  Mutex mutex_;  // OpenSSL's state is one for both directions
  SslPtr ssl_ GYRE_GUARDED_BY(mutex_);
  uint64_t records_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline key_since_ GYRE_GUARDED_BY(mutex_){};
  std::atomic<uint64_t> key_updates_{0};
};

}  // namespace gyre
