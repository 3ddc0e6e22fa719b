#include "coordinator/chain_pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gyre {

std::vector<BlockId> ChainPool::Live() const {
  std::vector<BlockId> live;
  for (BlockId id = 0; id < units(); ++id) {
    if (units_[id].owners > 0 || units_[id].chain != kNoChain) live.push_back(id);
  }
  return live;
}

std::optional<BlockId> ChainPool::Allocate(bool snapshot) {
  BlockId id = 0;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (kept() > 0) {
    std::list<BlockId>& from = passing_.empty() ? kept_ : passing_;
    id = from.front();
    from.pop_front();
    by_chain_.erase(units_[id].chain);
    units_[id].chain = kNoChain;
    Changed(id);
  } else {
    return std::nullopt;
  }
  units_[id].owners = 1;
  units_[id].passing = false;
  if (snapshot && ++last_number_ == 0) ++last_number_;
  units_[id].number = snapshot ? last_number_ : 0;
  return id;
}

BlockId ChainPool::Take(ChainId chain) {
  const BlockId id = by_chain_.at(chain);
  Unit& unit = units_[id];
  if (unit.owners++ == 0) (unit.passing ? passing_ : kept_).erase(unit.place);
  return id;
}

bool ChainPool::Release(BlockId id, bool passing) {
  Unit& unit = units_[id];
  assert(unit.owners > 0);
  if (--unit.owners > 0) return false;
  if (unit.chain == kNoChain) {
    free_.push_back(id);
  } else {
    std::list<BlockId>& to = passing ? passing_ : kept_;
    unit.passing = passing;
    unit.place = to.insert(to.end(), id);
  }
  return true;
}

void ChainPool::Publish(ChainId chain, BlockId id, uint64_t step) {
  assert(units_[id].owners > 0 && units_[id].chain == kNoChain);
  units_[id].step = step;
  if (chain == kNoChain || !by_chain_.emplace(chain, id).second) return;
  units_[id].chain = chain;
  Changed(id);
}

void ChainPool::ForgetAfter(uint64_t step) {
  for (std::list<BlockId>* list : {&passing_, &kept_}) {
    for (auto it = list->begin(); it != list->end();) {
      Unit& unit = units_[*it];
      if (unit.step <= step) {
        ++it;
        continue;
      }
      by_chain_.erase(unit.chain);
      unit.chain = kNoChain;
      Changed(*it);
      free_.push_back(*it);
      it = list->erase(it);
    }
  }
}

std::optional<BlockId> ChainPool::Find(ChainId chain) const {
  const auto it = by_chain_.find(chain);
  return it == by_chain_.end() ? std::nullopt : std::optional(it->second);
}

void ChainPool::ForgetUnit(BlockId id) {
  if (id >= units() || units_[id].owners > 0 || units_[id].chain == kNoChain) return;
  Unit& unit = units_[id];
  (unit.passing ? passing_ : kept_).erase(unit.place);
  by_chain_.erase(unit.chain);
  unit.chain = kNoChain;
  Changed(id);
  free_.push_back(id);
}

void ChainPool::Changed(BlockId id) {
  if (!std::exchange(units_[id].changed, true)) changed_.push_back(id);
}

std::optional<CachedUnit> ChainPool::Content(BlockId id, int group) const {
  if (id >= units() || units_[id].chain == kNoChain) return std::nullopt;
  const Unit& u = units_[id];
  return CachedUnit{.place = {group, id},
                    .step = u.step,
                    .chain = u.chain,
                    .tokens = {},
                    .classes = {},
                    .snapshot = u.number,
                    .passing = u.passing};
}

std::vector<BlockId> ChainPool::TakeChanged(size_t most) { return TakeChangedUnits(most, &changed_, &units_); }

void ChainPool::Restore(const std::vector<CachedUnit>& stored) {
  std::vector<bool> taken(units_.size(), false);
  for (const CachedUnit& u : stored) {
    last_number_ = std::max(last_number_, u.snapshot);
    const BlockId id = u.place.number;
    if (id >= units() || taken[id] || u.chain == kNoChain) continue;
    if (const auto older = Find(u.chain)) {
      Unit& before = units_[*older];
      (before.passing ? passing_ : kept_).erase(before.place);
      before.chain = kNoChain;
      Changed(*older);
      taken[*older] = false;
    }
    by_chain_[u.chain] = id;
    Unit& unit = units_[id];
    unit.chain = u.chain;
    unit.step = u.step;
    unit.number = u.snapshot;
    unit.passing = u.passing;
    std::list<BlockId>& to = u.passing ? passing_ : kept_;
    unit.place = to.insert(to.end(), id);
    taken[id] = true;
  }
  free_.erase(std::remove_if(free_.begin(), free_.end(), [&taken](BlockId id) { return taken[id]; }), free_.end());
}

void ChainPool::Forget(uint32_t n) {
  for (BlockId id = 0; id < units(); ++id) {
    if (units_[id].chain != kNoChain) Changed(id);
  }
  by_chain_.clear();
  passing_.clear();
  kept_.clear();
  free_.clear();
  units_.assign(n, {});
  for (const BlockId id : changed_) {
    if (id < n) units_[id].changed = true;
  }
  for (BlockId id = n; id > 0; --id) free_.push_back(id - 1);  // the lowest goes first
}

void ChainPool::Grow(uint32_t n) {
  std::vector<BlockId> more;
  for (BlockId id = n; id > units(); --id) more.push_back(id - 1);
  free_.insert(free_.begin(), more.begin(), more.end());  // the lowest still goes first
  units_.resize(n);
}

uint32_t ChainPool::Reclaim(std::span<const uint32_t> owners) {
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

Status ChainPool::CheckIntegrity(std::string_view what, std::span<const uint32_t> owners) const {
  std::vector<uint32_t> listed(units_.size(), 0);
  for (BlockId id : free_) {
    if (id >= units()) return Internal("{} {} is free, there are {}", what, id, units());
    if (units_[id].chain != kNoChain) return Internal("{} {} is free and published", what, id);
    ++listed[id];
  }
  for (const std::list<BlockId>* list : {&passing_, &kept_}) {
    for (auto it = list->begin(); it != list->end(); ++it) {
      if (*it >= units()) return Internal("{} {} is kept, there are {}", what, *it, units());
      const Unit& unit = units_[*it];
      if (unit.chain == kNoChain) return Internal("{} {} is kept and has no content", what, *it);
      if (unit.place != it || unit.passing != (list == &passing_))
        return Internal("{} {} does not know its place among those kept", what, *it);
      ++listed[*it];
    }
  }
  size_t published = 0;
  for (BlockId id = 0; id < units(); ++id) {
    const Unit& unit = units_[id];
    if (!owners.empty() && unit.owners != owners[id]) {
      return Internal("{} {} has {} owners, counted are {}", what, id, unit.owners, owners[id]);
    }
    if (listed[id] != (unit.owners == 0 ? 1u : 0u)) {
      return Internal("{} {} has {} owners and stands {} times among free and kept ones", what, id, unit.owners,
                      listed[id]);
    }
    if (unit.chain == kNoChain) continue;
    ++published;
    const auto found = by_chain_.find(unit.chain);
    if (found == by_chain_.end() || found->second != id) return Internal("{} {} is not found by its content", what, id);
  }
  if (published != by_chain_.size())
    return Internal("{} of {} published, {} are found", published, what, by_chain_.size());
  return absl::OkStatus();
}

}  // namespace gyre
