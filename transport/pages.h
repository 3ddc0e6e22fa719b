// The bytes of KV pages on bulk links: docs/wire.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/coding.h"
#include "base/ids.h"
#include "base/status.h"

namespace gyre {

// The largest payload of a request, in bytes: it can ask for the stamps of 2^24 pages.
inline constexpr uint64_t kMaxPullRequest = uint64_t{64} << 20;
// The value of Pages::next when the answer continues in the next frame, without another request.
inline constexpr BlockId kMoreFollows = kNoBlock - 1;

// The pages of a layer that a request asks for, and the stamps that `since` is compared with.
enum class PullKind : uint8_t {
  kWritten,     // of the running stage, by when they were last written
  kFull,        // likewise, by when they became full: for a replica (docs/faults.md)
  kReplicated,  // of the replica that the source holds of another member's layer
};

// Asks for the pages of one layer, from page number `from` on, that were stamped after step `since`.
struct PullPages {
  uint32_t layer = 0;
  BlockId from = 0;
  uint64_t since = 0;
  uint32_t max_bytes = 0;
  std::vector<BlockId> check;  // pages whose stamps are asked for, copied or not
  PullKind kind = PullKind::kWritten;
  uint64_t replica = 0;  // kReplicated: the number of the plan that it is of
  uint64_t pool = 0;     // kFull: `since` is a stamp of this pool (Pages::pool), and else counts as 0
  // Only pages of `check` are asked for, in their order; `from` and Pages::next are places in it.
  bool only = false;
  bool operator==(const PullPages&) const = default;
};

struct Pages {
  uint32_t layer = 0;
  uint64_t step = 0;        // the source's count of steps at the time
  BlockId next = kNoBlock;  // the page that the next request begins with; kNoBlock = the end; kMoreFollows
  uint32_t page_bytes = 0;
  std::vector<BlockId> ids;
  std::vector<uint64_t> written;  // of ids
  std::vector<uint64_t> checked;  // of PullPages::check
  // kFull: the last step of the plan that came at the source. kReplicated: no page of it was written after this step.
  uint64_t ring_step = 0;
  uint64_t pool = 0;                // kFull: the number of the layer's pool, which no other pool has
  std::span<const std::byte> data;  // [ids][page_bytes], into the payload
};

void EncodePullPages(const PullPages& request, Encoder* out);
StatusOr<PullPages> DecodePullPages(std::span<const std::byte> payload);
// Encodes everything but the data, which follows as a separate part.
void EncodePagesHead(const Pages& pages, Encoder* out);
StatusOr<Pages> DecodePages(std::span<const std::byte> payload);

}  // namespace gyre
