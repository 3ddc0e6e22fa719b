// An HTTP server on loopback whose answers a test writes byte by byte. A thread for each connection.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstdio>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "fmt/core.h"

namespace gyre::testing {

// A certificate and its key, as PEM.
struct Certificate {
  std::string certificate, key;
};
// A certificate for these names, "" = none. It is self-signed, or signed by `authority`, which must then be trusted.
inline Certificate MakeCertificate(const std::string& alternative_names = "DNS:localhost,IP:127.0.0.1",
                                   const Certificate* authority = nullptr) {
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  std::unique_ptr<X509, void (*)(X509*)> x(X509_new(), X509_free);
  X509_set_version(x.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(x.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x.get()), 3600);
  X509_NAME* name = X509_get_subject_name(x.get());
  const std::string subject = alternative_names.empty() ? "tests' authority" : "localhost";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1,
                             0);
  X509_set_pubkey(x.get(), key.get());
  auto extend = [&](int nid, const std::string& value) {
    std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> extension(
        X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()), X509_EXTENSION_free);
    X509_add_ext(x.get(), extension.get(), -1);
  };
  if (alternative_names.empty()) {
    extend(NID_basic_constraints, "critical,CA:TRUE");
  } else {
    extend(NID_subject_alt_name, alternative_names);
  }
  if (authority != nullptr) {
    std::unique_ptr<BIO, int (*)(BIO*)> certificate(BIO_new_mem_buf(authority->certificate.data(), -1), BIO_free);
    std::unique_ptr<BIO, int (*)(BIO*)> secret(BIO_new_mem_buf(authority->key.data(), -1), BIO_free);
    std::unique_ptr<X509, void (*)(X509*)> issuer(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr),
                                                  X509_free);
    std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> issuer_key(
        PEM_read_bio_PrivateKey(secret.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
    X509_set_issuer_name(x.get(), X509_get_subject_name(issuer.get()));
    X509_sign(x.get(), issuer_key.get(), EVP_sha256());
  } else {
    X509_set_issuer_name(x.get(), name);
    X509_sign(x.get(), key.get(), EVP_sha256());
  }
  auto text = [](auto write) {
    std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), BIO_free);
    write(bio.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  };
  return {text([&](BIO* bio) { PEM_write_bio_X509(bio, x.get()); }),
          text([&](BIO* bio) { PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr); })};
}

// A value for `interrupted`.
inline bool Never() { return false; }

class HttpPeer {
  using tcp = boost::asio::ip::tcp;

 public:
  // A request, and the test's answer.
  struct Call {
    std::string method, target, body, authorization, host, range, proxy_authorization;
    int socket = -1;                                // bytes beyond the request may be in no buffer
    int connection = 0, number = 0;                 // the connection's number, and the request's on it; from 0
    std::function<bool(const std::string&)> Write;  // false: the client is gone
    std::function<bool()> Gone;                     // whether the client has closed the connection
    bool close = false;                             // afterwards

    bool Respond(int code, const std::string& text, const std::string& headers = "") const {
      return Write(fmt::format("HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                               code, text.size(), headers, text));
    }
    bool BeginStream() const {
      return Write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    }
    bool Chunk(const std::string& bytes) const { return Write(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)); }
    bool Event(const std::string& data) const { return Chunk("data: " + data + "\n\n"); }
    bool EndStream() const { return Write("0\r\n\r\n"); }
  };
  using Handler = std::function<void(Call&)>;

  // certificate: for TLS; nullptr = plain TCP.
  explicit HttpPeer(Handler handler, const Certificate* certificate = nullptr)
      : handler_(std::move(handler)), tls_(boost::asio::ssl::context::tls_server), secure_(certificate != nullptr) {
    if (secure_) {
      tls_.use_certificate(boost::asio::buffer(certificate->certificate), boost::asio::ssl::context::pem);
      tls_.use_private_key(boost::asio::buffer(certificate->key), boost::asio::ssl::context::pem);
    }
    accepter_ = std::thread([this] { Accept(); });
  }
  ~HttpPeer() {
    stopping_ = true;
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    accepter_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const auto& c : connections_) ::shutdown(c->socket.native_handle(), SHUT_RDWR);
    }
    for (const auto& c : connections_) c->thread.join();
  }
  HttpPeer(const HttpPeer&) = delete;
  HttpPeer& operator=(const HttpPeer&) = delete;

  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  std::string url() const { return fmt::format("{}://127.0.0.1:{}", secure_ ? "https" : "http", port()); }
  int connections() const { return count_; }

 private:
  struct Connection {
    explicit Connection(tcp::socket s) : socket(std::move(s)) {}
    tcp::socket socket;
    std::thread thread;
  };

  void Accept() {
    while (!stopping_) {
      boost::system::error_code error;
      tcp::socket socket = acceptor_.accept(error);
      if (error) return;
      const std::lock_guard lock(mutex_);
      connections_.push_back(std::make_unique<Connection>(std::move(socket)));
      Connection* c = connections_.back().get();
      c->thread = std::thread([this, c, number = count_++] {
        Serve(c, number);
        ::shutdown(c->socket.native_handle(), SHUT_RDWR);
      });
    }
  }
  void Serve(Connection* c, int number) {
    if (!secure_) return Talk(c->socket, c->socket, number);
    boost::asio::ssl::stream<tcp::socket&> stream(c->socket, tls_);
    boost::system::error_code error;
    stream.handshake(boost::asio::ssl::stream_base::server, error);
    if (!error) Talk(stream, c->socket, number);
  }
  template <class Stream>
  void Talk(Stream& stream, tcp::socket& socket, int connection) {
    namespace http = boost::beast::http;
    boost::beast::flat_buffer buffer;
    for (int number = 0; !stopping_; ++number) {
      http::request_parser<http::string_body> parser;
      parser.body_limit(size_t{64} << 20);
      boost::system::error_code error;
      http::read(stream, buffer, parser, error);
      if (error) return;
      const auto& r = parser.get();
      auto text = [](boost::beast::string_view v) { return std::string(v.data(), v.size()); };
      Call call{.method = text(r.method_string()),
                .target = text(r.target()),
                .body = r.body(),
                .authorization = text(r[http::field::authorization]),
                .host = text(r[http::field::host]),
                .range = text(r[http::field::range]),
                .proxy_authorization = text(r[http::field::proxy_authorization]),
                .socket = socket.native_handle(),
                .connection = connection,
                .number = number};
      call.Write = [&stream](const std::string& bytes) {
        boost::system::error_code failed;
        boost::asio::write(stream, boost::asio::buffer(bytes), failed);
        return !failed;
      };
      call.Gone = [&socket] {
        char byte = 0;
        return ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
      };
      handler_(call);
      if (call.close) return;
    }
  }

  const Handler handler_;
  boost::asio::ssl::context tls_;
  const bool secure_;
  boost::asio::io_context io_;
  tcp::acceptor acceptor_{io_, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0)};
  std::atomic<bool> stopping_{false};
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::list<std::unique_ptr<Connection>> connections_;
  std::thread accepter_;
};

}  // namespace gyre::testing
