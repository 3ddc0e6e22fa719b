// A simulated world for a Scheduler: callers, and pages with the values that stages would write. It finds violations.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/scheduler.h"
#include "tests/testing/draw.h"

namespace gyre::testing {

struct WorldOptions {
  SchedulerOptions scheduler;
  uint64_t seed = 0;
  double error_rate = 0;                        // of steps
  double repeat_rate = 0;                       // of answers that get lost
  int hold_percent = 0;                         // of events: a sequence is held, or goes on
  int ring_percent = 0;                         // of events: another ring comes, after a broken one or not
  int mirror_percent = 0;                       // of events: a mirror copies some units; lost members are recalled
  double shift_rate = 0;                        // of full contexts: the sequence goes on with a part of its tokens
  int restart_percent = 0;                      // of events: another scheduler takes over with an index that lags
  bool trusts_index = false;                    // plants a bug: the members' stamps are not asked
  bool trusts_mirror = false;                   // plants a bug: what is cached is not compared with the mirror
  std::function<void(StepPlan*)> corrupt = {};  // plants a bug between the scheduler and the stages
};

// A page's cell holds a fingerprint of all inputs of its row: the row's token and, through the cells that it read,
// every row before it. A row that reads one wrong cell gets a wrong fingerprint, and so do all rows after it.
class SchedulerWorld {
 public:
  explicit SchedulerWorld(WorldOptions options)
      : options_(std::move(options)), o_(options_.scheduler), scheduler_(o_), random_(options_.seed) {
    cells_.resize(size_t{o_.num_blocks} * o_.block_size);
    windowed_.resize(size_t{o_.window_blocks} * o_.block_size);
    slots_.resize(o_.num_slots);
    for (const uint32_t units : {o_.num_blocks, o_.num_slots, o_.window_blocks})
      groups_.push_back({.full = std::vector<uint64_t>(units), .written = std::vector<uint64_t>(units), .copies = {}});
  }

  // The first violation; empty: none.
  const std::string& problem() const { return problem_; }
  uint64_t events() const { return events_; }
  SchedulerStats stats() const { return scheduler_.stats(); }

