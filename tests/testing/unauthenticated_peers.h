// Unauthenticated peers at the ports of a ring: over TCP with garbage, cut and slow handshakes, wrong certificates and
// huge claims; over UDP with garbage, with recorded datagrams of others, and in others' names.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "identity/join_message.h"
#include "identity/tls_context.h"
#include "tests/testing/identities.h"
#include "transport/fd.h"
#include "transport/udp_packet.h"

namespace gyre::testing {

// An address of loopback that no member has, so that limits on unauthenticated peers do not affect members.
inline constexpr const char* kUnauthenticatedAddress = "127.0.0.9";

inline sockaddr_in SocketAddressOf(const char* host, uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  inet_pton(AF_INET, host, &at.sin_addr);
  return at;
}

// A connection from the unauthenticated peers' address, or -1.
inline int CallFromUnauthenticatedPeer(const std::string& address) {
  const auto to = ParseHostPort(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in from = SocketAddressOf(kUnauthenticatedAddress, 0),
                    at = SocketAddressOf(to->host.c_str(), to->port);
  const timeval timeout{.tv_sec = 0, .tv_usec = 100000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0 &&
      connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

// An unauthenticated peer who opens one connection after another. `forged`: by another CA.
class Knocker {
 public:
  Knocker(std::string address, const KeyAndCertificate& forged, unsigned seed)
      : address_(std::move(address)),
        random_(seed),
        none_(*MakeTlsContext(TlsSide::kClient, kRingProtocol)),
        wrong_(*MakeTlsContext(TlsSide::kClient, kRingProtocol)),
        joins_(*MakeTlsContext(TlsSide::kClient, kJoinProtocol)) {
    SSL_CTX_set_verify(joins_.get(), SSL_VERIFY_NONE, nullptr);
    const auto certificate = *ReadCertificates(forged.certificate);
    const KeyPtr key = *ReadPrivateKey(forged.key);
    Must(UseCertificate(wrong_.get(), certificate.front().get(), key.get()));
  }
  ~Knocker() {
    for (int fd : open_) close(fd);
  }
  void Knock() {
    // A slow handshake sends one more byte now and then.
    if (!open_.empty()) Send(open_[random_() % open_.size()], std::string(1, '\x16'));
    const int fd = CallFromUnauthenticatedPeer(address_);
    if (fd < 0) return;
    ++knocks_;
    switch (random_() % 9) {
      case 0: break;  // silence
      case 1: SendRandom(fd, 300); break;
      case 2: Send(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); break;
      case 3: Send(fd, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)); break;  // the begin of a hello
      case 4: Send(fd, std::string(kJoinPreface)), SendRandom(fd, 100); break;
      case 5:  // a record and a handshake message as long as TLS can say
        Send(fd, std::string("\x16\x03\x01\xff\xff\x01\xff\xff\xff", 9));
        SendRandom(fd, 300);
        break;
      case 6: {  // a hello as long as a frame can say
        const auto head = EncodeHeader({.kind = FrameKind::kHello, .length = kMaxPayload});
        Send(fd, {reinterpret_cast<const char*>(head.data()), head.size()});
        break;
      }
      case 7: {  // a request to join, of 4 GiB
        Send(fd, std::string(kJoinPreface));
        const SslPtr ssl = Handshake(fd, joins_.get());
        SSL_write(ssl.get(), "\xff\xff\xff\xff", 4);
        TakeOpenSslError();
        break;
      }
      default: Handshake(fd, (random_() % 2 == 0 ? none_ : wrong_).get());
    }
    open_.push_back(fd);
    if (open_.size() > 50) {
      close(open_.front());
      open_.erase(open_.begin());
    }
  }
  int knocks() const { return knocks_; }

 private:
  static void Send(int fd, const std::string& bytes) { (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void SendRandom(int fd, size_t most) {
    std::string bytes(1 + random_() % most, '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    Send(fd, bytes);
  }
  static SslPtr Handshake(int fd, SSL_CTX* context) {
    SslPtr ssl(SSL_new(context));
    SSL_set_fd(ssl.get(), fd);
    SSL_connect(ssl.get());
    TakeOpenSslError();
    return ssl;
  }

  const std::string address_;
  std::mt19937 random_;
  SslContextPtr none_, wrong_, joins_;
  std::vector<int> open_;
  int knocks_ = 0;
};

// A datagram of somebody else on loopback, with the addresses in it.
struct RecordedDatagram {
  std::string bytes;  // from the IP header on
  size_t payload;     // where the datagram's own bytes begin
};

// Records the datagrams on loopback to and from UDP ports. Needs a right of root.
class DatagramRecorder {
 public:
  DatagramRecorder() : fd_(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP))) {}
  bool ok() const { return fd_.ok(); }
  // The datagrams of UDP links that come in the time, up to `most`.
  std::vector<RecordedDatagram> Record(size_t most, Duration time) const {
    std::vector<RecordedDatagram> out;
    std::vector<char> bytes(70000);
    const timeval turn{.tv_sec = 0, .tv_usec = 10000};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof turn);
    for (const Deadline end = After(time); out.size() < most && Clock::now() < end;) {
      const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (n < static_cast<ssize_t>(sizeof(iphdr))) continue;
      const auto* ip = reinterpret_cast<const iphdr*>(bytes.data());
      const size_t head = size_t{ip->ihl} * 4 + sizeof(udphdr);
      if (ip->protocol != IPPROTO_UDP || static_cast<size_t>(n) < head + kUdpHeader + 16) continue;
      const auto payload = std::as_bytes(std::span(bytes.data() + head, static_cast<size_t>(n) - head));
      if (ReadUdpHeader(payload)) out.push_back({std::string(bytes.data(), static_cast<size_t>(n)), head});
    }
    return out;
  }

 private:
  const Fd fd_;
};

// An unauthenticated peer who sends datagrams to the UDP ports of a ring: garbage, beginnings of links with huge
// claims, and recorded datagrams, if there are any, changed or not, under his own name and under their sender's.
class DatagramUnauthenticatedPeer {
 public:
  DatagramUnauthenticatedPeer(std::vector<uint16_t> ports, std::vector<RecordedDatagram> recorded, unsigned seed)
      : ports_(std::move(ports)),
        recorded_(std::move(recorded)),
        random_(seed),
        own_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
        raw_(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)) {
    const sockaddr_in from = SocketAddressOf(kUnauthenticatedAddress, 0);
    EXPECT_EQ(::bind(own_.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
  }
  void SendOne() {
    ++sent_;
    if (recorded_.empty() || random_() % 2 == 0) return SendOwn(Garbage());
    const RecordedDatagram& one = recorded_[random_() % recorded_.size()];
    std::string bytes = one.bytes;
    switch (random_() % 4) {
      case 0: break;  // as it was
      case 1: bytes[one.payload + random_() % (bytes.size() - one.payload)] ^= 1; break;
      case 2:  // the largest packet number, of the real link
        std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(one.payload) + 12, 8, '\xff');
        break;
      default:  // the next key
        ++bytes[one.payload + 2];
    }
    if (random_() % 2 == 0) return SendOwn(bytes.substr(one.payload));
    reinterpret_cast<udphdr*>(bytes.data() + one.payload - sizeof(udphdr))->check = 0;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = reinterpret_cast<const iphdr*>(bytes.data())->daddr;
    spoofed_ += ::sendto(raw_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to),
                         sizeof to) > 0;
  }
  uint64_t sent() const { return sent_; }
  uint64_t spoofed() const { return spoofed_; }
  // Whether any port has answered.
  bool answered() const {
    char byte;
    return ::recv(own_.get(), &byte, 1, MSG_DONTWAIT) >= 0;
  }

 private:
  // Combines types, versions, links and packet numbers that exist with others that do not.
  std::string Garbage() {
    std::string bytes(1 + random_() % (random_() % 8 == 0 ? 60000 : 1400), '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    if (bytes.size() < kUdpHeader || random_() % 4 == 0) return bytes;
    bytes[0] = static_cast<char>(random_() % 3 == 0 ? random_() % 8 : 4);
    bytes[1] = static_cast<char>(kUdpVersion);
    if (random_() % 2 == 0) std::fill_n(bytes.begin() + 2, kUdpHeader - 2, '\xff');
    return bytes;
  }
  void SendOwn(const std::string& bytes) {
    const sockaddr_in to = SocketAddressOf("127.0.0.1", ports_[random_() % ports_.size()]);
    (void)!::sendto(own_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
                    sizeof to);
  }

  const std::vector<uint16_t> ports_;
  const std::vector<RecordedDatagram> recorded_;
  std::mt19937 random_;
  const Fd own_, raw_;
  uint64_t sent_ = 0, spoofed_ = 0;
};

}  // namespace gyre::testing
