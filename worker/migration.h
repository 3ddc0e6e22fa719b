// KV pages on their way to a layer's next owner. The new owner pulls: each request is the credit for an answer of a
// bounded size, so a slow receiver slows nobody and the source keeps no state. docs/resize.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/memory_counts.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/pages.h"
#include "worker/layer.h"

namespace gyre {

// The most bytes of a frame of pages; a page larger than this travels alone.
inline constexpr uint32_t kPageFrameBytes = 1 << 20;
// The most bytes that one request brings, in several frames.
inline constexpr uint32_t kPullBytes = 8 << 20;
// Requests on the way at once, to one source.
inline constexpr size_t kPullsAtOnce = 4;

// The source's side, one frame; on the thread that writes the pages, and over its queue. Appends the data, which is
// there after queue.Finish; `data` stays as it is until then. kInvalidArgument: stamps of pages that there are not.
StatusOr<Pages> ExportPages(const Layer& layer, const PullPages& request, uint64_t step, std::vector<std::byte>* data,
                            Backend& queue);

// The receiver's side, one request and one frame of its answer. `came`: pages so far, for the message. The pages point
// into `frame`. kCancelled, kDeadlineExceeded (nothing came for `silence`), kUnavailable (also what the source says),
// kDataLoss.
Status AskForPages(Link& link, Epoch epoch, const PullPages& request, Duration silence);
StatusOr<Pages> ReceivePages(Link& link, Duration silence, uint64_t came, const std::function<bool()>& cancelled,
                             Frame* frame);

// The receiver's side of one source. Not thread-safe; the pools are not running yet.
class PagePuller {
 public:
  // `source`: the worker's name, for messages. `queue`: brings the pages to the device; outlives it. Lists of blocks
  // are numbered as MemoryCounts says. `replica`: not 0: the pages come from the source's replica of this plan.
  PagePuller(std::unique_ptr<Link> link, std::string source, Backend& queue, std::vector<std::shared_ptr<Layer>> layers,
             const MemoryCounts& counts, uint64_t replica = 0);

  // One round: all pages that were written since the round before. `blocks`: the last round; the pages that must have
  // their last value now. `silence`: how long nothing may come; there is no limit to the round as a whole. Returns the
  // number of pages that came. kDataLoss, kUnavailable, kDeadlineExceeded, kCancelled (when `cancelled` says so, which
  // is asked ten times a second and after each frame), kInternal (a page differs after the last round).
  StatusOr<uint64_t> Round(Epoch epoch, const std::vector<BlockId>* blocks, Duration silence,
                           const std::function<bool()>& cancelled);
  // In place of rounds: only the pages of these units, in their order. Returns those that the source lacks, rising.
  // Errors as for a round; then it is of no more use.
  StatusOr<std::vector<BlockId>> Restore(Epoch epoch, const std::vector<BlockId>& units, Duration silence,
                                         const std::function<bool()>& cancelled);
  uint64_t pages() const { return pages_; }
  uint64_t bytes() const { return bytes_; }
  // No page that came was written after this step of the source.
  uint64_t last_written() const { return last_written_; }

 private:
  struct Copied {
    std::shared_ptr<Layer> layer;
    std::vector<uint64_t> written;   // by page: the source's stamp of what lies here
    uint64_t since = 0;              // for this round
    uint64_t next_since = 0;         // for the next
    bool started = false;            // in this round
    std::vector<BlockId> live;       // those of the list that are pages of this layer,
    std::vector<BlockId> units;      // and their numbers in it
    std::vector<uint64_t> expected;  // their stamps
  };

  StatusOr<uint64_t> TryRound(Epoch epoch, const std::vector<BlockId>* blocks, bool only, Duration silence,
                              const std::function<bool()>& cancelled);
  Status Ask(Epoch epoch, Copied& c, BlockId from, bool only, Duration silence);
  Status FindLive(const std::vector<BlockId>* blocks);
  Status Take(const Pages& pages, uint64_t* count);
  Status Verify(const Copied& c) const;

  const std::unique_ptr<Link> link_;
  const std::string source_;
  Backend& queue_;
  const MemoryCounts counts_;
  const uint64_t replica_;
  std::map<uint32_t, Copied> layers_;
  uint64_t pages_ = 0, bytes_ = 0, last_written_ = 0;
};

}  // namespace gyre
