#include "identity/authority.h"

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>

#include "base/files.h"
#include "base/log.h"
#include "base/unix_time.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr char kAuthorityFile[] = "ca.pem";
constexpr char kAuthorityKeyFile[] = "ca-key.pem";
constexpr char kIssuedFile[] = "issued.jsonl";
constexpr char kLockFile[] = ".lock";
constexpr long kHour = 3600, kListDays = 3650;
constexpr int kMaxDays = 36500;
constexpr size_t kMaxRequest = 4096;

Status OpenSslFailed(const char* what) { return Internal("{}: {}", what, TakeOpenSslError()); }

const EVP_MD* DigestFor(EVP_PKEY* key) {
  return EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
}

Status SetSerial(X509* certificate) {
  GYRE_ASSIGN_OR_RETURN(std::string bytes, RandomBytes(16));
  bytes[0] = static_cast<char>((bytes[0] & 0x7f) | 0x40);  // positive, and always 16 bytes
  const OpenSslOwner<BIGNUM, BN_free> number(
      BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()), 16, nullptr));
  if (number == nullptr || BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return OpenSslFailed("a serial number");
  }
  return absl::OkStatus();
}

Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const OpenSslOwner<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) return OpenSslFailed(value.c_str());
  return absl::OkStatus();
}

Status AddName(X509_NAME* name, const char* field, const std::string& value) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(value.data());
  if (X509_NAME_add_entry_by_txt(name, field, MBSTRING_ASC, bytes, static_cast<int>(value.size()), -1, 0) == 1) {
    return absl::OkStatus();
  }
  return OpenSslFailed("a name");
}

// Returns a certificate without extensions and signature.
StatusOr<X509Ptr> BeginCertificate(EVP_PKEY* key, int days) {
  if (days < 1 || days > kMaxDays) return InvalidArgument("{} days, expected 1 to {}", days, kMaxDays);
  X509Ptr certificate(X509_new());
  X509* const c = certificate.get();
  if (c == nullptr || X509_set_version(c, X509_VERSION_3) != 1 || X509_set_pubkey(c, key) != 1) {
    return OpenSslFailed("a certificate");
  }
  GYRE_RETURN_IF_ERROR(SetSerial(c));
  const time_t now = std::time(nullptr);
  if (X509_time_adj_ex(X509_getm_notBefore(c), 0, -kHour, const_cast<time_t*>(&now)) == nullptr ||
      X509_time_adj_ex(X509_getm_notAfter(c), days, 0, const_cast<time_t*>(&now)) == nullptr) {
    return OpenSslFailed("a certificate's time");
  }
  return certificate;
}

}  // namespace

StatusOr<KeyType> ParseKeyType(const std::string& name) {
  if (name == "p256") return KeyType::kP256;
  if (name == "ed25519") return KeyType::kEd25519;
  return InvalidArgument("'{}': expected p256 or ed25519", name);
}

StatusOr<KeyPtr> MakeKey(KeyType type) {
  KeyPtr key(type == KeyType::kEd25519 ? EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519") : EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslFailed("a private key");
  return key;
}

Authority::Lock::~Lock() {
  if (fd_ >= 0) ::close(fd_);  // which frees it
}

std::string Authority::In(const char* name) const { return PathIn(folder_, name); }
std::string Authority::RevokedPath() const { return In(kRevokedFile); }

StatusOr<Authority::Lock> Authority::TakeLock() const {
  const int fd = ::open(In(kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable("{}: {}", In(kLockFile), std::strerror(errno));
  Lock lock(fd);
  while (::flock(fd, LOCK_EX) != 0) {
    if (errno != EINTR) return Unavailable("{}: {}", In(kLockFile), std::strerror(errno));
  }
  return lock;
}

Status Authority::Init(const std::string& folder, const std::string& cluster, KeyType type, int days) {
  if (const Status name = CheckPrincipalName(cluster); !name.ok()) return Annotate(name, "the cluster's name");
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  for (const char* name : {kAuthorityFile, kAuthorityKeyFile}) {
    std::error_code ignored;
    if (std::filesystem::exists(PathIn(folder, name), ignored)) {
      return FailedPrecondition("{} is there already, and identities depend on it", PathIn(folder, name));
    }
  }
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, MakeKey(type));
  GYRE_ASSIGN_OR_RETURN(const X509Ptr certificate, BeginCertificate(key.get(), days));
  X509* const c = certificate.get();
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "O", cluster));
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "CN", "Gyre CA of " + cluster));
  // It tells two CAs of one cluster apart while one is replaced.
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "serialNumber", SerialOf(c)));
  X509_set_issuer_name(c, X509_get_subject_name(c));
  GYRE_RETURN_IF_ERROR(AddExtension(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, c, NID_key_usage, "critical,keyCertSign,cRLSign"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, c, NID_subject_key_identifier, "hash"));
  if (X509_sign(c, key.get(), DigestFor(key.get())) == 0) return OpenSslFailed("the CA's signature");
  GYRE_RETURN_IF_ERROR(CreateFile(PathIn(folder, kAuthorityKeyFile), ToPem(key.get()), 0600));
  return CreateFile(PathIn(folder, kAuthorityFile), ToPem(c), 0644);
}

