// Hands out KV blocks and shares full ones between sequences by content. Pure: integers and hashes only.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace gyre {

// Identifies the chain of full blocks from position 0 to the end of one block: what a block's hash covers.
using ChainHash = uint64_t;

// One KV group's blocks. Not thread-safe: the scheduler owns it. A block is free (no owner, no content worth
// keeping), owned (>= 1 reference), or cached (no owner, content still findable; reused oldest first).
class BlockManager {
 public:
  BlockManager(uint32_t num_blocks, uint32_t block_size, bool prefix_cache);
  ~BlockManager();

  uint32_t num_blocks() const;
  uint32_t block_size() const;
  // Free and cached blocks: what Allocate can still hand out.
  uint32_t available() const;
  uint32_t cached() const;

  // The longest run of published blocks that hold exactly these tokens (and row classes) from position 0 on, under
  // this salt, of at most max_positions positions; one reference is taken on each. Tokens are compared, not only
  // hashes. REQUIRES: tokens.size() == classes.size().
  std::vector<BlockId> TakePrefix(uint64_t salt, std::span<const TokenId> tokens, std::span<const RowClass> classes,
                                  size_t max_positions);
  // A block with one reference, or nullopt. Evicts the longest-unused cached block when none is free.
  std::optional<BlockId> Allocate();
  // Gives one reference back. Without owners a published block becomes cached, any other free.
  void Release(BlockId block);
  // Makes an owned, full block findable. `chain` are the sequence's blocks from position 0, the published one last,
  // all before it published (or content-equal to published ones). Where an equal block is published already this one
  // stays private. REQUIRES: every row of it has landed without error.
  void Publish(uint64_t salt, std::span<const BlockId> chain, std::span<const TokenId> tokens,
               std::span<const RowClass> classes);
  // Forgets all cached content (owned blocks stay owned, but private).
  void ForgetCache();

  // kInternal with the first contradiction between free list, references, cache and hashes; `owners` = number of
  // references each block should have, by block (empty: not checked).
  Status CheckIntegrity(std::span<const uint32_t> owners = {}) const;

 private:
  struct Rep;
  Rep* rep_;
};

}  // namespace gyre
