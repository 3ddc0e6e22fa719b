// A raw client of an HTTP server under test: bytes out, bytes in.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/tcp_link.h"

namespace gyre::testing {

struct HttpAnswer {
  int status = 0;    // 0: the connection ended, or nothing came in time
  std::string head;  // with its empty line
  std::string body;  // chunks joined
  bool whole = false;

  // "" = absent. `name` in lower case.
  std::string Header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class HttpClient {
 public:
  // `address`: HOST:PORT.
  explicit HttpClient(const std::string& address) : fd_(*ConnectTcp(address, After(std::chrono::seconds(10)))) {}
  virtual ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns false if the connection has ended.
  virtual bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EAGAIN) {
        pollfd p{.fd = fd_, .events = POLLOUT, .revents = 0};
        if (::poll(&p, 1, 20000) <= 0) return false;
        continue;
      }
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool Request(const std::string& method, const std::string& target, const std::string& headers = "",
               const std::string& body = "") {
    std::string text = method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
    if (!body.empty() || method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return Send(text + "\r\n" + body);
  }
  // Adds more bytes to input(). False: the end, or nothing came in time.
  virtual bool Receive(std::chrono::milliseconds time = std::chrono::seconds(20)) {
    pollfd p{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&p, 1, static_cast<int>(time.count())) <= 0) return false;
    char bytes[16384];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    input_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // The next answer; later bytes stay in input(). `to_head`: it answers the request HEAD.
  HttpAnswer Answer(bool to_head = false) {
    HttpAnswer out;
    size_t end = 0;
    while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
      if (!Receive()) return out;
    }
    out.head = input_.substr(0, end + 4);
    input_.erase(0, end + 4);
    out.status = std::atoi(out.head.c_str() + 9);
    if (to_head || out.status < 200 || out.status == 204) {
      out.whole = true;
    } else if (!out.Header("content-length").empty()) {
      out.whole = Take(std::stoul(out.Header("content-length")), &out.body);
    } else if (out.Header("transfer-encoding") == "chunked") {
      out.whole = TakeChunks(&out.body);
    } else {
      while (Receive()) {
      }
      out.body = std::exchange(input_, "");
      out.whole = true;
    }
    return out;
  }
  // Whether the server ends the connection, after all its bytes are read.
  bool Ended(std::chrono::milliseconds time = std::chrono::seconds(20)) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end) {
      if (!Receive(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()))) return Clock::now() < end;
    }
    return false;
  }
  void CloseHalf() { ::shutdown(fd_, SHUT_WR); }
  virtual void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Resets the connection instead of ending it.
  void Reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    Close();
  }
  int fd() const { return fd_; }
  std::string& input() { return input_; }

 private:
  bool Take(size_t n, std::string* out) {
    while (input_.size() < n) {
      if (!Receive()) return false;
    }
    out->append(input_, 0, n);
    input_.erase(0, n);
    return true;
  }
  bool TakeChunks(std::string* out) {
    for (;;) {
      size_t end = 0;
      while ((end = input_.find("\r\n")) == std::string::npos) {
        if (!Receive()) return false;
      }
      const size_t n = std::strtoul(input_.c_str(), nullptr, 16);
      input_.erase(0, end + 2);
      std::string crlf;
      if (!Take(n, out) || !Take(2, &crlf)) return false;
      if (n == 0) return true;
    }
  }

  int fd_;
  std::string input_;
};

}  // namespace gyre::testing