  void RandomEvent() {
    if (!problem_.empty()) return;
    const int all = 99 + options_.hold_percent + options_.ring_percent + options_.mirror_percent;
    const int most = all;
    const int what = Between(0, most + options_.restart_percent);
    if (what > most) {
      Chance(0.15) ? TakeOver() : KeepIndex();
    } else if (what > most - options_.mirror_percent) {
      CopyToMirror();
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

  // Without new sequences and errors all sequences finish, and every block is freed.
  void RunDry() {
    options_.error_rate = 0;
    for (auto& [id, s] : live_) {
      if (s.held) Hold(id);
    }
    for (int rounds = 0; !live_.empty() || !flights_.empty(); ++rounds) {
      if (!problem_.empty()) return;
      if (rounds > 100000) return Fail("{} sequences do not finish", live_.size());
      while (Next()) EndEvent();
      if (!flights_.empty()) Land();
      EndEvent();
      while (AnswerOne()) EndEvent();
    }
    const SchedulerStats stats = scheduler_.stats();
    if (!scheduler_.idle()) Fail("nothing is left, but the scheduler is not idle");
    if (stats.blocks_available != o_.num_blocks) Fail("{} blocks come back", stats.blocks_available);
    if (stats.slots_available != o_.num_slots) Fail("{} slots come back", stats.slots_available);
    if (stats.window_blocks_available != o_.window_blocks)
      Fail("{} windowed blocks come back", stats.window_blocks_available);
  }

  // Samples and appends an answer; returns false if none is owed.
  bool AnswerOne() {
    std::vector<SeqId> owed;
    for (const auto& [id, s] : live_) {
      if (s.owed) owed.push_back(id);
    }
    if (owed.empty()) return false;
    const SeqId id = owed[static_cast<size_t>(Between(0, static_cast<int>(owed.size()) - 1))];
    Live& s = live_.at(id);
    s.owed = false;
    if (Chance(options_.repeat_rate)) {
      scheduler_.Repeat(id);
      s.launched = s.landed = s.launched - 1;
      TakePreemptions();
      return true;
    }
    // The token of a position depends on the position only, like a seeded draw: a replay draws the same again.
    const TokenId token = static_cast<TokenId>(Mix(static_cast<uint64_t>(id), s.tokens.size()) % 2);
    const Status status = scheduler_.Append(id, token);
    const bool full = s.tokens.size() >= s.max_positions;
    if (status.ok() == full)
      Fail("sequence {}: Append at {} of {} positions", Num(id), s.tokens.size(), s.max_positions);
    if (full && Chance(options_.shift_rate)) {
      Shift(id, token);
    } else if (full) {
      Remove(id);
    } else {
      s.tokens.push_back(token);
    }
    return true;
  }

  // Keeps some of the first tokens and some of the last ones.
  void Shift(SeqId id, TokenId token) {
    Live& s = live_.at(id);
    const int size = static_cast<int>(s.tokens.size());
    const int keep = Between(0, size / 2);
    const int drop = Between(1, size - keep);
    s.tokens.push_back(token);
    s.tokens.erase(s.tokens.begin() + keep, s.tokens.begin() + keep + drop);
    s.prompt = s.tokens.size();
    s.all_rows = false;
    s.lost_end = static_cast<uint32_t>(s.tokens.size()) + 1;
    s.proven = s.blamed_from = s.blamed_end = 0;
    const Status status = scheduler_.Restart(id, s.tokens);
    if (!status.ok()) Fail("Restart: {}", Message(status));
    if (scheduler_.Incarnation(id) == s.incarnation) Fail("sequence {} keeps its incarnation", Num(id));
    ++shifts_;
    TakePreemptions();
  }
  uint64_t shifts() const { return shifts_; }
  // The most windowed blocks that a step had for one sequence.
  uint64_t most_windowed() const { return most_windowed_; }

  void Add() {
    if (live_.size() >= 12) return;
    const SeqId id{next_id_++};
    SequenceParams p;
    // Few texts, so that many prompts share a beginning.
    const uint64_t text = static_cast<uint64_t>(Between(0, 2));
    const int room = static_cast<int>(o_.num_blocks * o_.block_size);
    const int length = Between(1, std::min(room, 40));
    for (int i = 0; i < length; ++i) {
      p.tokens.push_back(Chance(0.02) ? 7 : static_cast<TokenId>(Mix(text, static_cast<uint64_t>(i)) % 2));
    }
    p.max_positions = static_cast<uint32_t>(std::min(room, length + Between(0, 12)));
    p.priority = Chance(0.2) ? Between(-1, 1) : 0;
    p.tenant = static_cast<uint64_t>(Between(0, 2));
    p.salt = Chance(0.1) ? 1 : 0;
    p.needs_all_rows = Chance(0.1);
    Live s;
    s.tokens = p.tokens;
    s.prompt = p.tokens.size();
    s.salt = p.salt;
    s.max_positions = p.max_positions;
    s.all_rows = p.needs_all_rows;
    const Status status = scheduler_.Add(id, std::move(p));
    if (!status.ok()) return Fail("Add: {}", Message(status));
    s.incarnation = scheduler_.Incarnation(id);
    live_.emplace(id, std::move(s));
  }

  // Returns false if no step came.
  bool Next() {
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
    Flight flight{.step = plan->step, .items = {}, .fails = Chance(options_.error_rate)};
    CheckPlan(*plan, before);
    for (StepItem& item : plan->items) {
      if (!problem_.empty()) return false;
      CheckItem(item);
      CheckAlone(*plan, item);
      flight.items.push_back({.item = item, .content = live_.at(item.seq)});
    }
    flights_.push_back(std::move(flight));
    return true;
  }

  void Land() {
    if (executed_ == 0) ExecuteNext();
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    --executed_;
    const LandedStep landed = scheduler_.Land(flight.step, !flight.fails);
    std::vector<StepItem> valid;
    std::vector<SeqId> failed;
    const bool alone = flight.items.size() == 1;
    for (const Rows& rows : flight.items) LandRows(rows, !flight.fails, alone, &valid, &failed);
    if (landed.valid != valid) {
      Fail("step {}: {} items count, not {}", Num(flight.step), landed.valid.size(), valid.size());
    }
    if (landed.failed != failed) Fail("step {}: {} sequences failed", Num(flight.step), landed.failed.size());
    for (SeqId id : failed) Remove(id);
    TakePreemptions();
  }

  // Holds or releases the sequence.
  void Hold(SeqId id) {
    bool& held = live_.at(id).held;
    held = !held;
    held ? scheduler_.Hold(id) : scheduler_.Unhold(id);
    ++holds_;
  }

  // All steps in flight are lost; the stages' writes for them remain. With a lost member all pages are gone.
  void ChangeRing() {
    const bool broke = Chance(0.5);
    const bool member_lost = broke && Chance(0.5);
    std::map<SeqId, uint32_t> lost;  // with the last of their rows in flight
    for (const Flight& flight : flights_) {
      for (const Rows& rows : flight.items) {
        const auto it = live_.find(rows.item.seq);
        if (it == live_.end() || it->second.incarnation != rows.item.incarnation) continue;
        const uint32_t end = rows.item.first_position + rows.item.count;
        if (end > it->second.proven) lost[it->first] = std::max(lost[it->first], end);
        it->second.in_flight = 0;
        it->second.poisoned = false;
        it->second.launched = it->second.landed;
      }
    }
    flights_.clear();
    executed_ = 0;
    std::vector<SeqId> failed;
    for (const auto& [id, end] : lost) {
      Live& s = live_.at(id);
      if (!broke) continue;
      s.lost_end = s.losses == 0 ? end : std::max(s.lost_end, end);
      if (s.losses < 2 || lost.size() == 1) ++s.losses;
      if (s.losses == 3) failed.push_back(id);
    }
    if (scheduler_.LoseFlights(broke) != failed) Fail("{} sequences were to fail with the ring", failed.size());
    for (SeqId id : failed) Remove(id);
    TakePreemptions();
    lost_ += failed.size();
    if (member_lost && options_.mirror_percent > 0 && Chance(0.8)) {
      Recall();
    } else if (member_lost) {
      ForgetMirror();
      if (!scheduler_.Shrink(o_.num_blocks).empty()) Fail("a sequence does not fit the cache that it had");
      if (!scheduler_.LiveBlocks().empty()) Fail("blocks are in use or cached after their pages were lost");
      TakePreemptions();
      for (uint64_t& cell : cells_) cell = random_();
      for (Slot& slot : slots_) slot = {};
      for (Group& group : groups_) std::fill(group.written.begin(), group.written.end(), 0);  // pools begin anew
      ++members_lost_;
    }
    // A ring of another plan: its mirror has what the one before had, and is not whole before a round is over.
    whole_ = 0;
    round_.reset();
    ring_salt_ = static_cast<uint64_t>(Between(0, 2));
    scheduler_.SetRing(o_.max_in_flight, o_.decode_groups, o_.prefill_matches_decode, ring_salt_);
  }

  // Some of the changes reach the store.
  void KeepIndex() {
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
  void TakeOver() {
    while (executed_ < flights_.size() && Chance(0.7)) ExecuteNext();
    flights_.clear();
    executed_ = 0;
    const uint64_t last = scheduler_.last_step();  // that a member may have had
    scheduler_ = Scheduler(o_);
    std::vector<CachedUnit> units;
    for (const auto& [key, unit] : index_) units.push_back(unit);
    scheduler_.Restore(units);
    const UnitList list = scheduler_.RecallList();
    const std::vector<uint64_t> steps = scheduler_.StepsOf(list.units);
    std::vector<BlockId> missing;
    for (size_t i = 0; i < list.units.size(); ++i) {
      const auto place = scheduler_counts().PlaceOf(list.units[i]);
      const uint64_t written = groups_[static_cast<size_t>(place->group)].written[place->number];
      if (written == 0 || written > steps[i]) missing.push_back(list.units[i]);
    }
    stale_ += missing.size();
    taken_over_ += list.units.size() - missing.size();
    if (!options_.trusts_index) scheduler_.Forget(missing);
    scheduler_.SkipSteps(last);
    scheduler_.SetRing(o_.max_in_flight, o_.decode_groups, o_.prefill_matches_decode, ring_salt_);
    ForgetMirror();
    whole_ = 0;
    round_.reset();
    for (auto& [id, s] : live_) {
      SequenceParams p{
          .tokens = s.tokens, .max_positions = s.max_positions, .needs_all_rows = s.all_rows, .salt = s.salt};
      p.generated = static_cast<uint32_t>(s.tokens.size() - s.prompt);
      Live fresh;
      fresh.tokens = s.tokens, fresh.prompt = s.prompt, fresh.salt = s.salt;
      fresh.max_positions = s.max_positions, fresh.all_rows = s.all_rows;
      const Status status = scheduler_.Add(id, std::move(p));
      if (!status.ok()) return Fail("Add after a restart: {}", Message(status));
      fresh.incarnation = scheduler_.Incarnation(id);
      s = std::move(fresh);
    }
    ++take_overs_;
  }
  MemoryCounts scheduler_counts() const { return o_.counts(); }
  uint64_t take_overs() const { return take_overs_; }
  uint64_t taken_over() const { return taken_over_; }  // units, in all of them
  uint64_t stale() const { return stale_; }            // likewise: those that were written since

  // A part of a round: each group of units is asked for what became full since the round before, and steps may be
  // executed between any two of them.
  void CopyToMirror() {
    if (!round_) round_ = Round{};
    Group& group = groups_[round_->group];
    if (round_->from == 0) {
      group.next_since = computed_;
      round_->step = std::min(round_->step, computed_);
    }
    for (int n = Between(1, 4); round_->from < group.full.size() && n > 0; ++round_->from) {
      if (group.full[round_->from] <= group.since) continue;
      group.copies[round_->from] = ReadUnit(round_->group, round_->from);
      --n;
    }
    if (round_->from < group.full.size()) return;
    group.since = group.next_since;
    round_->from = 0;
    if (++round_->group < groups_.size()) return;
    whole_ = std::max(whole_, round_->step);
    round_.reset();
  }
  // All pages are gone, and those that the scheduler still counts on come from the mirror.
  void Recall() {
    scheduler_.PutBack();
    scheduler_.ForgetAfter(options_.trusts_mirror ? UINT64_MAX : whole_);
    TakePreemptions();
    for (uint64_t& cell : cells_) cell = random_();
    for (uint64_t& cell : windowed_) cell = random_();
    for (Slot& slot : slots_) slot = {};
    for (Group& group : groups_) {
      std::fill(group.full.begin(), group.full.end(), 0);
      std::fill(group.written.begin(), group.written.end(), 0);
    }
    for (BlockId unit : scheduler_.LiveBlocks()) {
      size_t g = 0;
      for (; unit >= groups_[g].full.size(); ++g) unit -= static_cast<BlockId>(groups_[g].full.size());
      const auto copy = groups_[g].copies.find(unit);
      if (copy == groups_[g].copies.end()) {
        if (!options_.trusts_mirror) Fail("unit {} of group {} is recalled, the mirror lacks it", unit, g);
        continue;
      }
      WriteUnit(g, unit, copy->second);
      groups_[g].full[unit] = 1;
      groups_[g].written[unit] = computed_;
      ++recalled_;
    }
    for (Group& group : groups_) group.copies.clear(), group.since = 0;
    ++recalls_;
    ++members_lost_;
  }
  void ForgetMirror() {
    for (Group& group : groups_) {
      std::fill(group.full.begin(), group.full.end(), 0);
      group.copies.clear();
      group.since = 0;
    }
  }
  uint64_t recalls() const { return recalls_; }    // lost members
  uint64_t recalled() const { return recalled_; }  // units, in all of them
  uint64_t holds() const { return holds_; }
  uint64_t refused() const { return refused_; }  // steps, for rows that do not go on where a slot is
  uint64_t lost() const { return lost_; }        // sequences that failed with three rings
  uint64_t members_lost() const { return members_lost_; }
  uint64_t failed() const { return failed_; }  // by errors

  void Remove(SeqId id) {
    scheduler_.Remove(id);
    live_.erase(id);
    if (scheduler_.State(id) || scheduler_.Incarnation(id) != 0) Fail("sequence {} is known after Remove", Num(id));
  }

  void EndEvent() {
    ++events_;
    const Status status = scheduler_.CheckIntegrity();
    if (!status.ok()) Fail("{}", Message(status));
  }

 private:
  struct Content {  // what a row's fingerprint depends on
    std::vector<TokenId> tokens;
    size_t prompt = 0;
    uint64_t salt = 0;
    std::vector<uint64_t> ring_salts;  // of the ring that computed each launched row
  };
  struct Live : Content {  // a sequence as its caller knows it
    uint32_t max_positions = 0;
    bool all_rows = false;
    uint32_t incarnation = 0;
    uint32_t launched = 0, landed = 0, in_flight = 0, errors = 0, losses = 0, lost_end = 0, proven = 0, blamed_from = 0,
             blamed_end = 0;
    uint64_t admitted_salt = 0;  // of the ring
    bool admitted = false, started = false, poisoned = false, owed = false, held = false, suspect = false;
    bool troubled = false;  // a step of this incarnation failed
    void Blame(const StepItem& item) {
      blamed_from = blamed_end == 0 ? item.first_position : std::min(blamed_from, item.first_position);
      blamed_end = std::max(blamed_end, item.first_position + item.count);
    }
  };
  struct Rows {
    StepItem item;
    Content content;
    bool right = true;  // every row got the fingerprint of its sequence's own prefix
  };
  // A slot's state is a fingerprint of all rows that were applied to it.
  struct Slot {
    SeqId seq{};
    uint32_t incarnation = 0, position = 0, number = 0;
    uint64_t state = 0;
  };
  struct Flight {
    StepId step{};
    std::vector<Rows> items;
    bool fails = false;
  };
  // A KV group's units on a stage, and their copies in the mirror of another.
  struct Unit {
    std::vector<uint64_t> cells;
    Slot slot;
  };
  struct Group {
    std::vector<uint64_t> full;     // the step in which each became full
    std::vector<uint64_t> written;  // and was last written
    uint64_t since = 0, next_since = 0;
    std::map<BlockId, Unit> copies;
  };
  struct Round {
    size_t group = 0;
    BlockId from = 0;
    uint64_t step = UINT64_MAX;
  };
  Unit ReadUnit(size_t group, BlockId unit) {
    if (group == kSlotGroup) return {.cells = {}, .slot = slots_[unit]};
    const std::vector<uint64_t>& cells = group == kPageGroup ? cells_ : windowed_;
    const auto begin = cells.begin() + static_cast<std::ptrdiff_t>(size_t{unit} * o_.block_size);
    return {.cells = {begin, begin + o_.block_size}, .slot = {}};
  }
  void WriteUnit(size_t group, BlockId unit, const Unit& from) {
    if (group == kSlotGroup) {
      slots_[unit] = from.slot;
      return;
    }
    std::vector<uint64_t>& cells = group == kPageGroup ? cells_ : windowed_;
    std::copy(from.cells.begin(), from.cells.end(),
              cells.begin() + static_cast<std::ptrdiff_t>(size_t{unit} * o_.block_size));
  }
  // As a stage stamps what its rows fill.
  void StampFull(const StepItem& item) {
    const uint32_t end = item.first_position + item.count;
    for (uint32_t b = item.first_position / o_.block_size; b * o_.block_size < end; ++b) {
      groups_[kPageGroup].written[item.blocks[b]] = computed_;
      if (o_.window_blocks > 0) groups_[kWindowGroup].written[item.window.blocks[b - item.window.first]] = computed_;
    }
    for (const BlockId slot : {item.slots.slot, item.slots.copy}) {
      if (o_.num_slots > 0 && slot != kNoBlock) groups_[kSlotGroup].written[slot] = computed_;
    }
    for (uint32_t b = item.first_position / o_.block_size; (b + 1) * o_.block_size <= end; ++b) {
      groups_[kPageGroup].full[item.blocks[b]] = computed_;
      if (o_.window_blocks > 0) groups_[kWindowGroup].full[item.window.blocks[b - item.window.first]] = computed_;
    }
    if (o_.num_slots > 0 && item.slots.copy != kNoBlock) groups_[kSlotGroup].full[item.slots.copy] = computed_;
  }

  template <typename T>
  static uint64_t Num(T id) {
    return static_cast<uint64_t>(id);
  }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  int Between(int low, int high) { return testing::Between(random_, low, high); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  SeqId PickLive() {
    auto it = live_.begin();
    std::advance(it, Between(0, static_cast<int>(live_.size()) - 1));
    return it->first;
  }
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (problem_.empty()) {
      problem_ = fmt::format("event {}: ", events_) + fmt::format(format, std::forward<Args>(args)...);
    }
  }

  RowClass ClassOf(const Content& s, size_t position) const {
    return position < s.prompt ? RowClass::kPrompt : RowClass::kGenerated;
  }
  uint64_t RowOf(const Content& s, size_t p, uint64_t read) const {
    const uint64_t row_class = o_.prefill_matches_decode ? 0 : Num(ClassOf(s, p));
    return Mix(Mix(read, Num(static_cast<uint32_t>(s.tokens[p]))), Mix(Mix(s.salt, row_class), s.ring_salts[p]));
  }
  uint64_t& Cell(const StepItem& item, uint32_t p) {
    return cells_[size_t{item.blocks[p / o_.block_size]} * o_.block_size + p % o_.block_size];
  }

  // A preempted sequence starts anew, and an answer that its caller still owed is no longer wanted.
  void TakePreemptions() {
    for (auto& [id, s] : live_) {
      const uint32_t now = scheduler_.Incarnation(id);
      if (now == s.incarnation) continue;
      s.incarnation = now;
      s.launched = s.landed = 0;
      s.admitted = s.started = s.poisoned = s.owed = s.troubled = false;
      s.in_flight = 0;
    }
  }

  // Rows of the prefix cache belong to the ring that existed when the sequence was admitted.
  void TakeAdmissions() {
    for (auto& [id, s] : live_) {
      if (s.admitted || scheduler_.State(id) == SeqState::kWaiting) continue;
      s.admitted = true;
      s.admitted_salt = ring_salt_;
    }
  }

  // After a failed step each sequence has a step of its own; after two lost rings, nothing else is in flight.
  void CheckAlone(const StepPlan& plan, const StepItem& item) {
    const Live& s = live_.at(item.seq);
    // Rows that were computed once may go together with others.
    const bool lone = s.losses >= 2 && item.first_position + item.count > s.proven;
    const bool suspect = s.suspect && (o_.num_slots == 0 || item.first_position >= s.blamed_from);
    if (!suspect && !lone) return;
    if (plan.items.size() > 1 || s.in_flight > 1) Fail("sequence {} does not run alone", Num(item.seq));
    if (lone && !flights_.empty()) Fail("sequence {} is not alone in the ring", Num(item.seq));
  }

  void CheckPlan(const StepPlan& plan, const SchedulerStats& before) {
    if (plan.step <= last_step_) Fail("step {} after {}", Num(plan.step), Num(last_step_));
    last_step_ = plan.step;
    if (plan.items.empty()) Fail("step {} is empty", Num(plan.step));
    if (flights_.size() >= o_.max_in_flight) Fail("{} steps in flight", flights_.size() + 1);
    uint32_t rows = 0, largest = 0, decodes = 0, prompts = 0;
    std::set<SeqId> seen;
    for (const StepItem& item : plan.items) {
      rows += item.count;
      largest = std::max(largest, item.count);
      if (!seen.insert(item.seq).second) Fail("step {} has sequence {} twice", Num(plan.step), Num(item.seq));
      const auto it = live_.find(item.seq);
      if (it == live_.end()) return Fail("step {} has unknown sequence {}", Num(plan.step), Num(item.seq));
      const Live& s = it->second;
      const bool last = s.tokens.size() > s.prompt && item.first_position + 1 == s.tokens.size();
      decodes += last && s.started ? 1 : 0;
      // One that came in with all but its last row is neither: decode rows were dealt before.
      prompts += last ? 0 : item.count;
      if (o_.chunked_prefill && item.count > o_.chunk) Fail("sequence {} has a chunk of {}", Num(item.seq), item.count);
    }
    if (rows > o_.max_rows && (o_.chunked_prefill || rows - largest >= o_.max_rows)) Fail("a step of {} rows", rows);
    if (decodes > 0 && plan.items.size() > 1 && o_.step_tokens > 0 && o_.chunked_prefill && prompts > o_.step_tokens) {
      Fail("{} prompt rows beside {} that decode", prompts, decodes);
    }
    const uint32_t groups = std::min(o_.decode_groups, o_.max_in_flight);
    if (decodes > (before.decode + groups - 1) / groups) Fail("{} decode rows of {}", decodes, before.decode);
  }

  void CheckItem(const StepItem& item) {
    Live& s = live_.at(item.seq);
    const uint64_t id = Num(item.seq);
    const uint32_t end = item.first_position + item.count;
    if (item.incarnation != s.incarnation) return Fail("sequence {}: incarnation {}", id, item.incarnation);
    if (s.held) return Fail("sequence {} is held and launched", id);
    if (s.poisoned || s.owed) return Fail("sequence {} is launched while it waits", id);
    if (!s.started) {
      const uint32_t cached = scheduler_.CachedPositions(item.seq);
      if (item.first_position != cached || cached % o_.block_size != 0)
        return Fail("sequence {} starts at {}", id, item.first_position);
      if (cached > 0 && (s.all_rows || !o_.prefix_cache)) return Fail("sequence {} takes {} rows", id, cached);
      s.launched = s.landed = cached;
      s.started = true;
      s.ring_salts.assign(cached, s.admitted_salt);
    }
    if (item.count == 0 || item.first_position != s.launched || end > s.tokens.size()) {
      return Fail("sequence {}: rows {}+{} where {} of {} are launched", id, item.first_position, item.count,
                  s.launched, s.tokens.size());
    }
    if (ClassOf(s, item.first_position) != item.row_class || ClassOf(s, end - 1) != item.row_class) {
      return Fail("sequence {}: rows {}+{} have class {}", id, item.first_position, item.count, Num(item.row_class));
    }
    if (item.sample_last != (end == s.tokens.size())) return Fail("sequence {}: sample_last {}", id, item.sample_last);
    if (item.blocks.size() != (end + o_.block_size - 1) / o_.block_size)
      return Fail("sequence {}: {} blocks", id, item.blocks.size());
    for (BlockId block : item.blocks) {
      if (block >= o_.num_blocks) return Fail("sequence {} has block {}", id, block);
    }
    if ((item.slots.slot < o_.num_slots) != (o_.num_slots > 0))
      return Fail("sequence {}: {} slots", id, item.slots.slot);
    CheckWindow(item);
    s.launched = end;
    s.ring_salts.resize(item.first_position);
    s.ring_salts.resize(end, ring_salt_);
    ++s.in_flight;
    CheckExclusive(item);
  }

  // The windowed table has the blocks that the rows read, and no more than a window and the rows in flight need.
  void CheckWindow(const StepItem& item) {
    if (o_.window_blocks == 0) {
      if (!item.window.blocks.empty()) Fail("sequence {} has windowed blocks", Num(item.seq));
      return;
    }
    const uint32_t end = item.first_position + item.count, last = (end + o_.block_size - 1) / o_.block_size;
    if (item.window.first > FirstRead(item.first_position) / o_.block_size ||
        item.window.first + item.window.blocks.size() != last) {
      Fail("sequence {}: windowed blocks {}+{} for rows {}+{}", Num(item.seq), item.window.first,
           item.window.blocks.size(), item.first_position, item.count);
    }
    for (BlockId block : item.window.blocks) {
      if (block >= o_.window_blocks) Fail("sequence {} has windowed block {}", Num(item.seq), block);
    }
    most_windowed_ = std::max<uint64_t>(most_windowed_, item.window.blocks.size());
  }
  uint32_t FirstRead(uint32_t position) const { return position + 1 > o_.window ? position + 1 - o_.window : 0; }
  uint64_t& Windowed(const StepItem& item, uint32_t p) {
    const BlockId block = item.window.blocks[p / o_.block_size - item.window.first];
    return windowed_[size_t{block} * o_.block_size + p % o_.block_size];
  }
  // The blocks that the item's rows read or write in the windowed group, from the one with `position` on.
  std::span<const BlockId> WindowFrom(const StepItem& item, uint32_t position) const {
    if (o_.window_blocks == 0) return {};
    return std::span(item.window.blocks).subspan(position / o_.block_size - item.window.first);
  }

  // No other step in flight reads or writes a block that this one writes, and none writes a block that this one reads.
  void CheckExclusive(const StepItem& item) {
    const auto writes = [this](const StepItem& i, BlockId block) {
      const auto first = i.blocks.begin() + i.first_position / o_.block_size;
      return std::find(first, i.blocks.end(), block) != i.blocks.end();
    };
    for (const Flight& flight : flights_) {
      for (const Rows& rows : flight.items) {
        const StepItem& other = rows.item;
        if (other.seq == item.seq && other.incarnation == item.incarnation) continue;
        for (BlockId block : other.blocks) {
          if (writes(item, block)) return Fail("block {} of sequence {} is in use", block, Num(item.seq));
        }
        const auto share = [](std::span<const BlockId> a, std::span<const BlockId> b) {
          return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
        };
        if (share(WindowFrom(item, item.first_position), WindowFrom(other, FirstRead(other.first_position))) ||
            share(WindowFrom(other, other.first_position), WindowFrom(item, FirstRead(item.first_position)))) {
          return Fail("a windowed block of sequences {} and {} is in use", Num(item.seq), Num(other.seq));
        }
        for (BlockId block : item.blocks) {
          if (writes(other, block)) return Fail("block {} of sequence {} is being written", block, Num(item.seq));
        }
      }
    }
  }

  // A stage takes the oldest step that it has not seen. It writes the step's rows, whatever happened to the
  // sequence meanwhile.
  void ExecuteNext() {
    Flight& flight = flights_[executed_++];
    computed_ = Num(flight.step);
    for (Rows& rows : flight.items) {
      if (o_.num_slots == 0 || GoesOn(rows.item)) continue;
      const auto it = live_.find(rows.item.seq);
      if (it != live_.end() && it->second.incarnation == rows.item.incarnation && !it->second.troubled)
        Fail("sequence {}: the slot is not at position {}", Num(rows.item.seq), rows.item.first_position);
      flight.fails = true;
      ++refused_;
    }
    if (flight.fails) {
      for (Rows& rows : flight.items) {
        const auto it = live_.find(rows.item.seq);
        if (it != live_.end() && it->second.incarnation == rows.item.incarnation) it->second.troubled = true;
      }
    }
    // One stage failed the step, and this stage may be before or after it.
    if (o_.num_slots > 0 && flight.fails && Chance(0.5)) return;
    for (Rows& rows : flight.items) {
      if (o_.num_slots > 0 && !GoesOn(rows.item)) return;
      WriteRows(&rows);
      StampFull(rows.item);
      if (o_.num_slots > 0) Apply(&rows);
      if (!flight.fails || Chance(0.3)) continue;
      for (uint32_t i = 0; i < rows.item.count; ++i) {
        Cell(rows.item, rows.item.first_position + i) = random_();
        if (o_.window_blocks > 0) Windowed(rows.item, rows.item.first_position + i) = random_();
      }
    }
  }

  // Whether a stage applies the rows: its slot must be at their first position.
  bool GoesOn(const StepItem& item) {
    const Slot& slot = slots_.at(item.slots.begin == kNoBlock ? item.slots.slot : item.slots.begin);
    if (item.first_position == 0) return true;
    const bool own = slot.seq == item.seq && slot.incarnation == item.incarnation;
    const bool snapshot = item.slots.begin != kNoBlock && slot.number != 0 && slot.number == item.slots.begin_number;
    return slot.position == item.first_position && (item.slots.begin == kNoBlock ? own : snapshot);
  }

  void Apply(Rows* rows) {
    const StepItem& item = rows->item;
    Slot& slot = slots_.at(item.slots.slot);
    if (item.slots.begin != kNoBlock) slot = slots_.at(item.slots.begin);
    if (item.first_position == 0) slot = {};
    slot.seq = item.seq;
    slot.number = 0;
    slot.incarnation = item.incarnation;
    slot.position = item.first_position + item.count;
    uint64_t own = 0;
    for (uint32_t p = 0; p < slot.position; ++p) {
      const uint64_t row = RowOf(rows->content, p, own);
      if (p >= item.first_position) slot.state = Mix(slot.state, RowOf(rows->content, p, slot.state));
      own = Mix(own, row);
    }
    rows->right = rows->right && slot.state == own;
    if (item.slots.copy == kNoBlock) return;
    slots_.at(item.slots.copy) = slot;
    slots_.at(item.slots.copy).number = item.slots.copy_number;
  }

  void WriteRows(Rows* rows) {
    uint64_t read = 0, own = 0;
    std::vector<uint64_t> of_rows;  // what each row's windowed cell should hold
    for (uint32_t p = 0; p < rows->item.first_position + rows->item.count; ++p) {
      if (o_.window_blocks > 0) {
        of_rows.push_back(RowOf(rows->content, p, own));
        if (p >= rows->item.first_position) {
          for (uint32_t q = FirstRead(p); q < p; ++q)
            rows->right = rows->right && Windowed(rows->item, q) == of_rows[q];
          Windowed(rows->item, p) = of_rows[p];
        }
      }
      if (p >= rows->item.first_position) Cell(rows->item, p) = RowOf(rows->content, p, read);
      own = Mix(own, RowOf(rows->content, p, own));
      read = Mix(read, Cell(rows->item, p));
      rows->right = rows->right && read == own;
    }
  }

  void LandRows(const Rows& rows, bool ok, bool alone, std::vector<StepItem>* valid, std::vector<SeqId>* failed) {
    const StepItem& item = rows.item;
    const auto it = live_.find(item.seq);
    if (it == live_.end() || it->second.incarnation != item.incarnation) return;
    Live& s = it->second;
    --s.in_flight;
    if (!ok && !s.poisoned) {
      s.poisoned = s.suspect = true;
      s.Blame(item);
      if (alone && ++s.errors == 2) {
        failed->push_back(item.seq);
        ++failed_;
      }
    } else if (ok && !s.poisoned) {
      if (!rows.right)
        Fail("sequence {}: rows {}+{} read what is not its own", Num(item.seq), item.first_position, item.count);
      s.landed = item.first_position + item.count;
      s.proven = std::max(s.proven, s.landed);
      if (s.landed >= s.lost_end) s.losses = 0;
      // With recurrent state a replay also sends rows again that were not at fault.
      if (o_.num_slots == 0 || s.landed >= s.blamed_end) {
        s.errors = s.blamed_from = s.blamed_end = 0;
        s.suspect = false;
      }
      s.owed = item.sample_last;
      valid->push_back(item);
    }
    if (s.poisoned && s.in_flight == 0) {
      s.poisoned = false;
      s.launched = s.landed;
    }
  }

  WorldOptions options_;
  const SchedulerOptions o_;
  Scheduler scheduler_;
  RandomBits random_;
  std::vector<uint64_t> cells_, windowed_;
  std::vector<Slot> slots_;
  std::map<SeqId, Live> live_;
  std::deque<Flight> flights_;
  size_t executed_ = 0;  // of flights_, from the front
  StepId last_step_{};
  uint64_t next_id_ = 1;
  uint64_t events_ = 0, holds_ = 0, shifts_ = 0, lost_ = 0, failed_ = 0, members_lost_ = 0, refused_ = 0;
  uint64_t ring_salt_ = 0;
  uint64_t most_windowed_ = 0;
  std::vector<Group> groups_;   // by KV group
  std::optional<Round> round_;  // of the mirror, under way
  uint64_t computed_ = 0;       // the last step that the stage saw
  uint64_t whole_ = 0;          // up to this step the mirror is whole
  uint64_t recalls_ = 0, recalled_ = 0;
  std::map<std::pair<int, uint32_t>, CachedUnit> index_;  // as it is stored
  uint64_t take_overs_ = 0, taken_over_ = 0, stale_ = 0;
  std::string problem_;
};

}  // namespace gyre::testing