StatusOr<Authority> Authority::Open(const std::string& folder) {
  Authority out;
  out.folder_ = folder;
  GYRE_ASSIGN_OR_RETURN(const std::string certificate, ReadSmallFile(out.In(kAuthorityFile)));
  GYRE_ASSIGN_OR_RETURN(const std::string key, ReadSmallFile(out.In(kAuthorityKeyFile)));
  StatusOr<std::vector<X509Ptr>> certificates = ReadCertificates(certificate);
  if (!certificates.ok()) return Annotate(certificates.status(), out.In(kAuthorityFile));
  out.certificate_ = std::move(certificates->front());
  StatusOr<KeyPtr> private_key = ReadPrivateKey(key);
  if (!private_key.ok()) return Annotate(private_key.status(), out.In(kAuthorityKeyFile));
  out.key_ = *std::move(private_key);
  if (X509_check_private_key(out.certificate_.get(), out.key_.get()) != 1) {
    TakeOpenSslError();
    return InvalidArgument("{}: its key belongs to another certificate than {}", folder, kAuthorityFile);
  }
  char cluster[128] = "";
  if (X509_NAME_get_text_by_NID(X509_get_subject_name(out.certificate_.get()), NID_organizationName, cluster,
                                sizeof cluster) <= 0 ||
      !CheckPrincipalName(cluster).ok()) {
    return InvalidArgument("{}: it names no cluster (O=)", out.In(kAuthorityFile));
  }
  out.cluster_ = cluster;
  GYRE_RETURN_IF_ERROR(out.RestoreRevoked());
  return out;
}

StatusOr<std::vector<Authority::Issued>> Authority::ReadIssued(std::set<std::string>* all_revoked) const {
  std::vector<Issued> out;
  const StatusOr<std::string> text = ReadSmallFile(In(kIssuedFile));
  if (absl::IsNotFound(text.status()) && !std::filesystem::exists(In(kIssuedFile))) return out;
  GYRE_RETURN_IF_ERROR(text.status());
  const int64_t now = std::time(nullptr);
  std::set<std::string> revoked;
  for (size_t from = 0, number = 1; from < text->size(); ++number) {
    const size_t end = text->find('\n', from);
    if (end == std::string::npos) break;  // a line that a crash cut: its certificate was given to nobody
    const std::string_view line = std::string_view(*text).substr(from, end - from);
    from = end + 1;
    if (line.empty()) continue;
    boost::system::error_code error;
    const json::value value = json::parse({line.data(), line.size()}, error);
    const json::object* const o = !error && value.is_object() ? &value.get_object() : nullptr;
    const auto text_of = [o](const char* key) -> std::string {
      const json::value* v = o != nullptr ? o->if_contains(key) : nullptr;
      return v != nullptr && v->is_string() ? std::string(v->get_string().data(), v->get_string().size()) : "";
    };
    if (const std::string serial = text_of("revoked"); !serial.empty()) {
      revoked.insert(serial);
      continue;
    }
    const StatusOr<Role> role = ParseRole(text_of("role"));
    const json::value* const ends = o != nullptr ? o->if_contains("ends") : nullptr;
    if (error && line.front() == '{' && line.back() != '}') continue;  // likewise
    if (!role.ok() || ends == nullptr || !ends->is_int64() || text_of("serial").empty()) {
      return InvalidArgument("{}:{}: no line of a certificate", In(kIssuedFile), number);
    }
    if (ends->get_int64() > now) out.push_back({text_of("serial"), text_of("name"), *role, ends->get_int64()});
  }
  out.erase(std::remove_if(out.begin(), out.end(), [&](const Issued& i) { return revoked.count(i.serial) > 0; }),
            out.end());
  if (all_revoked != nullptr) *all_revoked = std::move(revoked);
  return out;
}

