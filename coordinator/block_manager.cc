#include "coordinator/block_manager.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "xxhash.h"

namespace gyre {

uint64_t BlockManager::Hash(uint64_t salt, ChainId parent, std::span<const TokenId> tokens,
                            std::span<const RowClass> classes) {
  const uint64_t head[] = {salt, parent, XXH3_64bits(classes.data(), classes.size_bytes())};
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), XXH3_64bits(head, sizeof head));
}

BlockManager::BlockManager(uint32_t num_blocks, uint32_t block_size, bool prefix_cache, HashFunction hash)
    : block_size_(block_size), prefix_cache_(prefix_cache), hash_(hash) {
  free_.reserve(num_blocks);
  Shrink(num_blocks);
}

std::optional<BlockId> BlockManager::Find(uint64_t hash, uint64_t salt, ChainId parent, std::span<const TokenId> tokens,
                                          std::span<const RowClass> classes) const {
  const auto [begin, end] = published_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Entry& e = *blocks_[it->second].entry;
    if (e.salt == salt && e.parent == parent && std::equal(tokens.begin(), tokens.end(), e.tokens.begin()) &&
        std::equal(classes.begin(), classes.end(), e.classes.begin())) {
      return it->second;
    }
  }
  return std::nullopt;
}

BlockManager::Prefix BlockManager::TakePrefix(uint64_t salt, std::span<const TokenId> tokens,
                                              std::span<const RowClass> classes, size_t max_positions) {
  assert(tokens.size() == classes.size());
  Prefix prefix;
  if (!prefix_cache_) return prefix;
  const size_t limit = std::min(max_positions, tokens.size());
  for (size_t at = 0; at + block_size_ <= limit; at += block_size_) {
    const auto t = tokens.subspan(at, block_size_);
    const auto c = classes.subspan(at, block_size_);
    const auto found = Find(hash_(salt, prefix.chain, t, c), salt, prefix.chain, t, c);
    if (!found) break;
    Block& block = blocks_[*found];
    if (block.references++ == 0) cached_.erase(block.cached);
    prefix.blocks.push_back(*found);
    prefix.chain = block.entry->chain;
  }
  return prefix;
}

std::vector<BlockId> BlockManager::FindPrefix(uint64_t salt, std::span<const TokenId> tokens,
                                              std::span<const RowClass> classes) const {
  std::vector<BlockId> out;
  ChainId chain = kNoChain;
  for (size_t at = 0; at + block_size_ <= tokens.size(); at += block_size_) {
    const auto t = tokens.subspan(at, block_size_);
    const auto c = classes.subspan(at, block_size_);
    const auto found = Find(hash_(salt, chain, t, c), salt, chain, t, c);
    if (!found) break;
    out.push_back(*found);
    chain = blocks_[*found].entry->chain;
  }
  return out;
}

std::vector<BlockId> BlockManager::Live() const {
  std::vector<BlockId> live;
  for (BlockId id = 0; id < num_blocks(); ++id) {
    if (blocks_[id].references > 0 || blocks_[id].entry) live.push_back(id);
  }
  return live;
}

void BlockManager::Unpublish(BlockId id) {
  const auto [begin, end] = published_.equal_range(blocks_[id].entry->hash);
  published_.erase(std::find_if(begin, end, [id](const auto& e) { return e.second == id; }));
  blocks_[id].entry.reset();
  Changed(id);
}

void BlockManager::Changed(BlockId id) {
  if (!std::exchange(blocks_[id].changed, true)) changed_.push_back(id);
}

std::optional<BlockId> BlockManager::Allocate() {
  BlockId id = 0;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (!cached_.empty()) {
    id = cached_.front();
    cached_.pop_front();
    Unpublish(id);
  } else {
    return std::nullopt;
  }
  blocks_[id].references = 1;
  return id;
}

