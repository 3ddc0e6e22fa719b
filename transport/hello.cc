#include "transport/hello.h"

#include <algorithm>

#include "base/coding.h"
#include "base/crc32c.h"
#include "transport/hkdf.h"
#include "transport/plan_key.h"

namespace gyre {
namespace {

constexpr size_t kMaxText = 512;
// The offsets of the proofs.
constexpr size_t kHelloProofAt = 36, kReplyProofAt = 8;

std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

std::vector<std::byte> Bytes(const Encoder& out) { return {out.bytes().begin(), out.bytes().end()}; }

ByteSpan Label(std::string_view text) { return std::as_bytes(std::span(text)); }

// The hash of `before` and a payload, with zeros in the place of the proof.
Hash256 HashWithoutProof(ByteSpan before, ByteSpan payload, size_t proof_at) {
  std::vector<std::byte> all(before.begin(), before.end());
  all.insert(all.end(), payload.begin(), payload.end());
  const auto proof = all.begin() + static_cast<std::ptrdiff_t>(before.size() + proof_at);
  std::fill(proof, proof + static_cast<std::ptrdiff_t>(HelloProof{}.size()), std::byte{0});
  return Sha256(all);
}

HelloProof Prove(const RingKey& key, std::string_view label, const Hash256& of) {
  const Hash256 whole = HmacSha256(HelloKey(key), {Label(label), of});
  HelloProof proof;
  std::copy_n(whole.begin(), proof.size(), proof.begin());
  return proof;
}
HelloProof ProveHello(const RingKey& key, const Hash256& said) { return Prove(key, "hello", said); }
HelloProof ProveReply(const RingKey& key, const Hash256& said, ByteSpan payload) {
  return Prove(key, "welcome", HashWithoutProof(said, payload, kReplyProofAt));
}

uint32_t Features(uint32_t features, const std::optional<UdpOffer>& udp) {
  return udp ? features | kFeatureUdp : features & ~uint32_t{kFeatureUdp};
}

void PutOffer(const std::optional<UdpOffer>& udp, Encoder* out) {
  if (!udp) return;
  out->Put(udp->link);
  out->PutBytes(udp->share.data(), udp->share.size());
}

std::optional<UdpOffer> GetOffer(uint32_t features, Decoder* in) {
  if ((features & kFeatureUdp) == 0) return std::nullopt;
  UdpOffer udp;
  udp.link = in->Get<uint64_t>();
  in->GetBytes(udp.share.data(), udp.share.size());
  return udp;
}

}  // namespace

std::string Describe(const Hello& h) {
  return h.role == LinkRole::kRing
             ? fmt::format("hop {} of plan {}", h.hop, h.epoch.number)
             : fmt::format("the {} link to {}", h.role == LinkRole::kBulk ? "bulk" : "weights", h.to);
}

std::vector<std::byte> EncodeChallenge(const HelloChallenge& challenge) {
  Encoder out;
  out.Put(kLinkProtocol);
  out.Put(uint16_t{0});
  out.Put(uint32_t{kFeatureNone});
  out.PutBytes(challenge.data(), challenge.size());
  return Bytes(out);
}

StatusOr<HelloChallenge> DecodeChallenge(std::span<const std::byte> payload) {
  Decoder in(payload);
  const auto protocol = in.Get<uint16_t>();
  in.Get<uint16_t>();
  in.Get<uint32_t>();
  HelloChallenge challenge{};
  in.GetBytes(challenge.data(), challenge.size());
  if (!in.ok()) return DataLoss("a challenge of {} bytes is cut", payload.size());
  if (protocol != kLinkProtocol) {
    return FailedPrecondition("it speaks link protocol {}, expected {}", protocol, kLinkProtocol);
  }
  return challenge;
}

std::vector<std::byte> EncodeHello(const Hello& h, const HelloChallenge& challenge, Hash256* said) {
  Encoder out;
  out.Put(h.protocol);
  out.Put(h.role);
  out.Put(h.role == LinkRole::kRing ? h.wire : WireType::kNone);
  out.Put(Features(h.features, h.udp));
  out.Put(h.epoch.term);
  out.Put(h.epoch.number);
  out.Put(h.hop);
  out.Put(h.model_hash);
  const HelloProof none{};
  out.PutBytes(none.data(), none.size());
  out.PutString(std::string_view(h.from).substr(0, kMaxText));
  out.PutString(std::string_view(h.to).substr(0, kMaxText));
  PutOffer(h.udp, &out);
  std::vector<std::byte> bytes = Bytes(out);
  const Hash256 hash = HashWithoutProof(challenge, bytes, kHelloProofAt);
  const HelloProof proof = ProveHello(h.key, hash);
  std::copy(proof.begin(), proof.end(), bytes.begin() + kHelloProofAt);
  if (said != nullptr) *said = hash;
  return bytes;
}

StatusOr<Hello> DecodeHello(std::span<const std::byte> payload, const HelloChallenge& challenge) {
  Decoder in(payload);
  Hello h;
  h.protocol = in.Get<uint16_t>();
  h.role = in.Get<LinkRole>();
  h.wire = in.Get<WireType>();
  if (h.wire == WireType::kNone) h.wire = WireType::kF32;  // a bulk link, or a version that knows no other
  h.features = in.Get<uint32_t>();
  h.epoch.term = in.Get<uint64_t>();
  h.epoch.number = in.Get<uint64_t>();
  h.hop = in.Get<uint32_t>();
  h.model_hash = in.Get<uint64_t>();
  in.GetBytes(h.proof.data(), h.proof.size());
  h.from = Printable(in.GetString());
  h.to = Printable(in.GetString());
  h.udp = GetOffer(h.features, &in);
  // A later protocol may add more after this.
  if (!in.ok() || h.from.size() > kMaxText || h.to.size() > kMaxText)
    return DataLoss("a hello of {} bytes is cut or too long", payload.size());
  if (h.role < LinkRole::kRing || h.role > LinkRole::kWeights) {
    return DataLoss("a hello with role {}, expected 1 (ring), 2 (bulk) or 3 (weights)", static_cast<int>(h.role));
  }
  if (!IsActivations(h.wire))
    return DataLoss("a hello for activations of {}, expected f32, f16 or q8", WireTypeName(h.wire));
  h.said = HashWithoutProof(challenge, payload, kHelloProofAt);
  return h;
}

bool Proves(const Hello& hello, const RingKey& key) { return SameBytes(hello.proof, ProveHello(key, hello.said)); }

std::vector<std::byte> EncodeHelloReply(const HelloReply& r, const Hello& hello) {
  Encoder out;
  out.Put(r.protocol);
  out.Put(uint16_t{0});
  out.Put(Features(r.features, r.udp));
  const HelloProof none{};
  out.PutBytes(none.data(), none.size());
  out.PutString(std::string_view(r.refusal).substr(0, kMaxText));
  PutOffer(r.udp, &out);
  std::vector<std::byte> bytes = Bytes(out);
  if (r.refusal.empty()) {
    const HelloProof proof = ProveReply(hello.key, hello.said, bytes);
    std::copy(proof.begin(), proof.end(), bytes.begin() + kReplyProofAt);
  }
  return bytes;
}

StatusOr<HelloReply> DecodeHelloReply(std::span<const std::byte> payload, const RingKey& key, const Hash256& said) {
  Decoder in(payload);
  HelloReply r;
  r.protocol = in.Get<uint16_t>();
  in.Get<uint16_t>();
  r.features = in.Get<uint32_t>();
  HelloProof proof{};
  in.GetBytes(proof.data(), proof.size());
  r.refusal = Printable(in.GetString());
  r.udp = GetOffer(r.features, &in);
  if (!in.ok() || r.refusal.size() > kMaxText) {
    return DataLoss("an answer to a hello of {} bytes is cut or too long", payload.size());
  }
  r.proven = SameBytes(proof, ProveReply(key, said, payload));
  return r;
}

std::vector<std::byte> HelloFrame(std::span<const std::byte> payload, Epoch epoch) {
  const auto head = EncodeHeader(
      {.kind = FrameKind::kHello, .epoch = epoch, .length = payload.size(), .payload_crc = Crc32c(payload)});
  std::vector<std::byte> bytes(head.size() + payload.size());
  std::copy(payload.begin(), payload.end(), std::copy(head.begin(), head.end(), bytes.begin()));
  return bytes;
}

Status CheckMember(const Principal& who, const std::string& member) {
  const bool coordinators = member == kCoordinatorName || member == kLocalName;
  if (who.role == Role::kCoordinator && coordinators) return absl::OkStatus();
  if (who.role == Role::kWorker && !coordinators && who.name == member) return absl::OkStatus();
  return FailedPrecondition("the certificate is that of {}, expected that of {}", Describe(who),
                            coordinators ? "a coordinator" : "worker " + member);
}

}  // namespace gyre
