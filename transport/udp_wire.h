// UDP sockets in batches: datagrams of one size are sent and received with one system call if the kernel has GSO, GRO.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/fd.h"
#include "transport/udp_packet.h"

namespace gyre {

// Takes sockaddr_in and sockaddr_in6 only.
UdpAddress ToUdpAddress(const sockaddr* address, socklen_t size);
// This end's address of a connected socket. kUnavailable.
StatusOr<UdpAddress> LocalAddressOf(int socket);
// "HOST:PORT".
std::string FormatUdpAddress(const UdpAddress& address);
// The same host with another port.
UdpAddress WithPort(UdpAddress address, uint16_t port);

// Datagrams to be sent, one after the other in one buffer. Those of one size and address make a group.
class UdpBatch {
 public:
  UdpBatch();
  // Room for one more datagram of any size; empty: the batch is full.
  std::span<std::byte> Room();
  // Takes the bytes written there. Datagrams longer than the group's first begin a new group.
  void Add(size_t size, const UdpAddress& to);
  bool empty() const { return groups_.empty(); }
  void Clear();

 private:
  friend class UdpSocket;
  struct Group {
    size_t offset, bytes, segment, count;
    UdpAddress to;
    bool closed;
  };
  std::unique_ptr<std::byte[]> bytes_;
  size_t used_ = 0;
  std::vector<Group> groups_;
};

class UdpSocket {
 public:
  // Binds "HOST:PORT". kUnavailable: the port is taken. Datagrams are never fragmented.
  static StatusOr<UdpSocket> Open(const std::string& listen);
  // Receives and sends datagrams of one peer only. `from` may be the address of another socket of this user, which gets
  // the datagrams of other peers; without a size or port: any.
  static StatusOr<UdpSocket> Connect(const UdpAddress& from, const UdpAddress& to);
  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }

  // Sends as many as the network takes: the rest is lost, as datagrams can be. Calls too_large with the sizes that the
  // interface does not take. Any thread.
  void Send(const UdpBatch& batch, const std::function<void(size_t)>& too_large) const;

 private:
  static StatusOr<UdpSocket> Make(int family);
  // A message has a group whose datagrams the kernel cuts from it, or one datagram.
  struct Piece {
    const UdpBatch::Group* group;
    size_t offset, bytes, segment;
  };
  size_t SendPieces(const UdpBatch& batch, std::span<const Piece> pieces, int* error) const;

  Fd fd_;
  uint16_t port_ = 0;
  int family_ = 0;
  UdpAddress peer_;  // of a connected one
  // False: the device of this socket can't cut, so each datagram is one message, with many messages a call.
  std::shared_ptr<std::atomic<bool>> kernel_cuts_ = std::make_shared<std::atomic<bool>>(true);
};

// Receives datagrams, many with one call. One thread.
class UdpReceiver {
 public:
  UdpReceiver();
  // Calls fn for each datagram that is there now, up to a batch; the bytes may be overwritten. False: there were none.
  bool Receive(const UdpSocket& socket, const std::function<void(std::span<std::byte>, const UdpAddress&)>& fn);

 private:
  static constexpr size_t kMessages = 8, kBytes = 64 << 10;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace gyre
