#include "coordinator/engine/scheduler.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "coordinator/engine/scheduler_state.h"

namespace gyre {
namespace {

SchedulerOptions Sane(SchedulerOptions o) {
  o.block_size = std::max(o.block_size, 1u);
  o.max_in_flight = std::max(o.max_in_flight, 1u);
  // More groups than steps in flight would leave the worst-ranked sequences without a turn.
  o.decode_groups = std::clamp(o.decode_groups, 1u, o.max_in_flight);
  o.max_rows = std::max(o.max_rows, 1u);
  o.chunk = std::max(o.chunk, 1u);
  o.max_sequences = std::max(o.max_sequences, 1u);
  o.snapshot_every = (std::max(o.snapshot_every, 1u) + o.block_size - 1) / o.block_size * o.block_size;
  return o;
}

// Rows of one sequence that may be in flight.
uint32_t RowsInFlight(const SchedulerOptions& o) {
  const uint64_t rows = o.chunked_prefill ? uint64_t{o.chunk} * o.max_in_flight : UINT32_MAX;
  return static_cast<uint32_t>(std::min<uint64_t>(rows, UINT32_MAX));
}

}  // namespace

Scheduler::Rep::Rep(const SchedulerOptions& o)
    : options(Sane(o)),
      cache({.counts = options.memory,
             .block_size = options.block_size,
             .prefix_cache = options.prefix_cache,
             .window = options.window,
             .snapshot_every = options.snapshot_every,
             .rows_in_flight = RowsInFlight(options)}),
      pace(options) {}

// Nothing more of the sequence is launched in this incarnation.
void Scheduler::Rep::Leave(Sequence* s, Stage stage) {
  if (s->running()) {
    cache.DropReserve(&s->kv);
    ++s->incarnation;
    if (s->in_flight > 0) ++draining;
  }
  queue.Leave(s, stage);
  if (starved == s) starved = nullptr;
  ++changes;
  s->ready_at = 0;
  s->proposed = {};
  Publish(s);
  if (s->in_flight == 0) Settle(s);
}

void Scheduler::Rep::Preempt(Sequence* s) {
  ++counts.preemptions;
  Leave(s, Stage::kWaiting);
}

void Scheduler::Rep::PreemptAll() {
  while (!queue.running().empty()) Preempt(queue.running().back());
}

// Blocks that sequences hold for drafts that were not drawn go back. False: there are none.
bool Scheduler::Rep::TakeBackDrafts() {
  bool any = false;
  const auto has_void = [this](const Sequence* s) {
    return std::any_of(flights.begin(), flights.end(), [s](const Flight& flight) {
      return std::any_of(flight.items.begin(), flight.items.end(),
                         [s](const FlightItem& i) { return i.sequence == s && i.is_void; });
    });
  };
  for (Sequence* s : queue.running()) {
    // Void rows in flight will still be written.
    if (s->reach <= s->size() || has_void(s)) continue;
    s->reach = std::max(s->size(), s->launched);
    any |= cache.Trim(s->reach, &s->kv);
  }
  return any;
}

// False: no sequence is held, or blocks are on their way back already.
bool Scheduler::Rep::PreemptHeld() {
  Sequence* victim = draining > 0 ? nullptr : queue.HeldVictim();
  if (victim == nullptr) return false;
  Preempt(victim);
  return true;
}

// A held sequence leaves, else the worst-ranked one below `needy`. False: there is none, or blocks are on their way
// back already, so that nothing more needs to be thrown away.
bool Scheduler::Rep::PreemptBelow(const Sequence* needy) {
  if (draining > 0) return false;
  if (PreemptHeld()) return true;
  Sequence* victim = queue.VictimBelow(needy, next_step);
  if (victim == nullptr) return false;
  Preempt(victim);
  return true;
}

// Grows the tables to hold `want` positions if there are units, preempting only for `must` of them. Returns the
// positions up to `want` that they hold.
uint32_t Scheduler::Rep::Grow(Sequence* s, uint32_t must, uint32_t want) {
  const bool barred = starved != nullptr && ByRank()(starved, s);
  // Rows in flight may use up the quota: then the next rows wait for them, not for blocks.
  want = cache.WithinQuota(s->kv, want);
  while (cache.Held(s->kv, want) < want) {
    if (cache.TakeUnit(want, barred, &s->kv)) continue;
    if (cache.Held(s->kv, want) >= must || barred) break;
    if (TakeBackDrafts()) continue;
    if (PreemptBelow(s)) continue;
    if (starved == nullptr || ByRank()(s, starved)) starved = s;
    break;
  }
  const uint32_t held = cache.Held(s->kv, want);
  if (held >= must && starved == s) starved = nullptr;
  return held;
}

// Nothing of the sequence is in flight any more.
void Scheduler::Rep::Settle(Sequence* s) {
  if (s->running()) {
    // Rows that were applied to recurrent state can't be sent again: the sequence begins again.
    if (s->poisoned && cache.has_state()) return Preempt(s);
    if (s->poisoned) DropDrafts(s);
    s->poisoned = false;
    return;
  }
  s->drafted.clear();
  const BlockId last = s->kv.blocks.empty() ? kNoBlock : s->kv.blocks.back();
  cache.Release(&s->kv);
  if (last != kNoBlock && options.double_frees_for_test > 0) {
    --options.double_frees_for_test;
    cache.ReleaseForTest(last);
  }
  s->launched = s->arrived = s->landed = s->cached = s->reach = 0;
  s->poisoned = false;
  if (s->stage == Stage::kRemoved) queue.Erase(s);
}

void Scheduler::Rep::LandItem(FlightItem landing, bool ok, bool alone, LandedStep* landed) {
  Sequence* s = landing.sequence;
  const bool left = !s->running();
  --s->in_flight;
  CountAnswers(s, landing.item, false);
  s->takes_no_drafts |= !ok && !landing.item.drafts.empty();
  if (!landing.is_void) LandRows(s, std::move(landing.item), ok, alone, landed);
  if (s->in_flight > 0) return;
  if (left) --draining;
  // Where it left just now nothing was draining.
  if (left || s->running()) Settle(s);
}

void Scheduler::Rep::LandRows(Sequence* s, StepItem item, bool ok, bool alone, LandedStep* landed) {
  const bool left = !s->running();
  // What was a draft may be known by now.
  const uint32_t end = std::min(s->size(), item.first_position + item.count);
  if (ok && !s->poisoned) {
    s->arrived = item.first_position + item.count;
    s->landed = end;
    cache.Begun(&s->kv);
    Publish(s);
    if (!left) {
      cache.ReleaseBehind(s->settled(), s->size(), &s->kv);
      s->quarantine.Landed(end);
      landed->valid.push_back(std::move(item));
    }
  } else if (!ok && !s->poisoned && item.first_position >= s->size()) {
    // None of its rows is of a known token. One that was asked about, and has landed, still counts.
    DropDrafts(s);
  } else if (!ok && !s->poisoned) {
    s->poisoned = true;
    s->quarantine.Failed(item.first_position, end, cache.has_state());
    if (!left && alone && s->quarantine.FailedAlone()) {
      landed->failed.push_back(s->id);
      Leave(s, Stage::kFailed);
    }
  }
}

void Scheduler::Rep::LoseItem(Sequence* s, const StepItem& item, bool ring_lost) {
  s->poisoned = true;
  CountAnswers(s, item, false);
  s->takes_no_drafts |= ring_lost && !item.drafts.empty();
  if (--s->in_flight > 0) return;
  if (!s->running()) --draining;
  Settle(s);
}

Scheduler::Scheduler(const SchedulerOptions& options) : rep_(std::make_unique<Rep>(options)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Status Scheduler::Add(SeqId id, SequenceParams params, Deadline now) {
  const SchedulerOptions& o = rep_->options;
  if (params.tokens.size() <= params.generated) {
    return InvalidArgument("sequence {} has no tokens", static_cast<uint64_t>(id));
  }
  if (rep_->queue.Knows(id)) return InvalidArgument("sequence {} is known", static_cast<uint64_t>(id));
  if (params.tokens.size() > params.max_positions) {
    return InvalidArgument("sequence {} has {} tokens, of at most {} positions", static_cast<uint64_t>(id),
                           params.tokens.size(), params.max_positions);
  }
  // Without chunks a prompt's rows are all in one step, so that no block of it comes back meanwhile.
  const KvCache& cache = rep_->cache;
  const bool whole = cache.has_window() && !o.chunked_prefill;
  const uint32_t most = whole ? std::min(cache.num_blocks(), cache.window_blocks()) : cache.num_blocks();
  if (params.max_positions > uint64_t{most} * o.block_size) {
    return OutOfRange("{} positions can never fit into {} blocks of {}", params.max_positions, most, o.block_size);
  }
  auto s = std::make_unique<ScheduledSequence>();
  s->id = id;
  s->prompt = static_cast<uint32_t>(params.tokens.size()) - params.generated;
  s->classes.assign(s->prompt, RowClass::kPrompt);
  s->classes.resize(params.tokens.size(), o.prefill_matches_decode ? RowClass::kPrompt : RowClass::kGenerated);
  s->params = std::move(params);
  s->added = now;
  rep_->queue.Add(std::move(s));
  for (; rep_->options.leaks_for_test > 0; --rep_->options.leaks_for_test) rep_->cache.LeakForTest();
  return absl::OkStatus();
}

LandedStep Scheduler::Land(StepId step, bool ok, Deadline now, const StepTimes& times) {
  LandedStep landed;
  if (rep_->flights.empty() || rep_->flights.front().step != step) return landed;
  Rep::Flight flight = std::move(rep_->flights.front());
  rep_->flights.pop_front();
  rep_->landed_step = static_cast<uint64_t>(step);
  rep_->pace.Landed(flight.rows, flight.launched, ok && !flight.has_void(), now, times);
  const bool alone = flight.items.size() == 1;
  for (Rep::FlightItem& item : flight.items) rep_->LandItem(std::move(item), ok, alone, &landed);
  return landed;
}

std::vector<SeqId> Scheduler::LoseFlights(bool ring_lost, std::span<const SeqId> asked) {
  std::map<SeqId, uint32_t> lost;  // with their rows up to the last one in flight
  for (SeqId id : asked) {
    ScheduledSequence* s = rep_->queue.Find(id);
    if (s == nullptr || !s->running()) continue;
    lost[id] = s->size() + 1;
    if (ring_lost) s->quarantine.Unprove(s->size());
  }
  while (!rep_->flights.empty()) {
    const Rep::Flight flight = std::move(rep_->flights.front());
    rep_->flights.pop_front();
    for (const auto& [s, item, is_void] : flight.items) {
      const uint32_t end = std::min(s->size(), item.first_position + item.count);
      if (s->running() && !is_void && s->quarantine.MayHaveCost(end)) lost[s->id] = std::max(lost[s->id], end);
      rep_->LoseItem(s, item, ring_lost);
    }
  }
  std::vector<SeqId> failed;
  if (!ring_lost) return failed;
  for (const auto& [id, end] : lost) {
    ScheduledSequence* s = rep_->queue.Find(id);
    if (!s->quarantine.LostRing(end, lost.size() == 1)) continue;
    failed.push_back(id);
    rep_->Leave(s, Rep::Stage::kFailed);
  }
  return failed;
}

void Scheduler::Hold(SeqId id) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr) return;
  s->held = true;
  if (rep_->starved == s) rep_->starved = nullptr;
  ++rep_->changes;
}

