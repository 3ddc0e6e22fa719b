// Names the contents of full blocks, so that sequences with equal beginnings share them. Pure: integers and hashes.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/engine/cache_index.h"

namespace gyre {

// The tokens of rows, and the class of each row. REQUIRES: as many classes as tokens.
struct TokenSpan {
  std::span<const TokenId> tokens;
  std::span<const RowClass> classes;
  size_t size() const { return tokens.size(); }
  TokenSpan Sub(size_t begin, size_t count) const {
    return {tokens.subspan(begin, count), classes.subspan(begin, count)};
  }
};

// Chain ids of contents. Not thread-safe. An entry lives as long as a unit of the paged group has its content
// (UnitPool): whoever evicts the unit calls Forget.
class PrefixIndex {
 public:
  // The key of a block's content. Equal hashes of different contents cost time, but never give a wrong hit.
  using HashFunction = uint64_t (*)(uint64_t salt, ChainId parent, TokenSpan block);
  static uint64_t Hash(uint64_t salt, ChainId parent, TokenSpan block);

  explicit PrefixIndex(HashFunction hash = &Hash) : hash_(hash) {}

  size_t size() const { return entries_.size(); }
  // The chain that ends with this block after `parent`; kNoChain: it has no entry.
  ChainId Find(uint64_t salt, ChainId parent, TokenSpan block) const;
  // A new chain with this content. REQUIRES: Find does not find it.
  ChainId Add(uint64_t salt, ChainId parent, TokenSpan block);
  // A chain that nobody finds.
  ChainId NewChain() { return next_chain_++; }
  void Forget(ChainId chain);
  // Adds what the content of `chain` is to `unit`; nothing if it has no entry.
  void Describe(ChainId chain, CachedUnit* unit) const;
  // Takes over the content of another index under its chain. False, and nothing is done: the chain is known, or it does
  // not come after its parent.
  bool Restore(const CachedUnit& unit);
  // Hands out chains above this one.
  void SkipChains(ChainId chain);

  // kInternal with the first contradiction. `block_size`: tokens of an entry.
  Status CheckIntegrity(uint32_t block_size) const;

 private:
  struct Entry {
    uint64_t salt = 0;
    ChainId parent = kNoChain;
    uint64_t hash = 0;
    std::vector<TokenId> tokens;
    std::vector<RowClass> classes;
    TokenSpan block() const { return {tokens, classes}; }
  };
  void Insert(ChainId chain, uint64_t salt, ChainId parent, TokenSpan block);

  HashFunction hash_;
  std::unordered_map<ChainId, Entry> entries_;
  std::unordered_multimap<uint64_t, ChainId> by_hash_;
  ChainId next_chain_ = kNoChain + 1;
};

}  // namespace gyre
