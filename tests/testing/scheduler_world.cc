#include "tests/testing/scheduler_world.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace gyre::testing {

SchedulerWorld::SchedulerWorld(WorldOptions options)
    : options_(std::move(options)),
      o_(options_.scheduler),
      scheduler_(o_),
      random_(options_.seed),
      checks_(o_),
      stage_(o_) {}

void SchedulerWorld::RandomEvent() {
  if (!problem_.none()) return;
  const int most = 99 + options_.hold_percent + options_.ring_percent + options_.replica_percent;
  const int what = Between(0, most + options_.restart_percent);
  if (what > most) {
    Chance(0.15) ? TakeOver() : KeepIndex();
  } else if (what > most - options_.replica_percent) {
    replica_.Copy(stage_, Between(1, 4));
  } else if (what >= 100 + options_.hold_percent) {
    ChangeRing();
  } else if (what >= 100) {
    if (!live_.empty()) Hold(PickLive());
  } else if (what < 12) {
    Add();
  } else if (what < 50) {
    Next();
  } else if (what < 60) {
    if (executed_ < flights_.size()) ExecuteNext();
  } else if (what < 85) {
    if (!flights_.empty()) Land();
  } else if (what < 97) {
    AnswerOne();
  } else if (!live_.empty()) {
    Remove(PickLive());
  }
  EndEvent();
}

void SchedulerWorld::LeaveAlone() {
  options_.error_rate = 0;
  for (auto& [id, s] : live_) {
    if (s.held) Hold(id);
  }
  for (int rounds = 0; !live_.empty() || !flights_.empty(); ++rounds) {
    if (!problem_.none()) return;
    if (rounds > 100000) return Fail("{} sequences do not finish", live_.size());
    while (Next()) EndEvent();
    if (!flights_.empty()) Land();
    EndEvent();
    while (AnswerOne()) EndEvent();
  }
  const SchedulerStats stats = scheduler_.stats();
  if (!scheduler_.idle()) Fail("nothing is left, but the scheduler is not idle");
  if (stats.memory[kPageGroup].available != o_.memory[kPageGroup])
    Fail("{} blocks come back", stats.memory[kPageGroup].available);
  if (stats.memory[kSlotGroup].available != o_.memory[kSlotGroup])
    Fail("{} slots come back", stats.memory[kSlotGroup].available);
  if (stats.memory[kWindowGroup].available != o_.memory[kWindowGroup])
    Fail("{} windowed blocks come back", stats.memory[kWindowGroup].available);
}

void SchedulerWorld::EndEvent() {
  ++events_;
  Check(scheduler_.CheckIntegrity());
}

void SchedulerWorld::Add() {
  if (live_.size() >= 12) return;
  const SeqId id{next_id_++};
  SequenceParams p;
  // Few texts, so that many prompts share a beginning.
  const uint64_t text = static_cast<uint64_t>(Between(0, 2));
  const int room = static_cast<int>(o_.memory[kPageGroup] * o_.block_size);
  const int length = Between(1, std::min(room, 40));
  for (int i = 0; i < length; ++i) {
    p.tokens.push_back(Chance(0.02) ? 7 : static_cast<TokenId>(Mix(text, static_cast<uint64_t>(i)) % 2));
  }
  p.max_positions = static_cast<uint32_t>(std::min(room, length + Between(0, 12)));
  if (length > 3) p.boundaries = {static_cast<uint32_t>(length / 3), static_cast<uint32_t>(length - 2)};
  p.priority = Chance(0.2) ? Between(-1, 1) : 0;
  p.tenant = static_cast<uint64_t>(Between(0, 2));
  p.salt = Chance(0.1) ? 1 : 0;
  if (Chance(0.2)) {
    p.answers = {.first = static_cast<uint32_t>(Between(0, length - 1)),
                 .end = static_cast<uint32_t>(length),
                 .bytes_each = 100};
  }
  TrackedSequence s;
  s.tokens = p.tokens;
  s.prompt = p.tokens.size();
  s.salt = p.salt;
  s.max_positions = p.max_positions;
  s.answers = p.answers;
  const Status status = scheduler_.Add(id, std::move(p));
  if (!status.ok()) return Fail("Add: {}", Message(status));
  s.incarnation = scheduler_.Incarnation(id);
  live_.emplace(id, std::move(s));
}

