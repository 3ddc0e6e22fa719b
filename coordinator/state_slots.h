// Hands out the slots of recurrent state and keeps snapshots by content (docs/memory.md). Pure: integers only.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/block_manager.h"

namespace gyre {

// The slots of one KV group. Not thread-safe: the scheduler owns it. A slot is free, owned (a sequence computes in it,
// a step copies into it, or steps copy from a snapshot), or a snapshot without owner, which is reused longest-unused
// first.
class StateSlots {
 public:
  explicit StateSlots(uint32_t num_slots);

  uint32_t num_slots() const { return static_cast<uint32_t>(slots_.size()); }
  // What Allocate can still hand out: free slots, and snapshots without owner.
  uint32_t available() const { return static_cast<uint32_t>(free_.size() + unowned_.size()); }
  uint32_t snapshots() const { return static_cast<uint32_t>(by_chain_.size()); }
  // Owned slots and snapshots, rising.
  std::vector<BlockId> Live() const;

  // The number of a snapshot, or of what becomes one; 0: it is none. No two have the same.
  uint32_t number(BlockId slot) const { return slots_[slot].number; }

  // A slot with one owner, or nullopt. `snapshot`: a copy is made there. Where none is free, the longest-unused
  // snapshot is forgotten.
  std::optional<BlockId> Allocate(bool snapshot = false);
  // Whether there is a snapshot of the state at the end of this content.
  bool Has(ChainId chain) const { return by_chain_.count(chain) > 0; }
  // That snapshot, with one owner more. REQUIRES: Has(chain).
  BlockId Take(ChainId chain);
  // Gives an owner back. Without owners a snapshot stays, any other slot is free.
  void Release(BlockId slot);
  // A slot that was allocated for it becomes the snapshot of this content and gives its owner back; where there is one
  // already, or for kNoChain, the slot is free. REQUIRES: the slot is no snapshot.
  void Keep(ChainId chain, BlockId slot);
  // Forgets all snapshots. REQUIRES: no slot has an owner.
  void Forget();

  // kInternal with the first contradiction; `owners` = how many each slot should have (empty: not checked).
  Status CheckIntegrity(std::span<const uint32_t> owners = {}) const;

 private:
  struct Slot {
    uint32_t owners = 0;
    ChainId chain = kNoChain;  // of a snapshot
    uint32_t number = 0;
    std::list<BlockId>::iterator unowned;  // valid for a snapshot without owner
  };

  std::vector<Slot> slots_;
  std::vector<BlockId> free_;
  std::list<BlockId> unowned_;  // snapshots, longest unused first
  std::unordered_map<ChainId, BlockId> by_chain_;
  uint32_t last_number_ = 0;
};

}  // namespace gyre
