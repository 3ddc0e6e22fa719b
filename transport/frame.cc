#include "transport/frame.h"

#include <cstring>

#include "base/coding.h"
#include "base/crc32c.h"

namespace gyre {
namespace {

constexpr size_t kCrcAt = kFrameHeaderBytes - 4;
constexpr uint8_t kQueuedFlag = 1;

}  // namespace

std::array<std::byte, kFrameHeaderBytes> EncodeHeader(const FrameHeader& h) {
  Encoder out;
  out.Put(kFrameMagic);
  out.Put(h.version);
  out.Put(h.header_bytes);
  out.Put(h.kind);
  out.Put(h.dtype);
  out.Put(static_cast<uint8_t>(h.queued ? kQueuedFlag : 0));
  out.Put(h.rows);
  out.Put(h.epoch.term);
  out.Put(h.epoch.number);
  out.Put(h.step);
  out.Put(h.length);
  out.Put(h.payload_crc);
  out.Put(h.computed_us);
  out.Put(h.slowest_us);
  out.Put(Crc32c(out.bytes()));
  std::array<std::byte, kFrameHeaderBytes> bytes;
  std::memcpy(bytes.data(), out.bytes().data(), kFrameHeaderBytes);
  return bytes;
}

Status CheckPayload(uint64_t bytes) {
  if (bytes <= kMaxPayload) return absl::OkStatus();
  return InvalidArgument("a payload of {} bytes, at most {} fit", bytes, kMaxPayload);
}

StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> bytes, uint64_t max_payload) {
  if (bytes.size() < kFrameHeaderBytes) {
    return DataLoss("frame header: {} bytes, expected {}", bytes.size(), kFrameHeaderBytes);
  }
  Decoder in(bytes.first(kFrameHeaderBytes));
  const auto magic = in.Get<uint32_t>();
  if (magic != kFrameMagic) return DataLoss("frame header: magic {:#010x}, expected {:#010x}", magic, kFrameMagic);
  Decoder tail(bytes.subspan(kCrcAt, 4));
  const auto found = tail.Get<uint32_t>();
  const uint32_t expected = Crc32c(bytes.first(kCrcAt));
  if (found != expected) return DataLoss("frame header: checksum {:#010x}, expected {:#010x}", found, expected);
  FrameHeader h;
  h.version = in.Get<uint16_t>();
  if (h.version != kFrameVersion) return DataLoss("frame header: version {}, expected {}", h.version, kFrameVersion);
  h.header_bytes = in.Get<uint16_t>();
  if (h.header_bytes != kFrameHeaderBytes) {
    return DataLoss("frame header: length {}, expected {}", h.header_bytes, kFrameHeaderBytes);
  }
  h.kind = in.Get<FrameKind>();
  h.dtype = in.Get<WireType>();
  h.queued = (in.Get<uint8_t>() & kQueuedFlag) != 0;
  h.rows = in.Get<uint32_t>();
  h.epoch.term = in.Get<uint64_t>();
  h.epoch.number = in.Get<uint64_t>();
  h.step = in.Get<StepId>();
  h.length = in.Get<uint64_t>();
  h.payload_crc = in.Get<uint32_t>();
  h.computed_us = in.Get<uint32_t>();
  h.slowest_us = in.Get<uint32_t>();
  if (h.kind < FrameKind::kHello || h.kind > FrameKind::kMasks) {
    return DataLoss("frame header: kind {} is unknown", static_cast<int>(h.kind));
  }
  if (h.dtype > WireType::kQ8) return DataLoss("frame header: type {} is unknown", static_cast<int>(h.dtype));
  if (h.length > max_payload) {
    return DataLoss("frame header: a payload of {} bytes, expected {} at most", h.length, max_payload);
  }
  return h;
}

}  // namespace gyre
