// The CA of a cluster, as a folder (docs/security.md): it issues identities, revokes them, and signs the requests of
// those who join with a token.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "identity/identity.h"
#include "identity/openssl.h"
#include "identity/principal.h"

namespace gyre {

enum class KeyType : uint8_t { kP256, kEd25519 };

StatusOr<KeyType> ParseKeyType(const std::string& name);  // "p256", "ed25519"; kInvalidArgument
StatusOr<KeyPtr> MakeKey(KeyType type);

struct CertificateTerms {
  Role role = Role::kWorker;
  std::string name;
  int days = 365;
  bool renew = false;  // the name may have a valid certificate already
};

// Any thread may call it; several processes take turns on one folder.
class Authority {
 public:
  // Makes a new folder. kFailedPrecondition: there is a CA in it.
  static Status Init(const std::string& folder, const std::string& cluster, KeyType type, int days);
  // kNotFound, kInvalidArgument.
  static StatusOr<Authority> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const std::string& cluster() const { return cluster_; }
  std::string fingerprint() const { return FingerprintOf(certificate_.get()); }
  std::string certificate_pem() const { return ToPem(certificate_.get()); }
  // kNotFound: no certificate was revoked yet.
  StatusOr<std::string> RevokedPem() const;
  std::string RevokedPath() const;

  // Issues a certificate for the owner of `key`. kFailedPrecondition: the name has a valid one. kInvalidArgument: the
  // name.
  StatusOr<X509Ptr> Sign(EVP_PKEY* key, const CertificateTerms& terms);
  // Like Sign, but calls `first` once the name is known to be free; its error ends the call, and nothing is issued.
  template <typename First>
  StatusOr<X509Ptr> Sign(EVP_PKEY* key, const CertificateTerms& terms, const First& first) {
    GYRE_ASSIGN_OR_RETURN(const Lock lock, TakeLock());
    GYRE_RETURN_IF_ERROR(CheckFree(terms));
    GYRE_RETURN_IF_ERROR(first());
    return SignLocked(key, terms);
  }
  // Writes a new key and its certificate as an identity's folder. kFailedPrecondition: one is there, and no renewal.
  Status Issue(const CertificateTerms& terms, KeyType type, const std::string& out);
  // Revokes all valid certificates of a name, of one role or of all; returns their number. kNotFound: there is none.
  StatusOr<int> Revoke(const std::string& name, std::optional<Role> role);

 private:
  // A lock between processes.
  class Lock {
   public:
    explicit Lock(int fd) : fd_(fd) {}
    Lock(Lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Lock& operator=(Lock&&) = delete;
    ~Lock();

   private:
    int fd_;
  };
  struct Issued {
    std::string serial, name;
    Role role;
    int64_t ends;
  };

  Authority() = default;
  std::string In(const char* name) const;
  StatusOr<Lock> TakeLock() const;
  // Those that are valid. `revoked` (may be null) gets the serials of all that were revoked.
  StatusOr<std::vector<Issued>> ReadIssued(std::set<std::string>* revoked = nullptr) const;
  Status RestoreRevoked() const;
  Status Note(const std::string& line) const;
  Status CheckFree(const CertificateTerms& terms) const;
  StatusOr<X509Ptr> SignLocked(EVP_PKEY* key, const CertificateTerms& terms);
  StatusOr<X509CrlPtr> MakeRevoked(const std::vector<std::string>& more) const;

  std::string folder_, cluster_;
  X509Ptr certificate_;
  KeyPtr key_;
};

// The files of a new identity. kFailedPrecondition: the folder has one and `replace` is false.
Status WriteIdentity(const std::string& folder, const Identity::Files& files, bool replace);

// A certificate request (PKCS #10, DER) of a key; it says nothing of the name.
StatusOr<std::string> MakeCertificateRequest(EVP_PKEY* key);
// The public key of a request that its owner signed. kInvalidArgument: it is none, or of a kind of key that is not
// issued.
StatusOr<KeyPtr> CheckCertificateRequest(const std::string& der);

}  // namespace gyre
