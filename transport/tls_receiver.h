// The accepting end of TLS on a fresh, non-blocking socket, for peers that are not trusted yet.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "transport/tls_session.h"

namespace gyre {

class TlsReceiver {
 public:
  // At most `limit` bytes are read before the peer's request is complete.
  TlsReceiver(std::unique_ptr<TlsSession> session, size_t limit) : session_(std::move(session)), limit_(limit) {}

  // Continues the handshake, then reads: returns the number of bytes; nullopt: none are there now. kUnavailable: it
  // ended; kResourceExhausted: the limit; the errors of TlsSession.
  StatusOr<std::optional<size_t>> Receive(int socket, std::span<std::byte> into);
  bool shaken() const { return shaken_; }  // the handshake is done
  TlsSession& session() { return *session_; }
  std::unique_ptr<TlsSession> TakeSession() { return std::move(session_); }

 private:
  std::unique_ptr<TlsSession> session_;
  const size_t limit_;
  size_t received_ = 0;
  bool shaken_ = false;
};

}  // namespace gyre
