#include "transport/udp_wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/host_port.h"

namespace gyre {
namespace {

constexpr size_t kBatchBytes = 256 << 10;
constexpr size_t kMostSegments = 64, kMostGroup = 65000;
constexpr size_t kMostMessages = 32;  // of one call
constexpr int kSocketBuffer = 4 << 20;
constexpr int kWaitMs = 5;  // for room in the socket
static_assert(sizeof(sockaddr_in6) == sizeof(UdpAddress::bytes));

struct SocketAddress {
  sockaddr_storage at{};
  socklen_t size = 0;
};

// The address in the form that a socket of this family takes.
SocketAddress ToSocket(const UdpAddress& address, int family) {
  SocketAddress out;
  std::memcpy(&out.at, address.bytes.data(), address.size);
  out.size = address.size;
  if (family != AF_INET6 || out.at.ss_family != AF_INET) return out;
  const auto v4 = reinterpret_cast<const sockaddr_in&>(out.at);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  v6.sin6_addr.s6_addr[10] = v6.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(&v6.sin6_addr.s6_addr[12], &v4.sin_addr, 4);
  std::memcpy(&out.at, &v6, sizeof v6);
  out.size = sizeof v6;
  return out;
}

// One message for the kernel, with the memory that it points to.
struct KernelMessage {
  // If the bytes are longer than a segment, they are cut into datagrams of that size.
  void Fill(std::byte* bytes, size_t size, size_t segment) {
    header = {};
    part = {.iov_base = bytes, .iov_len = size};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (size <= segment) return;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto value = static_cast<uint16_t>(segment);
    std::memcpy(CMSG_DATA(c), &value, sizeof value);
  }
  void To(const SocketAddress& address) {
    to = address;
    header.msg_name = &to.at;
    header.msg_namelen = to.size;
  }

  msghdr header{};
  SocketAddress to;
  iovec part{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
};

}  // namespace

UdpAddress ToUdpAddress(const sockaddr* address, socklen_t size) {
  UdpAddress out;
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof v6);
    v6.sin6_flowinfo = 0;
    if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      std::memcpy(out.bytes.data(), &v6, sizeof v6);
      out.size = sizeof v6;
      return out;
    }
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = v6.sin6_port;
    std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], 4);
    std::memcpy(out.bytes.data(), &v4, sizeof v4);
    out.size = sizeof v4;
  } else if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) {
    std::memcpy(out.bytes.data(), address, sizeof(sockaddr_in));
    out.size = sizeof(sockaddr_in);
  }
  return out;
}

StatusOr<UdpAddress> LocalAddressOf(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return Unavailable("{}", std::strerror(errno));
  }
  return ToUdpAddress(reinterpret_cast<const sockaddr*>(&own), size);
}

std::string FormatUdpAddress(const UdpAddress& address) {
  const SocketAddress a = ToSocket(address, 0);
  const StatusOr<HostPort> at = NumericHostPort(a.at, a.size);
  return at.ok() ? FormatHostPort(at->host, at->port) : FormatHostPort("?", 0);
}

UdpAddress WithPort(UdpAddress address, uint16_t port) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  const uint16_t big = htons(port);
  std::memcpy(address.bytes.data() + offsetof(sockaddr_in, sin_port), &big, sizeof big);
  return address;
}

UdpBatch::UdpBatch() : bytes_(std::make_unique_for_overwrite<std::byte[]>(kBatchBytes)) {}

std::span<std::byte> UdpBatch::Room() {
  return kBatchBytes - used_ < kUdpLargest ? std::span<std::byte>() : std::span(bytes_.get() + used_, kUdpLargest);
}

void UdpBatch::Add(size_t size, const UdpAddress& to) {
  Group* last = groups_.empty() ? nullptr : &groups_.back();
  if (last == nullptr || last->closed || last->to != to || size > last->segment || last->count == kMostSegments ||
      last->bytes + size > kMostGroup) {
    groups_.push_back({.offset = used_, .bytes = 0, .segment = size, .count = 0, .to = to, .closed = false});
    last = &groups_.back();
  }
  last->bytes += size;
  ++last->count;
  last->closed = size < last->segment;  // only the last one may be shorter
  used_ += size;
}

void UdpBatch::Clear() {
  used_ = 0;
  groups_.clear();
}

