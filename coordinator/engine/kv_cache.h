// The KV cache as the coordinator keeps books on it: which units each sequence has, and whose contents others may use
// (docs/memory.md). It decides nothing about the order of sequences. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/memory_counts.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "coordinator/engine/cache_index.h"
#include "coordinator/engine/prefix_index.h"
#include "coordinator/engine/unit_pool.h"

namespace gyre {

struct KvCacheOptions {
  MemoryCounts counts;
  uint32_t block_size = 16;
  bool prefix_cache = true;
  uint32_t window = 0;             // positions that rows of layers with a window read
  uint32_t snapshot_every = 1024;  // positions from one snapshot of a sequence to the next, in whole blocks
  // The same in what is generated, where the last one alone stays beside those. Rounded up to whole blocks.
  uint32_t answer_every = 64;
  uint32_t rows_in_flight = UINT32_MAX;  // of one sequence at most
};

// What a sequence holds in one incarnation.
struct KvTables {
  uint64_t salt = 0;            // cache namespace of its contents: of the sequence, mixed with the ring's
  uint64_t ring = 0;            // value of KvCache::rings() when it was admitted
  std::vector<uint32_t> parts;  // where a later text may part from its prompt: rising, in whole blocks
  uint32_t published = 0;       // blocks
  ChainId chain = kNoChain;     // of the last published block
  uint32_t least = 0;           // blocks that it got at admission, however many tokens it has
  std::vector<BlockId> blocks;  // pages
  // In layers with a window: its blocks from number window_first on; those that only it may take.
  uint32_t window_first = 0, window_reserved = 0;
  std::deque<BlockId> window;
  // The beginning shared with others: the position up to which their blocks served, and up to which one waits for it.
  uint32_t branch = 0, shared = 0;
  // With recurrent state: its slot, the snapshot that it begins with until the step that copies it has landed, and the
  // slots that steps copy it to, with the positions, rising.
  BlockId slot = kNoBlock, begins_with = kNoBlock;
  struct Snapshot {
    uint32_t position = 0;
    BlockId slot = kNoBlock;
  };
  std::deque<Snapshot> snapshots;
  uint32_t prompt = 0;        // positions; what comes behind them is generated
  ChainId answer = kNoChain;  // of the last snapshot behind the prompt, which the next one replaces
  // The states at these positions, rising, beside the own slot's behind the last row: one of them is the sequence's
  // when it is known which drafts were drawn.
  std::vector<Snapshot> marks;

  uint32_t WindowEnd() const { return window_first + static_cast<uint32_t>(window.size()); }  // in blocks
};

// Not thread-safe: the scheduler owns it.
class KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  bool has_state() const { return slots().units() > 0; }
  bool has_window() const { return window().units() > 0; }
  uint32_t BlocksFor(uint64_t positions) const {
    return static_cast<uint32_t>((positions + options_.block_size - 1) / options_.block_size);
  }
  // Counts what an admission depends on: units given back, contents that can be found.
  uint64_t changes() const { return changes_; }
  // Counts the changes of the ring's cache namespace.
  uint64_t rings() const { return rings_; }
  // Contents of sequences that are admitted from now on are of this ring. `rows_in_flight`: of one sequence at most.
  void SetRing(uint64_t salt, uint32_t rows_in_flight);

  // Gives a sequence its tables: the units of the longest prefix of its tokens that every group has, a slot, and as
  // many blocks as its tokens need. All or nothing; false: `margin` units would not stay free in each group.
  struct Admission {
    TokenSpan rows;
    uint32_t prompt = 0;
    std::span<const uint32_t> boundaries{};  // of messages in the prompt (SequenceParams::boundaries)
    uint64_t salt = 0;                       // of the sequence
    uint32_t most_found = UINT32_MAX;        // of its positions it may use what others computed
    uint32_t positions = 0;                  // it gets blocks for at least so many
    KvUnits margin{};
  };
  bool Admit(const Admission& admission, KvTables* tables);
  // Units beyond those of its tokens that a sequence of `size` tokens has when it has grown to `end`.
  KvUnits Growth(uint32_t size, uint32_t end) const;

  // The positions up to `want` for which the tables have units.
  uint32_t Held(const KvTables& tables, uint32_t want) const;
  // `want`, or less where rows in flight have used up the sequence's quota of a group.
  uint32_t WithinQuota(const KvTables& tables, uint32_t want) const;
  // A unit more in tables that do not hold `want` positions; false: there is none. A `barred` sequence gets only what
  // is reserved for it.
  bool TakeUnit(uint32_t want, bool barred, KvTables* tables);
  // Whether a sequence finds no unit for its row at `position`.
  bool Starves(const KvTables& tables, uint32_t position) const;

