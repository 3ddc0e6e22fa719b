#include "coordinator/engine/kv_cache.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace gyre {

uint64_t MixSalts(uint64_t a, uint64_t b) {
  uint64_t x = a + b * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

KvCache::KvCache(const KvCacheOptions& options)
    : options_(options),
      whole_(options.counts),
      groups_{Group{PoolOf(kPageGroup)}, Group{PoolOf(kSlotGroup)}, Group{PoolOf(kWindowGroup)}} {
  const uint32_t block = options_.block_size;
  options_.answer_every = std::min((options_.answer_every + block - 1) / block * block, options_.snapshot_every);
}

UnitPool KvCache::PoolOf(int group) {
  // The index describes contents of the paged group: what leaves this group, nobody finds any more.
  if (group != kPageGroup) return UnitPool(KindOf(group).unit, whole_[group]);
  return UnitPool(KindOf(group).unit, whole_[group], [this](ChainId chain) { index_.Forget(chain); });
}

void KvCache::SetRing(uint64_t salt, uint32_t rows_in_flight) {
  options_.rows_in_flight = rows_in_flight;
  rings_ += salt != ring_namespace_ ? 1 : 0;
  ring_namespace_ = salt;
}

// Admission.

// Takes the longest run of published pages that hold exactly these rows. At least the last row is computed, so that a
// shared block gets no new rows and there is something to sample.
std::vector<BlockId> KvCache::TakePrefix(const Admission& a, uint64_t salt) {
  std::vector<BlockId> prefix;
  if (!options_.prefix_cache) return prefix;
  ChainId chain = kNoChain;
  const size_t end = std::min<size_t>(a.rows.size() - 1, a.most_found);
  for (size_t at = 0; at + options_.block_size <= end; at += options_.block_size) {
    chain = index_.Find(salt, chain, a.rows.Sub(at, options_.block_size));
    if (chain == kNoChain) break;
    prefix.push_back(pages().Take(chain));
  }
  return prefix;
}

// The longest prefix, in blocks, that every group has. `found`: the blocks that the paged group has.
size_t KvCache::CommonPrefix(const std::vector<BlockId>& found) const {
  std::vector<size_t> run(found.size());  // blocks in a row of the windowed group, up to this one
  for (size_t i = 0; has_window() && i < found.size(); ++i) {
    run[i] = window().Has(pages().chain(found[i])) ? (i == 0 ? 0 : run[i - 1]) + 1 : 0;
  }
  size_t n = found.size();
  for (; n > 0; --n) {
    if (has_state() && !slots().Has(pages().chain(found[n - 1]))) continue;
    const auto end = static_cast<uint32_t>(n) * options_.block_size;
    if (!has_window() || run[n - 1] >= n - FirstRead(end) / options_.block_size) break;
  }
  return n;
}

// Where a later text may part from the prompt: at its end, as it may come again, and at the first and the last
// boundaries of messages. More would take the slots of other conversations; a later turn made those between itself. Of
// two adjacent blocks the first is enough.
std::vector<uint32_t> KvCache::PartsOf(uint32_t prompt, std::span<const uint32_t> boundaries) const {
  constexpr size_t kFirst = 1, kLast = 4;
  const auto whole = [this](uint32_t position) { return position / options_.block_size * options_.block_size; };
  const uint32_t end = whole(prompt - 1);
  std::vector<uint32_t> parts;
  for (const uint32_t boundary : boundaries) {
    const uint32_t at = whole(boundary);
    if (at > 0 && at <= end && (parts.empty() || at > parts.back() + options_.block_size)) parts.push_back(at);
  }
  if (parts.size() > kFirst + kLast)
    parts.erase(parts.begin() + kFirst, parts.end() - static_cast<std::ptrdiff_t>(kLast));
  if (end > 0 && (parts.empty() || end > parts.back() + options_.block_size)) parts.push_back(end);
  return parts;
}

// The snapshot that belongs to the prefix, and a slot. The snapshot is taken first, so that the slot is another one.
bool KvCache::TakeSlot(KvTables* t) {
  if (!has_state()) return true;
  if (t->chain != kNoChain) t->begins_with = slots().Take(t->chain);
  const std::optional<BlockId> slot = slots().Allocate();
  if (slot) t->slot = *slot;
  return slot.has_value();
}

// The windowed blocks that belong to a prefix of so many blocks, which all groups have.
void KvCache::TakeWindow(size_t prefix, KvTables* t) {
  if (!has_window()) return;
  t->window_first = FirstRead(static_cast<uint32_t>(prefix) * options_.block_size) / options_.block_size;
  for (size_t i = t->window_first; i < prefix; ++i) t->window.push_back(window().Take(pages().chain(t->blocks[i])));
}

bool KvCache::Admit(const Admission& a, KvTables* t) {
  *t = {};
  t->salt = MixSalts(a.salt, ring_namespace_);
  t->ring = rings_;
  t->prompt = a.prompt;
  t->parts = PartsOf(a.prompt, a.boundaries);
  t->blocks = TakePrefix(a, t->salt);
  // Where texts part, what the groups but that of pages keep is worth most: the next text that begins so finds it.
  t->branch = static_cast<uint32_t>(t->blocks.size()) * options_.block_size;
  for (size_t common = CommonPrefix(t->blocks); t->blocks.size() > common; t->blocks.pop_back())
    pages().Release(t->blocks.back());
  t->published = static_cast<uint32_t>(t->blocks.size());
  t->chain = t->blocks.empty() ? kNoChain : pages().chain(t->blocks.back());
  t->least = std::min(BlocksFor(a.positions), num_blocks());
  const bool has_slot = TakeSlot(t);
  TakeWindow(t->blocks.size(), t);
  // All that its tokens need: else it might be thrown out in the middle of its prompt, its rows lost.
  const uint32_t needed = std::max(BlocksFor(a.rows.size()), t->least) - t->published;
  const uint32_t reserve = has_window() ? std::min(needed, WindowQuota() - static_cast<uint32_t>(t->window.size())) : 0;
  if (!has_slot || !groups_[kPageGroup].Spares(uint64_t{needed} + a.margin[kPageGroup]) ||
      !groups_[kWindowGroup].Spares(uint64_t{reserve} + a.margin[kWindowGroup])) {
    ReleaseTables(true, t);
    return false;
  }
  Reserve(reserve, t);
  for (uint32_t i = 0; i < needed; ++i) t->blocks.push_back(*pages().Allocate());
  return true;
}

KvUnits KvCache::Growth(uint32_t size, uint32_t end) const {
  KvUnits units{};
  units[kPageGroup] = BlocksFor(end) - BlocksFor(size);
  if (has_window()) units[kWindowGroup] = WindowNeed(end) - WindowNeed(size);
  return units;
}

// More units for a sequence that runs.

uint32_t KvCache::Held(const KvTables& t, uint32_t want) const {
  uint64_t blocks = t.blocks.size();
  if (has_window()) blocks = std::min<uint64_t>(blocks, t.WindowEnd());
  return static_cast<uint32_t>(std::min<uint64_t>(blocks * options_.block_size, want));
}

uint32_t KvCache::WithinQuota(const KvTables& t, uint32_t want) const {
  if (!has_window()) return want;
  return static_cast<uint32_t>(
      std::min<uint64_t>(want, (t.window_first + uint64_t{WindowQuota()}) * options_.block_size));
}

bool KvCache::TakeUnit(uint32_t want, bool barred, KvTables* t) {
  if (t->blocks.size() < BlocksFor(want)) {
    const std::optional<BlockId> block = barred ? std::nullopt : pages().Allocate();
    if (block) t->blocks.push_back(*block);
    return block.has_value();
  }
  if (t->window_reserved > 0) {
    --t->window_reserved;
    --reserved();
  } else if (barred || !groups_[kWindowGroup].Spares(1)) {
    return false;
  }
  t->window.push_back(*window().Allocate());
  return true;
}

bool KvCache::Starves(const KvTables& t, uint32_t position) const {
  const uint32_t needed = BlocksFor(uint64_t{position} + 1);
  if (t.blocks.size() < needed && pages().available() == 0) return true;
  return has_window() && t.WindowEnd() < needed && t.window_reserved == 0 && !groups_[kWindowGroup].Spares(1);
}

// Steps.

StepTables KvCache::Launch(uint32_t begin, uint32_t end, bool first, KvTables* t) {
  StepTables step{.blocks = {t->blocks.begin(), t->blocks.begin() + BlocksFor(end)},
                  .slots = SlotsOf(begin, end, first, t),
                  .window = {}};
  if (has_window()) {
    const auto blocks_end = t->window.begin() + (BlocksFor(end) - t->window_first);
    step.window = {.first = t->window_first, .blocks = {t->window.begin(), blocks_end}};
  }
  const uint32_t written = begin / options_.block_size;
  for (uint32_t i = 0; i < written; ++i) pages().CheckRead(t->blocks[i]);
  for (uint32_t i = FirstRead(begin) / options_.block_size; has_window() && i < written; ++i) {
    window().CheckRead(t->window[i - t->window_first]);
  }
  for (uint32_t i = written; i < BlocksFor(end); ++i) {
    pages().CheckWritten(t->blocks[i]);
    if (has_window() && i >= t->window_first) window().CheckWritten(t->window[i - t->window_first]);
  }
  if (has_state()) slots().CheckWritten(t->slot);
  return step;
}

uint32_t KvCache::NextSnapshot(const KvTables& t, uint32_t launched) const {
  if (!has_state() || !options_.prefix_cache || t.ring != rings_) return UINT32_MAX;
  // The conversation's next turn begins where the answer ends, wherever that will be.
  const auto behind = [launched](uint32_t every) { return (uint64_t{launched} / every + 1) * every; };
  uint64_t regular = behind(options_.snapshot_every);
  if (launched >= t.prompt) regular = std::min(regular, behind(options_.answer_every));
  const auto next = static_cast<uint32_t>(std::min<uint64_t>(regular, UINT32_MAX));
  const auto part = std::upper_bound(t.parts.begin(), t.parts.end(), launched);
  uint32_t nearest = part == t.parts.end() ? next : std::min(next, *part);
  if (t.branch > launched) nearest = std::min(nearest, t.branch);
  return nearest;
}

SlotTable KvCache::SlotsOf(uint32_t begin, uint32_t end, bool first, KvTables* t) {
  SlotTable table;
  if (!has_state()) return table;
  table.slot = t->slot;
  for (const KvTables::Snapshot& mark : t->marks) {
    slots().CheckWritten(mark.slot);
    table.marks.push_back({mark.position - begin - 1, mark.slot});
  }
  if (first && t->begins_with != kNoBlock) {
    slots().CheckRead(t->begins_with);
    table.begin = t->begins_with;
    table.begin_number = slots().number(t->begins_with);
  }
  if (end != NextSnapshot(*t, begin)) return table;
  if (const std::optional<BlockId> copy = slots().Allocate(true)) {
    t->snapshots.push_back({end, *copy});
    table.copy = *copy;
    table.copy_number = slots().number(*copy);
  }
  return table;
}

uint32_t KvCache::TakeMarks(uint32_t begin, uint32_t most, KvTables* t) {
  if (!has_state()) return most;
  // Each costs a copy of the state, and a slot that a snapshot may have.
  constexpr uint32_t kMostMarks = 4;
  uint32_t taken = 0;
  for (; taken < std::min(most, kMostMarks) && slots().available() > slots().units() / 4; ++taken) {
    const std::optional<BlockId> slot = slots().Allocate();
    if (!slot) break;
    t->marks.push_back({begin + taken, *slot});
  }
  return taken;
}

void KvCache::SettleMarks(uint32_t position, KvTables* t) {
  for (const KvTables::Snapshot& mark : t->marks) {
    slots().Release(mark.position == position ? std::exchange(t->slot, mark.slot) : mark.slot);
  }
  if (!t->marks.empty()) ++changes_;
  t->marks.clear();
}

void KvCache::Begun(KvTables* t) {
  if (t->begins_with != kNoBlock) slots().Release(std::exchange(t->begins_with, kNoBlock));
}

void KvCache::Publish(TokenSpan rows, uint32_t settled, uint64_t step, KvTables* t) {
  if (!options_.prefix_cache || t->ring != rings_) return;
  const uint32_t full = settled / options_.block_size;
  for (; t->published < full; ++changes_) {
    const TokenSpan block = rows.Sub(size_t{t->published} * options_.block_size, options_.block_size);
    ChainId chain = index_.Find(t->salt, t->chain, block);
    const bool is_new = chain == kNoChain;
    if (is_new) chain = index_.Add(t->salt, t->chain, block);
    // Where an equal block is published already this one stays private. After a fault nobody finds what follows.
    if (!pages().Publish(chain, t->blocks[t->published], step)) {
      if (is_new) index_.Forget(chain);
      chain = index_.NewChain();
    }
    t->chain = chain;
    if (has_window() && t->published >= t->window_first)
      window().Publish(chain, t->window[t->published - t->window_first], step);
    ++t->published;
    KeepSnapshot(step, t);
  }
}

// The block that ends at t->published is published: a copy of the state at its end can be found from now on.
void KvCache::KeepSnapshot(uint64_t step, KvTables* t) {
  if (t->snapshots.empty() || t->snapshots.front().position != t->published * options_.block_size) return;
  const uint32_t position = t->snapshots.front().position;
  const bool parts = position == t->branch || std::binary_search(t->parts.begin(), t->parts.end(), position);
  const bool answer = IsOfAnswer(position, *t);
  const BlockId slot = t->snapshots.front().slot;
  slots().Keep(t->chain, slot, step, !parts && !answer);
  t->snapshots.pop_front();
  if (!answer) return;
  if (const std::optional<BlockId> before = slots().Find(t->answer)) slots().ForgetUnit(*before);
  // Another text may have had a snapshot there before; that one is not this answer's to replace.
  t->answer = slots().Find(t->chain) == slot ? t->chain : kNoChain;
}

bool KvCache::IsOfAnswer(uint32_t position, const KvTables& t) const {
  return position > t.prompt && position % options_.snapshot_every != 0;
}

// Units that come back.

void KvCache::ReleaseBehind(uint32_t settled, uint32_t size, KvTables* t) {
  if (!has_window()) return;
  const uint32_t end = FirstRead(settled) / options_.block_size;
  for (; t->window_first < end; ++t->window_first) {
    window().Release(t->window.front(), !WorthKeeping(*t, t->window_first));
    t->window.pop_front();
    ++changes_;
    if (t->window_reserved < WindowAhead(size, *t) && groups_[kWindowGroup].Spares(1)) Reserve(1, t);
  }
}

bool KvCache::Trim(uint32_t positions, KvTables* t) {
  const size_t least = std::max(BlocksFor(positions), t->least);
  bool any = false;
  for (; t->blocks.size() > least; t->blocks.pop_back(), any = true) pages().Release(t->blocks.back());
  for (; has_window() && t->WindowEnd() > least && !t->window.empty(); t->window.pop_back(), any = true)
    window().Release(t->window.back());
  changes_ += any ? 1 : 0;
  return any;
}

void KvCache::Reserve(uint32_t units, KvTables* t) {
  t->window_reserved += units;
  reserved() += units;
}

void KvCache::DropReserve(KvTables* t) { reserved() -= std::exchange(t->window_reserved, 0); }

// `unused`: what was taken goes back to where it was.
void KvCache::ReleaseTables(bool unused, KvTables* t) {
  // From the end, so that a chain's tail is evicted before its head.
  for (; !t->blocks.empty(); t->blocks.pop_back()) pages().Release(t->blocks.back());
  for (const BlockId slot : {t->slot, t->begins_with}) {
    if (slot != kNoBlock) slots().Release(slot);
  }
  for (const KvTables::Snapshot& copy : t->snapshots) slots().Release(copy.slot);
  for (const KvTables::Snapshot& mark : t->marks) slots().Release(mark.slot);
  for (; !t->window.empty(); t->window.pop_back())
    window().Release(t->window.back(), unused && window().evict_first(t->window.back()));
  *t = {};
}

void KvCache::Release(KvTables* t) {
  DropReserve(t);
  ReleaseTables(false, t);
  ++changes_;
}

// Layers with a window: how many blocks a sequence may have, and which are worth keeping.

// The first position that a row at `position` reads.
uint32_t KvCache::FirstRead(uint32_t position) const {
  return position + 1 > options_.window ? position + 1 - options_.window : 0;
}

// The blocks that one sequence may have: what its window touches, and its rows in flight.
uint32_t KvCache::WindowQuota() const {
  const uint64_t rows = uint64_t{options_.window} - 1 + options_.rows_in_flight;
  const uint64_t blocks = (rows + options_.block_size - 1) / options_.block_size + 1;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, window_blocks()));
}

