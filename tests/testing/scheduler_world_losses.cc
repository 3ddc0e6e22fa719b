// Rings, members and schedulers that come and go.
#include <algorithm>

#include "tests/testing/scheduler_world.h"

namespace gyre::testing {

// All steps in flight are lost; the stages' writes for them remain. With a lost member all pages are gone.
void SchedulerWorld::ChangeRing() {
  const bool broke = Chance(0.5);
  const bool member_lost = broke && Chance(0.5);
  std::map<SeqId, uint32_t> lost;  // with the last of their rows in flight
  for (const StepInFlight& flight : flights_) {
    for (const StepInFlight::Rows& rows : flight.items) {
      TrackedSequence* const s = Current(rows.item);
      if (s == nullptr) continue;
      const uint32_t end = s->KnownEnd(rows.item);
      s->takes_no_drafts |= broke && !rows.item.drafts.empty();
      if (end > s->proven && !IsVoid(rows)) lost[rows.item.seq] = std::max(lost[rows.item.seq], end);
    }
  }
  for (const StepInFlight& flight : flights_) {
    for (const StepInFlight::Rows& rows : flight.items) {
      if (TrackedSequence* const s = Current(rows.item)) s->LoseFlights();
    }
  }
  flights_.clear();
  executed_ = 0;
  std::vector<SeqId> failed;
  for (const auto& [id, end] : lost) {
    if (broke && live_.at(id).LoseRing(end, lost.size() == 1)) failed.push_back(id);
  }
  if (scheduler_.LoseFlights(broke) != failed) Fail("{} sequences were to fail with the ring", failed.size());
  for (SeqId id : failed) Remove(id);
  TakePreemptions();
  lost_ += failed.size();
  if (member_lost) {
    options_.replica_percent > 0 && Chance(0.8) ? Restore() : LoseMember();
    ++members_lost_;
  }
  replica_.ChangeRing();
  ring_namespace_ = static_cast<uint64_t>(Between(0, 2));
  SetRing();
}

void SchedulerWorld::SetRing() {
  scheduler_.SetRing(o_.max_in_flight, o_.decode_groups, o_.prefill_matches_decode, ring_namespace_);
}

void SchedulerWorld::LosePages() {
  for (const int group : {kPageGroup, kWindowGroup, kSlotGroup}) stage_.Lose(group, random_);
  stage_.ForgetStamps();
}

// All pages are gone, and nothing of them is used again.
void SchedulerWorld::LoseMember() {
  replica_.Forget();
  if (!scheduler_.Shrink(o_.memory[kPageGroup]).empty()) Fail("a sequence does not fit the cache that it had");
  if (!scheduler_.LiveBlocks().empty()) Fail("blocks are in use or cached after their pages were lost");
  TakePreemptions();
  LosePages();
}

// All pages are gone, and those that the scheduler still counts on come from the replica.
void SchedulerWorld::Restore() {
  scheduler_.PutBack();
  scheduler_.ForgetAfter(options_.trusts_replica ? UINT64_MAX : replica_.whole());
  TakePreemptions();
  LosePages();
  for (BlockId number : scheduler_.LiveBlocks()) {
    const MemoryCounts::Place unit = *o_.memory.PlaceOf(number);
    if (const SimulatedStage::Unit* copy = replica_.Find(unit)) {
      stage_.PutBack(unit, *copy);
      ++restored_;
    } else if (!options_.trusts_replica) {
      Fail("unit {} of group {} is restored, the replica lacks it", unit.number, unit.group);
    }
  }
  replica_.Forget();
  ++restores_;
}

// Some of the changes reach the store.
void SchedulerWorld::KeepIndex() {
  for (const CacheChange& c : scheduler_.TakeCacheChanges(static_cast<size_t>(Between(1, 8)))) {
    const auto key = std::pair(c.place.group, c.place.number);
    if (c.unit) {
      index_[key] = *c.unit;
    } else {
      index_.erase(key);
    }
  }
}

// The process ends, and another one goes on with the stored index. Stages may compute some more steps of the old one.
void SchedulerWorld::TakeOver() {
  while (executed_ < flights_.size() && Chance(0.7)) ExecuteNext();
  flights_.clear();
  executed_ = 0;
  const uint64_t last = scheduler_.last_step();  // that a member may have had
  scheduler_ = Scheduler(o_);
  std::vector<CachedUnit> units;
  for (const auto& [key, unit] : index_) units.push_back(unit);
  scheduler_.Restore(units);
  LoseStaleUnits();
  scheduler_.SkipSteps(last);
  SetRing();
  replica_.Forget();
  stage_.ForgetFull();
  for (auto& [id, s] : live_) {
    SequenceParams p{.tokens = s.tokens, .max_positions = s.max_positions, .answers = s.answers, .salt = s.salt};
    p.generated = static_cast<uint32_t>(s.tokens.size() - s.prompt);
    const Status status = scheduler_.Add(id, std::move(p));
    if (!status.ok()) return Fail("Add after a restart: {}", Message(status));
    s = s.Anew();
    s.incarnation = scheduler_.Incarnation(id);
  }
  ++take_overs_;
}

// What the stage has written since the index was stored is another row's.
void SchedulerWorld::LoseStaleUnits() {
  const UnitList list = scheduler_.RestoreList();
  const std::vector<uint64_t> steps = scheduler_.StepsOf(list.units);
  std::vector<BlockId> missing;
  for (size_t i = 0; i < list.units.size(); ++i) {
    const uint64_t written = stage_.written(*o_.memory.PlaceOf(list.units[i]));
    if (written == 0 || written > steps[i]) missing.push_back(list.units[i]);
  }
  stale_ += missing.size();
  taken_over_ += list.units.size() - missing.size();
  if (!options_.trusts_index) scheduler_.Forget(missing);
}

}  // namespace gyre::testing
