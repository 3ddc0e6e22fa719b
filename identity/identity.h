// One identity: a private key, the certificate for it, the CAs that it trusts and the certificates that they revoked.
// As a folder (docs/security.md), loaded and checked as a whole, and looked at again while the process runs.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "identity/openssl.h"
#include "identity/principal.h"

namespace gyre {

// The files of an identity's folder.
inline constexpr char kIdentityFile[] = "identity.pem";
inline constexpr char kAuthoritiesFile[] = "ca.pem";
inline constexpr char kRevokedFile[] = "crl.pem";

enum class TlsSide : uint8_t { kClient, kServer };

// Returns the owner that a certificate names. kInvalidArgument: the certificate does not have exactly one name, a URI
// of ours.
StatusOr<Principal> PrincipalOf(X509* certificate);

// The owner that an identity's folder is for, without a check of the rest. kNotFound: there is no identity in it.
// kInvalidArgument: it is damaged.
StatusOr<Principal> OwnerOf(const std::string& folder);

// Immutable, so any thread may use it.
class Identity {
 public:
  struct Files {
    std::string identity;              // key and certificate, PEM
    std::string authorities;           // PEM
    std::vector<std::string> revoked;  // lists in PEM, of which the newest of each CA counts
  };
  // kInvalidArgument: something is damaged or does not belong together; `where` is for the message.
  static StatusOr<std::shared_ptr<const Identity>> Make(const Files& files, const std::string& where);

  const Principal& self() const { return self_; }
  int64_t begins() const { return begins_; }                     // seconds since 1970, as ends()
  int64_t ends() const { return ends_; }                         // seconds since 1970
  const Files& files() const { return files_; }                  // as they were read
  const std::string& authority() const { return fingerprint_; }  // SHA-256 of the first CA's certificate
  // The newest list of each CA, in PEM; "" = none.
  const std::string& revoked_pem() const { return lists_; }
  size_t revocations() const { return revoked_.size(); }  // certificates
  bool IsRevoked(const std::string& serial) const { return revoked_.count(serial) > 0; }

  // Returns the owner of the certificate. The handshake checks its signature and purpose. kFailedPrecondition: it is
  // revoked, of another cluster, or has ended; kInvalidArgument: it is no certificate of ours.
  StatusOr<Principal> Check(X509* peer) const;

  // Returns the same identity with these lists added. Its own certificate is not checked, so that revocations are known
  // whatever else is wrong. kInvalidArgument: a list is damaged, or no CA of this identity signed it.
  StatusOr<std::shared_ptr<const Identity>> WithRevoked(const std::vector<std::string>& lists,
                                                        const std::string& where) const;

  // For connections between members: TLS 1.3, certificates of both ends, no session is resumed. Owned by the identity.
  SSL_CTX* context(TlsSide side) const { return side == TlsSide::kServer ? server_.get() : client_.get(); }

 private:
  Identity() = default;
  Status ReadRevoked(const std::vector<std::string>& lists, const std::string& where);
  Status MakeContexts(X509* certificate, EVP_PKEY* key);

  // The newest list of a CA.
  struct List {
    std::shared_ptr<X509_CRL> crl;
    uint64_t number = 0;
    std::string pem;
  };

  Files files_;
  Principal self_;
  int64_t begins_ = 0, ends_ = 0;
  std::string fingerprint_;
  std::vector<std::shared_ptr<X509>> authorities_;
  std::map<std::string, List> newest_;  // by the CA's fingerprint
  std::set<std::string> revoked_;       // serials
  std::string lists_;
  std::shared_ptr<SSL_CTX> client_, server_;
};

// An identity that is read again when its files change. Thread-safe.
class IdentityFolder {
 public:
  // `revoked`: a further list, as the CA's own; may be missing. kNotFound: a file can't be read. kInvalidArgument.
  static StatusOr<std::shared_ptr<IdentityFolder>> Open(const std::string& folder, const std::string& revoked = "");

  std::shared_ptr<const Identity> current() const {
    MutexLock lock(&mutex_);
    return current_;
  }
  const std::string& folder() const { return folder_; }
  // Reads files again that have changed, or all of them if `now`. An error leaves the identity as it was and is logged,
  // but lists of revoked certificates count in any case. Returns true if the identity has changed. Warns daily of a
  // certificate with less than a third of its life left.
  bool Refresh(bool now = false);
  // Takes lists of revoked certificates from the coordinator: keeps them and writes them to the folder, if a CA of this
  // identity signed them and they are newer. An error changes nothing.
  Status TakeRevoked(const std::string& pem);

 private:
  IdentityFolder(std::string folder, std::string revoked)
      : folder_(std::move(folder)), revoked_path_(std::move(revoked)) {}
  StatusOr<Identity::Files> Read() const;
  StatusOr<std::vector<std::string>> ReadLists() const;
  StatusOr<std::shared_ptr<const Identity>> ReadAgain(const Identity& before) const;
  std::string Stamp() const;  // changes with the files

  const std::string folder_, revoked_path_;
  Mutex refreshing_;  // one reader of the files at a time
  void WarnOfEnd(const Identity& identity) GYRE_REQUIRES(refreshing_);
  std::string stamp_ GYRE_GUARDED_BY(refreshing_);
  Deadline next_warning_ GYRE_GUARDED_BY(refreshing_) = Deadline::min();
  mutable Mutex mutex_;
  std::shared_ptr<const Identity> current_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
