#include "worker/migration.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/coding.h"
#include "transport/queued_link.h"
#include "worker/settle.h"

namespace gyre {

StatusOr<Pages> ExportPages(const Layer& layer, const PullPages& request, uint64_t step, std::vector<std::byte>* data,
                            Backend& queue) {
  const PagePool& pool = *layer.pages;
  const size_t page = pool.page_bytes();
  const bool full = request.kind == PullKind::kFull;
  const auto stamp = [&](BlockId b) { return full ? pool.full(b) : pool.written(b); };
  const uint64_t since = full && request.pool != pool.number() ? 0 : request.since;
  Pages out;
  out.layer = request.layer;
  out.step = step;
  out.page_bytes = static_cast<uint32_t>(page);
  out.pool = pool.number();
  if (request.check.size() > pool.num_blocks()) {
    return InvalidArgument("stamps of {} pages of layer {} are asked for, there are {}", request.check.size(),
                           request.layer, pool.num_blocks());
  }
  for (BlockId b : request.check) {
    if (b >= pool.num_blocks())
      return InvalidArgument("page {} of layer {}, there are {}", b, request.layer, pool.num_blocks());
    out.checked.push_back(stamp(b));
  }
  const size_t before = data->size();
  size_t end = before;
  const std::vector<BlockId> dirty =
      full && !request.only ? pool.FullSince(since, request.from) : std::vector<BlockId>();
  const std::vector<BlockId>* const listed = request.only ? &request.check : full ? &dirty : nullptr;
  const size_t last = listed != nullptr ? listed->size() : pool.num_blocks();
  for (size_t i = full && !request.only ? 0 : request.from; i < last; ++i) {
    const BlockId b = listed != nullptr ? (*listed)[i] : static_cast<BlockId>(i);
    if (stamp(b) <= since) continue;
    if (!out.ids.empty() && end + page > std::min(request.max_bytes, kPageFrameBytes)) {
      out.next = request.only ? static_cast<BlockId>(i) : b;
      break;
    }
    out.ids.push_back(b);
    out.written.push_back(stamp(b));
    end += page;
  }
  data->resize(end);
  for (size_t i = 0; i < out.ids.size(); ++i) pool.Read(out.ids[i], data->data() + before + i * page, queue);
  return out;
}

PagePuller::PagePuller(std::unique_ptr<Link> link, std::string source, Backend& queue,
                       std::vector<std::shared_ptr<Layer>> layers, const MemoryCounts& counts, uint64_t replica)
    : link_(MakeQueuedLink(std::move(link))),
      source_(std::move(source)),
      queue_(queue),
      counts_(counts),
      replica_(replica) {
  for (auto& layer : layers) {
    Copied& c = layers_[static_cast<uint32_t>(layer->index)];
    c.written.resize(layer->pages->num_blocks());
    c.layer = std::move(layer);
  }
}

// The pages of each layer that the last round must bring up to date; none in the other rounds.
Status PagePuller::FindLive(const std::vector<BlockId>* blocks) {
  for (auto& [index, c] : layers_) c.live.clear(), c.units.clear();
  if (blocks == nullptr) return absl::OkStatus();
  for (BlockId b : *blocks) {
    const auto place = counts_.PlaceOf(b);
    if (!place) {
      return InvalidArgument("unit {}, there are {} of all kinds", b, counts_.UnitOf({kKvGroups, 0}));
    }
    for (auto& [index, c] : layers_) {
      if (c.layer->spec.kv_group != place->group) continue;
      if (place->number >= c.written.size()) {
        return InvalidArgument("{} {} of layer {}, there are {}", KindOf(place->group).unit, place->number, index,
                               c.written.size());
      }
      c.live.push_back(place->number);
      c.units.push_back(b);
    }
  }
  return absl::OkStatus();
}

Status PagePuller::Ask(Epoch epoch, Copied& c, BlockId from, bool only, Duration silence) {
  PullPages request{.layer = static_cast<uint32_t>(c.layer->index),
                    .from = from,
                    .since = c.since,
                    .max_bytes = kPullBytes,
                    .check = {},
                    .kind = replica_ != 0 ? PullKind::kReplicated : PullKind::kWritten,
                    .replica = replica_,
                    .only = only};
  if (!c.started || only) request.check = c.live;
  return AskForPages(*link_, epoch, request, silence);
}

Status PagePuller::Take(const Pages& p, uint64_t* count) {
  const auto it = layers_.find(p.layer);
  if (it == layers_.end()) return DataLoss("pages of layer {} came, nobody asked for it", p.layer);
  Copied& c = it->second;
  PagePool& pool = *c.layer->pages;
  if (!p.ids.empty() && p.page_bytes != pool.page_bytes()) {
    return DataLoss("pages of layer {} have {} bytes, expected {}", p.layer, p.page_bytes, pool.page_bytes());
  }
  if (!c.started) {
    c.started = true;
    c.next_since = p.step;
    c.expected = p.checked;
  }
  const SettleOnError settle(queue_);
  for (size_t i = 0; i < p.ids.size(); ++i) {
    const BlockId b = p.ids[i];
    if (b >= pool.num_blocks()) continue;  // of a larger cache, which is forgotten when the plan commits
    pool.Write(b, p.data.data() + i * p.page_bytes, queue_);
    // By the same count, as all members have the ring's steps. A replica's own stamps are none.
    const uint64_t written = std::max<uint64_t>(1, replica_ != 0 ? p.ring_step : p.written[i]);
    last_written_ = std::max(last_written_, written);
    pool.Stamp(b, written);
    pool.StampFull(b, 1);  // it may not be full yet: then it comes to a replica again
    c.written[b] = p.written[i];
  }
  queue_.Finish();
  *count += p.ids.size();
  pages_ += p.ids.size();
  bytes_ += p.data.size();
  return absl::OkStatus();
}

Status PagePuller::Verify(const Copied& c) const {
  const std::vector<BlockId>& blocks = c.live;
  if (c.expected.size() != blocks.size()) {
    return DataLoss("layer {}: {} stamps came for {} pages", c.layer->index, c.expected.size(), blocks.size());
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (c.written[blocks[i]] == c.expected[i]) continue;
    return Internal("layer {}: page {} was written in step {} and copied as of {}", c.layer->index, blocks[i],
                    c.expected[i], c.written[blocks[i]]);
  }
  return absl::OkStatus();
}

Status AskForPages(Link& link, Epoch epoch, const PullPages& request, Duration silence) {
  Encoder out;
  EncodePullPages(request, &out);
  const ByteSpan parts[] = {out.bytes()};
  return link.Send({.kind = FrameKind::kPullPages, .epoch = epoch}, parts, After(silence));
}

StatusOr<Pages> ReceivePages(Link& link, Duration silence, uint64_t came, const std::function<bool()>& cancelled,
                             Frame* frame) {
  for (const Deadline limit = After(silence);;) {
    if (cancelled()) return absl::CancelledError("the plan was given up");
    StatusOr<Frame> got = link.Recv(std::min(limit, After(std::chrono::milliseconds(100))));
    if (got.ok()) {
      *frame = *std::move(got);
      break;
    }
    if (!absl::IsDeadlineExceeded(got.status())) return got.status();
    if (Clock::now() < limit) continue;
    return DeadlineExceeded("nothing came for {} s, after {} pages of this round",
                            std::chrono::duration_cast<std::chrono::seconds>(silence).count(), came);
  }
  if (frame->header.kind == FrameKind::kPullError) {
    return Unavailable("{}", std::string(reinterpret_cast<const char*>(frame->payload.data()),
                                         std::min<size_t>(frame->payload.size(), 500)));
  }
  if (frame->header.kind != FrameKind::kPages) {
    return DataLoss("a frame of kind {} came, expected pages", static_cast<int>(frame->header.kind));
  }
  return DecodePages(frame->payload);
}

StatusOr<uint64_t> PagePuller::Round(Epoch epoch, const std::vector<BlockId>* blocks, Duration silence,
                                     const std::function<bool()>& cancelled) {
  StatusOr<uint64_t> count = TryRound(epoch, blocks, false, silence, cancelled);
  if (!count.ok()) return Annotate(count.status(), fmt::format("copying pages from {}", source_));
  return count;
}

StatusOr<std::vector<BlockId>> PagePuller::Restore(Epoch epoch, const std::vector<BlockId>& units, Duration silence,
                                                   const std::function<bool()>& cancelled) {
  const StatusOr<uint64_t> count = TryRound(epoch, &units, true, silence, cancelled);
  if (!count.ok()) return Annotate(count.status(), fmt::format("restoring pages from {}", source_));
  std::set<BlockId> lacks;
  for (const auto& [index, c] : layers_) {
    if (c.live.empty()) continue;
    if (c.expected.size() != c.live.size()) {
      return DataLoss("layer {}: {} stamps came for {} pages", index, c.expected.size(), c.live.size());
    }
    for (size_t i = 0; i < c.live.size(); ++i) {
      if (c.expected[i] == 0 || c.written[c.live[i]] != c.expected[i]) lacks.insert(c.units[i]);
    }
  }
  return std::vector<BlockId>(lacks.begin(), lacks.end());
}

StatusOr<uint64_t> PagePuller::TryRound(Epoch epoch, const std::vector<BlockId>* blocks, bool only, Duration silence,
                                        const std::function<bool()>& cancelled) {
  GYRE_RETURN_IF_ERROR(FindLive(blocks));
  uint64_t count = 0;
  for (auto& [index, c] : layers_) c.started = false;
  auto next = layers_.begin();
  size_t outstanding = 0;
  while (outstanding > 0 || next != layers_.end()) {
    while (next != layers_.end() && outstanding < kPullsAtOnce) {
      // Running sequences change their slots in every step, so these come once in the first round and once in the last.
      if ((blocks == nullptr && next->second.layer->pages->has_slots() && next->second.since > 0) ||
          (only && next->second.live.empty())) {
        ++next;
        continue;
      }
      GYRE_RETURN_IF_ERROR(Ask(epoch, next->second, 0, only, silence));
      ++next;
      ++outstanding;
    }
    if (outstanding == 0) break;
    Frame frame;
    GYRE_ASSIGN_OR_RETURN(const Pages pages, ReceivePages(*link_, silence, count, cancelled, &frame));
    GYRE_RETURN_IF_ERROR(Take(pages, &count));
    if (pages.next == kMoreFollows) continue;
    --outstanding;
    if (pages.next == kNoBlock) continue;
    GYRE_RETURN_IF_ERROR(Ask(epoch, layers_.at(pages.layer), pages.next, only, silence));
    ++outstanding;
  }
  if (only) return count;
  for (auto& [index, c] : layers_) {
    c.since = c.next_since;
    if (blocks != nullptr) GYRE_RETURN_IF_ERROR(Verify(c));
  }
  return count;
}

}  // namespace gyre
