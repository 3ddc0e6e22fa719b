#include "transport/tls_receiver.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <vector>

#include "transport/local_socket.h"

namespace gyre {

StatusOr<std::optional<size_t>> TlsReceiver::Receive(int socket, std::span<std::byte> into) {
  for (;;) {
    if (!shaken_) {
      const StatusOr<bool> done = session_->Handshake();
      // A handshake's bytes fit into the socket, also those that refuse the peer.
      std::vector<std::byte> answer;
      session_->TakeOutput(&answer);
      if (!answer.empty()) GYRE_RETURN_IF_ERROR(SendWithFds(socket, answer, {}));
      GYRE_RETURN_IF_ERROR(done.status());
      shaken_ = *done;
    }
    if (shaken_) {
      GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> n, session_->Open(into));
      if (n && *n == 0) return Unavailable("it ended before it had said what it wants");
      if (n) return n;
    }
    std::array<std::byte, 4096> sealed;
    const ssize_t n = ::recv(socket, sealed.data(), sealed.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::optional<size_t>();
    if (n <= 0) return Unavailable("it ended before it had said what it wants");
    received_ += static_cast<size_t>(n);
    if (received_ > limit_)
      return ResourceExhausted("it sends more than {} bytes before it says what it wants", limit_);
    GYRE_RETURN_IF_ERROR(session_->Feed(std::span(sealed).first(static_cast<size_t>(n))));
  }
}

}  // namespace gyre
