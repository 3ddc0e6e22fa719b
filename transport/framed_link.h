// Frames over a byte stream: the header, both checksums, and the time limits for each end (docs/wire.md). It
// has no thread of its own: the threads that use it read and write the stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/link.h"

namespace gyre {

struct FramedLinkOptions {
  uint64_t max_payload = kMaxPayload;  // of a frame that comes in
  // A peer that takes or sends no byte for this time in the middle of a frame is given up. max() = there is no such
  // limit: a stage that computes does not read, so on ring links the sender's deadline and the heartbeats decide.
  Duration silence = Duration::max();
};

// `peer` is for messages. kResourceExhausted: there is no memory; then the stream is closed.
StatusOr<std::unique_ptr<Link>> MakeFramedLink(std::unique_ptr<ByteStream> stream, std::string peer,
                                               const FramedLinkOptions& options = {});

}  // namespace gyre
