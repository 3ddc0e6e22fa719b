// Slots of recurrent state: which one a sequence computes in, what it begins with, and when it is copied
// (docs/memory.md).
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {

// Gives the sequence a slot, and the snapshot that belongs to the prefix. False: there is no slot.
bool Scheduler::Rep::TakeSlot(Sequence* s, const BlockManager::Prefix& prefix) {
  // The snapshot is taken first, so that the sequence's own slot is another one.
  if (!prefix.blocks.empty()) s->begins_with = slots.Take(prefix.chain);
  const std::optional<BlockId> slot = slots.Allocate();
  if (slot) s->slot = *slot;
  return slot.has_value();
}

// The next position at which a snapshot of the sequence is wanted: where its next chunk ends at the latest. UINT32_MAX:
// none is wanted.
uint32_t Scheduler::Rep::NextSnapshot(const Sequence& s) const {
  if (!has_state() || !options.prefix_cache || s.ring_salts != ring_salts) return UINT32_MAX;
  // A prompt that comes again finds it: its last row is computed in any case.
  const uint32_t of_prompt = (s.prompt - 1) / options.block_size * options.block_size;
  const uint64_t regular = (uint64_t{s.launched} / options.snapshot_every + 1) * options.snapshot_every;
  const auto next = static_cast<uint32_t>(std::min<uint64_t>(regular, UINT32_MAX));
  uint32_t first = next;
  for (uint32_t position : {of_prompt, s.branch}) {
    if (position > s.launched) first = std::min(first, position);
  }
  return first;
}

// The slot table of a step whose rows end before position `end`. REQUIRES: they begin at s->launched.
SlotTable Scheduler::Rep::SlotsOf(Sequence* s, uint32_t end) {
  SlotTable table;
  if (!has_state()) return table;
  table.slot = s->slot;
  if (s->launched == s->cached && s->begins_with != kNoBlock) {
    table.begin = s->begins_with;
    table.begin_number = slots.number(s->begins_with);
  }
  if (end != NextSnapshot(*s)) return table;
  if (const std::optional<BlockId> copy = slots.Allocate(true)) {
    s->snapshots.push_back({end, *copy});
    table.copy = *copy;
    table.copy_number = slots.number(*copy);
  }
  return table;
}

// The block that ends at s->published is published: a copy of the state at its end can be found from now on.
void Scheduler::Rep::KeepSnapshot(Sequence* s) {
  if (s->snapshots.empty() || s->snapshots.front().position != s->published * options.block_size) return;
  slots.Keep(s->chain, s->snapshots.front().slot);
  s->snapshots.pop_front();
}

void Scheduler::Rep::ReleaseSlots(Sequence* s) {
  for (BlockId* slot : {&s->slot, &s->begins_with}) {
    if (*slot != kNoBlock) slots.Release(*slot);
    *slot = kNoBlock;
  }
  for (const Sequence::Snapshot& copy : s->snapshots) slots.Release(copy.slot);
  s->snapshots.clear();
}

// The owners that each slot should have.
std::vector<uint32_t> Scheduler::Rep::SlotOwners() const {
  std::vector<uint32_t> owners(slots.units(), 0);
  for (const auto& [id, s] : sequences) {
    for (BlockId slot : {s->slot, s->begins_with}) {
      if (slot < owners.size()) ++owners[slot];
    }
    for (const Sequence::Snapshot& copy : s->snapshots) ++owners[copy.slot];
  }
  return owners;
}

}  // namespace gyre
