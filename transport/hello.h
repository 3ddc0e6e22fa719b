// The first frames on a link between processes: the dialer, its purpose, and whether both ends belong together. Both
// prove that they know the plan's key, which is not sent (docs/wire.md, "Hello").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/transport.h"
#include "identity/principal.h"
#include "transport/frame.h"

namespace gyre {

enum class LinkRole : uint8_t { kRing = 1, kBulk = 2, kWeights = 3 };

// The epoch in the hello of a link for weights, which belongs to no plan.
inline constexpr Epoch kWeightsEpoch{.term = 0, .number = 1};

// Abilities of a peer beyond the protocol's version. An unknown bit is ignored; only bits that both ends have are used.
enum FeatureBits : uint32_t {
  kFeatureNone = 0,
  kFeatureUdp = 1,  // a UdpOffer stands behind the rest
};

inline constexpr uint16_t kLinkProtocol = 5;
inline constexpr size_t kMaxHello = 1024;

// An acceptor sends these bytes, and the dialer's proof covers them, so that nobody can use a recorded hello: they are
// random, new for each connection. They are zeros where nobody can listen: over TLS and within a host.
using HelloChallenge = std::array<std::byte, 16>;
// An HMAC, cut to 16 bytes.
using HelloProof = std::array<std::byte, 16>;

// The offer to continue the link over UDP.
struct UdpOffer {
  uint64_t link = 0;                // random: what the peer writes on its datagrams
  std::array<uint8_t, 32> share{};  // of the keys (X25519)
  bool operator==(const UdpOffer&) const = default;
};

// From dialer to acceptor.
struct Hello {
  uint16_t protocol = kLinkProtocol;
  uint32_t features = kFeatureNone;
  LinkRole role = LinkRole::kRing;
  Epoch epoch;
  uint32_t hop = 0;  // kRing: 0 = coordinator to the first stage, i = stage i-1 to i, n = the last to the coordinator
  uint64_t model_hash = 0;
  // The plan's key. It is not sent: an acceptor sets it once it has checked the proof.
  RingKey key{};
  std::string from;                // the member that dials; "coordinator" for the coordinator's own ends
  std::string to;                  // the member that is dialed
  WireType wire = WireType::kF32;  // kRing: of the activations on the plan's hops
  std::optional<UdpOffer> udp;     // the link is to go over UDP
  // The transport of the plan. Both ends know it from the plan, so it is not sent.
  Transport transport = Transport::kAuto;
  // Set in a hello that was received.
  HelloProof proof{};
  Hash256 said{};  // what both proofs are about: the challenge and the rest of the hello
  bool operator==(const Hello&) const = default;
};

// "hop 1 of plan 3", for messages.
std::string Describe(const Hello& hello);

// From acceptor to dialer.
struct HelloReply {
  uint16_t protocol = kLinkProtocol;
  uint32_t features = kFeatureNone;
  std::string refusal;  // empty: welcome
  std::optional<UdpOffer> udp;
  bool proven = false;  // of one that came in: its sender knows the key and has read the hello
  bool operator==(const HelloReply&) const = default;
};

// The acceptor's first frame, if it has a challenge.
std::vector<std::byte> EncodeChallenge(const HelloChallenge& challenge);
// kDataLoss; kFailedPrecondition: the acceptor speaks another protocol.
StatusOr<HelloChallenge> DecodeChallenge(std::span<const std::byte> payload);

// Adds the proof made with hello.key. `said`, if not null, gets the text that the answer's proof covers.
std::vector<std::byte> EncodeHello(const Hello& hello, const HelloChallenge& challenge = {}, Hash256* said = nullptr);
// The proof is not checked yet. kDataLoss. Names are cut to printable ASCII.
StatusOr<Hello> DecodeHello(std::span<const std::byte> payload, const HelloChallenge& challenge = {});
// Whether a received hello was made by somebody who knows this key, for this connection.
bool Proves(const Hello& hello, const RingKey& key);

// `hello` is the one that is answered. Either its proof has been checked and its key set, or the answer refuses it and
// proves nothing.
std::vector<std::byte> EncodeHelloReply(const HelloReply& reply, const Hello& hello);
// Decodes the answer to a hello with this key. kDataLoss.
StatusOr<HelloReply> DecodeHelloReply(std::span<const std::byte> payload, const RingKey& key, const Hash256& said);

// The whole frame that carries a challenge, a hello or an answer.
std::vector<std::byte> HelloFrame(std::span<const std::byte> payload, Epoch epoch = {});

// Whether a certificate's owner may be the member of this name: a worker of that name, or the coordinator for its own
// ends ("coordinator", "local"). kFailedPrecondition.
Status CheckMember(const Principal& who, const std::string& member);

}  // namespace gyre