void Scheduler::Unhold(SeqId id) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->held) return;
  rep_->queue.Arrive(s);
  s->held = false;
  ++rep_->changes;
}

void Scheduler::AwaitMask(SeqId id) {
  if (ScheduledSequence* s = rep_->queue.Find(id)) s->awaits_mask = true;
}

void Scheduler::MaskReady(SeqId id) {
  if (ScheduledSequence* s = rep_->queue.Find(id)) s->awaits_mask = false;
}

void Scheduler::SetRing(uint32_t max_in_flight, uint32_t decode_groups, bool prefill_matches_decode,
                        uint64_t cache_namespace) {
  SchedulerOptions o = rep_->options;
  o.max_in_flight = max_in_flight;
  o.decode_groups = decode_groups;
  // Generated rows will be replayed as such, so their blocks must not be published as a prompt's.
  if (rep_->options.prefill_matches_decode && !prefill_matches_decode) {
    for (auto& [id, s] : rep_->queue.all())
      std::fill(s->classes.begin() + s->prompt, s->classes.end(), RowClass::kGenerated);
  }
  o.prefill_matches_decode = prefill_matches_decode;
  rep_->options = Sane(o);
  rep_->pace.Begin(rep_->options);
  rep_->cache.SetRing(cache_namespace, RowsInFlight(rep_->options));
}

