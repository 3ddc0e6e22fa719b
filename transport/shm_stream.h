// A byte stream through memory that two processes share: a ring for each direction, and two sockets that wake a sleeper
// (docs/wire.md, "Shared memory"). All that the peer writes there is checked.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"

namespace gyre {

inline constexpr size_t kShmRingBytes = 4 << 20;  // a power of two

// A sealed memfd of the right size, with its pages, ready for MakeShmStream. kResourceExhausted.
StatusOr<Fd> MakeShmMemory();

enum class ShmSide : int { kDialer = 0, kAcceptor = 1 };

struct ShmBells {
  Fd data;  // connected Unix sockets: bytes for a reader that sleeps,
  Fd room;  // and for a writer that sleeps
};

// `memory` is only needed for the call. Checks the memory's size, seals and header, and maps it. kDataLoss: it is not
// what MakeShmMemory makes. kResourceExhausted.
StatusOr<std::unique_ptr<ByteStream>> MakeShmStream(ShmSide side, int memory, ShmBells bells);

// Both ends of one stream in this process, for tests. one_mapping: both use the same addresses, so that a race detector
// sees their accesses.
StatusOr<std::pair<std::unique_ptr<ByteStream>, std::unique_ptr<ByteStream>>> MakeShmPair(bool one_mapping);

}  // namespace gyre
