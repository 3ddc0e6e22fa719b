#include "http_client/system_roots.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace gyre {
namespace {

constexpr std::array<const char*, 4> kRootFiles = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, Red Hat
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older ones of these
    "/etc/ssl/ca-bundle.pem",                             // SUSE
};

}  // namespace

std::string SystemRootsElsewhere(const std::function<bool(const char*)>& exists,
                                 const std::function<bool(const char*)>& set) {
  if (set(X509_get_default_cert_file_env()) || set(X509_get_default_cert_dir_env())) return {};
  if (exists(X509_get_default_cert_file()) || exists(X509_get_default_cert_dir())) return {};
  for (const char* file : kRootFiles) {
    if (exists(file)) return file;
  }
  return {};
}

void TrustSystemRoots(SSL_CTX* context) {
  SSL_CTX_set_default_verify_paths(context);
  const std::string file = SystemRootsElsewhere([](const char* path) { return ::access(path, R_OK) == 0; },
                                                [](const char* name) { return std::getenv(name) != nullptr; });
  if (!file.empty()) SSL_CTX_load_verify_file(context, file.c_str());
  ERR_clear_error();
}

}  // namespace gyre
