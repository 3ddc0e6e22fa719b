// A link: an ordered channel of whole typed frames to one peer, exactly once until it reports kUnavailable.
// It knows no layers and no models.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/frame.h"

namespace gyre {

// A frame whose payload is owned. `payload` has header.length bytes.
struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

using ByteSpan = std::span<const std::byte>;

// One sending and one receiving thread at a time; Close, SetNotify from any.
class Link {
 public:
  virtual ~Link() = default;

  // Sends one frame whose payload is the parts, one after the other (gather write). The parts may be reused once
  // Send returns. header.length and both checksums are set by the carrier.
  // kDeadlineExceeded: the peer takes nothing in and nothing of the frame was sent. kUnavailable: closed, for good.
  // kInvalidArgument: payload over kMaxPayload.
  virtual Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) = 0;

  // The next frame. kDeadlineExceeded: nothing came. kUnavailable: the peer is gone, for good, and every frame
  // that it sent before has been received. kDataLoss: bytes that are no frame; the link is closed by it.
  virtual StatusOr<Frame> Recv(Deadline deadline) = 0;

  // Called, on any thread, whenever Recv may have something new to say (a frame, or the end). Must not block and
  // must not call the link. For a thread that waits for more than one thing.
  virtual void SetNotify(std::function<void()> notify) = 0;

  // Wakes both ends. Frames already sent can still be received by the peer. Idempotent.
  virtual void Close() = 0;
};

}  // namespace gyre
