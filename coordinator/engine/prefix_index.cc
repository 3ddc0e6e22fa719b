#include "coordinator/engine/prefix_index.h"

#include <algorithm>

#include "xxhash.h"

namespace gyre {

uint64_t PrefixIndex::Hash(uint64_t salt, ChainId parent, TokenSpan block) {
  const uint64_t head[] = {salt, parent, XXH3_64bits(block.classes.data(), block.classes.size_bytes())};
  return XXH3_64bits_withSeed(block.tokens.data(), block.tokens.size_bytes(), XXH3_64bits(head, sizeof head));
}

ChainId PrefixIndex::Find(uint64_t salt, ChainId parent, TokenSpan block) const {
  const auto [begin, end] = by_hash_.equal_range(hash_(salt, parent, block));
  for (auto it = begin; it != end; ++it) {
    const Entry& e = entries_.at(it->second);
    if (e.salt == salt && e.parent == parent && std::ranges::equal(block.tokens, e.tokens) &&
        std::ranges::equal(block.classes, e.classes)) {
      return it->second;
    }
  }
  return kNoChain;
}

void PrefixIndex::Insert(ChainId chain, uint64_t salt, ChainId parent, TokenSpan block) {
  const uint64_t hash = hash_(salt, parent, block);
  entries_.emplace(chain, Entry{.salt = salt,
                                .parent = parent,
                                .hash = hash,
                                .tokens = {block.tokens.begin(), block.tokens.end()},
                                .classes = {block.classes.begin(), block.classes.end()}});
  by_hash_.emplace(hash, chain);
}

ChainId PrefixIndex::Add(uint64_t salt, ChainId parent, TokenSpan block) {
  const ChainId chain = NewChain();
  Insert(chain, salt, parent, block);
  return chain;
}

void PrefixIndex::Forget(ChainId chain) {
  const auto entry = entries_.find(chain);
  if (entry == entries_.end()) return;
  const auto [begin, end] = by_hash_.equal_range(entry->second.hash);
  by_hash_.erase(std::find_if(begin, end, [chain](const auto& e) { return e.second == chain; }));
  entries_.erase(entry);
}

void PrefixIndex::Describe(ChainId chain, CachedUnit* unit) const {
  const auto entry = entries_.find(chain);
  if (entry == entries_.end()) return;
  unit->parent = entry->second.parent;
  unit->salt = entry->second.salt;
  unit->tokens = entry->second.tokens;
  unit->classes = entry->second.classes;
}

bool PrefixIndex::Restore(const CachedUnit& unit) {
  if (unit.parent >= unit.chain || entries_.count(unit.chain) > 0) return false;
  SkipChains(unit.chain);
  Insert(unit.chain, unit.salt, unit.parent, {unit.tokens, unit.classes});
  return true;
}

void PrefixIndex::SkipChains(ChainId chain) { next_chain_ = std::max(next_chain_, chain + 1); }

Status PrefixIndex::CheckIntegrity(uint32_t block_size) const {
  for (const auto& [chain, e] : entries_) {
    if (e.tokens.size() != block_size || e.classes.size() != block_size) {
      return Internal("chain {} has {} tokens and {} classes, blocks have {}", chain, e.tokens.size(), e.classes.size(),
                      block_size);
    }
    if (e.hash != hash_(e.salt, e.parent, e.block())) return Internal("chain {} has a wrong hash", chain);
    if (chain == kNoChain || chain >= next_chain_ || e.parent >= chain) {
      return Internal("chain {} comes after {}", chain, e.parent);
    }
    if (Find(e.salt, e.parent, e.block()) != chain) return Internal("chain {} is not found by its content", chain);
  }
  if (by_hash_.size() != entries_.size()) {
    return Internal("{} contents have a chain, {} are found", entries_.size(), by_hash_.size());
  }
  return absl::OkStatus();
}

}  // namespace gyre
