// Hands out the units of one KV group (docs/memory.md): pages, slots of recurrent state, or pages of layers with a
// window. Pure: integers only.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/engine/cache_index.h"

namespace gyre {

// Not thread-safe: KvCache owns it. A unit is free, owned (sequences or steps use it), or kept: it has content that is
// found by its chain, and no owner. If none is free, a kept one is reused: first those to be evicted first, then the
// others, the longest unused first. A call that its caller must not make changes nothing and is told by TakeFault.
class UnitPool {
 public:
  // `what` names a unit in messages. `forgotten` is told of each content that leaves the pool.
  UnitPool(std::string_view what, uint32_t units, std::function<void(ChainId)> forgotten = {});

  uint32_t units() const { return static_cast<uint32_t>(units_.size()); }
  // The number of units that Allocate can still give: free and kept ones.
  uint32_t available() const { return static_cast<uint32_t>(free_.size() + evict_first_.size() + kept_.size()); }
  // Units that are found by their content, those with owners too.
  uint32_t published() const { return static_cast<uint32_t>(by_chain_.size()); }
  // The published units without owners.
  uint32_t kept() const { return static_cast<uint32_t>(evict_first_.size() + kept_.size()); }
  // Owned and kept units, rising.
  std::vector<BlockId> Live() const;

  // The number of a snapshot, or of what becomes one; 0: it is none. No two have the same.
  uint32_t number(BlockId unit) const { return units_[unit].number; }
  uint32_t owners(BlockId unit) const { return units_[unit].owners; }
  // Of its content; kNoChain: the unit is not published.
  ChainId chain(BlockId unit) const { return units_[unit].chain; }
  // Whether it was to be evicted first when it was last kept.
  bool evict_first(BlockId unit) const { return units_[unit].evict_first; }

  // A unit with one owner, or nullopt. `snapshot`: it gets a number.
  std::optional<BlockId> Allocate(bool snapshot = false);
  // Whether a unit has the content that ends with this chain.
  bool Has(ChainId chain) const { return by_chain_.count(chain) > 0; }
  std::optional<BlockId> Find(ChainId chain) const;
  // That unit, with one owner more. REQUIRES: Has(chain).
  BlockId Take(ChainId chain);
  // An owned unit has this content, and is found from now on. Nothing is done for kNoChain, and where one with this
  // content is found already. REQUIRES: every row of it has landed without error and none is sent again; the unit is
  // not published. `step`: no later one has written it. False: a wrong call.
  bool Publish(ChainId chain, BlockId unit, uint64_t step = 0);
  // Gives an owner back. Without owners a published unit is kept, any other is free. `evict_first`: its content is
  // hardly going to be asked for. Returns whether the unit has no owner now.
  bool Release(BlockId unit, bool evict_first = false);
  // Both: for what a step wrote and nobody computes in.
  void Keep(ChainId chain, BlockId unit, uint64_t step = 0, bool evict_first = false) {
    Publish(chain, unit, step);
    Release(unit, evict_first);
  }
  // Adds free units until there are n. REQUIRES: n >= units().
  void Grow(uint32_t n);
  // Forgets the contents that were published as of a later step. REQUIRES: no unit has an owner.
  void ForgetAfter(uint64_t step);
  // What a published unit of this group holds, as far as the pool knows; nullopt: it has no content.
  std::optional<CachedUnit> Content(BlockId unit, int group) const;
  // Units whose content came or went since the last call; at most so many, the others later. And whether there are any.
  std::vector<BlockId> TakeChanged(size_t most);
  bool changed() const { return !changed_.empty(); }
  // What was stored of this unit is void.
  void Differs(BlockId unit) { Changed(unit); }
  // Takes over the contents of a pool of before, the longest unused first. What does not fit is left out. REQUIRES:
  // nothing was allocated or published.
  void Restore(const std::vector<CachedUnit>& units);
  // Forgets the unit's content, if it has any and no owner.
  void ForgetUnit(BlockId unit);
  // Forgets all contents and owners; from now on there are so many units.
  void Forget(uint32_t units);
  // Gives back what nobody owns of what is said to be owned; `owners` = how many each unit should have. Returns the
  // number of units.
  uint32_t Reclaim(std::span<const uint32_t> owners);

  // A step is going to write this unit: a fault unless it has exactly one owner.
  void CheckWritten(BlockId unit);
  // A step is going to read this unit: a fault if nobody owns it, as another sequence may get it at any time.
  void CheckRead(BlockId unit) {
    if (unit >= units() || units_[unit].owners == 0) FaultOfRead(unit);
  }
  // kInternal: the first wrong call since the last TakeFault. A unit may then have been used by two sequences.
  Status TakeFault() { return std::exchange(fault_, absl::OkStatus()); }

  // kInternal with the first contradiction; `owners` = how many each unit should have (empty: not checked).
  Status CheckIntegrity(std::span<const uint32_t> owners = {}) const;

 private:
  struct Unit {
    uint32_t owners = 0;
    ChainId chain = kNoChain;  // of its content, if it is published
    uint32_t number = 0;
    uint64_t step = 0;
    bool evict_first = false;
    bool changed = false;                // it stands in changed_
    std::list<BlockId>::iterator place;  // valid while it is kept
  };

  std::string_view what_;
  std::function<void(ChainId)> forgotten_;
  std::vector<Unit> units_;
  std::vector<BlockId> free_;
  std::list<BlockId> evict_first_, kept_;  // longest unused first
  std::unordered_map<ChainId, BlockId> by_chain_;
  uint32_t last_number_ = 0;
  std::vector<BlockId> changed_;
  Status fault_;

  // The unit has no content any more; it stands in no list of kept ones.
  void Unpublish(BlockId unit);
  void Changed(BlockId unit);
  void FaultOfRead(BlockId unit);
  void Fault(Status fault) { fault_.Update(std::move(fault)); }
};

}  // namespace gyre
