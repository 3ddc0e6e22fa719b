#include "transport/udp_packet.h"

#include <algorithm>

#include "base/coding.h"
#include "transport/udp_seal.h"

namespace gyre {
namespace {

constexpr size_t kAckHead = 1 + 8 + 4 + 2 + 4;  // with the first range

std::optional<AckFrame> ReadAck(Decoder& in) {
  AckFrame ack;
  uint64_t last = in.Get<uint64_t>();
  ack.delay_us = in.Get<uint32_t>();
  const uint16_t count = in.Get<uint16_t>();
  if (!in.ok() || count == 0 || count > kMostAckRanges) return std::nullopt;
  ack.ranges.reserve(count);
  for (uint16_t i = 0; i < count; ++i) {
    if (i > 0) {
      const uint64_t gap = in.Get<uint32_t>();
      if (gap == 0 || gap >= ack.ranges.back().first) return std::nullopt;
      last = ack.ranges.back().first - 1 - gap;
    }
    const uint64_t length = in.Get<uint32_t>();
    // Packet numbers begin at 1.
    if (!in.ok() || length == 0 || length > last) return std::nullopt;
    ack.ranges.push_back({.first = last - length + 1, .last = last});
  }
  return ack;
}

}  // namespace

void PutUdpHeader(const UdpHeader& h, std::span<std::byte> out) {
  out[0] = static_cast<std::byte>(UdpType::kData);
  out[1] = static_cast<std::byte>(kUdpVersion);
  std::memcpy(out.data() + 2, &h.phase, 2);
  std::memcpy(out.data() + 4, &h.link, 8);
  std::memcpy(out.data() + 12, &h.number, 8);
}

std::optional<UdpHeader> ReadUdpHeader(ByteSpan datagram) {
  if (datagram.size() < kUdpHeader + kSealTag) return std::nullopt;
  if (datagram[0] != static_cast<std::byte>(UdpType::kData) || datagram[1] != static_cast<std::byte>(kUdpVersion)) {
    return std::nullopt;
  }
  UdpHeader h;
  std::memcpy(&h.phase, datagram.data() + 2, 2);
  std::memcpy(&h.link, datagram.data() + 4, 8);
  std::memcpy(&h.number, datagram.data() + 12, 8);
  return h;
}

bool PacketWriter::PutAck(const AckFrame& ack) {
  if (ack.ranges.empty() || left() < kAckHead) return false;
  const size_t fit = 1 + (left() - kAckHead) / 8;
  const auto count = static_cast<uint16_t>(std::min({fit, ack.ranges.size(), kMostAckRanges}));
  Raw(UdpFrameType::kAck);
  Raw(ack.ranges.front().last);
  Raw(ack.delay_us);
  Raw(count);
  for (size_t i = 0; i < count; ++i) {
    const PacketRange& r = ack.ranges[i];
    if (i > 0) Raw(static_cast<uint32_t>(ack.ranges[i - 1].first - 1 - r.last));
    Raw(static_cast<uint32_t>(r.last - r.first + 1));
  }
  return true;
}

std::span<std::byte> PacketWriter::PutChunk(uint64_t offset, uint16_t length) {
  Raw(UdpFrameType::kChunk);
  Raw(offset);
  Raw(length);
  const auto bytes = room_.subspan(at_, length);
  at_ += length;
  return bytes;
}

bool VisitPacket(ByteSpan text, PacketVisitor& visitor) {
  Decoder in(text);
  while (in.remaining() > 0) {
    bool good = false;
    switch (in.Get<UdpFrameType>()) {
      case UdpFrameType::kPadding: {
        const ByteSpan rest = in.Rest();
        return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
      }
      case UdpFrameType::kPing: good = visitor.OnPing(); break;
      case UdpFrameType::kAck: {
        const auto ack = ReadAck(in);
        good = ack && visitor.OnAck(*ack);
        break;
      }
      case UdpFrameType::kChunk: {
        const auto offset = in.Get<uint64_t>();
        const auto length = in.Get<uint16_t>();
        if (!in.ok() || length > in.remaining()) return false;
        const ByteSpan bytes = in.Rest().first(length);
        in.Skip(length);
        good = visitor.OnChunk(offset, bytes);
        break;
      }
      case UdpFrameType::kWindow: {
        const auto limit = in.Get<uint64_t>();
        good = in.ok() && visitor.OnWindow(limit);
        break;
      }
      case UdpFrameType::kEnd: {
        const auto length = in.Get<uint64_t>();
        good = in.ok() && visitor.OnEnd(length);
        break;
      }
      case UdpFrameType::kReset: {
        const auto reason = in.Get<uint8_t>();
        good = in.ok() && visitor.OnReset(reason);
        break;
      }
      case UdpFrameType::kChallenge: {
        const auto token = in.Get<uint64_t>();
        good = in.ok() && visitor.OnChallenge(token);
        break;
      }
      case UdpFrameType::kResponse: {
        const auto token = in.Get<uint64_t>();
        good = in.ok() && visitor.OnResponse(token);
        break;
      }
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace gyre
