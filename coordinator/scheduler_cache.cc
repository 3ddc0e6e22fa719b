// Lists of the cached units. A recall, the members of another plan and the next coordinator process use them.
#include <algorithm>
#include <unordered_set>

#include "coordinator/scheduler_state.h"

namespace gyre {

void Scheduler::ForgetAfter(uint64_t step) {
  rep_->blocks.ForgetAfter(step);
  rep_->slots.ForgetAfter(step);
  rep_->window.ForgetAfter(step);
  rep_->unfit = nullptr;
  ++rep_->changes;
}

void Scheduler::Forget(std::span<const BlockId> units) {
  for (const BlockId unit : units) {
    const auto place = rep_->whole.PlaceOf(unit);
    if (!place) continue;
    if (place->group == kPageGroup) rep_->blocks.Forget(place->number);
    if (place->group == kSlotGroup) rep_->slots.ForgetUnit(place->number);
    if (place->group == kWindowGroup) rep_->window.ForgetUnit(place->number);
  }
  rep_->unfit = nullptr;
  ++rep_->changes;
}

std::vector<BlockId> Scheduler::LiveBlocks() const {
  const MemoryCounts& whole = rep_->whole;
  std::vector<BlockId> live = rep_->blocks.Live();
  for (BlockId slot : rep_->slots.Live()) live.push_back(whole.UnitOf({kSlotGroup, slot}));
  for (BlockId block : rep_->window.Live()) live.push_back(whole.UnitOf({kWindowGroup, block}));
  return live;
}

UnitList Scheduler::RecallList() const {
  const Rep& r = *rep_;
  UnitList list;
  std::unordered_set<BlockId> listed;
  const auto add = [&](MemoryCounts::Place place) {
    const BlockId unit = r.whole.UnitOf(place);
    if (listed.insert(unit).second) list.units.push_back(unit);
  };
  for (const Rep::Sequence* s : r.waiting) {
    for (const BlockId block : r.blocks.FindPrefix(r.SaltOf(*s), s->params.tokens, s->classes)) {
      add({kPageGroup, block});
      const ChainId chain = r.blocks.chain(block);
      if (const auto slot = r.slots.Find(chain)) add({kSlotGroup, *slot});
      if (const auto unit = r.window.Find(chain)) add({kWindowGroup, *unit});
    }
  }
  list.needed = static_cast<uint32_t>(list.units.size());
  for (const BlockId unit : LiveBlocks()) {
    if (listed.insert(unit).second) list.units.push_back(unit);
  }
  return list;
}

std::optional<CachedUnit> Scheduler::Rep::Content(MemoryCounts::Place place) const {
  if (place.group == kSlotGroup) return slots.Content(place.number, kSlotGroup);
  if (place.group == kWindowGroup) return window.Content(place.number, kWindowGroup);
  return blocks.Content(place.number);
}

std::vector<uint64_t> Scheduler::StepsOf(std::span<const BlockId> units) const {
  std::vector<uint64_t> steps;
  for (const BlockId unit : units) {
    const auto place = rep_->whole.PlaceOf(unit);
    const auto content = place ? rep_->Content(*place) : std::nullopt;
    steps.push_back(content ? content->step : 0);
  }
  return steps;
}

std::vector<CacheChange> Scheduler::TakeCacheChanges(size_t most) {
  std::vector<CacheChange> out;
  const auto add = [&](int group, const std::vector<BlockId>& changed) {
    for (const BlockId number : changed) out.push_back({{group, number}, rep_->Content({group, number})});
  };
  add(kPageGroup, rep_->blocks.TakeChanged(most));
  add(kSlotGroup, rep_->slots.TakeChanged(most - out.size()));
  add(kWindowGroup, rep_->window.TakeChanged(most - out.size()));
  return out;
}

bool Scheduler::cache_changed() const {
  return rep_->blocks.changed() || rep_->slots.changed() || rep_->window.changed();
}

void Scheduler::Restore(std::vector<CachedUnit> units) {
  // The longest unused are those that are evicted first.
  std::stable_sort(units.begin(), units.end(),
                   [](const CachedUnit& a, const CachedUnit& b) { return a.step < b.step; });
  std::vector<CachedUnit> groups[3];
  for (CachedUnit& u : units) {
    // Also of those that are left out, and of groups whose blocks the index lacks: others may name them.
    rep_->blocks.SkipChains(std::max(u.chain, u.parent));
    if (u.place.group < kPageGroup || u.place.group > kWindowGroup) continue;
    groups[u.place.group].push_back(std::move(u));
  }
  rep_->blocks.Restore(groups[kPageGroup]);
  if (!rep_->options.prefix_cache) return;
  rep_->slots.Restore(groups[kSlotGroup]);
  rep_->window.Restore(groups[kWindowGroup]);
  ++rep_->changes;
}

void Scheduler::SkipSteps(uint64_t step) { rep_->next_step = std::max(rep_->next_step, step + 1); }
uint64_t Scheduler::last_step() const { return rep_->next_step - 1; }

}  // namespace gyre
