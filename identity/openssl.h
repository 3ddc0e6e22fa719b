// Owners for OpenSSL's objects, and messages for its errors. For identity/*.cc and the code that does TLS with OpenSSL.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

template <auto Free>
struct OpenSslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <typename T, auto Free>
using OpenSslOwner = std::unique_ptr<T, OpenSslFree<Free>>;

using X509Ptr = OpenSslOwner<X509, X509_free>;
using X509CrlPtr = OpenSslOwner<X509_CRL, X509_CRL_free>;
using X509ReqPtr = OpenSslOwner<X509_REQ, X509_REQ_free>;
using X509StorePtr = OpenSslOwner<X509_STORE, X509_STORE_free>;
using KeyPtr = OpenSslOwner<EVP_PKEY, EVP_PKEY_free>;
using BioPtr = OpenSslOwner<BIO, BIO_free>;
using SslContextPtr = OpenSslOwner<SSL_CTX, SSL_CTX_free>;
using SslPtr = OpenSslOwner<SSL, SSL_free>;

X509Ptr Share(X509* certificate);  // one more owner of it

// Returns the reason of this thread's first error since the last call, and clears it.
std::string TakeOpenSslError();

// All certificates of a PEM text, and nothing else. kInvalidArgument: there is none, or one is damaged.
StatusOr<std::vector<X509Ptr>> ReadCertificates(std::string_view pem);
StatusOr<KeyPtr> ReadPrivateKey(std::string_view pem);  // without a passphrase
// As ReadCertificates.
StatusOr<std::vector<X509CrlPtr>> ReadCrls(std::string_view pem);

std::string ToPem(X509* certificate);
std::string ToPem(X509_CRL* crl);
std::string ToPem(EVP_PKEY* private_key);

std::string SerialOf(const X509* certificate);  // hexadecimal
std::string SerialText(const ASN1_INTEGER* serial);
// Seconds since 1970.
StatusOr<int64_t> SecondsOf(const ASN1_TIME* time);

// SHA-256 of the certificate's DER bytes.
std::string FingerprintOf(X509* certificate);
// kInternal: the system gives no random bytes.
StatusOr<std::string> RandomBytes(size_t n);
bool SameSecret(std::string_view a, std::string_view b);  // in constant time, for texts of one length

}  // namespace gyre
