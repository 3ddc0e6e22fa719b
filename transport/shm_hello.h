// The hello over a Unix socket, and the memory that comes with the welcome (docs/wire.md, "Shared memory").
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"
#include "transport/hello.h"

namespace gyre {

// Answers a hello that the acceptor takes, with the proof of its key. On an error the dialer was told nothing, and its
// socket is closed.
StatusOr<std::unique_ptr<ByteStream>> WelcomeWithMemory(Fd socket, const Hello& hello);

struct ShmAnswer {
  std::unique_ptr<ByteStream> stream;  // null: refused
  std::string refusal;
};
// The dialer's side; waits until the acceptor claims the hop. kUnavailable: there was no answer, another carrier
// may get one; kDataLoss, kResourceExhausted: the memory can't be used; kFailedPrecondition: the proof is missing or
// wrong; kCancelled, kDeadlineExceeded.
StatusOr<ShmAnswer> SayHelloForMemory(Fd socket, const Hello& hello, Deadline deadline,
                                      const std::function<bool()>& stopped);

}  // namespace gyre
