// A worker finds its coordinator on the local network: a question to a multicast group, and an answer with a port
// (docs/security.md). Neither proves anything; only a TLS handshake does, if there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

inline constexpr char kDiscoveryGroup[] = "239.255.71.82";
inline constexpr uint16_t kDiscoveryPort = 7071;

// Question and answer both have 64 bytes, so that answers amplify nothing.
struct DiscoveryMessage {
  bool answer = false;
  uint16_t port = 0;      // of an answer: of the gRPC server
  std::string nonce;      // 16 bytes, which the answer repeats
  std::string authority;  // SHA-256 of the CA's certificate; empty = without TLS
  bool operator==(const DiscoveryMessage&) const = default;
};
std::vector<std::byte> EncodeDiscovery(const DiscoveryMessage& message);
StatusOr<DiscoveryMessage> DecodeDiscovery(std::span<const std::byte> bytes);  // kDataLoss

struct DiscoveryOptions {
  std::string host;       // that the gRPC server listens at
  uint16_t port = 0;      // likewise
  std::string authority;  // as in DiscoveryMessage: who names another one gets no answer
};

class DiscoveryResponder {
 public:
  // kUnavailable: the group can't be joined.
  static StatusOr<std::unique_ptr<DiscoveryResponder>> Start(const DiscoveryOptions& options);
  // Joins its thread.
  virtual ~DiscoveryResponder() = default;
};

// HOST:PORT of the first coordinator that answers for this CA. Asks on all interfaces, again every second. `stopped` is
// asked every 50 ms. kCancelled; kDeadlineExceeded; kUnavailable: this machine has no network for it.
StatusOr<std::string> FindCoordinator(const std::string& authority, Deadline deadline,
                                      const std::function<bool()>& stopped);

}  // namespace gyre
