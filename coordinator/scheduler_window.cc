// The blocks of layers with a window: how many a sequence may have, when they come back, and what a prefix needs of
// them (docs/memory.md).
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {

// The first position that a row at `position` reads.
uint32_t Scheduler::Rep::FirstRead(uint32_t position) const {
  return position + 1 > options.window ? position + 1 - options.window : 0;
}

// The blocks that one sequence may have: what its window touches, and its rows in flight.
uint32_t Scheduler::Rep::WindowQuota() const {
  const uint64_t rows = options.chunked_prefill ? uint64_t{options.chunk} * options.max_in_flight : UINT32_MAX;
  const uint64_t blocks = (options.window - 1 + rows + options.block_size - 1) / options.block_size + 1;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, window.units()));
}

// The blocks that a sequence of so many tokens has while it decodes.
uint32_t Scheduler::Rep::WindowNeed(uint64_t positions) const {
  return std::min({BlocksFor(positions), BlocksFor(options.window) + 1, window.units()});
}

// The blocks for the rest of the sequence's tokens that its table does not have yet.
uint32_t Scheduler::Rep::WindowAhead(const Sequence& s) const {
  const uint32_t all = std::max(BlocksFor(s.size()), Reserved(s));
  return all - std::min(all, s.WindowEnd());
}

// False: there is none, or all free ones are reserved for others.
bool Scheduler::Rep::TakeWindowBlock(Sequence* s, bool barred) {
  if (s->window_reserved > 0) {
    --s->window_reserved;
    --window_reserved;
  } else if (barred || window.available() <= window_reserved) {
    return false;
  }
  s->window.push_back(*window.Allocate());
  return true;
}

// The longest prefix, in blocks, that every group has. `found`: the blocks that the paged group has.
size_t Scheduler::Rep::CommonPrefix(const std::vector<BlockId>& found) const {
  std::vector<size_t> run(found.size());  // blocks in a row of the windowed group, up to this one
  for (size_t i = 0; has_window() && i < found.size(); ++i) {
    run[i] = window.Has(blocks.chain(found[i])) ? (i == 0 ? 0 : run[i - 1]) + 1 : 0;
  }
  size_t n = found.size();
  for (; n > 0; --n) {
    if (has_state() && !slots.Has(blocks.chain(found[n - 1]))) continue;
    const auto end = static_cast<uint32_t>(n) * options.block_size;
    if (!has_window() || run[n - 1] >= n - FirstRead(end) / options.block_size) break;
  }
  return n;
}

// Takes the windowed blocks that belong to a prefix which all groups have.
void Scheduler::Rep::TakeWindow(Sequence* s, const std::vector<BlockId>& prefix) {
  s->window_first = FirstRead(static_cast<uint32_t>(prefix.size()) * options.block_size) / options.block_size;
  for (size_t i = s->window_first; i < prefix.size(); ++i) s->window.push_back(window.Take(blocks.chain(prefix[i])));
}

// Whether a text may part at a position whose window has this block: at the end of the prompt, or where others do.
bool Scheduler::Rep::WorthKeeping(const Sequence& s, uint32_t block) const {
  const uint32_t begin = block * options.block_size, end = begin + options.block_size;
  const uint32_t of_prompt = (s.prompt - 1) / options.block_size * options.block_size;
  for (uint32_t position : {of_prompt, s.branch, s.shared}) {
    if (begin < position && end > FirstRead(position)) return true;
  }
  return false;
}

// Gives back the blocks that no row reads any more. The last row is read for once more while its token is not drawn.
void Scheduler::Rep::ReleaseBehind(Sequence* s) {
  if (!has_window() || !s->running()) return;
  const uint32_t settled = s->landed - (s->sample_owed() ? 1 : 0);
  const uint32_t end = FirstRead(settled) / options.block_size;
  for (; s->window_first < end; ++s->window_first) {
    window.Release(s->window.front(), !WorthKeeping(*s, s->window_first));
    s->window.pop_front();
    ++changes;
    if (s->window_reserved >= WindowAhead(*s) || window.available() <= window_reserved) continue;
    ++s->window_reserved;
    ++window_reserved;
  }
}

// `unused`: what was taken goes back to where it was.
void Scheduler::Rep::ReleaseWindow(Sequence* s, bool unused) {
  for (; !s->window.empty(); s->window.pop_back())
    window.Release(s->window.back(), unused && window.passing(s->window.back()));
  s->window_first = 0;
}

// After the group has grown: a prompt that was admitted with a smaller quota may have more in flight now.
void Scheduler::Rep::RaiseReserves() {
  if (!has_window()) return;
  for (Sequence* s : running) {
    if (s->launched >= s->prompt) continue;
    const auto had = static_cast<uint32_t>(s->window.size()) + s->window_reserved;
    const uint32_t quota = WindowQuota() - std::min(WindowQuota(), had);
    const uint32_t ahead = WindowAhead(*s) - std::min(WindowAhead(*s), s->window_reserved);
    const uint32_t more = std::min({quota, ahead, window.available() - window_reserved});
    s->window_reserved += more;
    window_reserved += more;
  }
}

void Scheduler::Rep::DropReserve(Sequence* s) {
  window_reserved -= s->window_reserved;
  s->window_reserved = 0;
}

// The owners that each windowed block should have.
std::vector<uint32_t> Scheduler::Rep::WindowOwners() const {
  std::vector<uint32_t> owners(window.units(), 0);
  for (const auto& [id, s] : sequences) {
    for (BlockId block : s->window) {
      if (block < owners.size()) ++owners[block];
    }
  }
  return owners;
}

Status Scheduler::Rep::CheckWindow(const Sequence& s) const {
  const auto id = static_cast<uint64_t>(s.id);
  if (!has_window()) {
    if (s.window.empty() && s.window_reserved == 0) return absl::OkStatus();
    return Internal("sequence {} has {} windowed blocks", id, s.window.size());
  }
  if (!s.running()) {
    if (s.window_reserved > 0 || (s.in_flight == 0 && !s.window.empty())) {
      return Internal("sequence {} does not run, has {} windowed blocks and {} are reserved", id, s.window.size(),
                      s.window_reserved);
    }
    return absl::OkStatus();
  }
  const uint32_t settled = s.landed - (s.sample_owed() ? 1 : 0);
  if (s.window_first * options.block_size > FirstRead(settled)) {
    return Internal("sequence {}: its windowed blocks begin at {}, position {} may come again", id, s.window_first,
                    settled);
  }
  if (s.WindowEnd() < BlocksFor(s.launched)) {
    return Internal("sequence {}: windowed blocks {}+{} for {} launched rows", id, s.window_first, s.window.size(),
                    s.launched);
  }
  for (size_t i = std::max(s.published, s.window_first); i < s.WindowEnd(); ++i) {
    const BlockId block = s.window[i - s.window_first];
    if (block >= window.units() || window.owners(block) == 1) continue;
    return Internal("sequence {}: windowed block {} is open and has {} owners", id, i, window.owners(block));
  }
  return absl::OkStatus();
}

Status Scheduler::Rep::CheckReserve() const {
  uint32_t sum = 0;
  for (const auto& [id, s] : sequences) sum += s->window_reserved;
  if (sum != window_reserved || sum > window.available()) {
    return Internal("{} windowed blocks are reserved, counted are {}, free are {}", sum, window_reserved,
                    window.available());
  }
  return absl::OkStatus();
}

}  // namespace gyre