// The blocks that a sequence of so many tokens has while it decodes.
uint32_t KvCache::WindowNeed(uint64_t positions) const {
  return std::min({BlocksFor(positions), BlocksFor(options_.window) + 1, window_blocks()});
}

// The blocks for the rest of the sequence's tokens that its table does not have yet.
uint32_t KvCache::WindowAhead(uint32_t size, const KvTables& t) const {
  const uint32_t all = std::max(BlocksFor(size), t.least);
  return all - std::min(all, t.WindowEnd());
}

// Whether a text may part at a position whose window has this block: where messages do, or where others do.
bool KvCache::WorthKeeping(const KvTables& t, uint32_t block) const {
  const uint32_t begin = block * options_.block_size, end = begin + options_.block_size;
  const auto reads = [&](uint32_t position) { return begin < position && end > FirstRead(position); };
  return reads(t.branch) || reads(t.shared) || std::any_of(t.parts.begin(), t.parts.end(), reads);
}

void KvCache::RaiseReserve(uint32_t size, KvTables* t) {
  if (!has_window()) return;
  const auto had = static_cast<uint32_t>(t->window.size()) + t->window_reserved;
  const uint32_t quota = WindowQuota() - std::min(WindowQuota(), had);
  const uint32_t ahead = WindowAhead(size, *t) - std::min(WindowAhead(size, *t), t->window_reserved);
  Reserve(std::min({quota, ahead, window().available() - reserved()}), t);
}

