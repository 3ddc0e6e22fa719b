#include "identity/tls_context.h"

#include <cstring>
#include <string>

namespace gyre {
namespace {

// `wanted` is the server's only protocol: a client that does not name it is refused.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in, unsigned in_size,
                   void* wanted) {
  const std::string_view name(static_cast<const char*>(wanted));
  for (unsigned at = 0; at < in_size; at += 1u + in[at]) {
    const unsigned char size = in[at];
    if (at + 1u + size > in_size) break;
    if (std::string_view(reinterpret_cast<const char*>(in) + at + 1, size) != name) continue;
    *out = in + at + 1;
    *out_size = size;
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

// Verifies with the CA of the expected hash, if the peer sent it.
int VerifyByFingerprint(X509_STORE_CTX* context, void* expected) {
  const auto& fingerprint = *static_cast<const std::string*>(expected);
  STACK_OF(X509)* const sent = X509_STORE_CTX_get0_untrusted(context);
  const auto free = [](STACK_OF(X509) * stack) { sk_X509_free(stack); };
  const std::unique_ptr<STACK_OF(X509), decltype(free)> trusted(sk_X509_new_null());
  for (int i = 0; i < sk_X509_num(sent); ++i) {
    X509* const one = sk_X509_value(sent, i);
    if (SameSecret(FingerprintOf(one), fingerprint)) sk_X509_push(trusted.get(), one);
  }
  X509_STORE_CTX_set0_trusted_stack(context, trusted.get());
  const int verified = X509_verify_cert(context);
  X509_STORE_CTX_set0_trusted_stack(context, nullptr);
  return verified;
}

}  // namespace

void TrustFingerprint(SSL_CTX* context, const std::string* fingerprint) {
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_verify_depth(context, 0);
  SSL_CTX_set_cert_verify_callback(context, VerifyByFingerprint, const_cast<std::string*>(fingerprint));
}

StatusOr<SslContextPtr> MakeTlsContext(TlsSide side, const char* protocol) {
  SslContextPtr context(SSL_CTX_new(side == TlsSide::kServer ? TLS_server_method() : TLS_client_method()));
  if (context == nullptr) return Internal("no TLS: {}", TakeOpenSslError());
  SSL_CTX* const c = context.get();
  bool fine = SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1;
  fine = fine &&
         SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") == 1;
  fine = fine && SSL_CTX_set1_groups_list(c, "X25519:P-256") == 1;
  if (!fine) return Internal("no TLS 1.3: {}", TakeOpenSslError());
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_num_tickets(c, 0);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  // Idle links keep no buffers, and a write that was cut short continues with the rest.
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_max_cert_list(c, 16 << 10);
  if (side == TlsSide::kServer) {
    SSL_CTX_set_alpn_select_cb(c, ChooseProtocol, const_cast<char*>(protocol));
  } else {
    std::string names(1, static_cast<char>(std::strlen(protocol)));
    names += protocol;
    const auto* bytes = reinterpret_cast<const unsigned char*>(names.data());
    if (SSL_CTX_set_alpn_protos(c, bytes, static_cast<unsigned>(names.size())) != 0) return Internal("no ALPN");
  }
  return context;
}

Status UseCertificate(SSL_CTX* context, X509* certificate, EVP_PKEY* key) {
  if (SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1) {
    return absl::OkStatus();
  }
  return InvalidArgument("the certificate serves for no TLS: {}", TakeOpenSslError());
}

}  // namespace gyre
