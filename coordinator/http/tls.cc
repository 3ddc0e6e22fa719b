#include "coordinator/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/files.h"

namespace gyre::http {
namespace {

std::string LastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "it is not what was expected";
}

Status CheckReadable(const std::string& path) {
  if (::access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return NotFound("{}: {}", path, std::strerror(errno));
}

// Chooses http/1.1 if the client lists it; a client that lists only others is refused.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in, unsigned in_size,
                   void*) {
  static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof kOurs, in, in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

// OpenSSL must not ask a terminal for a passphrase, as that would stop the server.
int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

StatusOr<std::shared_ptr<boost::asio::ssl::context>> LoadTls(const std::string& cert, const std::string& key) {
  GYRE_RETURN_IF_ERROR(CheckReadable(cert));
  GYRE_RETURN_IF_ERROR(CheckReadable(key));
  GYRE_RETURN_IF_ERROR(CheckPrivate(key, "the private key"));
  auto context = std::make_shared<boost::asio::ssl::context>(boost::asio::ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(native, ChooseProtocol, nullptr);
  SSL_CTX_set_default_passwd_cb(native, NoPassphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(native, cert.c_str()) != 1) {
    return InvalidArgument("{}: no certificate chain in PEM: {}", cert, LastError());
  }
  if (SSL_CTX_use_PrivateKey_file(native, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return InvalidArgument("{}: expected the private key of {} in PEM, without a passphrase: {}", key, cert,
                           LastError());
  }
  return context;
}

}  // namespace gyre::http