// The size of the cache.

void KvCache::Shrink(uint32_t num_blocks, bool whole) {
  if (whole) whole_ = whole_.Resized(num_blocks);
  const MemoryCounts counts = whole_.Shrunk(num_blocks);
  for (int group = 0; group < kKvGroups; ++group) groups_[group].pool.Forget(counts[group]);
  ++changes_;
}

void KvCache::Grow(uint32_t num_blocks) {
  const MemoryCounts counts = whole_.Shrunk(num_blocks);
  for (Group& g : groups_) {
    const auto group = static_cast<int>(&g - groups_.data());
    g.pool.Grow(std::max(g.pool.units(), counts[group]));
  }
  ++changes_;
}

// Contents.

void KvCache::ForgetAfter(uint64_t step) {
  for (Group& group : groups_) group.pool.ForgetAfter(step);
  ++changes_;
}

void KvCache::Forget(std::span<const BlockId> units) {
  for (const BlockId unit : units) {
    if (const auto place = whole_.PlaceOf(unit)) groups_[place->group].pool.ForgetUnit(place->number);
  }
  ++changes_;
}

std::vector<BlockId> KvCache::LiveUnits() const {
  std::vector<BlockId> live;
  for (int group = 0; group < kKvGroups; ++group) {
    for (const BlockId unit : groups_[group].pool.Live()) live.push_back(whole_.UnitOf({group, unit}));
  }
  return live;
}

