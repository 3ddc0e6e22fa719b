// A TCP connection that is read and written through io_uring: the kernel puts incoming bytes into buffers that it was
// given before, with one request for all of them, and may send from where the bytes lie. The bytes on the wire are
// TCP's, so the other end may read and write them in any way.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"
#include "transport/tcp_stream.h"

namespace gyre {

struct UringOptions {
  // Writes of at least this many bytes are sent from where they lie. The sender then waits until the peer has
  // acknowledged them, a round trip; so it is off.
  size_t zero_copy_from = ~size_t{0};
};

// OK, or the reason why this process can't use io_uring: kUnimplemented (not built in), kFailedPrecondition (the kernel
// forbids it or is too old).
Status CheckUring();

// kResourceExhausted: no descriptor or no memory is left; the errors of CheckUring.
StatusOr<std::unique_ptr<ByteStream>> MakeUringStream(Fd socket, const TcpStreamOptions& tcp = {},
                                                      const UringOptions& options = {});

}  // namespace gyre
