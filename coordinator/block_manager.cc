#include "coordinator/block_manager.h"

#include <algorithm>
#include <cassert>

#include <xxhash.h>

namespace gyre {

BlockManager::BlockManager(uint32_t num_blocks, uint32_t block_size, bool prefix_cache)
    : block_size_(block_size), prefix_cache_(prefix_cache), blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (uint32_t i = num_blocks; i > 0; --i) free_.push_back(i - 1);  // the lowest id goes first
}

ChainId BlockManager::Root(uint64_t salt) {
  const auto [it, added] = roots_.emplace(salt, next_chain_);
  if (added) ++next_chain_;
  return it->second;
}

uint64_t BlockManager::Hash(ChainId parent, std::span<const TokenId> tokens, std::span<const RowClass> classes) {
  const uint64_t hash = XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
  return XXH3_64bits_withSeed(classes.data(), classes.size_bytes(), hash);
}

std::optional<BlockId> BlockManager::Lookup(ChainId parent, std::span<const TokenId> tokens,
                                            std::span<const RowClass> classes) const {
  const auto [begin, end] = published_.equal_range(Hash(parent, tokens, classes));
  for (auto it = begin; it != end; ++it) {
    const Entry& e = *blocks_[it->second].entry;
    if (e.parent == parent && std::equal(tokens.begin(), tokens.end(), e.tokens.begin(), e.tokens.end()) &&
        std::equal(classes.begin(), classes.end(), e.classes.begin(), e.classes.end())) {
      return it->second;
    }
  }
  return std::nullopt;
}

BlockManager::Prefix BlockManager::TakePrefix(uint64_t salt, std::span<const TokenId> tokens,
                                              std::span<const RowClass> classes, size_t max_positions) {
  Prefix prefix;
  prefix.chain = Root(salt);
  if (!prefix_cache_) return prefix;
  const size_t limit = std::min(max_positions, tokens.size());
  for (size_t at = 0; at + block_size_ <= limit; at += block_size_) {
    const auto found = Lookup(prefix.chain, tokens.subspan(at, block_size_), classes.subspan(at, block_size_));
    if (!found) break;
    Block& block = blocks_[*found];
    if (block.references++ == 0) cached_.erase(block.cached);
    prefix.blocks.push_back(*found);
    prefix.chain = block.entry->chain;
  }
  return prefix;
}

void BlockManager::Forget(BlockId id) {
  Entry& entry = *blocks_[id].entry;
  const auto [begin, end] = published_.equal_range(entry.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second != id) continue;
    published_.erase(it);
    break;
  }
  blocks_[id].entry.reset();
}

std::optional<BlockId> BlockManager::Allocate() {
  BlockId id = 0;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (!cached_.empty()) {
    id = cached_.front();
    cached_.pop_front();
    Forget(id);
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

ChainId BlockManager::Publish(ChainId parent, BlockId id, std::span<const TokenId> tokens,
                              std::span<const RowClass> classes) {
  assert(tokens.size() == block_size_ && classes.size() == block_size_);
  if (!prefix_cache_) return kNoChain;
  if (const auto equal = Lookup(parent, tokens, classes)) return blocks_[*equal].entry->chain;
  Block& block = blocks_[id];
  assert(block.references > 0 && !block.entry);
  block.entry = Entry{.chain = next_chain_++,
                      .parent = parent,
                      .hash = Hash(parent, tokens, classes),
                      .tokens = {tokens.begin(), tokens.end()},
                      .classes = {classes.begin(), classes.end()}};
  published_.emplace(block.entry->hash, id);
  return block.entry->chain;
}

Status BlockManager::CheckIntegrity(std::span<const uint32_t> owners) const {
  std::vector<int> seen(blocks_.size(), 0);
  for (BlockId id : free_) {
    if (blocks_[id].entry) return Internal("block {} is free and published", id);
    ++seen[id];
  }
  for (BlockId id : cached_) {
    if (!blocks_[id].entry) return Internal("block {} is cached without content", id);
    ++seen[id];
  }
  size_t published = 0;
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& b = blocks_[id];
    if (b.references != owners[id]) return Internal("block {} has {} references, owners hold {}", id, b.references, owners[id]);
    if ((b.references == 0) != (seen[id] == 1) || seen[id] > 1) {
      return Internal("block {} has {} references and stands {} times among the free", id, b.references, seen[id]);
    }
    published += b.entry.has_value();
  }
  if (published != published_.size()) return Internal("{} blocks are published, {} can be found", published, published_.size());
  for (const auto& [hash, id] : published_) {
    if (!blocks_[id].entry || blocks_[id].entry->hash != hash) return Internal("block {} is found under a wrong hash", id);
  }
  return absl::OkStatus();
}

}  // namespace gyre
