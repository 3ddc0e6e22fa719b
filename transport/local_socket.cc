#include "transport/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "transport/poll_timeout.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostFds = 8;  // in one message

struct LocalAddress {
  sockaddr_un at{};
  socklen_t size = 0;
};

// A name that begins with a zero byte belongs to a network namespace, not to a file system.
LocalAddress AddressOf(const std::string& name) {
  const std::string text = "gyre-" + name;
  LocalAddress out;
  out.at.sun_family = AF_UNIX;
  const size_t n = std::min(text.size(), sizeof out.at.sun_path - 1);
  std::memcpy(out.at.sun_path + 1, text.data(), n);
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return out;
}

Fd LocalSocket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// Takes the descriptors of a message.
void TakeFds(msghdr& message, std::vector<Fd>* fds, size_t most) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      Fd owned(fd);
      if (fds->size() < most) fds->push_back(std::move(owned));
    }
  }
}

}  // namespace

std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text, digits;
  file >> text;
  for (char c : text) {
    if (c != '-') digits += c;
  }
  const bool hex = digits.size() == 32 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  return hex ? digits.substr(0, 16) : "";
}

std::string RandomSocketName() {
  std::random_device random;
  std::string name;
  for (int i = 0; i < 4; ++i) name += fmt::format("{:08x}", static_cast<uint32_t>(random()));
  return name;
}

StatusOr<Fd> ListenLocal(const std::string& name) {
  Fd fd = LocalSocket();
  if (!fd.ok()) return ResourceExhausted("no Unix socket: {}", std::strerror(errno));
  const LocalAddress to = AddressOf(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&to.at), to.size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return Unavailable("cannot listen at a Unix socket: {}", std::strerror(errno));
  }
  return fd;
}

StatusOr<Fd> ConnectLocal(const std::string& name, Deadline deadline, const std::function<bool()>& stopped) {
  const LocalAddress to = AddressOf(name);
  for (;;) {
    Fd fd = LocalSocket();
    if (!fd.ok()) return ResourceExhausted("no Unix socket: {}", std::strerror(errno));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.at), to.size) == 0) {
      // Otherwise a process that listens under a freed name would get the ring's key.
      if (!PeerOf(fd.get()).same_user) return FailedPrecondition("its process belongs to another user");
      return fd;
    }
    if (errno == ECONNREFUSED) return Unavailable("its Unix socket is not in this network namespace");
    if (errno != EAGAIN && errno != EINTR) return Unavailable("its Unix socket: {}", std::strerror(errno));
    if (stopped && stopped()) return absl::CancelledError("the attempt to connect was given up");
    if (Clock::now() >= deadline) return DeadlineExceeded("its Unix socket: too many wait there");
    std::this_thread::sleep_for(milliseconds(50));
  }
}

LocalPeer PeerOf(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return {};
  return {.pid = who.pid, .same_user = who.uid == ::geteuid()};
}

Status SendWithFds(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  if (fds.size() > kMostFds) return Internal("{} descriptors in one message, at most {}", fds.size(), kMostFds);
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return Unavailable("{}", n < 0 ? std::strerror(errno) : "it takes nothing in");
}

Status ReceiveWithFds(int socket, std::span<std::byte> into, std::vector<Fd>* fds, size_t most, Deadline deadline,
                      const std::function<bool()>& stopped) {
  for (size_t have = 0; have < into.size();) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
    iovec part{.iov_base = into.data() + have, .iov_len = into.size() - have};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      TakeFds(message, fds, most);
      have += static_cast<size_t>(n);
      continue;
    }
    if (n == 0) return Unavailable("it closed the connection");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return Unavailable("{}", std::strerror(errno));
    if (stopped && stopped()) return absl::CancelledError("the plan was given up");
    if (Clock::now() >= deadline) return DeadlineExceeded("it does not answer");
    pollfd p{.fd = socket, .events = POLLIN, .revents = 0};
    ::poll(&p, 1, PollTimeout(std::min(deadline, After(milliseconds(100)))));
  }
  return absl::OkStatus();
}

}  // namespace gyre
