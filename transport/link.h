// A link: an ordered channel of complete typed frames to one peer, each exactly once until it reports kUnavailable.
// It does not depend on layers or models.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/transport.h"
#include "transport/frame.h"

namespace gyre {

// A frame whose payload is owned. `payload` has header.length bytes.
struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

using ByteSpan = std::span<const std::byte>;

// One sending and one receiving thread at a time; Close, Wake from any.
class Link {
 public:
  virtual ~Link() = default;

  // Sends one frame whose payload is the parts, one after the other (gather write). The parts may be reused once
  // Send returns. header.length and both checksums are set by the carrier.
  // kDeadlineExceeded: the peer reads nothing and nothing of the frame was sent. kUnavailable: closed, for good.
  // kInvalidArgument: payload over kMaxPayload.
  virtual Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) = 0;
  // A payload of at most this size is sent now without waiting. It may be less than that; 0: none, or unknown. By the
  // sending thread. (queued_link.h: sending that does not wait.)
  virtual size_t Room() const { return 0; }

  // The next frame. kDeadlineExceeded: none came. kUnavailable: the peer is gone, for good, and every frame
  // that it sent before has been received. kDataLoss: bytes that are no frame; then the link is closed.
  // kCancelled: Wake was called.
  virtual StatusOr<Frame> Recv(Deadline deadline) = 0;

  // Returns a payload that is no longer needed: its memory may take the next frame. By the receiving thread. Useful for
  // large frames, whose fresh pages cost the system more than their copying does.
  virtual void GiveBack(std::vector<std::byte> payload) { static_cast<void>(payload); }

  // Ends a waiting Recv, or else the next one, with kCancelled. For a receiver that waits for other things too.
  virtual void Wake() = 0;

  // The bytes received so far, also of incomplete frames. Any thread. 0 if nothing counts them.
  virtual uint64_t received() const { return 0; }

  // The time that a packet to the peer and its answer take, on a quiet connection; nullopt: unknown, or in memory. Any
  // thread.
  virtual std::optional<Duration> RoundTrip() const { return std::nullopt; }

  // The carrier. Any thread.
  virtual Transport transport() const { return Transport::kMemory; }

  // The member at the other end by its certificate; "" = unknown: without TLS, or within a host. Set before it is
  // shared.
  const std::string& certified_peer() const { return certified_peer_; }
  void SetCertifiedPeer(std::string member) { certified_peer_ = std::move(member); }

  // Wakes both ends. Frames already sent can still be received by the peer. Idempotent.
  virtual void Close() = 0;

 private:
  std::string certified_peer_;
};

}  // namespace gyre
