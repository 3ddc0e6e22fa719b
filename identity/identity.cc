#include "identity/identity.h"

#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>

#include "base/counted.h"
#include "base/files.h"
#include "base/log.h"
#include "identity/tls_context.h"

namespace gyre {
namespace {

constexpr int64_t kDay = 86400;

uint64_t NumberOf(const X509_CRL* crl) {
  const OpenSslOwner<ASN1_INTEGER, ASN1_INTEGER_free> number(
      static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(crl, NID_crl_number, nullptr, nullptr)));
  uint64_t out = 0;
  return number != nullptr && ASN1_INTEGER_get_uint64(&out, number.get()) == 1 ? out : 0;
}

// The certificate of the CA that signed the list, or null.
X509* SignerOf(X509_CRL* crl, const std::vector<std::shared_ptr<X509>>& authorities) {
  for (const auto& authority : authorities) {
    if (X509_NAME_cmp(X509_CRL_get_issuer(crl), X509_get_subject_name(authority.get())) != 0) continue;
    if (X509_CRL_verify(crl, X509_get0_pubkey(authority.get())) == 1) return authority.get();
  }
  TakeOpenSslError();
  return nullptr;
}

// Checks that one of the CAs signed the certificate and that it is valid for TLS now.
Status CheckIssued(X509* certificate, const std::vector<std::shared_ptr<X509>>& authorities) {
  const X509StorePtr store(X509_STORE_new());
  for (const auto& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  const OpenSslOwner<X509_STORE_CTX, X509_STORE_CTX_free> context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr) != 1) {
    return Internal("a certificate can't be checked: {}", TakeOpenSslError());
  }
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  TakeOpenSslError();
  return InvalidArgument("{}", X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
}

}  // namespace

StatusOr<Principal> PrincipalOf(X509* certificate) {
  const auto free = [](GENERAL_NAMES* names) { GENERAL_NAMES_free(names); };
  const std::unique_ptr<GENERAL_NAMES, decltype(free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)), free);
  const Status wrong = InvalidArgument("its certificate has no name of the form gyre://CLUSTER/ROLE/NAME, or several");
  if (names == nullptr || sk_GENERAL_NAME_num(names.get()) != 1) return wrong;
  const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), 0);
  if (name->type != GEN_URI) return wrong;
  const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
  const StatusOr<Principal> out = ParsePrincipal(
      {reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)), static_cast<size_t>(ASN1_STRING_length(uri))});
  return out.ok() ? out : wrong;
}

StatusOr<Principal> OwnerOf(const std::string& folder) {
  GYRE_ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(PathIn(folder, kIdentityFile)));
  const size_t certificate = pem.find("-----BEGIN CERTIFICATE-----");
  if (certificate == std::string::npos) return InvalidArgument("{} has no certificate", folder);
  GYRE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ReadCertificates(std::string_view(pem).substr(certificate)));
  return PrincipalOf(chain[0].get());
}

StatusOr<std::shared_ptr<const Identity>> Identity::Make(const Files& files, const std::string& where) {
  std::shared_ptr<Identity> out(new Identity);
  out->files_ = files;
  auto authorities = ReadCertificates(files.authorities);
  if (!authorities.ok()) return Annotate(authorities.status(), PathIn(where, kAuthoritiesFile));
  for (X509Ptr& authority : *authorities) out->authorities_.emplace_back(std::move(authority));
  out->fingerprint_ = FingerprintOf(out->authorities_.front().get());
  const std::string file = PathIn(where, kIdentityFile);
  const auto certificates = ReadCertificates(files.identity);
  if (!certificates.ok()) return Annotate(certificates.status(), file);
  X509* const own = certificates->front().get();
  const StatusOr<KeyPtr> key = ReadPrivateKey(files.identity);
  if (!key.ok()) return Annotate(key.status(), file);
  if (X509_check_private_key(own, key->get()) != 1) {
    return InvalidArgument("{}: its private key does not belong to its certificate", file);
  }
  const Status issued = CheckIssued(own, out->authorities_);
  if (!issued.ok()) return Annotate(issued, fmt::format("{}: the certificate, by {}", file, kAuthoritiesFile));
  StatusOr<Principal> self = PrincipalOf(own);
  if (!self.ok()) return Annotate(self.status(), file);
  out->self_ = *std::move(self);
  GYRE_ASSIGN_OR_RETURN(out->begins_, SecondsOf(X509_get0_notBefore(own)));
  GYRE_ASSIGN_OR_RETURN(out->ends_, SecondsOf(X509_get0_notAfter(own)));
  GYRE_RETURN_IF_ERROR(out->ReadRevoked(files.revoked, where));
  if (out->revoked_.count(SerialOf(own)) > 0) return InvalidArgument("{}: the certificate was revoked", file);
  GYRE_RETURN_IF_ERROR(out->MakeContexts(own, key->get()));
  return std::shared_ptr<const Identity>(std::move(out));
}