std::vector<BlockId> KvCache::FindPrefix(uint64_t salt, TokenSpan rows) const {
  std::vector<BlockId> units;
  salt = MixSalts(salt, ring_namespace_);
  ChainId chain = kNoChain;
  for (size_t at = 0; at + options_.block_size <= rows.size(); at += options_.block_size) {
    chain = index_.Find(salt, chain, rows.Sub(at, options_.block_size));
    if (chain == kNoChain) break;
    for (int group = 0; group < kKvGroups; ++group) {
      if (const auto unit = groups_[group].pool.Find(chain)) units.push_back(whole_.UnitOf({group, *unit}));
    }
  }
  return units;
}

std::optional<CachedUnit> KvCache::Content(MemoryCounts::Place place) const {
  std::optional<CachedUnit> unit = groups_[place.group].pool.Content(place.number, place.group);
  if (unit && place.group == kPageGroup) index_.Describe(unit->chain, &*unit);
  return unit;
}

std::vector<uint64_t> KvCache::StepsOf(std::span<const BlockId> units) const {
  std::vector<uint64_t> steps;
  for (const BlockId unit : units) {
    const auto place = whole_.PlaceOf(unit);
    const auto content = place ? groups_[place->group].pool.Content(place->number, place->group) : std::nullopt;
    steps.push_back(content ? content->step : 0);
  }
  return steps;
}

