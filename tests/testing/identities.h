// A CA for one test, identities by it, and certificates that no CA of ours would issue.
#pragma once

#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "base/files.h"
#include "identity/authority.h"
#include "identity/identity.h"
#include "tests/testing/certificates.h"

namespace gyre::testing {

// Ends the program if a step fails that a test or a benchmark can't do without.
inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", Message(status).c_str());
  std::abort();
}

// A key and a certificate in PEM.
struct KeyAndCertificate {
  std::string key, certificate;
};

class TestAuthority {
 public:
  explicit TestAuthority(KeyType type = KeyType::kP256, const std::string& cluster = "gyre") : type_(type) {
    Must(Authority::Init(path(), cluster, type, 3650));
  }
  std::string path() const { return folder_ / "ca"; }
  Authority Open() const {
    auto authority = Authority::Open(path());
    Must(authority.status());
    return *std::move(authority);
  }
  // A folder with a new identity.
  std::string Issue(Role role, const std::string& name, const std::string& out = "") {
    const std::string folder = folder_ / (out.empty() ? std::string(RoleName(role)) + "-" + name : out);
    Must(Open().Issue({.role = role, .name = name, .days = 100}, type_, folder));
    return folder;
  }
  std::shared_ptr<IdentityFolder> IssueOpen(Role role, const std::string& name) {
    auto identity = IdentityFolder::Open(Issue(role, name));
    Must(identity.status());
    return *std::move(identity);
  }
  // A certificate with the CA's key, but of the caller's choice: any URI, valid from and to these seconds after now.
  KeyAndCertificate Forge(const std::string& names, long from = -3600, long to = 3600) const {
    const KeyPtr ca_key = *ReadPrivateKey(*ReadSmallFile(path() + "/ca-key.pem"));
    const auto ca = *ReadCertificates(*ReadSmallFile(path() + "/ca.pem"));
    const KeyPtr key = *MakeKey(type_);
    const X509Ptr certificate(X509_new());
    X509* const c = certificate.get();
    X509_set_version(c, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(c), 77);
    X509_gmtime_adj(X509_getm_notBefore(c), from);
    X509_gmtime_adj(X509_getm_notAfter(c), to);
    X509_set_pubkey(c, key.get());
    X509_set_issuer_name(c, X509_get_subject_name(ca.front().get()));
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, ca.front().get(), c, nullptr, nullptr, 0);
    if (!names.empty()) {
      X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, names.c_str());
      if (extension == nullptr) Must(InvalidArgument("{}", names));
      X509_add_ext(c, extension, -1);
      X509_EXTENSION_free(extension);
    }
    X509_sign(c, ca_key.get(), type_ == KeyType::kEd25519 ? nullptr : EVP_sha256());
    return {ToPem(key.get()), ToPem(c)};
  }
  // The files of an identity with this key and certificate, for Identity::Make.
  Identity::Files FilesOf(const KeyAndCertificate& own) const {
    return {.identity = own.key + own.certificate, .authorities = *ReadSmallFile(path() + "/ca.pem"), .revoked = {}};
  }

 private:
  const KeyType type_;
  Folder folder_;
};

}  // namespace gyre::testing