void BlockManager::Release(BlockId id) {
  Block& block = blocks_[id];
  assert(block.references > 0);
  if (--block.references > 0) return;
  if (block.entry) {
    block.cached = cached_.insert(cached_.end(), id);
  } else {
    free_.push_back(id);
  }
}

ChainId BlockManager::Publish(uint64_t salt, ChainId parent, BlockId id, std::span<const TokenId> tokens,
                              std::span<const RowClass> classes, uint64_t step) {
  assert(tokens.size() == block_size_ && classes.size() == block_size_);
  if (!prefix_cache_) return kNoChain;
  const uint64_t hash = hash_(salt, parent, tokens, classes);
  if (const auto equal = Find(hash, salt, parent, tokens, classes)) return blocks_[*equal].entry->chain;
  Block& block = blocks_[id];
  assert(block.references > 0 && !block.entry);
  block.entry = Entry{.salt = salt,
                      .parent = parent,
                      .chain = next_chain_++,
                      .hash = hash,
                      .step = step,
                      .tokens = {tokens.begin(), tokens.end()},
                      .classes = {classes.begin(), classes.end()}};
  published_.emplace(hash, id);
  Changed(id);
  return block.entry->chain;
}

uint32_t BlockManager::Reclaim(std::span<const uint32_t> owners) {
  std::vector<bool> listed(blocks_.size(), false);
  for (BlockId id : free_) listed[id] = true;
  for (BlockId id : cached_) listed[id] = true;
  uint32_t reclaimed = 0;
  for (BlockId id = 0; id < num_blocks(); ++id) {
    uint32_t& references = blocks_[id].references;
    if (listed[id] || (references > 0 && references <= owners[id])) continue;
    if (owners[id] == 0) {
      references = 1;
      Release(id);
    } else {
      references = owners[id];
    }
    ++reclaimed;
  }
  return reclaimed;
}

void BlockManager::Grow(uint32_t n) {
  std::vector<BlockId> more;
  for (uint32_t i = n; i > num_blocks(); --i) more.push_back(i - 1);
  free_.insert(free_.begin(), more.begin(), more.end());  // the lowest ids are still given first
  blocks_.resize(n);
}

void BlockManager::ForgetAfter(uint64_t step) {
  for (auto it = cached_.begin(); it != cached_.end();) {
    if (blocks_[*it].entry->step <= step) {
      ++it;
      continue;
    }
    Unpublish(*it);
    free_.push_back(*it);
    it = cached_.erase(it);
  }
}

void BlockManager::Forget(BlockId id) {
  if (id >= num_blocks() || blocks_[id].references > 0 || !blocks_[id].entry) return;
  cached_.erase(blocks_[id].cached);
  Unpublish(id);
  free_.push_back(id);
}

std::optional<CachedUnit> BlockManager::Content(BlockId id) const {
  if (id >= num_blocks() || !blocks_[id].entry) return std::nullopt;
  const Entry& e = *blocks_[id].entry;
  return CachedUnit{.place = {kPageGroup, id},
                    .step = e.step,
                    .chain = e.chain,
                    .parent = e.parent,
                    .salt = e.salt,
                    .tokens = e.tokens,
                    .classes = e.classes};
}

std::vector<BlockId> BlockManager::TakeChanged(size_t most) { return TakeChangedUnits(most, &changed_, &blocks_); }