std::vector<CacheChange> KvCache::TakeChanges(size_t most) {
  std::vector<CacheChange> out;
  for (int group = 0; group < kKvGroups; ++group) {
    for (const BlockId number : groups_[group].pool.TakeChanged(most - out.size()))
      out.push_back({{group, number}, Content({group, number})});
  }
  return out;
}

bool KvCache::changed() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.pool.changed(); });
}

void KvCache::Restore(std::vector<CachedUnit> units) {
  // The longest unused are those that are evicted first.
  std::stable_sort(units.begin(), units.end(),
                   [](const CachedUnit& a, const CachedUnit& b) { return a.step < b.step; });
  // Also of those that are left out, and of groups whose blocks the index lacks: others may name them.
  for (const CachedUnit& u : units) index_.SkipChains(std::max(u.chain, u.parent));
  if (!options_.prefix_cache) return;
  std::array<std::vector<CachedUnit>, kKvGroups> fits;
  std::vector<ChainId> held(num_blocks(), kNoChain);  // by page
  std::unordered_map<ChainId, BlockId> page_of;
  for (const CachedUnit& u : units) {
    if (u.place.group != kPageGroup) continue;
    const BlockId id = u.place.number;
    if (id >= num_blocks() || held[id] != kNoChain || u.tokens.size() != options_.block_size ||
        u.classes.size() != options_.block_size) {
      continue;
    }
    // If two blocks have the same content, the older one was evicted, and the newer one replaces it.
    const ChainId older = index_.Find(u.salt, u.parent, {u.tokens, u.classes});
    if (older != kNoChain && u.parent < u.chain) {
      index_.Forget(older);
      held[page_of[older]] = kNoChain;
      pages().Differs(page_of[older]);
    }
    if (!index_.Restore(u)) continue;
    held[id] = u.chain;
    page_of[u.chain] = id;
  }
  for (CachedUnit& u : units) {
    if (u.place.group < 0 || u.place.group >= kKvGroups) continue;
    const BlockId id = u.place.number;
    if (u.place.group == kPageGroup && (id >= num_blocks() || held[id] != u.chain)) continue;
    fits[u.place.group].push_back(std::move(u));
  }
  for (int group = 0; group < kKvGroups; ++group) groups_[group].pool.Restore(fits[group]);
  ++changes_;
}

