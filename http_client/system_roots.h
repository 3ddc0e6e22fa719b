// The certificates of authorities that this system trusts.
#pragma once

#include <functional>
#include <string>

#include <openssl/types.h>

namespace gyre {

// The file with the system's certificates where OpenSSL's own places, which are those of the system that it was built
// on, have none: a program that has OpenSSL in itself also runs on other systems. Empty: OpenSSL's own places have
// them, or the environment (SSL_CERT_FILE, SSL_CERT_DIR) names others, or no known file is there. `exists` says whether
// a path is there, `set` whether a variable of the environment is.
std::string SystemRootsElsewhere(const std::function<bool(const char*)>& exists,
                                 const std::function<bool(const char*)>& set);

// The context trusts what the system trusts. Without such certificates it trusts none, and connections fail by name.
void TrustSystemRoots(SSL_CTX* context);

}  // namespace gyre