void BlockManager::Restore(const std::vector<CachedUnit>& units) {
  std::vector<bool> taken(blocks_.size(), false);
  for (const CachedUnit& u : units) {
    const BlockId id = u.place.number;
    const bool fits = prefix_cache_ && u.place.group == kPageGroup && id < num_blocks() && !taken[id] &&
                      u.tokens.size() == block_size_ && u.classes.size() == block_size_ && u.parent < u.chain;
    if (!fits) continue;
    const uint64_t hash = hash_(u.salt, u.parent, u.tokens, u.classes);
    // If two blocks have the same content, the older one was evicted, and the newer one replaces it.
    if (const auto older = Find(hash, u.salt, u.parent, u.tokens, u.classes)) {
      cached_.erase(blocks_[*older].cached);
      Unpublish(*older);
      taken[*older] = false;
    }
    Block& block = blocks_[id];
    block.entry = Entry{.salt = u.salt,
                        .parent = u.parent,
                        .chain = u.chain,
                        .hash = hash,
                        .step = u.step,
                        .tokens = u.tokens,
                        .classes = u.classes};
    published_.emplace(hash, id);
    block.cached = cached_.insert(cached_.end(), id);
    taken[id] = true;
  }
  free_.erase(std::remove_if(free_.begin(), free_.end(), [&taken](BlockId id) { return taken[id]; }), free_.end());
}

void BlockManager::Shrink(uint32_t n) {
  for (BlockId id = 0; id < num_blocks(); ++id) {
    if (blocks_[id].entry) Changed(id);
  }
  cached_.clear();
  published_.clear();
  blocks_.clear();
  blocks_.resize(n);
  for (const BlockId id : changed_) {
    if (id < n) blocks_[id].changed = true;
  }
  free_.clear();
  for (uint32_t i = n; i > 0; --i) free_.push_back(i - 1);  // the lowest id goes first
}

Status BlockManager::CheckPublished() const {
  size_t published = 0;
  for (BlockId id = 0; id < num_blocks(); ++id) {
    if (!blocks_[id].entry) continue;
    ++published;
    const Entry& e = *blocks_[id].entry;
    if (e.tokens.size() != block_size_ || e.classes.size() != block_size_) {
      return Internal("block {} is published with {} tokens and {} classes, blocks have {}", id, e.tokens.size(),
                      e.classes.size(), block_size_);
    }
    if (e.hash != hash_(e.salt, e.parent, e.tokens, e.classes)) return Internal("block {} has a wrong hash", id);
    if (e.chain == kNoChain || e.chain >= next_chain_ || e.parent >= e.chain) {
      return Internal("block {} is chain {} after {}", id, e.chain, e.parent);
    }
    if (Find(e.hash, e.salt, e.parent, e.tokens, e.classes) != id) {
      return Internal("block {} is published, but not what is found for its content", id);
    }
  }
  if (published != published_.size()) {
    return Internal("{} blocks are published, the index has {}", published, published_.size());
  }
  if (!prefix_cache_ && published > 0) return Internal("{} blocks are published without a prefix cache", published);
  return absl::OkStatus();
}

Status BlockManager::CheckIntegrity(std::span<const uint32_t> owners) const {
  if (!owners.empty() && owners.size() != blocks_.size()) {
    return Internal("{} owner counts for {} blocks", owners.size(), blocks_.size());
  }
  std::vector<uint32_t> listed(blocks_.size(), 0);
  for (BlockId id : free_) {
    if (id >= num_blocks()) return Internal("block {} is free, there are {}", id, num_blocks());
    if (blocks_[id].entry) return Internal("block {} is free and published", id);
    ++listed[id];
  }
  for (auto it = cached_.begin(); it != cached_.end(); ++it) {
    if (*it >= num_blocks()) return Internal("block {} is cached, there are {}", *it, num_blocks());
    if (!blocks_[*it].entry) return Internal("block {} is cached without content", *it);
    if (blocks_[*it].cached != it) return Internal("block {} does not know its place in the cache", *it);
    ++listed[*it];
  }
  for (BlockId id = 0; id < num_blocks(); ++id) {
    const uint32_t references = blocks_[id].references;
    if (!owners.empty() && references != owners[id]) {
      return Internal("block {} has {} references, its owners hold {}", id, references, owners[id]);
    }
    if (listed[id] != (references == 0 ? 1u : 0u)) {
      return Internal("block {} has {} references and stands {} times among free and cached", id, references,
                      listed[id]);
    }
  }
  return CheckPublished();
}

}  // namespace gyre
