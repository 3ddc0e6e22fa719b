// KV blocks: how sequences get more, and who gives them up.
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {

// The held sequence to preempt first: the worst-ranked, rather one with nothing in flight. Null: there is none.
Scheduler::Rep::Sequence* Scheduler::Rep::HeldVictim() const {
  Sequence* victim = nullptr;
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    if (!(*it)->held) continue;
    if (victim == nullptr) victim = *it;
    if ((*it)->in_flight == 0) return *it;
  }
  return victim;
}

// False: no sequence is held, or blocks are on their way back already.
bool Scheduler::Rep::PreemptHeld() {
  Sequence* victim = draining > 0 ? nullptr : HeldVictim();
  if (victim == nullptr) return false;
  ++counts.preemptions;
  Leave(victim, Stage::kWaiting);
  return true;
}

// A held sequence leaves, else the worst-ranked one below `needy`, rather one with nothing in flight, as its blocks
// come back at once. False: there is none, or blocks are on their way back already, so that nothing more needs to be
// thrown away.
bool Scheduler::Rep::PreemptBelow(const Sequence* needy) {
  if (draining > 0) return false;
  if (PreemptHeld()) return true;
  Sequence* victim = nullptr;
  for (size_t i = running.size(); i > 0 && running[i - 1] != needy; --i) {
    Sequence* s = running[i - 1];
    if (s->planned_in == next_step) continue;
    if (victim == nullptr || s->in_flight == 0) victim = s;
    if (victim->in_flight == 0) break;
  }
  if (victim == nullptr) return false;
  ++counts.preemptions;
  Leave(victim, Stage::kWaiting);
  return true;
}

// Grows the table to hold `want` positions if there are blocks, preempting only for `must` of them. Returns the
// positions up to `want` that it holds.
uint32_t Scheduler::Rep::Grow(Sequence* s, uint32_t must, uint32_t want) {
  const bool barred = starved != nullptr && ByRank()(starved, s);
  // Rows in flight may use up the quota: then the next rows wait for them, not for blocks.
  if (has_window()) {
    want = static_cast<uint32_t>(
        std::min<uint64_t>(want, (s->window_first + uint64_t{WindowQuota()}) * options.block_size));
  }
  const auto held = [&] {
    uint64_t in_blocks = s->blocks.size();
    if (has_window()) in_blocks = std::min<uint64_t>(in_blocks, s->WindowEnd());
    return static_cast<uint32_t>(std::min<uint64_t>(in_blocks * options.block_size, want));
  };
  while (held() < want) {
    if (TakeBlock(s, want, barred)) continue;
    if (held() >= must || barred) break;
    if (PreemptBelow(s)) continue;
    if (starved == nullptr || ByRank()(s, starved)) starved = s;
    break;
  }
  if (held() >= must && starved == s) starved = nullptr;
  return held();
}

// A block more in a table that does not hold `want` positions. Barred sequences get only what is reserved for them.
bool Scheduler::Rep::TakeBlock(Sequence* s, uint32_t want, bool barred) {
  if (s->blocks.size() >= BlocksFor(want)) return TakeWindowBlock(s, barred);
  const std::optional<BlockId> block = barred ? std::nullopt : blocks.Allocate();
  if (block) s->blocks.push_back(*block);
  return block.has_value();
}

// Whether the starved sequence still finds no block for its next row.
bool Scheduler::Rep::Starves() const {
  if (starved == nullptr) return false;
  const uint32_t needed = BlocksFor(uint64_t{starved->launched} + 1);
  if (starved->blocks.size() < needed && blocks.available() == 0) return true;
  return has_window() && starved->WindowEnd() < needed && starved->window_reserved == 0 &&
         window.available() <= window_reserved;
}

// The references that each block should have.
std::vector<uint32_t> Scheduler::Rep::Owners() const {
  std::vector<uint32_t> owners(blocks.num_blocks(), 0);
  for (const auto& [id, s] : sequences) {
    for (BlockId block : s->blocks) {
      if (block < owners.size()) ++owners[block];
    }
  }
  return owners;
}

uint32_t Scheduler::Reclaim() {
  const uint32_t blocks = rep_->blocks.Reclaim(rep_->Owners()) + rep_->window.Reclaim(rep_->WindowOwners());
  rep_->counts.leaked_blocks += blocks;
  if (blocks > 0) ++rep_->changes;
  return blocks;
}

}  // namespace gyre
