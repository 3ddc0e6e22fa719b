#include "coordinator/state_slots.h"

#include <cassert>

namespace gyre {

StateSlots::StateSlots(uint32_t num_slots) : slots_(num_slots) { Forget(); }

std::vector<BlockId> StateSlots::Live() const {
  std::vector<BlockId> live;
  for (BlockId id = 0; id < num_slots(); ++id) {
    if (slots_[id].owners > 0 || slots_[id].chain != kNoChain) live.push_back(id);
  }
  return live;
}

std::optional<BlockId> StateSlots::Allocate(bool snapshot) {
  BlockId id = 0;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (!unowned_.empty()) {
    id = unowned_.front();
    unowned_.pop_front();
    by_chain_.erase(slots_[id].chain);
    slots_[id].chain = kNoChain;
  } else {
    return std::nullopt;
  }
  slots_[id].owners = 1;
  if (snapshot && ++last_number_ == 0) ++last_number_;
  slots_[id].number = snapshot ? last_number_ : 0;
  return id;
}

BlockId StateSlots::Take(ChainId chain) {
  const BlockId id = by_chain_.at(chain);
  if (slots_[id].owners++ == 0) unowned_.erase(slots_[id].unowned);
  return id;
}

void StateSlots::Release(BlockId id) {
  Slot& slot = slots_[id];
  assert(slot.owners > 0);
  if (--slot.owners > 0) return;
  if (slot.chain == kNoChain) {
    free_.push_back(id);
  } else {
    slot.unowned = unowned_.insert(unowned_.end(), id);
  }
}

void StateSlots::Keep(ChainId chain, BlockId id) {
  assert(slots_[id].owners == 1 && slots_[id].chain == kNoChain);
  if (chain != kNoChain && by_chain_.emplace(chain, id).second) slots_[id].chain = chain;
  Release(id);
}

void StateSlots::Forget() {
  by_chain_.clear();
  unowned_.clear();
  free_.clear();
  for (Slot& slot : slots_) slot = {};
  for (BlockId id = num_slots(); id > 0; --id) free_.push_back(id - 1);  // the lowest goes first
}

Status StateSlots::CheckIntegrity(std::span<const uint32_t> owners) const {
  std::vector<uint32_t> listed(slots_.size(), 0);
  for (BlockId id : free_) {
    if (id >= num_slots()) return Internal("slot {} is free, there are {}", id, num_slots());
    if (slots_[id].chain != kNoChain) return Internal("slot {} is free and a snapshot", id);
    ++listed[id];
  }
  for (auto it = unowned_.begin(); it != unowned_.end(); ++it) {
    if (*it >= num_slots()) return Internal("slot {} is a snapshot, there are {}", *it, num_slots());
    if (slots_[*it].chain == kNoChain) return Internal("slot {} is kept and no snapshot", *it);
    if (slots_[*it].unowned != it) return Internal("slot {} does not know its place among the snapshots", *it);
    ++listed[*it];
  }
  size_t snapshots = 0;
  for (BlockId id = 0; id < num_slots(); ++id) {
    const Slot& slot = slots_[id];
    if (!owners.empty() && slot.owners != owners[id]) {
      return Internal("slot {} has {} owners, counted are {}", id, slot.owners, owners[id]);
    }
    if (listed[id] != (slot.owners == 0 ? 1u : 0u)) {
      return Internal("slot {} has {} owners and stands {} times among free ones and snapshots", id, slot.owners,
                      listed[id]);
    }
    if (slot.chain == kNoChain) continue;
    ++snapshots;
    const auto found = by_chain_.find(slot.chain);
    if (found == by_chain_.end() || found->second != id) return Internal("slot {} is not found by its content", id);
  }
  if (snapshots != by_chain_.size()) return Internal("{} snapshots, {} are found", snapshots, by_chain_.size());
  return absl::OkStatus();
}

}  // namespace gyre