// Checks.

Status KvCache::TakeFault() {
  Status fault;
  for (Group& group : groups_) fault.Update(group.pool.TakeFault());
  return fault;
}

// The owners that each unit of a group should have.
std::vector<uint32_t> KvCache::Owners(int group, std::span<const KvTables* const> all) const {
  std::vector<uint32_t> owners(groups_[group].pool.units(), 0);
  const auto own = [&owners](BlockId unit) {
    if (unit < owners.size()) ++owners[unit];
  };
  for (const KvTables* t : all) {
    if (group == kPageGroup) std::ranges::for_each(t->blocks, own);
    if (group == kWindowGroup) std::ranges::for_each(t->window, own);
    if (group != kSlotGroup) continue;
    own(t->slot);
    own(t->begins_with);
    for (const KvTables::Snapshot& copy : t->snapshots) own(copy.slot);
    for (const KvTables::Snapshot& mark : t->marks) own(mark.slot);
  }
  return owners;
}

uint32_t KvCache::Reclaim(std::span<const KvTables* const> all) {
  uint32_t units = 0;
  for (int group = 0; group < kKvGroups; ++group) units += groups_[group].pool.Reclaim(Owners(group, all));
  if (units > 0) ++changes_;
  return units;
}

Status KvCache::CheckIntegrity(std::span<const KvTables* const> all) const {
  uint32_t sum = 0;
  for (const KvTables* t : all) {
    sum += t->window_reserved;
    for (const BlockId block : t->blocks) {
      if (block >= num_blocks()) return Internal("a sequence holds block {} of {}", block, num_blocks());
    }
  }
  const Group& windowed = groups_[kWindowGroup];
  if (sum != windowed.reserved || sum > windowed.pool.available()) {
    return Internal("{} windowed blocks are reserved, counted are {}, free are {}", sum, windowed.reserved,
                    windowed.pool.available());
  }
  for (int group = 0; group < kKvGroups; ++group) {
    GYRE_RETURN_IF_ERROR(groups_[group].pool.CheckIntegrity(Owners(group, all)));
  }
  GYRE_RETURN_IF_ERROR(index_.CheckIntegrity(options_.block_size));
  if (index_.size() != pages().published()) {
    return Internal("{} blocks are published, the index has {}", pages().published(), index_.size());
  }
  if (!options_.prefix_cache && index_.size() > 0) {
    return Internal("{} blocks are published without a prefix cache", index_.size());
  }
  return absl::OkStatus();
}