// A list that is gone, or that an older copy of it replaced, must not make what was revoked valid again.
Status Authority::RestoreRevoked() const {
  std::error_code ignored;
  if (std::filesystem::exists(RevokedPath(), ignored)) return absl::OkStatus();
  std::set<std::string> revoked;
  // If the list of certificates can't be read, the commands that need it tell the error.
  if (!ReadIssued(&revoked).ok() || revoked.empty()) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(const X509CrlPtr crl, MakeRevoked({}));
  Log(LogLevel::kWarn, "{}: it was gone, and is made again of {}", RevokedPath(), In(kIssuedFile));
  return ReplaceFile(RevokedPath(), ToPem(crl.get()), 0644);
}

Status Authority::Note(const std::string& line) const {
  const std::string path = In(kIssuedFile);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable("{}: {}", path, std::strerror(errno));
  // The new line begins after a line that a crash cut short.
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = '\n';
  if (size > 0) [[maybe_unused]]
    const ssize_t n = ::pread(fd, &last, 1, size - 1);
  const std::string text = (last == '\n' ? "" : "\n") + line + "\n";
  const bool fine = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  return fine ? absl::OkStatus() : Unavailable("{}: {}", path, std::strerror(error));
}

Status Authority::CheckFree(const CertificateTerms& terms) const {
  GYRE_RETURN_IF_ERROR(CheckPrincipalName(terms.name));
  if (terms.renew) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(const std::vector<Issued> issued, ReadIssued());
  for (const Issued& i : issued) {
    if (i.name != terms.name || i.role != terms.role) continue;
    return FailedPrecondition(
        "{} {} has a valid certificate: whoever has the name is that {}; revoke it first, take another name, or renew "
        "it",
        RoleName(i.role), i.name, RoleName(i.role));
  }
  return absl::OkStatus();
}

StatusOr<X509Ptr> Authority::Sign(EVP_PKEY* key, const CertificateTerms& terms) {
  return Sign(key, terms, [] { return absl::OkStatus(); });
}

StatusOr<X509Ptr> Authority::SignLocked(EVP_PKEY* key, const CertificateTerms& terms) {
  GYRE_ASSIGN_OR_RETURN(X509Ptr certificate, BeginCertificate(key, terms.days));
  X509* const c = certificate.get();
  X509* const ca = certificate_.get();
  // No certificate outlives its CA's certificate.
  if (ASN1_TIME_compare(X509_get0_notAfter(c), X509_get0_notAfter(ca)) > 0) {
    X509_set1_notAfter(c, X509_get0_notAfter(ca));
  }
  // These names are for people; programs use the URI.
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "O", cluster_));
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "OU", std::string(RoleName(terms.role))));
  GYRE_RETURN_IF_ERROR(AddName(X509_get_subject_name(c), "CN", terms.name));
  X509_set_issuer_name(c, X509_get_subject_name(ca));
  const Principal principal{.cluster = cluster_, .role = terms.role, .name = terms.name};
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_basic_constraints, "critical,CA:FALSE"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_key_usage, "critical,digitalSignature"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_ext_key_usage, "serverAuth,clientAuth"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_subject_key_identifier, "hash"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_authority_key_identifier, "keyid"));
  GYRE_RETURN_IF_ERROR(AddExtension(c, ca, NID_subject_alt_name, "URI:" + FormatPrincipal(principal)));
  if (X509_sign(c, key_.get(), DigestFor(key_.get())) == 0) return OpenSslFailed("the CA's signature");
  // The certificate is listed before it is given out: one that is not in the list can't be revoked.
  GYRE_ASSIGN_OR_RETURN(const int64_t ends, SecondsOf(X509_get0_notAfter(c)));
  GYRE_RETURN_IF_ERROR(Note(json::serialize(json::object{
      {"serial", SerialOf(c)}, {"role", std::string(RoleName(terms.role))}, {"name", terms.name}, {"ends", ends}})));
  return certificate;
}

