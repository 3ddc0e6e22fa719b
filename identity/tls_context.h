// Contexts of OpenSSL for connections between processes of Gyre.
#pragma once

#include <string>

#include "identity/identity.h"
#include "identity/openssl.h"

namespace gyre {

// The protocols that are spoken inside TLS (ALPN), so that a connection for one purpose can't be led to another port.
inline constexpr char kRingProtocol[] = "gyre-ring/1";
inline constexpr char kJoinProtocol[] = "gyre-join/1";

// Why a peer is refused whose CA is not that of this side.
inline constexpr char kOfAnotherCa[] =
    "its certificate is by another CA than that of this side's --identity or --token";

// TLS 1.3, AES-128-GCM first, no tickets, no resumption. It trusts nobody yet. kInternal.
StatusOr<SslContextPtr> MakeTlsContext(TlsSide side, const char* protocol);
// A client's context that trusts the one CA with this SHA-256, which the server sends with its own certificate. The
// text outlives the context.
void TrustFingerprint(SSL_CTX* context, const std::string* fingerprint);
Status UseCertificate(SSL_CTX* context, X509* certificate, EVP_PKEY* key);

}  // namespace gyre
