#include "transport/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <climits>

#include "identity/tls_context.h"

namespace gyre {
namespace {

// The most bytes (answers to KeyUpdate) that a peer can make this end owe while this end sends nothing.
constexpr size_t kMaxOwed = 64 << 10;

}  // namespace

StatusOr<std::unique_ptr<TlsSession>> TlsSession::Make(std::shared_ptr<const Identity> identity, TlsSide side,
                                                       const TlsSessionOptions& options) {
  const Identity& own = *identity;
  GYRE_ASSIGN_OR_RETURN(auto session, Make(
                                          own.context(side), side, kRingProtocol,
                                          [&own](X509* peer) { return own.Check(peer); }, options));
  session->identity_ = std::move(identity);
  return session;
}

StatusOr<std::unique_ptr<TlsSession>> TlsSession::Make(SSL_CTX* context, TlsSide side, const char* protocol,
                                                       CheckPeer check, const TlsSessionOptions& options) {
  std::unique_ptr<TlsSession> out(new TlsSession);
  MutexLock lock(&out->mutex_);
  out->options_ = options;
  out->protocol_ = protocol;
  out->check_ = std::move(check);
  out->ssl_.reset(SSL_new(context));
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const to = BIO_new(BIO_s_mem());
  if (out->ssl_ == nullptr || in == nullptr || to == nullptr) {
    BIO_free(in);
    BIO_free(to);
    return ResourceExhausted("no memory for TLS: {}", TakeOpenSslError());
  }
  // An empty buffer means that more may come.
  BIO_set_mem_eof_return(in, -1);
  BIO_set_mem_eof_return(to, -1);
  SSL_set_bio(out->ssl_.get(), in, to);
  side == TlsSide::kServer ? SSL_set_accept_state(out->ssl_.get()) : SSL_set_connect_state(out->ssl_.get());
  return out;
}

namespace {

// The library has many codes for it; with a chain of one certificate the commonest is that the chain is too long.
bool OfUnknownCa(long verified) {
  switch (verified) {
    case X509_V_ERR_CERT_CHAIN_TOO_LONG:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE: return true;
    default: return false;
  }
}

}  // namespace

Status TlsSession::Failed(int result) {
  const int error = SSL_get_error(ssl_.get(), result);
  const long verified = SSL_get_verify_result(ssl_.get());
  const bool unverified = ERR_GET_REASON(ERR_peek_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  const std::string why = TakeOpenSslError();
  if (error == SSL_ERROR_SSL && unverified && verified != X509_V_OK) {
    if (OfUnknownCa(verified)) return FailedPrecondition("{}", kOfAnotherCa);
    return FailedPrecondition("TLS: its certificate is refused: {}", X509_verify_cert_error_string(verified));
  }
  return DataLoss("TLS: {}", why);
}

StatusOr<bool> TlsSession::Handshake() {
  {
    MutexLock lock(&mutex_);
    ERR_clear_error();
    const int n = SSL_do_handshake(ssl_.get());
    if (n != 1) {
      if (SSL_get_error(ssl_.get(), n) == SSL_ERROR_WANT_READ) return false;
      return Failed(n);
    }
    key_since_ = Clock::now();
  }
  GYRE_RETURN_IF_ERROR(CheckPeerNow());
  return true;
}

Status TlsSession::CheckPeerNow() {
  X509Ptr certificate;
  {
    MutexLock lock(&mutex_);
    const unsigned char* chosen = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &chosen, &size);
    if (std::string_view(reinterpret_cast<const char*>(chosen), size) != protocol_) {
      return FailedPrecondition("TLS: it does not speak {}", protocol_);
    }
    certificate.reset(SSL_get1_peer_certificate(ssl_.get()));
  }
  if (!check_) return absl::OkStatus();
  if (certificate == nullptr) return FailedPrecondition("TLS: it has no certificate");
  GYRE_ASSIGN_OR_RETURN(peer_, check_(certificate.get()));
  peer_serial_ = SerialOf(certificate.get());
  return absl::OkStatus();
}

Status TlsSession::Feed(std::span<const std::byte> bytes) {
  MutexLock lock(&mutex_);
  while (!bytes.empty()) {
    const int n =
        BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    if (n <= 0) return ResourceExhausted("no memory for what came over TLS: {}", TakeOpenSslError());
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

StatusOr<std::optional<size_t>> TlsSession::Open(std::span<std::byte> into) {
  MutexLock lock(&mutex_);
  ERR_clear_error();
  size_t have = 0;
  while (have < into.size()) {
    size_t n = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data() + have, into.size() - have, &n);
    if (result == 1) {
      have += n;
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_WANT_READ || have > 0) break;  // an error comes again
    if (error == SSL_ERROR_ZERO_RETURN) return std::optional<size_t>(0);
    return Failed(result);
  }
  ERR_clear_error();
  if (BIO_ctrl_pending(SSL_get_wbio(ssl_.get())) > kMaxOwed) return DataLoss("TLS: it asks for new keys without end");
  return have > 0 ? std::optional<size_t>(have) : std::nullopt;
}

Status TlsSession::RenewKey() {
  if (records_ < options_.records_a_key && Clock::now() < key_since_ + options_.key_life) return absl::OkStatus();
  records_ = 0;
  key_since_ = Clock::now();
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
    return Internal("TLS: no new key: {}", TakeOpenSslError());
  ++key_updates_;
  return absl::OkStatus();
}

Status TlsSession::Seal(std::span<const std::byte> plain) {
  MutexLock lock(&mutex_);
  ERR_clear_error();
  while (!plain.empty()) {
    GYRE_RETURN_IF_ERROR(RenewKey());
    size_t n = 0;
    const int result = SSL_write_ex(ssl_.get(), plain.data(), std::min(plain.size(), kRecord), &n);
    if (result != 1) return Failed(result);
    ++records_;
    plain = plain.subspan(n);
  }
  return absl::OkStatus();
}

void TlsSession::TakeOutput(std::vector<std::byte>* out) {
  MutexLock lock(&mutex_);
  BIO* const bio = SSL_get_wbio(ssl_.get());
  const size_t pending = BIO_ctrl_pending(bio);
  const size_t before = out->size();
  out->resize(before + pending);
  if (pending > 0) BIO_read(bio, out->data() + before, static_cast<int>(pending));
}

}  // namespace gyre
