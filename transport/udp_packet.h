// The bytes of UDP links: the header of a data packet and the frames in it (docs/wire.md, "UDP"). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "transport/link.h"

namespace gyre {

inline constexpr uint8_t kUdpVersion = 1;
inline constexpr size_t kUdpHeader = 20;               // of a data packet
inline constexpr size_t kUdpBaseSize = 1200;           // a datagram that every path carries
inline constexpr size_t kUdpLargest = 65000;           // the largest datagram that is tried
inline constexpr uint64_t kUdpFirstWindow = 64 << 10;  // what may be sent before the first window
inline constexpr size_t kMostAckRanges = 128;

enum class UdpType : uint8_t { kInit = 1, kRetry = 2, kAccept = 3, kData = 4 };

// The address of a datagram: a sockaddr, which the core only compares.
struct UdpAddress {
  std::array<std::byte, 28> bytes{};
  uint8_t size = 0;
  bool operator==(const UdpAddress&) const = default;
};

struct UdpHeader {
  uint16_t phase = 0;
  uint64_t link = 0;    // the receiver's
  uint64_t number = 0;  // of the packet, from 1
};
// REQUIRES: out has kUdpHeader bytes.
void PutUdpHeader(const UdpHeader& header, std::span<std::byte> out);
// nullopt: no data packet, or shorter than header and tag.
std::optional<UdpHeader> ReadUdpHeader(ByteSpan datagram);

enum class UdpFrameType : uint8_t {
  kPadding = 0,
  kPing = 1,
  kAck = 2,
  kChunk = 3,
  kWindow = 4,
  kEnd = 5,
  kReset = 6,
  kChallenge = 7,
  kResponse = 8,
};

struct PacketRange {
  uint64_t first = 0, last = 0;  // both included
  bool operator==(const PacketRange&) const = default;
};
struct AckFrame {
  uint32_t delay_us = 0;
  std::vector<PacketRange> ranges;  // the latest first; they neither touch nor overlap
};

// Appends numbers and bytes to a packet. A frame is put only if it fits completely.
class PacketWriter {
 public:
  explicit PacketWriter(std::span<std::byte> room) : room_(room) {}
  size_t size() const { return at_; }
  size_t left() const { return room_.size() - at_; }
  template <typename... T>
  bool Put(UdpFrameType type, T... values) {
    if (left() < 1 + (sizeof(T) + ... + 0)) return false;
    Raw(type);
    (Raw(values), ...);
    return true;
  }
  // Puts as many ranges as fit.
  bool PutAck(const AckFrame& ack);
  // The place for the bytes of a chunk. REQUIRES: left() >= kChunkHead + length.
  std::span<std::byte> PutChunk(uint64_t offset, uint16_t length);
  void PadTo(size_t size) {
    std::memset(room_.data() + at_, 0, size - at_);
    at_ = size;
  }

  static constexpr size_t kChunkHead = 11;

 private:
  template <typename T>
  void Raw(T value) {
    std::memcpy(room_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  std::span<std::byte> room_;
  size_t at_ = 0;
};

// Receives the frames of a packet, in order. The functions return false if the frame breaks the protocol, which ends
// the walk.
class PacketVisitor {
 public:
  virtual ~PacketVisitor() = default;
  virtual bool OnPing() = 0;
  virtual bool OnAck(const AckFrame& ack) = 0;
  virtual bool OnChunk(uint64_t offset, ByteSpan bytes) = 0;
  virtual bool OnWindow(uint64_t limit) = 0;
  virtual bool OnEnd(uint64_t length) = 0;
  virtual bool OnReset(uint8_t reason) = 0;
  virtual bool OnChallenge(uint64_t token) = 0;
  virtual bool OnResponse(uint64_t token) = 0;
};
// Returns false if a frame is cut or has an unknown type, or if the visitor refused it.
bool VisitPacket(ByteSpan text, PacketVisitor& visitor);

}  // namespace gyre