void Scheduler::PutBack() { rep_->PreemptAll(); }

std::vector<SeqId> Scheduler::Shrink(uint32_t num_blocks, bool whole) {
  Rep& r = *rep_;
  r.PreemptAll();
  r.cache.Shrink(num_blocks, whole);
  const auto capacity =
      static_cast<uint32_t>(std::min<uint64_t>(uint64_t{num_blocks} * r.options.block_size, UINT32_MAX));
  std::vector<SeqId> too_large;
  for (const auto& [id, s] : r.queue.all()) {
    if (s->size() > capacity) {
      too_large.push_back(id);
    } else {
      s->params.max_positions = std::min(s->params.max_positions, capacity);
    }
  }
  return too_large;
}

void Scheduler::Grow(uint32_t num_blocks) {
  Rep& r = *rep_;
  r.cache.Grow(num_blocks);
  for (Rep::Sequence* s : r.queue.running()) {
    if (s->launched < s->prompt) r.cache.RaiseReserve(s->size(), &s->kv);
  }
}

Status Scheduler::Append(SeqId id, TokenId token) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->sample_owed()) {
    return FailedPrecondition("sequence {} is owed no token", static_cast<uint64_t>(id));
  }
  return rep_->Append(s, token);
}

Status Scheduler::AppendForced(SeqId id, TokenId token) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->running() || s->in_flight > 0 || s->launched >= s->size()) {
    return FailedPrecondition("sequence {} may have rows on their way", static_cast<uint64_t>(id));
  }
  return rep_->Append(s, token);
}