// Samples and appends an answer; returns false if none is owed.
bool SchedulerWorld::AnswerOne() {
  std::vector<SeqId> owed;
  for (const auto& [id, s] : live_) {
    if (s.owed) owed.push_back(id);
  }
  if (owed.empty()) return false;
  const SeqId id = owed[static_cast<size_t>(Between(0, static_cast<int>(owed.size()) - 1))];
  TrackedSequence& s = live_.at(id);
  s.owed = false;
  if (Chance(options_.repeat_rate)) {
    scheduler_.Repeat(id);
    s.Repeat();
    TakePreemptions();
    return true;
  }
  const TokenId token = Drawn(id, s.tokens.size());
  const Status status = scheduler_.Append(id, token);
  const bool full = s.tokens.size() >= s.max_positions;
  if (status.ok() == full) Fail("sequence {}: Append at {} of {} positions", Num(id), s.tokens.size(), s.max_positions);
  if (full && Chance(options_.shift_rate)) {
    Shift(id, token);
  } else if (full) {
    Remove(id);
  } else {
    s.Append(token);
    if (scheduler_.SampleOwed(id) != s.owed) Fail("sequence {}: a token is owed: {}", Num(id), !s.owed);
    if (s.owed && Chance(0.05)) {  // as where the next mask is not known
      scheduler_.DropDrafts(id);
      s.DropDrafts();
    }
    if (Chance(options_.draft_rate)) Propose(id);
  }
  return true;
}

// The token of a position depends on the position only, like a seeded draw: a replay draws the same again.
TokenId SchedulerWorld::Drawn(SeqId id, size_t tokens) {
  return static_cast<TokenId>(Mix(static_cast<uint64_t>(id), tokens) % 2);
}

// A draft is right, or wrong from some place on, or anything.
void SchedulerWorld::Propose(SeqId id) {
  const size_t size = live_.at(id).tokens.size() + live_.at(id).drafts.size();
  Drafts drafts;
  const int wrong_at = Between(0, 8);
  for (int i = 0, n = Between(1, 8); i < n; ++i) {
    const TokenId right = Drawn(id, size + static_cast<size_t>(i));
    drafts.tokens.push_back(i == wrong_at ? 1 - right : right);
    drafts.chances.push_back(1.0f / static_cast<float>(i + 1));
  }
  scheduler_.Propose(id, std::move(drafts));
}

// Keeps some of the first tokens and some of the last ones.
void SchedulerWorld::Shift(SeqId id, TokenId token) {
  TrackedSequence& s = live_.at(id);
  const int size = static_cast<int>(s.tokens.size());
  const int keep = Between(0, size / 2);
  s.Shift(keep, Between(1, size - keep), token);
  const Status status = scheduler_.Restart(id, s.tokens);
  if (!status.ok()) Fail("Restart: {}", Message(status));
  if (scheduler_.Incarnation(id) == s.incarnation) Fail("sequence {} keeps its incarnation", Num(id));
  ++shifts_;
  TakePreemptions();
}

// Holds or releases the sequence.
void SchedulerWorld::Hold(SeqId id) {
  bool& held = live_.at(id).held;
  held = !held;
  held ? scheduler_.Hold(id) : scheduler_.Unhold(id);
  ++holds_;
}

void SchedulerWorld::Remove(SeqId id) {
  scheduler_.Remove(id);
  live_.erase(id);
  if (scheduler_.State(id) || scheduler_.Incarnation(id) != 0) Fail("sequence {} is known after Remove", Num(id));
}

SeqId SchedulerWorld::PickLive() {
  auto it = live_.begin();
  std::advance(it, Between(0, static_cast<int>(live_.size()) - 1));
  return it->first;
}