Status Authority::Issue(const CertificateTerms& terms, KeyType type, const std::string& out) {
  std::error_code ignored;
  if (!terms.renew && std::filesystem::exists(PathIn(out, kIdentityFile), ignored)) {
    return FailedPrecondition("{} has an identity already", out);
  }
  if (terms.renew && std::filesystem::exists(PathIn(out, kIdentityFile), ignored)) {
    // This keeps the folder of another name from being lost.
    GYRE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(PathIn(out, kIdentityFile)));
    GYRE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> there, ReadCertificates(text));
    GYRE_ASSIGN_OR_RETURN(const Principal owner, PrincipalOf(there.front().get()));
    if (owner.role != terms.role || owner.name != terms.name) {
      return FailedPrecondition("{} is the identity of {}", out, Describe(owner));
    }
  }
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(out));
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, MakeKey(type));
  GYRE_ASSIGN_OR_RETURN(const X509Ptr certificate, Sign(key.get(), terms));
  Identity::Files files{
      .identity = ToPem(key.get()) + ToPem(certificate.get()), .authorities = certificate_pem(), .revoked = {}};
  if (const StatusOr<std::string> revoked = RevokedPem(); revoked.ok()) files.revoked.push_back(*revoked);
  return WriteIdentity(out, files, terms.renew);
}

Status WriteIdentity(const std::string& folder, const Identity::Files& files, bool replace) {
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  const std::string identity = PathIn(folder, kIdentityFile);
  std::error_code ignored;
  if (!replace && std::filesystem::exists(identity, ignored))
    return FailedPrecondition("{} has an identity already", folder);
  GYRE_RETURN_IF_ERROR(ReplaceFile(PathIn(folder, kAuthoritiesFile), files.authorities, 0644));
  if (!files.revoked.empty())
    GYRE_RETURN_IF_ERROR(ReplaceFile(PathIn(folder, kRevokedFile), files.revoked.back(), 0644));
  return ReplaceFile(identity, files.identity, 0600);
}

StatusOr<std::string> Authority::RevokedPem() const { return ReadSmallFile(RevokedPath()); }

StatusOr<X509CrlPtr> Authority::MakeRevoked(const std::vector<std::string>& more) const {
  X509CrlPtr crl(X509_CRL_new());
  X509_CRL* const c = crl.get();
  // The number is the time, so that lists of two copies of a CA differ, and rises.
  const auto now_ms = static_cast<uint64_t>(UnixMillis());
  uint64_t number = 0;
  // Those that the list of certificates knows count too, where the list before lacks them.
  std::set<std::string> serials;
  GYRE_RETURN_IF_ERROR(ReadIssued(&serials).status());
  serials.insert(more.begin(), more.end());
  const StatusOr<std::string> old = RevokedPem();
  if (!old.ok() && std::filesystem::exists(RevokedPath())) return old.status();
  if (old.ok()) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<X509CrlPtr> lists, ReadCrls(*old));
    const X509CrlPtr& before = lists.front();
    const OpenSslOwner<ASN1_INTEGER, ASN1_INTEGER_free> n(
        static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(before.get(), NID_crl_number, nullptr, nullptr)));
    if (n == nullptr || ASN1_INTEGER_get_uint64(&number, n.get()) != 1) {
      return InvalidArgument("{}: the list has no number", RevokedPath());
    }
    STACK_OF(X509_REVOKED)* const entries = X509_CRL_get_REVOKED(before.get());
    for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
      serials.erase(SerialText(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
    }
    for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
      X509_CRL_add0_revoked(c, X509_REVOKED_dup(sk_X509_REVOKED_value(entries, i)));
    }
  }
  const OpenSslOwner<ASN1_TIME, ASN1_TIME_free> now(X509_gmtime_adj(nullptr, 0)),
      end(X509_gmtime_adj(nullptr, kListDays * 24 * kHour));
  for (const std::string& serial : serials) {
    BIGNUM* parsed = nullptr;
    BN_hex2bn(&parsed, serial.c_str());
    const OpenSslOwner<BIGNUM, BN_free> bn(parsed);
    const OpenSslOwner<ASN1_INTEGER, ASN1_INTEGER_free> asn1(bn != nullptr ? BN_to_ASN1_INTEGER(bn.get(), nullptr)
                                                                           : nullptr);
    X509_REVOKED* const entry = X509_REVOKED_new();
    if (asn1 == nullptr || X509_REVOKED_set_serialNumber(entry, asn1.get()) != 1 ||
        X509_REVOKED_set_revocationDate(entry, now.get()) != 1 || X509_CRL_add0_revoked(c, entry) != 1) {
      X509_REVOKED_free(entry);
      return OpenSslFailed("a revocation");
    }
  }
  const OpenSslOwner<ASN1_INTEGER, ASN1_INTEGER_free> n(ASN1_INTEGER_new());
  X509_CRL_sort(c);
  if (X509_CRL_set_version(c, X509_CRL_VERSION_2) != 1 ||
      X509_CRL_set_issuer_name(c, X509_get_subject_name(certificate_.get())) != 1 ||
      X509_CRL_set1_lastUpdate(c, now.get()) != 1 || X509_CRL_set1_nextUpdate(c, end.get()) != 1 ||
      ASN1_INTEGER_set_uint64(n.get(), std::max(number + 1, now_ms)) != 1 ||
      X509_CRL_add1_ext_i2d(c, NID_crl_number, n.get(), 0, 0) != 1 ||
      X509_CRL_sign(c, key_.get(), DigestFor(key_.get())) == 0) {
    return OpenSslFailed("the list of revoked certificates");
  }
  return crl;
}