Status KvCache::CheckTables(const KvTables& t, uint32_t launched, uint32_t settled, bool running,
                            bool in_flight) const {
  if (t.blocks.size() < BlocksFor(launched)) {
    return Internal("{} blocks for {} launched rows", t.blocks.size(), launched);
  }
  if (!running && !in_flight && !t.blocks.empty()) {
    return Internal("it holds {} blocks, has left, and nothing is in flight", t.blocks.size());
  }
  if (has_state() && (running || in_flight) != (t.slot != kNoBlock)) {
    return Internal("it has slot {}, running {}, in flight {}", t.slot, running, in_flight);
  }
  // Blocks that are still to be written, or written again, have no other owner.
  for (size_t i = t.published; i < t.blocks.size(); ++i) {
    if (pages().owners(t.blocks[i]) != 1) {
      return Internal("block {} of its table is open and has {} owners", i, pages().owners(t.blocks[i]));
    }
  }
  return CheckWindow(t, launched, settled, running, in_flight);
}

Status KvCache::CheckWindow(const KvTables& t, uint32_t launched, uint32_t settled, bool running,
                            bool in_flight) const {
  if (!has_window()) {
    if (t.window.empty() && t.window_reserved == 0) return absl::OkStatus();
    return Internal("it has {} windowed blocks", t.window.size());
  }
  if (!running) {
    if (t.window_reserved > 0 || (!in_flight && !t.window.empty())) {
      return Internal("it does not run, has {} windowed blocks and {} are reserved", t.window.size(),
                      t.window_reserved);
    }
    return absl::OkStatus();
  }
  if (t.window_first * options_.block_size > FirstRead(settled)) {
    return Internal("its windowed blocks begin at {}, position {} may come again", t.window_first, settled);
  }
  if (t.WindowEnd() < BlocksFor(launched)) {
    return Internal("windowed blocks {}+{} for {} launched rows", t.window_first, t.window.size(), launched);
  }
  for (size_t i = std::max(t.published, t.window_first); i < t.WindowEnd(); ++i) {
    const BlockId block = t.window[i - t.window_first];
    if (block >= window_blocks() || window().owners(block) == 1) continue;
    return Internal("windowed block {} is open and has {} owners", i, window().owners(block));
  }
  return absl::OkStatus();
}

}  // namespace gyre
