// A byte stream carries bytes to one peer and back, in order, until it ends. It has no frames and no time limits:
// framed_link.h adds both. A carrier that seals bytes can use another one below it.
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
// thread. Errors are final, and their messages do not name the peer. Only Wait waits.
class ByteStream {
 public:
  enum class Ready : uint8_t { kRead, kWrite };

  virtual ~ByteStream() = default;

  // Takes as many bytes as there is room for, of the parts in succession; returns their number. 0: there is no room
  // now, no byte has left, and the next call begins with the same bytes. REQUIRES: a part is not empty. kUnavailable.
  virtual StatusOr<size_t> Write(std::span<const iovec> parts) = 0;
  // True: no taken byte is held back, and the parts may be reused. False: call it again after a Wait for kWrite. For
  // carriers that seal bytes or send them from where they lie. kUnavailable.
  virtual StatusOr<bool> Flush() { return true; }
  // The number of bytes that Write and Flush take now without a Wait. It may be less than that; 0: none, or unknown. By
  // the writing thread.
  virtual size_t Room() const { return 0; }
  // Returns the number of bytes that came; nullopt: none are there now; 0: the peer closed, and all bytes were read.
  // REQUIRES: `into` is not empty. kUnavailable; kDataLoss: the bytes are not such as a peer would send.
  virtual StatusOr<std::optional<size_t>> Read(std::span<std::byte> into) = 0;

  // Waits until the direction may be ready, for a reader also until a Wake that no Wait has returned for. It may return
  // early. kDeadlineExceeded; kUnavailable.
  virtual Status Wait(Ready direction, Deadline deadline) = 0;
  // Ends the reader's Wait, or else its next one.
  virtual void Wake() = 0;
  // Ends the waits of both ends. Bytes taken before still reach the peer, then it reads the end. Idempotent.
  virtual void Close() = 0;

  // A reader that expects fewer bytes should still ask for this many at once. If a Read costs no system call, the
  // number is small, so that payloads are copied directly to their place.
  virtual size_t ReadAhead() const { return size_t{64} << 10; }
  // Whether frames carry a checksum of their payload: false if the bytes cross no network.
  virtual bool NeedsChecksum() const { return true; }
  // As Link::RoundTrip.
  virtual std::optional<Duration> RoundTrip() const { return std::nullopt; }
  virtual Transport transport() const = 0;
};

}  // namespace gyre
