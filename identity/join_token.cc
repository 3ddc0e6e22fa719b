#include "identity/join_token.h"

#include <openssl/evp.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/files.h"
#include "base/sha256.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr char kTokenFolder[] = "tokens";
constexpr std::string_view kPrefix = "gyre1-";
constexpr size_t kIdBytes = 8, kSecretBytes = 32, kHashBytes = 32;
constexpr size_t kBytes = kIdBytes + kSecretBytes + kHashBytes;  // a multiple of 3, so that base64 needs no padding
constexpr size_t kCharacters = kBytes / 3 * 4;

std::filesystem::path PathOf(const Authority& authority, std::string_view id, const char* ending) {
  return std::filesystem::path(authority.folder()) / kTokenFolder / (Hex(id) + ending);
}

struct Stored {
  std::string hash, name;
  int64_t ends = 0;
};

StatusOr<Stored> Read(const std::filesystem::path& path) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path.string()));
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  const json::object* const o = !error && value.is_object() ? &value.get_object() : nullptr;
  const json::value* const hash = o != nullptr ? o->if_contains("sha256") : nullptr;
  const json::value* const name = o != nullptr ? o->if_contains("name") : nullptr;
  const json::value* const ends = o != nullptr ? o->if_contains("ends") : nullptr;
  if (hash == nullptr || !hash->is_string() || name == nullptr || !name->is_string() || ends == nullptr ||
      !ends->is_int64()) {
    return InvalidArgument("{}: no token", path.string());
  }
  return Stored{.hash = std::string(hash->get_string().data(), hash->get_string().size()),
                .name = std::string(name->get_string().data(), name->get_string().size()),
                .ends = ends->get_int64()};
}

// Removes tokens that nobody can use any more.
void DropOld(const std::filesystem::path& folder, int64_t now) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const StatusOr<Stored> stored = Read(entry.path());
    std::error_code ignored;
    if (!stored.ok() || stored->ends >= now) continue;
    std::filesystem::remove(std::filesystem::path(entry.path()).replace_extension(".pem"), ignored);
    std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace

std::string FormatToken(const JoinToken& token) {
  const std::string bytes = token.id + token.secret + token.fingerprint;
  std::string text(kCharacters + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  text.resize(kCharacters);
  std::replace(text.begin(), text.end(), '+', '-');
  std::replace(text.begin(), text.end(), '/', '_');
  return std::string(kPrefix) + text;
}

StatusOr<JoinToken> ParseToken(const std::string& text) {
  const Status wrong = InvalidArgument("expected a join token as `gyre ca token` prints it: {} and {} characters",
                                       std::string(kPrefix), kCharacters);
  if (text.rfind(kPrefix, 0) != 0 || text.size() != kPrefix.size() + kCharacters) return wrong;
  std::string base64 = text.substr(kPrefix.size());
  const bool fits = std::all_of(base64.begin(), base64.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  if (!fits) return wrong;
  std::replace(base64.begin(), base64.end(), '-', '+');
  std::replace(base64.begin(), base64.end(), '_', '/');
  std::string bytes(kBytes, '\0');
  if (EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(base64.data()),
                      static_cast<int>(base64.size())) != static_cast<int>(kBytes)) {
    return wrong;
  }
  return JoinToken{.id = bytes.substr(0, kIdBytes),
                   .secret = bytes.substr(kIdBytes, kSecretBytes),
                   .fingerprint = bytes.substr(kIdBytes + kSecretBytes)};
}

StatusOr<JoinToken> CreateToken(const Authority& authority, std::chrono::seconds valid, const std::string& name) {
  if (valid < std::chrono::seconds(1) || valid > kLongestToken) {
    return InvalidArgument("a token is valid for a second to 30 days, not for {} s", valid.count());
  }
  if (!name.empty()) GYRE_RETURN_IF_ERROR(CheckPrincipalName(name));
  JoinToken token;
  GYRE_ASSIGN_OR_RETURN(token.id, RandomBytes(kIdBytes));
  GYRE_ASSIGN_OR_RETURN(token.secret, RandomBytes(kSecretBytes));
  token.fingerprint = authority.fingerprint();
  const std::filesystem::path path = PathOf(authority, token.id, ".json");
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(path.parent_path().string()));
  const int64_t now = std::time(nullptr);
  DropOld(path.parent_path(), now);
  GYRE_RETURN_IF_ERROR(
      CreateFile(path.string(),
                 json::serialize(json::object{
                     {"sha256", Hex(Sha256(token.secret))}, {"name", name}, {"ends", now + valid.count()}}),
                 0600));
  return token;
}

StatusOr<X509Ptr> Redeem(Authority& authority, const JoinRequest& request, int64_t now) {
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, CheckCertificateRequest(request.request));
  const Status wrong = InvalidArgument("the token is not known, expired, or used");
  if (request.id.size() != kIdBytes || request.secret.size() != kSecretBytes) return wrong;
  const std::filesystem::path path = PathOf(authority, request.id, ".json"),
                              used = PathOf(authority, request.id, ".used"),
                              given = PathOf(authority, request.id, ".pem");
  StatusOr<Stored> stored = Read(path);
  const bool unused = stored.ok();
  if (!unused) stored = Read(used);
  if (!stored.ok() || !SameSecret(stored->hash, Hex(Sha256(request.secret))) || stored->ends <= now) return wrong;
  if (!stored->name.empty() && stored->name != request.name) {
    return FailedPrecondition("the token is for the name {0} only (--name {0})", stored->name);
  }
  if (!unused) {
    // A worker that lost the answer may ask for it again: only the owner of the key can use the certificate.
    const StatusOr<std::string> pem = ReadSmallFile(given.string());
    StatusOr<std::vector<X509Ptr>> certificate = pem.ok() ? ReadCertificates(*pem) : pem.status();
    if (!certificate.ok() || EVP_PKEY_eq(X509_get0_pubkey(certificate->front().get()), key.get()) != 1) return wrong;
    const StatusOr<Principal> owner = PrincipalOf(certificate->front().get());
    if (!owner.ok() || owner->name != request.name) return wrong;
    return std::move(certificate->front());
  }
  const CertificateTerms terms{.role = Role::kWorker, .name = request.name};
  GYRE_ASSIGN_OR_RETURN(X509Ptr certificate, authority.Sign(key.get(), terms, [&]() -> Status {
    // If several joins with one token come this far, only one of them can rename the file.
    return std::rename(path.c_str(), used.c_str()) == 0 ? absl::OkStatus() : wrong;
  }));
  GYRE_RETURN_IF_ERROR(ReplaceFile(given.string(), ToPem(certificate.get()), 0600));
  return certificate;
}

}  // namespace gyre
