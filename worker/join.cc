#include "worker/join.h"

#include <algorithm>
#include <array>
#include <vector>

#include "identity/join_message.h"
#include "identity/tls_context.h"
#include "model/quoted.h"
#include "transport/tcp_link.h"
#include "transport/tls_stream.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr auto kJoinTurn = milliseconds(100);

// Waits in turns, so that a stop is noticed.
Status WaitFor(ByteStream& stream, ByteStream::Ready direction, Deadline deadline,
               const std::function<bool()>& stopped) {
  if (stopped && stopped()) return absl::CancelledError("stopped");
  if (Clock::now() >= deadline) return DeadlineExceeded("the coordinator does not answer");
  const Status waited = stream.Wait(direction, std::min(deadline, After(kJoinTurn)));
  return absl::IsDeadlineExceeded(waited) ? absl::OkStatus() : waited;
}

Status SendAll(ByteStream& stream, std::span<const std::byte> bytes, Deadline deadline,
               const std::function<bool()>& stopped) {
  for (;;) {
    if (!bytes.empty()) {
      const iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
      GYRE_ASSIGN_OR_RETURN(const size_t n, stream.Write({&part, 1}));
      bytes = bytes.subspan(n);
      if (n > 0) continue;
    } else {
      GYRE_ASSIGN_OR_RETURN(const bool flushed, stream.Flush());
      if (flushed) return absl::OkStatus();
    }
    GYRE_RETURN_IF_ERROR(WaitFor(stream, ByteStream::Ready::kWrite, deadline, stopped));
  }
}

StatusOr<std::vector<std::byte>> ReceiveMessage(ByteStream& stream, Deadline deadline,
                                                const std::function<bool()>& stopped) {
  std::vector<std::byte> message;
  std::array<std::byte, 16384> bytes;
  for (;;) {
    size_t need = kJoinLengthBytes;
    if (message.size() >= need) {
      GYRE_ASSIGN_OR_RETURN(const size_t length, JoinLength(message, kMaxJoinReply));
      need += length;
      if (message.size() == need) return std::vector<std::byte>(message.begin() + kJoinLengthBytes, message.end());
    }
    GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> n,
                          stream.Read(std::span(bytes).first(std::min(bytes.size(), need - message.size()))));
    if (n && *n == 0) return Unavailable("the coordinator ended the connection");
    if (n) {
      message.insert(message.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*n));
    } else {
      GYRE_RETURN_IF_ERROR(WaitFor(stream, ByteStream::Ready::kRead, deadline, stopped));
    }
  }
}

StatusOr<Principal> CheckCoordinator(X509* peer) {
  GYRE_ASSIGN_OR_RETURN(Principal principal, PrincipalOf(peer));
  if (principal.role == Role::kCoordinator) return principal;
  return FailedPrecondition("there is {}, expected a coordinator", Describe(principal));
}

StatusOr<JoinReply> Ask(const std::string& address, const JoinToken& token, const JoinRequest& request,
                        Deadline deadline, const std::function<bool()>& stopped) {
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(address, deadline, stopped));
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, MakeTcpStream(Fd(fd)));
  GYRE_RETURN_IF_ERROR(SendAll(*stream, std::as_bytes(std::span(kJoinPreface)), deadline, stopped));
  GYRE_ASSIGN_OR_RETURN(const SslContextPtr context, MakeTlsContext(TlsSide::kClient, kJoinProtocol));
  TrustFingerprint(context.get(), &token.fingerprint);
  GYRE_ASSIGN_OR_RETURN(auto session,
                        TlsSession::Make(context.get(), TlsSide::kClient, kJoinProtocol, CheckCoordinator));
  GYRE_RETURN_IF_ERROR(DoHandshake(*stream, *session, deadline, stopped));
  stream = MakeTlsStream(std::move(stream), std::move(session));
  GYRE_RETURN_IF_ERROR(SendAll(*stream, EncodeJoinRequest(request), deadline, stopped));
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::byte> message, ReceiveMessage(*stream, deadline, stopped));
  return DecodeJoinReply(message);
}

}  // namespace

StatusOr<Identity::Files> JoinWithToken(const std::string& address, const JoinToken& token, const std::string& name,
                                        Deadline deadline, const std::function<bool()>& stopped) {
  GYRE_RETURN_IF_ERROR(CheckPrincipalName(name));
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, MakeKey(KeyType::kP256));
  JoinRequest request{.id = token.id, .secret = token.secret, .name = name, .request = ""};
  GYRE_ASSIGN_OR_RETURN(request.request, MakeCertificateRequest(key.get()));
  StatusOr<JoinReply> reply = Ask(address, token, request, deadline, stopped);
  if (!reply.ok()) return Annotate(reply.status(), address);
  if (!reply->refusal.empty()) {
    return FailedPrecondition("the coordinator at {} refuses this worker: {}", address,
                              PrintableSentence(reply->refusal));
  }
  Identity::Files files = std::move(reply->files);
  files.identity = ToPem(key.get()) + files.identity;
  const auto identity = Identity::Make(files, address);
  if (!identity.ok()) return Annotate(identity.status(), "what the coordinator gave is no identity");
  const Principal& self = (*identity)->self();
  if (self.role != Role::kWorker || self.name != name || (*identity)->authority() != token.fingerprint) {
    return FailedPrecondition("{}: the coordinator gave an identity of {}, expected worker {} of the token's CA",
                              address, Describe(self), name);
  }
  return files;
}

}  // namespace gyre
