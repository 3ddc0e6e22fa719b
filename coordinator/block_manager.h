// Hands out KV blocks and shares full ones between sequences by content. Pure: integers and hashes only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/cache_index.h"

namespace gyre {

// Names the content of all full blocks from position 0 to the end of one block. Handed out once, so two different
// contents never have the same; kNoChain is the empty content.
using ChainId = uint64_t;
inline constexpr ChainId kNoChain = 0;

// One KV group's blocks. Not thread-safe: the scheduler owns it. A block is free (no owner, no content worth
// keeping), owned (>= 1 reference), or cached (no owner, content still findable; reused longest-unused first).
class BlockManager {
 public:
  // The key of a block's content. Equal hashes of different content cost time, but never give a wrong hit.
  using HashFunction = uint64_t (*)(uint64_t salt, ChainId parent, std::span<const TokenId> tokens,
                                    std::span<const RowClass> classes);
  static uint64_t Hash(uint64_t salt, ChainId parent, std::span<const TokenId> tokens,
                       std::span<const RowClass> classes);

  BlockManager(uint32_t num_blocks, uint32_t block_size, bool prefix_cache, HashFunction hash = &Hash);

  uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t block_size() const { return block_size_; }
  // Free and cached blocks: what Allocate can still hand out.
  uint32_t available() const { return static_cast<uint32_t>(free_.size() + cached_.size()); }
  uint32_t cached() const { return static_cast<uint32_t>(cached_.size()); }
  uint32_t references(BlockId block) const { return blocks_[block].references; }
  // The chain id of a block's content; kNoChain: the block is not published.
  ChainId chain(BlockId block) const { return blocks_[block].entry ? blocks_[block].entry->chain : kNoChain; }

  // Owned and cached blocks, rising.
  std::vector<BlockId> Live() const;

  struct Prefix {
    std::vector<BlockId> blocks;
    ChainId chain = kNoChain;  // of the last block
  };
  // The longest run of published blocks that hold exactly these tokens (and row classes) from position 0 on, under
  // this salt, of at most max_positions positions; one reference is taken on each. REQUIRES: as many classes as
  // tokens.
  Prefix TakePrefix(uint64_t salt, std::span<const TokenId> tokens, std::span<const RowClass> classes,
                    size_t max_positions);
  // The blocks of that run, as long as the tokens go.
  std::vector<BlockId> FindPrefix(uint64_t salt, std::span<const TokenId> tokens,
                                  std::span<const RowClass> classes) const;
  // A block with one reference, or nullopt. Evicts the longest-unused cached block when none is free.
  std::optional<BlockId> Allocate();
  // Gives one reference back. Without owners a published block becomes cached, any other free. A table is released
  // from its end, so that a chain's tail is evicted before its head.
  void Release(BlockId block);
  // Makes an owned block findable after `parent`, and returns the chain to its end. Where an equal block is published
  // already this one stays private. REQUIRES: every row of it has landed without error and none is sent again;
  // block_size tokens and classes; the block is not published. `step`: no later one has written it.
  ChainId Publish(uint64_t salt, ChainId parent, BlockId block, std::span<const TokenId> tokens,
                  std::span<const RowClass> classes, uint64_t step = 0);

  // Gives back what nobody owns any more: references beyond `owners` (as many as blocks), and blocks without references
  // that nothing lists. Returns the number of blocks that come back. REQUIRES: no block has fewer references than
  // owners.
  uint32_t Reclaim(std::span<const uint32_t> owners);

  // n blocks, of which those that there were keep what they have. REQUIRES: n >= num_blocks().
  void Grow(uint32_t n);
  // Forgets the content that was published as of a later step. REQUIRES: no block has an owner.
  void ForgetAfter(uint64_t step);
  // The content of a published block; nullopt: it has none.
  std::optional<CachedUnit> Content(BlockId block) const;
  // Blocks whose content came or went since the last call; at most so many, the others later. And whether there are
  // any.
  std::vector<BlockId> TakeChanged(size_t most);
  bool changed() const { return !changed_.empty(); }
  // Takes over the index of a manager of before, the longest unused first. What does not fit is left out. REQUIRES:
  // nothing was allocated or published.
  void Restore(const std::vector<CachedUnit>& units);
  // Hands out chains above this one.
  void SkipChains(ChainId chain) { next_chain_ = std::max(next_chain_, chain + 1); }
  // Forgets a block's content, if it has any and no owner.
  void Forget(BlockId block);
  // Forgets all content and keeps only the first n blocks. REQUIRES: no block has an owner, 1 <= n <= num_blocks().
  void Shrink(uint32_t n);

  // kInternal with the first contradiction between free list, references, cache and hashes; `owners` = references
  // each block should have (empty: not checked).
  Status CheckIntegrity(std::span<const uint32_t> owners = {}) const;

 private:
  struct Entry {
    uint64_t salt = 0;
    ChainId parent = kNoChain;
    ChainId chain = kNoChain;
    uint64_t hash = 0;
    uint64_t step = 0;
    std::vector<TokenId> tokens;
    std::vector<RowClass> classes;
  };
  struct Block {
    uint32_t references = 0;
    std::optional<Entry> entry;           // published content
    bool changed = false;                 // it stands in changed_
    std::list<BlockId>::iterator cached;  // valid while cached
  };

  std::optional<BlockId> Find(uint64_t hash, uint64_t salt, ChainId parent, std::span<const TokenId> tokens,
                              std::span<const RowClass> classes) const;
  void Unpublish(BlockId block);
  void Changed(BlockId block);
  Status CheckPublished() const;

  const uint32_t block_size_;
  const bool prefix_cache_;
  const HashFunction hash_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::list<BlockId> cached_;  // longest unused first
  std::vector<BlockId> changed_;
  std::unordered_multimap<uint64_t, BlockId> published_;
  ChainId next_chain_ = kNoChain + 1;
};

}  // namespace gyre