// Returns false if no step came.
bool SchedulerWorld::Next() {
  const SchedulerStats before = scheduler_.stats();
  std::optional<StepPlan> plan = scheduler_.Next();
  TakePreemptions();
  TakeAdmissions();
  if (!plan) {
    bool owed = false, wants = false;
    for (const auto& [id, s] : live_) {
      owed |= s.owed;
      wants |= !s.held;
    }
    if (flights_.empty() && wants && !owed) Fail("{} sequences, and nothing runs", live_.size());
    return false;
  }
  if (options_.corrupt) options_.corrupt(&*plan);
  StepInFlight flight{.id = plan->step, .items = {}, .fails = Chance(options_.error_rate)};
  Check(checks_.CheckPlan(*plan, before, live_, flights_));
  for (const StepItem& item : plan->items) {
    if (!problem_.none()) return false;
    TrackedSequence& s = live_.at(item.seq);
    const uint32_t cached = scheduler_.CachedPositions(item.seq);
    Check(checks_.CheckItem(*plan, item, s, cached, flights_));
    s.Launch(item, cached, ring_namespace_);
    flight.items.push_back({.item = item, .inputs = s, .drops = s.drops});
    std::vector<TokenId>& tokens = flight.items.back().inputs.tokens;
    tokens.insert(tokens.end(), s.drafts.begin(), s.drafts.end());
    if (item.samples() && Chance(options_.draft_rate / 2)) Propose(item.seq);
  }
  flights_.push_back(std::move(flight));
  return true;
}

// The sequence that the rows count for; nullptr: none does.
TrackedSequence* SchedulerWorld::Current(const StepItem& item) {
  const auto it = live_.find(item.seq);
  return it != live_.end() && it->second.incarnation == item.incarnation ? &it->second : nullptr;
}

bool SchedulerWorld::IsVoid(const StepInFlight::Rows& rows) {
  const TrackedSequence* const s = Current(rows.item);
  return s != nullptr && s->drops != rows.drops;
}

// The stage takes the oldest step that it has not seen.
void SchedulerWorld::ExecuteNext() {
  StepInFlight& flight = flights_[executed_++];
  for (const StepInFlight::Rows& rows : flight.items) {
    if (o_.memory[kSlotGroup] == 0 || stage_.GoesOn(rows.item)) continue;
    const TrackedSequence* const s = Current(rows.item);
    if (s != nullptr && !s->troubled)
      Fail("sequence {}: the slot is not at position {}", Num(rows.item.seq), rows.item.first_position);
    flight.fails = true;
    ++refused_;
  }
  for (const StepInFlight::Rows& rows : flight.items) {
    TrackedSequence* const s = Current(rows.item);
    if (flight.fails && s != nullptr) s->troubled = true;
  }
  // A stage may leave out what counts for nothing.
  const bool is_void = std::all_of(flight.items.begin(), flight.items.end(),
                                   [this](const StepInFlight::Rows& rows) { return IsVoid(rows); });
  if (is_void && Chance(0.5)) {
    ++left_out_;
  } else {
    stage_.Execute(&flight, random_);
  }
}

void SchedulerWorld::Land() {
  if (executed_ == 0) ExecuteNext();
  const StepInFlight flight = std::move(flights_.front());
  flights_.pop_front();
  --executed_;
  const LandedStep landed = scheduler_.Land(flight.id, !flight.fails);
  std::vector<StepItem> valid;
  std::vector<SeqId> failed;
  for (const StepInFlight::Rows& rows : flight.items) {
    const StepItem& item = rows.item;
    TrackedSequence* const s = Current(item);
    if (s == nullptr) continue;
    const bool is_void = IsVoid(rows);
    if (item.goes_on()) ++(is_void ? void_ : gone_on_);
    if (flight.fails) {
      if (s->LandFailed(item, is_void, flight.items.size() == 1)) failed.push_back(item.seq);
    } else if (s->Land(item, is_void, o_.memory[kSlotGroup] > 0)) {
      if (!rows.right)
        Fail("sequence {}: rows {}+{} read what is not its own", Num(item.seq), item.first_position, item.count);
      valid.push_back(item);
    }
  }
  failed_ += failed.size();
  if (landed.valid != valid) {
    Fail("step {}: {} items count, not {}", Num(flight.id), landed.valid.size(), valid.size());
  }
  if (landed.failed != failed) Fail("step {}: {} sequences failed", Num(flight.id), landed.failed.size());
  for (SeqId id : failed) Remove(id);
  TakePreemptions();
}

void SchedulerWorld::TakePreemptions() {
  for (auto& [id, s] : live_) {
    const uint32_t now = scheduler_.Incarnation(id);
    if (now != s.incarnation) s.Preempt(now);
  }
}

// Rows of the prefix cache belong to the ring that existed when the sequence was admitted.
void SchedulerWorld::TakeAdmissions() {
  for (auto& [id, s] : live_) {
    if (s.admitted || scheduler_.State(id) == SeqState::kWaiting) continue;
    s.admitted = true;
    s.admitted_namespace = ring_namespace_;
  }
}

}  // namespace gyre::testing
