// The raw client over TLS.
#pragma once

#include <fcntl.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "tests/testing/http_client.h"

namespace gyre::testing {

class HttpsClient : public HttpClient {
 public:
  struct Options {
    int min_version = 0, max_version = 0;
    std::string protocols;  // of ALPN, as "\x02h2\x08http/1.1"
  };
  explicit HttpsClient(const std::string& address) : HttpsClient(address, Options{}) {}
  HttpsClient(const std::string& address, const Options& options) : HttpClient(address) {
    ::fcntl(fd(), F_SETFL, ::fcntl(fd(), F_GETFL) & ~O_NONBLOCK);
    context_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_min_proto_version(context_.get(), options.min_version);
    SSL_CTX_set_max_proto_version(context_.get(), options.max_version);
    ssl_.reset(SSL_new(context_.get()));
    if (!options.protocols.empty()) {
      SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(options.protocols.data()),
                          static_cast<unsigned>(options.protocols.size()));
    }
    SSL_set_fd(ssl_.get(), fd());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  ~HttpsClient() override { HttpsClient::Close(); }

  bool Send(std::string_view bytes) override {
    return connected_ &&
           SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
  }
  bool Receive(std::chrono::milliseconds time) override {
    pollfd p{.fd = fd(), .events = POLLIN, .revents = 0};
    if (!connected_ || (SSL_pending(ssl_.get()) == 0 && ::poll(&p, 1, static_cast<int>(time.count())) <= 0))
      return false;
    char bytes[16384];
    const int n = SSL_read(ssl_.get(), bytes, sizeof bytes);
    if (n <= 0) return false;
    input().append(bytes, static_cast<size_t>(n));
    return true;
  }
  void Close() override {
    ssl_.reset();
    HttpClient::Close();
  }
  bool connected() const { return connected_; }
  // The name that the server's certificate is for.
  std::string peer() const {
    const std::unique_ptr<X509, void (*)(X509*)> cert(SSL_get1_peer_certificate(ssl_.get()), X509_free);
    char name[256] = "";
    if (cert != nullptr)
      X509_NAME_get_text_by_NID(X509_get_subject_name(cert.get()), NID_commonName, name, sizeof name);
    return name;
  }
  std::string protocol() const {
    const unsigned char* text = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &text, &size);
    return std::string(reinterpret_cast<const char*>(text), size);
  }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  bool connected_ = false;
};

}  // namespace gyre::testing
