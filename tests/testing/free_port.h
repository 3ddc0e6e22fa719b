// A port for a program that can't take any free one, or that is started again on the same one.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

namespace gyre::testing {

// A TCP port of loopback that was free a moment ago. It is below those that Linux gives to outgoing connections (32768
// and up), so no other test's connection takes it while the program is down.
inline int FreePort() {
  std::random_device random;
  std::uniform_int_distribution<int> any(20000, 32000);
  for (;;) {
    const int port = any(random);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    close(fd);
    if (is_free) return port;
  }
}

}  // namespace gyre::testing