StatusOr<UdpSocket> UdpSocket::Make(int family) {
  UdpSocket s;
  s.family_ = family;
  s.fd_ = Fd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s.fd_.ok()) return ResourceExhausted("no UDP socket: {}", std::strerror(errno));
  const auto set = [&s](int level, int name, int value) {
    ::setsockopt(s.fd_.get(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_RCVBUF, kSocketBuffer);
  set(SOL_SOCKET, SO_SNDBUF, kSocketBuffer);
  set(SOL_UDP, UDP_GRO, 1);
  set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  if (family == AF_INET6) set(IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  return s;
}

StatusOr<UdpSocket> UdpSocket::Open(const std::string& listen) {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(listen));
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int e = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &list); e != 0) {
    return Unavailable("{}: {}", listen, gai_strerror(e));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(list, freeaddrinfo);
  GYRE_ASSIGN_OR_RETURN(UdpSocket socket, Make(list->ai_family));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::bind(socket.fd_.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::getsockname(socket.fd_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return Unavailable("cannot take datagrams at {}: {}", listen, std::strerror(errno));
  }
  socket.port_ = ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  // The option is set only after the bind, so that a port in use is noticed: connected sockets of the process share it.
  const int on = 1;
  ::setsockopt(socket.fd_.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  return socket;
}

StatusOr<UdpSocket> UdpSocket::Connect(const UdpAddress& from, const UdpAddress& to) {
  const SocketAddress peer = ToSocket(to, 0);
  GYRE_ASSIGN_OR_RETURN(UdpSocket socket, Make(peer.at.ss_family));
  const SocketAddress own = ToSocket(from, 0);
  const int on = 1;
  ::setsockopt(socket.fd_.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  if (own.at.ss_family == peer.at.ss_family &&
      ::bind(socket.fd_.get(), reinterpret_cast<const sockaddr*>(&own.at), own.size) != 0) {
    return Unavailable("cannot take datagrams at {}: {}", FormatUdpAddress(from), std::strerror(errno));
  }
  if (::connect(socket.fd_.get(), reinterpret_cast<const sockaddr*>(&peer.at), peer.size) != 0) {
    return Unavailable("{}: {}", FormatUdpAddress(to), std::strerror(errno));
  }
  socket.peer_ = to;
  return socket;
}

// Sends them in order, many with one call. Returns the number that left; if not all, `error` says why the next one did
// not.
size_t UdpSocket::SendPieces(const UdpBatch& batch, std::span<const Piece> pieces, int* error) const {
  std::array<KernelMessage, kMostMessages> slots;
  std::array<mmsghdr, kMostMessages> messages;
  size_t sent = 0;
  for (int tries = 0; sent < pieces.size();) {
    const size_t n = std::min(pieces.size() - sent, kMostMessages);
    for (size_t i = 0; i < n; ++i) {
      const Piece& piece = pieces[sent + i];
      slots[i].Fill(batch.bytes_.get() + piece.offset, piece.bytes, piece.segment);
      if (piece.group->to != peer_) slots[i].To(ToSocket(piece.group->to, family_));
      messages[i].msg_hdr = slots[i].header;
    }
    const int taken = ::sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(n), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken > 0) {
      sent += static_cast<size_t>(taken);
      tries = 0;
      continue;
    }
    *error = errno;
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) || tries++ > 0) break;
    pollfd p{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
    ::poll(&p, 1, kWaitMs);
  }
  return sent;
}

void UdpSocket::Send(const UdpBatch& batch, const std::function<void(size_t)>& too_large) const {
  const auto cut = [](Piece whole, std::vector<Piece>* out) {
    for (const size_t end = whole.offset + whole.bytes; whole.offset < end; whole.offset += whole.segment) {
      whole.bytes = std::min(whole.segment, end - whole.offset);
      out->push_back(whole);
    }
  };
  const bool kernel_cuts = *kernel_cuts_;
  std::vector<Piece> pieces, single;
  for (const UdpBatch::Group& group : batch.groups_) {
    const Piece whole{.group = &group, .offset = group.offset, .bytes = group.bytes, .segment = group.segment};
    kernel_cuts ? pieces.push_back(whole) : cut(whole, &pieces);
  }
  for (size_t at = 0; at < pieces.size();) {
    int error = 0;
    at += SendPieces(batch, std::span(pieces).subspan(at), &error);
    if (at == pieces.size()) break;
    const Piece lost = pieces[at];
    while (at < pieces.size() && pieces[at].group == lost.group) ++at;
    // The device can't cut the bytes (EIO), or not into this size (EINVAL).
    if (lost.bytes > lost.segment && (error == EIO || error == EINVAL)) {
      if (error == EIO) *kernel_cuts_ = false;
      single.clear();
      cut(lost, &single);
      if (SendPieces(batch, single, &error) == single.size()) continue;
    }
    if (error == EMSGSIZE || error == EINVAL) too_large(lost.segment);
  }
}

UdpReceiver::UdpReceiver() : bytes_(std::make_unique_for_overwrite<std::byte[]>(kMessages * kBytes)) {}

bool UdpReceiver::Receive(const UdpSocket& socket,
                          const std::function<void(std::span<std::byte>, const UdpAddress&)>& fn) {
  struct Slot {
    sockaddr_storage from;
    iovec part;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  };
  std::array<Slot, kMessages> slots;
  std::array<mmsghdr, kMessages> messages{};
  for (size_t i = 0; i < kMessages; ++i) {
    Slot& s = slots[i];
    s.part = {.iov_base = bytes_.get() + i * kBytes, .iov_len = kBytes};
    msghdr& m = messages[i].msg_hdr;
    m.msg_name = &s.from;
    m.msg_namelen = sizeof s.from;
    m.msg_iov = &s.part;
    m.msg_iovlen = 1;
    m.msg_control = s.control.data();
    m.msg_controllen = s.control.size();
  }
  const int n = ::recvmmsg(socket.fd(), messages.data(), kMessages, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < n; ++i) {
    msghdr& m = messages[static_cast<size_t>(i)].msg_hdr;
    size_t segment = messages[static_cast<size_t>(i)].msg_len;
    const size_t size = segment;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
      int value = 0;
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) std::memcpy(&value, CMSG_DATA(c), sizeof value);
      if (value > 0) segment = static_cast<size_t>(value);
    }
    const UdpAddress from = ToUdpAddress(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen);
    auto* const bytes = static_cast<std::byte*>(m.msg_iov->iov_base);
    for (size_t at = 0; at < size; at += segment) fn({bytes + at, std::min(segment, size - at)}, from);
  }
  return n > 0;
}

}  // namespace gyre
