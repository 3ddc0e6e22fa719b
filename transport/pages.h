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

// Asks for the pages of one layer, from page number `from` on, that were written after step `since`.
struct PullPages {
  uint32_t layer = 0;
  BlockId from = 0;
  uint64_t since = 0;
  uint32_t max_bytes = 0;
  std::vector<BlockId> check;  // pages whose stamps are asked for, copied or not
  bool operator==(const PullPages&) const = default;
};

struct Pages {
  uint32_t layer = 0;
  uint64_t step = 0;        // the source's count of steps at the time
  BlockId next = kNoBlock;  // the page that the next request begins with; kNoBlock = the end; kMoreFollows
  uint32_t page_bytes = 0;
  std::vector<BlockId> ids;
  std::vector<uint64_t> written;    // of ids
  std::vector<uint64_t> checked;    // of PullPages::check
  std::span<const std::byte> data;  // [ids][page_bytes], into the payload
};

void EncodePullPages(const PullPages& request, Encoder* out);
StatusOr<PullPages> DecodePullPages(std::span<const std::byte> payload);
// Encodes everything but the data, which follows as a separate part.
void EncodePagesHead(const Pages& pages, Encoder* out);
StatusOr<Pages> DecodePages(std::span<const std::byte> payload);

}  // namespace gyre