// The rows behind the landed ones are void.
void Scheduler::Rep::DropDrafts(Sequence* s) {
  s->drafted.clear();
  s->launched = s->arrived = s->landed;
  cache.SettleMarks(s->landed, &s->kv);
  if (s->in_flight == 0) return;
  for (Flight& flight : flights) {
    for (FlightItem& i : flight.items) i.is_void |= i.sequence == s;
  }
}

Status Scheduler::Rep::Append(Sequence* s, TokenId token) {
  if (s->size() >= s->params.max_positions) {
    return ResourceExhausted("sequence {} has all its {} positions", static_cast<uint64_t>(s->id),
                             s->params.max_positions);
  }
  s->params.tokens.push_back(token);
  s->classes.push_back(options.prefill_matches_decode ? RowClass::kPrompt : RowClass::kGenerated);
  if (!s->drafted.empty() && s->drafted.front() == token) {
    // Its row is launched, and has landed if it was in one step with the row before it.
    s->drafted.pop_front();
    s->landed = std::min(s->arrived, s->size());
    ++counts.accepted_drafts;
    s->high_water = std::max(s->high_water, s->landed);
    s->quarantine.Landed(s->landed);
    if (s->drafted.empty()) cache.SettleMarks(s->landed, &s->kv);
  } else {
    s->proposed = {};
    DropDrafts(s);
  }
  Publish(s);
  cache.ReleaseBehind(s->settled(), s->size(), &s->kv);
  return absl::OkStatus();
}

