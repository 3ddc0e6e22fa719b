#include "coordinator/engine/unit_pool.h"

#include <algorithm>
#include <utility>

namespace gyre {

UnitPool::UnitPool(std::string_view what, uint32_t units, std::function<void(ChainId)> forgotten)
    : what_(what), forgotten_(std::move(forgotten)) {
  Forget(units);
}

void UnitPool::Unpublish(BlockId id) {
  Unit& unit = units_[id];
  by_chain_.erase(unit.chain);
  if (forgotten_) forgotten_(unit.chain);
  unit.chain = kNoChain;
  Changed(id);
}

std::vector<BlockId> UnitPool::Live() const {
  std::vector<BlockId> live;
  for (BlockId id = 0; id < units(); ++id) {
    if (units_[id].owners > 0 || units_[id].chain != kNoChain) live.push_back(id);
  }
  return live;
}

std::optional<BlockId> UnitPool::Allocate(bool snapshot) {
  BlockId id = 0;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (kept() > 0) {
    std::list<BlockId>& from = evict_first_.empty() ? kept_ : evict_first_;
    id = from.front();
    from.pop_front();
    Unpublish(id);
  } else {
    return std::nullopt;
  }
  units_[id].owners = 1;
  units_[id].evict_first = false;
  if (snapshot && ++last_number_ == 0) ++last_number_;
  units_[id].number = snapshot ? last_number_ : 0;
  return id;
}

BlockId UnitPool::Take(ChainId chain) {
  const BlockId id = by_chain_.at(chain);
  Unit& unit = units_[id];
  if (unit.owners++ == 0) (unit.evict_first ? evict_first_ : kept_).erase(unit.place);
  return id;
}

bool UnitPool::Release(BlockId id, bool evict_first) {
  if (id >= units() || units_[id].owners == 0) {
    Fault(Internal("{} {} of {} is given back, and it has no owner", what_, id, units()));
    return false;
  }
  Unit& unit = units_[id];
  if (--unit.owners > 0) return false;
  if (unit.chain == kNoChain) {
    free_.push_back(id);
  } else {
    std::list<BlockId>& to = evict_first ? evict_first_ : kept_;
    unit.evict_first = evict_first;
    unit.place = to.insert(to.end(), id);
  }
  return true;
}

bool UnitPool::Publish(ChainId chain, BlockId id, uint64_t step) {
  if (id >= units() || units_[id].owners == 0 || units_[id].chain != kNoChain) {
    Fault(Internal("{} {} of {} is published, and it has {} owners and {} content", what_, id, units(),
                   id < units() ? units_[id].owners : 0, id < units() && units_[id].chain != kNoChain ? "a" : "no"));
    return false;
  }
  units_[id].step = step;
  if (chain == kNoChain || !by_chain_.emplace(chain, id).second) return true;
  units_[id].chain = chain;
  Changed(id);
  return true;
}

void UnitPool::ForgetAfter(uint64_t step) {
  for (std::list<BlockId>* list : {&evict_first_, &kept_}) {
    for (auto it = list->begin(); it != list->end();) {
      if (units_[*it].step <= step) {
        ++it;
        continue;
      }
      Unpublish(*it);
      free_.push_back(*it);
      it = list->erase(it);
    }
  }
}

void UnitPool::CheckWritten(BlockId id) {
  if (id < units() && units_[id].owners == 1) return;
  Fault(Internal("{} {} of {} is about to be written, and it has {} owners", what_, id, units(),
                 id < units() ? units_[id].owners : 0));
}

void UnitPool::FaultOfRead(BlockId id) {
  Fault(Internal("{} {} of {} is read, and it has no owner", what_, id, units()));
}

std::optional<BlockId> UnitPool::Find(ChainId chain) const {
  const auto it = by_chain_.find(chain);
  return it == by_chain_.end() ? std::nullopt : std::optional(it->second);
}

void UnitPool::ForgetUnit(BlockId id) {
  if (id >= units() || units_[id].owners > 0 || units_[id].chain == kNoChain) return;
  (units_[id].evict_first ? evict_first_ : kept_).erase(units_[id].place);
  Unpublish(id);
  free_.push_back(id);
}

void UnitPool::Changed(BlockId id) {
  if (!std::exchange(units_[id].changed, true)) changed_.push_back(id);
}

std::optional<CachedUnit> UnitPool::Content(BlockId id, int group) const {
  if (id >= units() || units_[id].chain == kNoChain) return std::nullopt;
  const Unit& u = units_[id];
  return CachedUnit{.place = {group, id},
                    .step = u.step,
                    .chain = u.chain,
                    .tokens = {},
                    .classes = {},
                    .snapshot = u.number,
                    .evict_first = u.evict_first};
}

// A number that a cut left without a unit is taken too.
std::vector<BlockId> UnitPool::TakeChanged(size_t most) {
  std::vector<BlockId> out;
  for (; !changed_.empty() && out.size() < most; changed_.pop_back()) {
    const BlockId id = changed_.back();
    if (id < units()) units_[id].changed = false;
    out.push_back(id);
  }
  return out;
}

void UnitPool::Restore(const std::vector<CachedUnit>& stored) {
  std::vector<bool> taken(units_.size(), false);
  for (const CachedUnit& u : stored) {
    last_number_ = std::max(last_number_, u.snapshot);
    const BlockId id = u.place.number;
    if (id >= units() || taken[id] || u.chain == kNoChain) continue;
    if (const auto older = Find(u.chain)) {
      Unit& before = units_[*older];
      (before.evict_first ? evict_first_ : kept_).erase(before.place);
      before.chain = kNoChain;  // the newer unit has it
      Changed(*older);
      taken[*older] = false;
    }
    by_chain_[u.chain] = id;
    Unit& unit = units_[id];
    unit.chain = u.chain;
    unit.step = u.step;
    unit.number = u.snapshot;
    unit.evict_first = u.evict_first;
    std::list<BlockId>& to = u.evict_first ? evict_first_ : kept_;
    unit.place = to.insert(to.end(), id);
    taken[id] = true;
  }
  free_.erase(std::remove_if(free_.begin(), free_.end(), [&taken](BlockId id) { return taken[id]; }), free_.end());
}

void UnitPool::Forget(uint32_t n) {
  for (BlockId id = 0; id < units(); ++id) {
    if (units_[id].chain == kNoChain) continue;
    if (forgotten_) forgotten_(units_[id].chain);
    Changed(id);
  }
  by_chain_.clear();
  evict_first_.clear();
  kept_.clear();
  free_.clear();
  units_.assign(n, {});
  for (const BlockId id : changed_) {
    if (id < n) units_[id].changed = true;
  }
  for (BlockId id = n; id > 0; --id) free_.push_back(id - 1);  // the lowest goes first
}

void UnitPool::Grow(uint32_t n) {
  std::vector<BlockId> more;
  for (BlockId id = n; id > units(); --id) more.push_back(id - 1);
  free_.insert(free_.begin(), more.begin(), more.end());  // the lowest still goes first
  units_.resize(n);
}

uint32_t UnitPool::Reclaim(std::span<const uint32_t> owners) {
  uint32_t reclaimed = 0;
  for (BlockId id = 0; id < units(); ++id) {
    Unit& unit = units_[id];
    if (unit.owners <= owners[id]) continue;
    unit.owners = owners[id] + 1;
    Release(id);
    ++reclaimed;
  }
  return reclaimed;
}

Status UnitPool::CheckIntegrity(std::span<const uint32_t> owners) const {
  GYRE_RETURN_IF_ERROR(fault_);
  if (!owners.empty() && owners.size() != units_.size()) {
    return Internal("{} owner counts for units of {} {}s", owners.size(), units_.size(), what_);
  }
  std::vector<uint32_t> listed(units_.size(), 0);
  for (BlockId id : free_) {
    if (id >= units()) return Internal("{} {} is free, there are {}", what_, id, units());
    if (units_[id].chain != kNoChain) return Internal("{} {} is free and published", what_, id);
    ++listed[id];
  }
  for (const std::list<BlockId>* list : {&evict_first_, &kept_}) {
    for (auto it = list->begin(); it != list->end(); ++it) {
      if (*it >= units()) return Internal("{} {} is kept, there are {}", what_, *it, units());
      const Unit& unit = units_[*it];
      if (unit.chain == kNoChain) return Internal("{} {} is kept and has no content", what_, *it);
      if (unit.place != it || unit.evict_first != (list == &evict_first_))
        return Internal("{} {} does not know its place among those kept", what_, *it);
      ++listed[*it];
    }
  }
  size_t published = 0;
  for (BlockId id = 0; id < units(); ++id) {
    const Unit& unit = units_[id];
    if (!owners.empty() && unit.owners != owners[id]) {
      return Internal("{} {} has {} owners, counted are {}", what_, id, unit.owners, owners[id]);
    }
    if (listed[id] != (unit.owners == 0 ? 1u : 0u)) {
      return Internal("{} {} has {} owners and stands {} times among free and kept ones", what_, id, unit.owners,
                      listed[id]);
    }
    if (unit.chain == kNoChain) continue;
    ++published;
    const auto found = by_chain_.find(unit.chain);
    if (found == by_chain_.end() || found->second != id)
      return Internal("{} {} is not found by its content", what_, id);
  }
  if (published != by_chain_.size())
    return Internal("{} of {} published, {} are found", published, what_, by_chain_.size());
  return absl::OkStatus();
}

}  // namespace gyre
