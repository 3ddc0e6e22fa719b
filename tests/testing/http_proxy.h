// A forward proxy on loopback: requests that name their server, and tunnels by CONNECT. It requires a password.
#pragma once

#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "http_client/http_client.h"
#include "tests/testing/http_peer.h"
#include "transport/tcp_link.h"

namespace gyre::testing {

class HttpProxy {
 public:
  // user: "NAME:PASSWORD".
  explicit HttpProxy(const std::string& user) : expected_("Basic " + Base64(user)) {}

  std::string address() const { return fmt::format("127.0.0.1:{}", peer_.port()); }
  int requests() const { return requests_; }  // with the right password

 private:
  static std::string Base64(const std::string& text) {
    std::string out(text.size() * 2 + 8, '\0');
    out.resize(static_cast<size_t>(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                                   reinterpret_cast<const unsigned char*>(text.data()),
                                                   static_cast<int>(text.size()))));
    return out;
  }
  void Answer(HttpPeer::Call& call) {
    if (call.proxy_authorization != expected_) {
      call.Respond(407, "", "Proxy-Authenticate: Basic\r\n");
      return;
    }
    ++requests_;
    if (call.method != "CONNECT") return Forward(call);
    call.close = true;
    StatusOr<int> server = ConnectTcp(call.target, After(std::chrono::seconds(10)));
    if (!server.ok()) {
      call.Respond(502, "");
      return;
    }
    call.Write("HTTP/1.1 200 Connection established\r\n\r\n");
    Carry(call, *server);
    ::close(*server);
  }
  // Forwards a request for "http://HOST:PORT/PATH".
  static void Forward(HttpPeer::Call& call) {
    const StatusOr<HttpAddress> address = ParseAddress(call.target);
    StatusOr<std::unique_ptr<gyre::HttpClient>> client = gyre::HttpClient::Make(address->server, {});
    HttpRequest request{.method = call.method, .target = address->target};
    if (!call.range.empty()) request.headers.emplace_back("Range", call.range);
    const StatusOr<HttpResponse> r = (*client)->Fetch(std::move(request), [] { return false; });
    const std::string range = r.ok() ? FindHeader(r->headers, "content-range") : "";
    call.Respond(r.ok() ? r->code : 502, r.ok() ? r->body : "",
                 range.empty() ? "" : "Content-Range: " + range + "\r\n");
  }
  // Carries both directions until one side ends.
  static void Carry(HttpPeer::Call& call, int server) {
    char bytes[16384];
    for (;;) {
      pollfd ends[2] = {{server, POLLIN, 0}, {call.socket, POLLIN, 0}};
      if (::poll(ends, 2, 30000) <= 0) return;
      if (ends[0].revents != 0) {
        const ssize_t n = ::recv(server, bytes, sizeof(bytes), 0);
        if (n <= 0 || !call.Write(std::string(bytes, static_cast<size_t>(n)))) return;
      }
      if (ends[1].revents != 0) {
        const ssize_t n = ::recv(call.socket, bytes, sizeof(bytes), 0);
        if (n <= 0 || ::send(server, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
      }
    }
  }

  const std::string expected_;
  std::atomic<int> requests_{0};
  HttpPeer peer_{[this](HttpPeer::Call& call) { Answer(call); }};
};

}  // namespace gyre::testing