  // The tables of a step with the rows [begin, end). Its units are about to be written. `first`: it is the first step
  // of the incarnation.
  StepTables Launch(uint32_t begin, uint32_t end, bool first, KvTables* tables);
  // Slots for marks of a step whose last rows, from position `begin` + 1 on, may turn out to be void: at `begin` and at
  // each position behind it, at most `most`. Returns how many there are. Without recurrent state none are needed, and
  // it returns `most`.
  uint32_t TakeMarks(uint32_t begin, uint32_t most, KvTables* tables);
  // The rows up to `position` count: this state is the sequence's, and the others go back.
  void SettleMarks(uint32_t position, KvTables* tables);
  // The next position at which a snapshot of the sequence is wanted: where its next chunk ends at the latest.
  // UINT32_MAX: none is wanted.
  uint32_t NextSnapshot(const KvTables& tables, uint32_t launched) const;
  // A row of the sequence has landed, so the snapshot that it began with is not read any more.
  void Begun(KvTables* tables);
  // Publishes the full blocks of the rows [0, settled): all have landed and none is sent again, as what is shared is
  // never written again. `step`: no later one has written them. After a change of the ring's cache namespace the rows
  // of a sequence that runs on are of both rings, and nothing is published.
  void Publish(TokenSpan rows, uint32_t settled, uint64_t step, KvTables* tables);
  // Gives back the units that no row from `settled` on reads. A sequence of `size` tokens.
  void ReleaseBehind(uint32_t settled, uint32_t size, KvTables* tables);
  // Gives back blocks behind those of so many positions. REQUIRES: no row of the sequence in flight is behind them.
  // False: there are none.
  bool Trim(uint32_t positions, KvTables* tables);
  // Gives back the units that are reserved for the sequence, because it leaves and takes no more.
  void DropReserve(KvTables* tables);
  // Everything goes back.
  void Release(KvTables* tables);
  // After the cache has grown: a prompt of `size` tokens that was admitted with a smaller quota may have more in flight
  // now.
  void RaiseReserve(uint32_t size, KvTables* tables);

  // Keeps only the first `num_blocks` pages and of the other groups what belongs to them; all contents are forgotten.
  // `whole`: the whole cache has so many from now on. REQUIRES: no sequence has tables.
  void Shrink(uint32_t num_blocks, bool whole);
  void Grow(uint32_t num_blocks);
  uint32_t num_blocks() const { return pages().units(); }
  uint32_t window_blocks() const { return window().units(); }

  // Contents. REQUIRES for those that change any: nothing runs.
  void ForgetAfter(uint64_t step);
  void Forget(std::span<const BlockId> units);
  std::vector<BlockId> LiveUnits() const;  // owned or cached, rising in each group
  // The units of the longest prefix of these rows that is cached, group by group.
  std::vector<BlockId> FindPrefix(uint64_t salt, TokenSpan rows) const;
  std::vector<uint64_t> StepsOf(std::span<const BlockId> units) const;
  std::vector<CacheChange> TakeChanges(size_t most);
  bool changed() const;
  void Restore(std::vector<CachedUnit> units);

  const UnitPool& pool(int group) const { return groups_[group].pool; }

  // What was done wrongly since the last call (UnitPool::TakeFault), of any group.
  Status TakeFault();
  // Gives back what the owners of these tables do not have, and counts it.
  uint32_t Reclaim(std::span<const KvTables* const> all);
  // kInternal with the first contradiction between pools, index and these tables, which are all that there are.
  Status CheckIntegrity(std::span<const KvTables* const> all) const;
  // The same for the tables of one sequence, which has launched and settled so many rows.
  Status CheckTables(const KvTables& tables, uint32_t launched, uint32_t settled, bool running, bool in_flight) const;

  void LeakForTest() { pages().Allocate(); }
  void ReleaseForTest(BlockId page) { pages().Release(page); }

 private:
  struct Group {
    UnitPool pool;
    uint32_t reserved = 0;  // units that only the sequences for which they are reserved may take
    bool Spares(uint64_t units) const { return units + reserved <= pool.available(); }
  };
  const UnitPool& pages() const { return pool(kPageGroup); }
  const UnitPool& slots() const { return pool(kSlotGroup); }
  const UnitPool& window() const { return pool(kWindowGroup); }
  UnitPool& pages() { return groups_[kPageGroup].pool; }
  UnitPool& slots() { return groups_[kSlotGroup].pool; }
  UnitPool& window() { return groups_[kWindowGroup].pool; }
  uint32_t& reserved() { return groups_[kWindowGroup].reserved; }

  UnitPool PoolOf(int group);
  std::vector<BlockId> TakePrefix(const Admission& admission, uint64_t salt);
  size_t CommonPrefix(const std::vector<BlockId>& found) const;
  std::vector<uint32_t> PartsOf(uint32_t prompt, std::span<const uint32_t> boundaries) const;
  bool TakeSlot(KvTables* tables);
  // Whether a snapshot at the position is replaced by the next one.
  bool IsOfAnswer(uint32_t position, const KvTables& tables) const;
  void TakeWindow(size_t prefix, KvTables* tables);
  SlotTable SlotsOf(uint32_t begin, uint32_t end, bool first, KvTables* tables);
  void KeepSnapshot(uint64_t step, KvTables* tables);
  void ReleaseTables(bool unused, KvTables* tables);
  uint32_t FirstRead(uint32_t position) const;
  uint32_t WindowQuota() const;
  uint32_t WindowNeed(uint64_t positions) const;
  uint32_t WindowAhead(uint32_t size, const KvTables& tables) const;
  bool WorthKeeping(const KvTables& tables, uint32_t block) const;
  void Reserve(uint32_t units, KvTables* tables);
  std::optional<CachedUnit> Content(MemoryCounts::Place place) const;
  std::vector<uint32_t> Owners(int group, std::span<const KvTables* const> all) const;
  Status CheckWindow(const KvTables& tables, uint32_t launched, uint32_t settled, bool running, bool in_flight) const;

  KvCacheOptions options_;
  MemoryCounts whole_;  // what the pools have room for: the cache may be cut, and grows again
  PrefixIndex index_;
  std::array<Group, kKvGroups> groups_;
  uint64_t ring_namespace_ = 0;
  uint64_t rings_ = 0;
  uint64_t changes_ = 0;
};

// Two salts as one (SplitMix64's finalizer).
uint64_t MixSalts(uint64_t a, uint64_t b);

}  // namespace gyre
