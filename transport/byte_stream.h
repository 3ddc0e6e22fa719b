// A byte stream carries bytes to one peer and back, in order, until it ends. It knows no frames and has no patience of
// its own: both stand above it, in framed_link.h. A carrier that seals bytes can stand on another one.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "base/transport.h"

namespace gyre {

// One thread writes and one reads at a time, and each of them waits for its own direction; Wake, Close, RoundTrip: any
// thread. Errors are for good, and their messages do not name the peer. Only Wait waits.
class ByteStream {
 public:
  enum class Ready : uint8_t { kRead, kWrite };

  virtual ~ByteStream() = default;

  // Takes as many bytes as there is room for, of the parts one after the other; how many it took. 0: there is no room
  // now, nothing has left, and the next call begins with the same bytes. REQUIRES: a part is not empty. kUnavailable.
  virtual StatusOr<size_t> Write(std::span<const iovec> parts) = 0;
  // True: nothing of what was taken is held back, and the parts may be reused. False: to be called again after a Wait
  // for kWrite. For carriers that seal bytes or send them from where they lie. kUnavailable.
  virtual StatusOr<bool> Flush() { return true; }
  // Returns how many bytes came; nullopt: nothing is there now; 0: the peer's end, all that it sent before was read.
  // REQUIRES: `into` is not empty. kUnavailable; kDataLoss: what came is not what a peer would send.
  virtual StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) = 0;

  // Until the direction may be ready, for a reader also until a Wake that no Wait has returned for. It may return
  // early. kDeadlineExceeded; kUnavailable.
  virtual Status Wait(Ready direction, Deadline deadline) = 0;
  // Ends the reader's Wait, or else its next one.
  virtual void Wake() = 0;
  // Ends the waits of both ends. What was taken before still reaches the peer, then the end. Idempotent.
  virtual void Close() = 0;

  // A reader should ask for so many bytes at once where it expects fewer. Where a Read costs no system call: few, so
  // that payloads are copied to their place at once.
  virtual size_t ReadAhead() const { return size_t{64} << 10; }
  // Whether frames are to carry a checksum of their payload: false where no wire lies between.
  virtual bool NeedsChecksum() const { return true; }
  // As Link::RoundTrip.
  virtual std::optional<Duration> RoundTrip() const { return std::nullopt; }
  virtual Transport transport() const = 0;
};

}  // namespace gyre