Status Scheduler::Restart(SeqId id, std::vector<TokenId> tokens) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->sample_owed() || s->in_flight > 0) {
    return FailedPrecondition("sequence {} is owed no token", static_cast<uint64_t>(id));
  }
  if (tokens.empty() || tokens.size() > s->params.max_positions) {
    return InvalidArgument("sequence {} can't go on with {} tokens, of at most {} positions", static_cast<uint64_t>(id),
                           tokens.size(), s->params.max_positions);
  }
  rep_->Leave(s, Rep::Stage::kWaiting);
  rep_->queue.Arrive(s);
  s->params.tokens = std::move(tokens);
  s->params.boundaries.clear();
  s->params.answers = {};
  s->prompt = s->size();
  s->classes.assign(s->size(), RowClass::kPrompt);
  s->high_water = 0;
  s->quarantine.Restart(s->size());
  return absl::OkStatus();
}

void Scheduler::Repeat(SeqId id) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->sample_owed()) return;
  if (rep_->cache.has_state()) return rep_->Preempt(s);  // the row is in the state already
  s->landed = s->size() - 1;
  s->proposed = {};
  rep_->DropDrafts(s);
}

void Scheduler::Propose(SeqId id, Drafts drafts) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || s->takes_no_drafts) return;
  drafts.tokens.resize(std::min(drafts.tokens.size(), drafts.chances.size()));
  s->proposed = std::move(drafts);
}

void Scheduler::AwaitDrafts(SeqId id) {
  if (ScheduledSequence* s = rep_->queue.Find(id)) s->awaits_drafts = true;
}

void Scheduler::DraftsCame(SeqId id) {
  if (ScheduledSequence* s = rep_->queue.Find(id)) s->awaits_drafts = false;
}

std::vector<TokenId> Scheduler::Undecided(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s == nullptr ? std::vector<TokenId>() : std::vector<TokenId>(s->drafted.begin(), s->drafted.end());
}

bool Scheduler::AllLaunched(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s != nullptr && s->running() && s->launched >= s->size();
}

bool Scheduler::MayGoOn(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s != nullptr && rep_->MayGoOn(*s) && s->proposed.tokens.empty();
}

std::vector<BlockId> Scheduler::BlocksBehind(SeqId id, size_t held) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->running() || s->kv.blocks.size() <= held) return {};
  return {s->kv.blocks.begin() + static_cast<std::ptrdiff_t>(held), s->kv.blocks.end()};
}

DraftsWanted Scheduler::DraftsAhead(double chance, size_t most, Duration each, bool may_go_on) const {
  const bool several = may_go_on && rep_->pace.most_in_flight() > 1 && !rep_->cache.has_state();
  if (rep_->options.takes_all_drafts) return {.count = most, .goes_on = several};
  return rep_->pace.DraftsAhead(std::max(rep_->queue.Decoding(), 1u), chance, most, each, several);
}

bool Scheduler::MayDraft(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  // A waiting sequence may need the slots that marks would take.
  return s != nullptr && s->may_draft() && !(rep_->cache.has_state() && !rep_->queue.waiting().empty());
}

bool Scheduler::IsNextDraft(SeqId id, TokenId token) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s != nullptr && !s->drafted.empty() && s->drafted.front() == token;
}

bool Scheduler::SampleOwed(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s != nullptr && s->sample_owed();
}

void Scheduler::DropDrafts(SeqId id) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr || !s->sample_owed()) return;
  s->proposed = {};
  rep_->DropDrafts(s);
}