Status Identity::ReadRevoked(const std::vector<std::string>& lists, const std::string& where) {
  for (const std::string& pem : lists) {
    StatusOr<std::vector<X509CrlPtr>> crls = ReadCrls(pem);
    if (!crls.ok()) return Annotate(crls.status(), PathIn(where, kRevokedFile));
    for (X509CrlPtr& crl : *crls) {
      X509* const signer = SignerOf(crl.get(), authorities_);
      if (signer == nullptr) {
        return InvalidArgument("{}: signed by no CA of {}", PathIn(where, kRevokedFile), kAuthoritiesFile);
      }
      const uint64_t number = NumberOf(crl.get());
      List& list = newest_[FingerprintOf(signer)];
      if (list.crl != nullptr && number <= list.number) continue;
      list.pem = ToPem(crl.get());
      list.number = number;
      list.crl = std::move(crl);
    }
  }
  revoked_.clear();
  lists_.clear();
  for (const auto& [signer, list] : newest_) {
    lists_ += list.pem;
    STACK_OF(X509_REVOKED)* const entries = X509_CRL_get_REVOKED(list.crl.get());
    for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
      revoked_.insert(SerialText(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const Identity>> Identity::WithRevoked(const std::vector<std::string>& lists,
                                                                const std::string& where) const {
  std::shared_ptr<Identity> out(new Identity(*this));
  GYRE_RETURN_IF_ERROR(out->ReadRevoked(lists, where));
  out->files_.revoked.clear();
  if (!out->lists_.empty()) out->files_.revoked.push_back(out->lists_);
  return std::shared_ptr<const Identity>(std::move(out));
}

Status Identity::MakeContexts(X509* certificate, EVP_PKEY* key) {
  for (std::shared_ptr<SSL_CTX>* out : {&client_, &server_}) {
    const TlsSide side = out == &client_ ? TlsSide::kClient : TlsSide::kServer;
    GYRE_ASSIGN_OR_RETURN(SslContextPtr context, MakeTlsContext(side, kRingProtocol));
    GYRE_RETURN_IF_ERROR(UseCertificate(context.get(), certificate, key));
    for (const auto& authority : authorities_) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
    }
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_verify_depth(context.get(), 0);
    *out = std::move(context);
  }
  return absl::OkStatus();
}

StatusOr<Principal> Identity::Check(X509* peer) const {
  GYRE_ASSIGN_OR_RETURN(Principal principal, PrincipalOf(peer));
  if (principal.cluster != self_.cluster) {
    return FailedPrecondition("its certificate is for the cluster {}, expected {}", principal.cluster, self_.cluster);
  }
  if (revoked_.count(SerialOf(peer)) > 0)
    return FailedPrecondition("the certificate of {} was revoked", Describe(principal));
  // A connection may outlive the certificate that opened it.
  if (X509_cmp_current_time(X509_get0_notAfter(peer)) <= 0) {
    return FailedPrecondition("the certificate of {} has ended", Describe(principal));
  }
  return principal;
}

StatusOr<Identity::Files> IdentityFolder::Read() const {
  Identity::Files files;
  GYRE_ASSIGN_OR_RETURN(files.identity, ReadSmallFile(PathIn(folder_, kIdentityFile)));
  GYRE_ASSIGN_OR_RETURN(files.authorities, ReadSmallFile(PathIn(folder_, kAuthoritiesFile)));
  GYRE_ASSIGN_OR_RETURN(files.revoked, ReadLists());
  return files;
}

StatusOr<std::vector<std::string>> IdentityFolder::ReadLists() const {
  std::vector<std::string> out;
  for (const std::string& path : {PathIn(folder_, kRevokedFile), revoked_path_}) {
    if (path.empty()) continue;
    StatusOr<std::string> list = ReadSmallFile(path);
    if (list.ok()) {
      if (const auto crls = ReadCrls(*list); !crls.ok()) return Annotate(crls.status(), path);
      out.push_back(*std::move(list));
    } else if (!absl::IsNotFound(list.status()) || std::filesystem::exists(path)) {
      return list.status();  // a list that is there and can't be read must not be taken for none
    }
  }
  return out;
}

std::string IdentityFolder::Stamp() const {
  std::string out;
  for (const char* name : {kIdentityFile, kAuthoritiesFile, kRevokedFile}) out += FileStamp(PathIn(folder_, name));
  if (!revoked_path_.empty()) out += FileStamp(revoked_path_);
  return out;
}

StatusOr<std::shared_ptr<IdentityFolder>> IdentityFolder::Open(const std::string& folder, const std::string& revoked) {
  std::shared_ptr<IdentityFolder> out(new IdentityFolder(folder, revoked));
  MutexLock refreshing(&out->refreshing_);
  out->stamp_ = out->Stamp();
  GYRE_ASSIGN_OR_RETURN(const Identity::Files files, out->Read());
  GYRE_ASSIGN_OR_RETURN(auto identity, Identity::Make(files, folder));
  GYRE_RETURN_IF_ERROR(CheckPrivate(PathIn(folder, kIdentityFile), "the private key"));
  out->WarnOfEnd(*identity);
  MutexLock lock(&out->mutex_);
  out->current_ = std::move(identity);
  return out;
}

bool IdentityFolder::Refresh(bool now) {
  MutexLock refreshing(&refreshing_);
  const std::shared_ptr<const Identity> before = current();
  WarnOfEnd(*before);
  // The stamp is taken first, so that a file that changes meanwhile is read again the next time.
  std::string stamp = Stamp();
  if (!now && stamp == stamp_) return false;
  stamp_ = std::move(stamp);
  StatusOr<std::shared_ptr<const Identity>> identity = ReadAgain(*before);
  if (!identity.ok()) {
    Log(LogLevel::kError, "the identity was not read again, it stays as it was: {}", Message(identity.status()));
    // The lists of revoked certificates count even if another file of the folder is wrong.
    const StatusOr<std::vector<std::string>> lists = ReadLists();
    if (!lists.ok()) return false;
    identity = before->WithRevoked(*lists, folder_);
    if (!identity.ok() || (*identity)->revoked_pem() == before->revoked_pem()) return false;
  }
  Log(LogLevel::kInfo, "the identity of {} was read again", Describe(before->self()));
  MutexLock lock(&mutex_);
  current_ = *std::move(identity);
  return true;
}

StatusOr<std::shared_ptr<const Identity>> IdentityFolder::ReadAgain(const Identity& before) const {
  GYRE_ASSIGN_OR_RETURN(const Identity::Files files, Read());
  GYRE_ASSIGN_OR_RETURN(auto identity, Identity::Make(files, folder_));
  if (identity->self() == before.self()) return identity;
  return FailedPrecondition("{} is the identity of {} now, it was that of {}", folder_, Describe(identity->self()),
                            Describe(before.self()));
}

Status IdentityFolder::TakeRevoked(const std::string& pem) {
  MutexLock refreshing(&refreshing_);
  const std::shared_ptr<const Identity> before = current();
  GYRE_ASSIGN_OR_RETURN(auto identity, before->WithRevoked({pem}, "from the coordinator"));
  if (identity->revoked_pem() == before->revoked_pem()) return absl::OkStatus();
  const std::string lists = identity->revoked_pem();
  {
    MutexLock lock(&mutex_);
    current_ = std::move(identity);
  }
  GYRE_RETURN_IF_ERROR(ReplaceFile(PathIn(folder_, kRevokedFile), lists, 0644));
  stamp_ = Stamp();
  return absl::OkStatus();
}

void IdentityFolder::WarnOfEnd(const Identity& identity) {
  const int64_t left = identity.ends() - static_cast<int64_t>(std::time(nullptr));
  if (left > (identity.ends() - identity.begins()) / 3 || Clock::now() < next_warning_) return;
  next_warning_ = After(std::chrono::hours(24));
  Log(LogLevel::kWarn, "{}: the certificate of {} {}", folder_, Describe(identity.self()),
      left > 0 ? fmt::format("ends in {}", Counted(static_cast<uint64_t>(left / kDay), "day"))
               : "has ended: no new connection is possible");
}

}  // namespace gyre
