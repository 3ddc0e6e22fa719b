// Hands out the units of a KV group whose contents are found by the chain of a block (docs/memory.md): slots of
// recurrent state, and blocks of layers with a window. Pure: integers only.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/block_manager.h"

namespace gyre {

// Not thread-safe: the scheduler owns it. A unit is free, owned (sequences or steps use it), or kept: it has content
// that is found by its chain, and no owner. If none is free, a kept one is reused: first those of passing use, then
// the others, the longest unused first.
class ChainPool {
 public:
  explicit ChainPool(uint32_t units) { Forget(units); }

  uint32_t units() const { return static_cast<uint32_t>(units_.size()); }
  // The number of units that Allocate can still give: free and kept ones.
  uint32_t available() const { return static_cast<uint32_t>(free_.size() + passing_.size() + kept_.size()); }
  // Units that are found by their content, those with owners too.
  uint32_t published() const { return static_cast<uint32_t>(by_chain_.size()); }
  // The published units without owners.
  uint32_t kept() const { return static_cast<uint32_t>(passing_.size() + kept_.size()); }
  // Owned and kept units, rising.
  std::vector<BlockId> Live() const;

  // The number of a snapshot, or of what becomes one; 0: it is none. No two have the same.
  uint32_t number(BlockId unit) const { return units_[unit].number; }
  uint32_t owners(BlockId unit) const { return units_[unit].owners; }
  bool published(BlockId unit) const { return units_[unit].chain != kNoChain; }
  // Whether it was of passing use when it was last kept.
  bool passing(BlockId unit) const { return units_[unit].passing; }

  // A unit with one owner, or nullopt. `snapshot`: it gets a number.
  std::optional<BlockId> Allocate(bool snapshot = false);
  // Whether a unit has the content that ends with this chain.
  bool Has(ChainId chain) const { return by_chain_.count(chain) > 0; }
  std::optional<BlockId> Find(ChainId chain) const;
  // That unit, with one owner more. REQUIRES: Has(chain).
  BlockId Take(ChainId chain);
  // An owned unit has this content, and is found from now on. Nothing is done for kNoChain, and where one with this
  // content is found already. REQUIRES: the unit is not published. `step`: no later one has written it.
  void Publish(ChainId chain, BlockId unit, uint64_t step = 0);
  // Gives an owner back. Without owners a published unit is kept, any other is free. `passing`: its content is hardly
  // going to be asked for. Returns whether the unit has no owner now.
  bool Release(BlockId unit, bool passing = false);
  // Both: for what a step wrote and nobody computes in.
  void Keep(ChainId chain, BlockId unit, uint64_t step = 0) {
    Publish(chain, unit, step);
    Release(unit);
  }
  // Adds free units until there are n. REQUIRES: n >= units().
  void Grow(uint32_t n);
  // Forgets the contents that were published as of a later step. REQUIRES: no unit has an owner.
  void ForgetAfter(uint64_t step);
  // As BlockManager's, of this group.
  std::optional<CachedUnit> Content(BlockId unit, int group) const;
  std::vector<BlockId> TakeChanged(size_t most);
  bool changed() const { return !changed_.empty(); }
  void Restore(const std::vector<CachedUnit>& units);
  // Forgets the unit's content, if it has any and no owner.
  void ForgetUnit(BlockId unit);
  // Forgets all contents and owners; from now on there are so many units.
  void Forget(uint32_t units);
  // Gives back what nobody owns of what is said to be owned; `owners` = how many each unit should have. Returns the
  // number of units.
  uint32_t Reclaim(std::span<const uint32_t> owners);

  // kInternal with the first contradiction; `owners` = how many each unit should have (empty: not checked); `what`
  // names a unit.
  Status CheckIntegrity(std::string_view what, std::span<const uint32_t> owners = {}) const;

 private:
  struct Unit {
    uint32_t owners = 0;
    ChainId chain = kNoChain;  // of its content, if it is published
    uint32_t number = 0;
    uint64_t step = 0;
    bool passing = false;
    bool changed = false;                // it stands in changed_
    std::list<BlockId>::iterator place;  // valid while it is kept
  };

  std::vector<Unit> units_;
  std::vector<BlockId> free_;
  std::list<BlockId> passing_, kept_;  // longest unused first
  std::unordered_map<ChainId, BlockId> by_chain_;
  uint32_t last_number_ = 0;
  std::vector<BlockId> changed_;

  void Changed(BlockId unit);
};

}  // namespace gyre
