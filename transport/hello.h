// The first frame on a link between processes: who dials, for what, and whether both ends belong together.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/transport.h"
#include "identity/principal.h"
#include "transport/frame.h"

namespace gyre {

enum class LinkRole : uint8_t { kRing = 1, kBulk = 2, kWeights = 3 };

// The epoch in the hello of a link for weights, which belongs to no plan.
inline constexpr Epoch kWeightsEpoch{.term = 0, .number = 1};

// What a peer can do beyond the protocol's version. An unknown bit is ignored, and both use what both have.
enum FeatureBits : uint32_t {
  kFeatureNone = 0,
  kFeatureUdp = 1,  // a UdpOffer stands behind the rest
};

inline constexpr uint16_t kLinkProtocol = 2;
inline constexpr size_t kMaxHello = 1024;

// For a link that goes on over UDP.
struct UdpOffer {
  uint64_t link = 0;                // random: what the peer writes on its datagrams
  std::array<uint8_t, 32> share{};  // of the keys (X25519)
  bool operator==(const UdpOffer&) const = default;
};

// Dialer to acceptor.
struct Hello {
  uint16_t protocol = kLinkProtocol;
  uint32_t features = kFeatureNone;
  LinkRole role = LinkRole::kRing;
  Epoch epoch;
  uint32_t hop = 0;  // kRing: 0 = coordinator to the first stage, i = stage i-1 to i, n = the last to the coordinator
  uint64_t model_hash = 0;
  RingKey key{};
  std::string from;                // the member that dials; "coordinator" for the coordinator's own ends
  std::string to;                  // the member that is dialed
  WireType wire = WireType::kF32;  // kRing: of the activations on the plan's hops
  std::optional<UdpOffer> udp;     // the link is to go over UDP
  // What the plan wishes. Both ends know it from the plan: it is not sent.
  Transport transport = Transport::kAuto;
  bool operator==(const Hello&) const = default;
};

// Acceptor to dialer.
struct HelloReply {
  uint16_t protocol = kLinkProtocol;
  uint32_t features = kFeatureNone;
  std::string refusal;  // empty: welcome
  std::optional<UdpOffer> udp;
  bool operator==(const HelloReply&) const = default;
};

std::vector<std::byte> EncodeHello(const Hello& hello);
// kDataLoss. Names are cut to printable ASCII.
StatusOr<Hello> DecodeHello(std::span<const std::byte> payload);
std::vector<std::byte> EncodeHelloReply(const HelloReply& reply);
StatusOr<HelloReply> DecodeHelloReply(std::span<const std::byte> payload);

// The whole frame that carries a hello or an answer.
std::vector<std::byte> HelloFrame(std::span<const std::byte> payload, Epoch epoch = {});

// Whether a certificate's owner may be the member of this name: a worker of that name, or the coordinator for its own
// ends ("coordinator", "local"). kFailedPrecondition.
Status CheckMember(const Principal& who, const std::string& member);

// Compares in constant time.
bool SameKey(const RingKey& a, const RingKey& b);

}  // namespace gyre