std::vector<SeqId> Scheduler::Quarantined() const {
  std::vector<SeqId> out;
  for (const auto& [id, s] : rep_->queue.all()) {
    if (s->quarantine.quarantined() && rep_->queue.Find(id) != nullptr) out.push_back(id);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void Scheduler::Remove(SeqId id) {
  ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr) return;
  rep_->answer += (static_cast<double>(s->size() - s->prompt) - rep_->answer) / 16;
  rep_->Leave(s, Rep::Stage::kRemoved);
}

uint32_t Scheduler::Incarnation(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s == nullptr ? 0 : s->incarnation;
}

std::optional<SeqState> Scheduler::State(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  if (s == nullptr) return std::nullopt;
  if (!s->running()) return SeqState::kWaiting;
  return s->decoding() ? SeqState::kDecode : SeqState::kPrefill;
}

uint32_t Scheduler::Positions(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s == nullptr || !s->running() ? 0 : s->landed;
}

uint32_t Scheduler::CachedPositions(SeqId id) const {
  const ScheduledSequence* s = rep_->queue.Find(id);
  return s == nullptr || !s->running() ? 0 : s->cached;
}

uint32_t Scheduler::in_flight() const { return static_cast<uint32_t>(rep_->flights.size()); }

bool Scheduler::idle() const { return rep_->queue.empty() && rep_->flights.empty(); }

SchedulerStats Scheduler::stats() const {
  const Rep& r = *rep_;
  SchedulerStats stats = r.counts;
  stats.waiting = static_cast<uint32_t>(r.queue.waiting().size());
  for (const ScheduledSequence* s : r.queue.running()) {
    ++(s->decoding() ? stats.decode : stats.prefill);
    stats.held += s->held ? 1 : 0;
  }
  stats.in_flight = static_cast<uint32_t>(r.flights.size());
  stats.max_sequences = r.options.max_sequences;
  for (int group = 0; group < kKvGroups; ++group) {
    const UnitPool& pool = r.cache.pool(group);
    stats.memory[static_cast<size_t>(group)] = {
        .units = pool.units(), .available = pool.available(), .kept = pool.kept(), .published = pool.published()};
  }
  stats.window = r.options.window;
  stats.tenants = static_cast<uint32_t>(r.queue.tenants());
  stats.aged = r.queue.aged();
  stats.step_tokens = r.PromptLimit(0);
  stats.most_in_flight = r.pace.most_in_flight();
  stats.decode_groups = r.pace.groups();
  return stats;
}

// Lists of the cached units. A restore, the members of another plan and the next coordinator process use them.

void Scheduler::ForgetAfter(uint64_t step) { rep_->cache.ForgetAfter(step); }
void Scheduler::Forget(std::span<const BlockId> units) { rep_->cache.Forget(units); }
std::vector<BlockId> Scheduler::LiveBlocks() const { return rep_->cache.LiveUnits(); }

UnitList Scheduler::RestoreList() const {
  UnitList list;
  std::unordered_set<BlockId> listed;
  const auto add = [&](const std::vector<BlockId>& units) {
    for (const BlockId unit : units) {
      if (listed.insert(unit).second) list.units.push_back(unit);
    }
  };
  for (const ScheduledSequence* s : rep_->queue.waiting()) add(rep_->cache.FindPrefix(rep_->SaltOf(*s), s->rows()));
  list.needed = static_cast<uint32_t>(list.units.size());
  add(LiveBlocks());
  return list;
}

std::vector<uint64_t> Scheduler::StepsOf(std::span<const BlockId> units) const { return rep_->cache.StepsOf(units); }
std::vector<CacheChange> Scheduler::TakeCacheChanges(size_t most) { return rep_->cache.TakeChanges(most); }
bool Scheduler::cache_changed() const { return rep_->cache.changed(); }
void Scheduler::Restore(std::vector<CachedUnit> units) { rep_->cache.Restore(std::move(units)); }
void Scheduler::SkipSteps(uint64_t step) { rep_->next_step = std::max(rep_->next_step, step + 1); }
uint64_t Scheduler::last_step() const { return rep_->next_step - 1; }

}  // namespace gyre
