#include "identity/openssl.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace gyre {
namespace {

// OpenSSL must not ask a terminal for a passphrase, as that would stop a server.
int NoPassphrase(char*, int, int, void*) { return 0; }

BioPtr ReadFrom(std::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(std::min<size_t>(text.size(), INT_MAX))));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

// Reads objects with `read` until the text ends.
template <typename Ptr, typename Read>
StatusOr<std::vector<Ptr>> ReadAll(std::string_view pem, const Read& read, const char* kind) {
  const BioPtr bio = ReadFrom(pem);
  std::vector<Ptr> out;
  ERR_clear_error();
  while (auto* const one = read(bio.get(), nullptr, NoPassphrase, nullptr)) out.emplace_back(one);
  const unsigned long error = ERR_peek_last_error();
  const bool end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  const std::string why = TakeOpenSslError();
  if (!end) return InvalidArgument("a damaged {}: {}", kind, why);
  if (out.empty()) return InvalidArgument("no {} in PEM", kind);
  return out;
}

template <typename Write>
std::string Pem(const Write& write) {
  const BioPtr bio(BIO_new(BIO_s_secmem()));  // cleared when it is freed
  return write(bio.get()) == 1 ? TextOf(bio.get()) : "";
}

}  // namespace

X509Ptr Share(X509* certificate) {
  X509_up_ref(certificate);
  return X509Ptr(certificate);
}

std::string TakeOpenSslError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return reason != nullptr ? reason : "it is not what was expected";
}

StatusOr<std::vector<X509Ptr>> ReadCertificates(std::string_view pem) {
  return ReadAll<X509Ptr>(pem, PEM_read_bio_X509, "certificate");
}

StatusOr<std::vector<X509CrlPtr>> ReadCrls(std::string_view pem) {
  return ReadAll<X509CrlPtr>(pem, PEM_read_bio_X509_CRL, "list of revoked certificates");
}

StatusOr<KeyPtr> ReadPrivateKey(std::string_view pem) {
  const BioPtr bio = ReadFrom(pem);
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return InvalidArgument("no private key in PEM without a passphrase: {}", TakeOpenSslError());
  return key;
}

std::string ToPem(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}
std::string ToPem(X509_CRL* crl) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, crl); });
}
std::string ToPem(EVP_PKEY* private_key) {
  return Pem(
      [&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, private_key, nullptr, nullptr, 0, nullptr, nullptr); });
}

std::string SerialText(const ASN1_INTEGER* serial) {
  const OpenSslOwner<BIGNUM, BN_free> number(ASN1_INTEGER_to_BN(serial, nullptr));
  char* const text = number != nullptr ? BN_bn2hex(number.get()) : nullptr;
  std::string out = text != nullptr ? text : "";
  OPENSSL_free(text);
  return out;
}
std::string SerialOf(const X509* certificate) { return SerialText(X509_get0_serialNumber(certificate)); }

StatusOr<int64_t> SecondsOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return InvalidArgument("a certificate's time can't be read");
  return static_cast<int64_t>(timegm(&parts));
}

std::string FingerprintOf(X509* certificate) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (X509_digest(certificate, EVP_sha256(), hash, &size) != 1) return "";
  return {reinterpret_cast<const char*>(hash), size};
}

StatusOr<std::string> RandomBytes(size_t n) {
  std::string out(n, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(n)) != 1) {
    return Internal("no random bytes: {}", TakeOpenSslError());
  }
  return out;
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace gyre