StatusOr<int> Authority::Revoke(const std::string& name, std::optional<Role> role) {
  GYRE_ASSIGN_OR_RETURN(const Lock lock, TakeLock());
  GYRE_ASSIGN_OR_RETURN(const std::vector<Issued> issued, ReadIssued());
  std::vector<std::string> serials;
  for (const Issued& i : issued) {
    if (i.name == name && (!role || i.role == *role)) serials.push_back(i.serial);
  }
  if (serials.empty())
    return NotFound("{}: no valid certificate of {}{}", folder_, role ? std::string(RoleName(*role)) + " " : "", name);
  GYRE_ASSIGN_OR_RETURN(const X509CrlPtr crl, MakeRevoked(serials));
  GYRE_RETURN_IF_ERROR(ReplaceFile(RevokedPath(), ToPem(crl.get()), 0644));
  for (const std::string& serial : serials) {
    GYRE_RETURN_IF_ERROR(
        Note(json::serialize(json::object{{"revoked", serial}, {"at", static_cast<int64_t>(std::time(nullptr))}})));
  }
  return static_cast<int>(serials.size());
}

StatusOr<std::string> MakeCertificateRequest(EVP_PKEY* key) {
  const X509ReqPtr request(X509_REQ_new());
  if (X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 || X509_REQ_set_pubkey(request.get(), key) != 1 ||
      X509_REQ_sign(request.get(), key, DigestFor(key)) == 0) {
    return OpenSslFailed("a certificate request");
  }
  unsigned char* der = nullptr;
  const int size = i2d_X509_REQ(request.get(), &der);
  if (size <= 0) return OpenSslFailed("a certificate request");
  std::string out(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return out;
}

StatusOr<KeyPtr> CheckCertificateRequest(const std::string& der) {
  const Status wrong = InvalidArgument("it sends no certificate request, expected PKCS #10 of a P-256 or Ed25519 key");
  if (der.empty() || der.size() > kMaxRequest) return wrong;
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  const X509ReqPtr request(d2i_X509_REQ(nullptr, &at, static_cast<long>(der.size())));
  KeyPtr key(request != nullptr ? X509_REQ_get_pubkey(request.get()) : nullptr);
  const bool signed_by_owner = key != nullptr && X509_REQ_verify(request.get(), key.get()) == 1;
  ERR_clear_error();
  if (!signed_by_owner) return wrong;
  if (EVP_PKEY_get_base_id(key.get()) == EVP_PKEY_ED25519) return key;
  char group[32] = "";
  size_t size = 0;
  if (EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_EC ||
      EVP_PKEY_get_group_name(key.get(), group, sizeof group, &size) != 1 || std::strcmp(group, "prime256v1") != 0) {
    return wrong;
  }
  return key;
}

}  // namespace gyre
