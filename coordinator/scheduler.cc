#include "coordinator/scheduler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/scheduler_state.h"

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

}  // namespace

Scheduler::Rep::Rep(const SchedulerOptions& o)
    : options(Sane(o)),
      whole(options.counts()),
      blocks(options.num_blocks, options.block_size, options.prefix_cache),
      slots(options.num_slots),
      window(options.window_blocks) {}

Scheduler::Rep::Sequence* Scheduler::Rep::Find(SeqId id) const {
  const auto it = sequences.find(id);
  return it == sequences.end() || it->second->stage == Stage::kRemoved ? nullptr : it->second.get();
}

void Scheduler::Rep::ReleaseTable(std::vector<BlockId>* table) {
  while (!table->empty()) {
    blocks.Release(table->back());
    table->pop_back();
  }
}

// Publishes the full blocks whose rows all landed. A row that may be sent again (Repeat) is held back: what is shared
// is never written again. After a change of salt the rows of a sequence that runs on are of both rings.
void Scheduler::Rep::PublishLanded(Sequence* s) {
  if (!options.prefix_cache || s->ring_salts != ring_salts) return;
  const uint32_t full = (s->landed - (s->sample_owed() ? 1 : 0)) / options.block_size;
  while (s->published < full) {
    const size_t begin = size_t{s->published} * options.block_size;
    s->chain = blocks.Publish(s->salt, s->chain, s->blocks[s->published],
                              std::span(s->params.tokens).subspan(begin, options.block_size),
                              std::span(s->classes).subspan(begin, options.block_size), landed_step);
    if (has_window() && s->published >= s->window_first)
      window.Publish(s->chain, s->window[s->published - s->window_first], landed_step);
    ++s->published;
    KeepSnapshot(s);
    ++changes;
  }
}

// Nothing more of the sequence is launched in this incarnation.
void Scheduler::Rep::Leave(Sequence* s, Stage stage) {
  if (s->running()) {
    running.erase(std::lower_bound(running.begin(), running.end(), s, ByRank()));
    DropReserve(s);
    ++s->incarnation;
    if (s->in_flight > 0) ++draining;
  } else if (s->stage == Stage::kWaiting) {
    waiting.erase(s);
  }
  if (stage == Stage::kWaiting) waiting.insert(s);
  if (starved == s) starved = nullptr;
  ++changes;
  s->stage = stage;
  s->ready_at = 0;
  PublishLanded(s);
  if (s->in_flight == 0) Settle(s);
}

// Nothing of the sequence is in flight any more.
void Scheduler::Rep::Settle(Sequence* s) {
  if (s->running()) {
    // Rows that were applied to recurrent state can't be sent again: the sequence begins again.
    if (s->poisoned && has_state()) {
      ++counts.preemptions;
      return Leave(s, Stage::kWaiting);
    }
    if (s->poisoned) s->launched = s->landed;
    s->poisoned = false;
    return;
  }
  ReleaseTable(&s->blocks);
  ReleaseSlots(s);
  ReleaseWindow(s);
  ++changes;
  s->launched = s->landed = s->cached = s->published = s->shared = 0;
  s->chain = kNoChain;
  s->poisoned = false;
  if (s->stage != Stage::kRemoved) return;
  --s->tenant->sequences;
  sequences.erase(s->id);
  // The rows that a tenant took beyond its share count against the other present ones.
  if (sequences.empty()) tenants.clear();
}

void Scheduler::Rep::LandItem(Sequence* s, StepItem item, bool ok, bool alone, LandedStep* landed) {
  --s->in_flight;
  const bool left = !s->running();
  if (ok && !s->poisoned) {
    s->landed = item.first_position + item.count;
    if (s->begins_with != kNoBlock) slots.Release(std::exchange(s->begins_with, kNoBlock));
    PublishLanded(s);
    ReleaseBehind(s);
    if (!left) {
      s->proven = std::max(s->proven, s->landed);
      if (s->landed >= s->lost_end) s->losses = 0;
      if (s->landed >= s->blamed_end) {
        s->errors = s->blamed_from = s->blamed_end = 0;
        s->suspect = false;
      }
      landed->valid.push_back(std::move(item));
    }
  } else if (!ok && !s->poisoned) {
    s->poisoned = s->suspect = true;
    Blame(s, item);
    if (!left && alone && ++s->errors >= 2) {
      landed->failed.push_back(s->id);
      return Leave(s, Stage::kFailed);
    }
  }
  if (s->in_flight > 0) return;
  if (left) --draining;
  Settle(s);
}

void Scheduler::Rep::LoseItem(Sequence* s) {
  s->poisoned = true;
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
  if (rep_->sequences.count(id) > 0) return InvalidArgument("sequence {} is known", static_cast<uint64_t>(id));
  if (params.tokens.size() > params.max_positions) {
    return InvalidArgument("sequence {} has {} tokens, of at most {} positions", static_cast<uint64_t>(id),
                           params.tokens.size(), params.max_positions);
  }
  // Without chunks a prompt's rows are all in one step, so that no block of it comes back meanwhile.
  const bool whole = o.window_blocks > 0 && !o.chunked_prefill;
  const uint32_t most = whole ? std::min(o.num_blocks, o.window_blocks) : o.num_blocks;
  if (params.max_positions > uint64_t{most} * o.block_size) {
    return OutOfRange("{} positions can never fit into {} blocks of {}", params.max_positions, most, o.block_size);
  }
  auto s = std::make_unique<ScheduledSequence>();
  s->id = id;
  s->prompt = static_cast<uint32_t>(params.tokens.size()) - params.generated;
  s->classes.assign(s->prompt, RowClass::kPrompt);
  s->classes.resize(params.tokens.size(), o.prefill_matches_decode ? RowClass::kPrompt : RowClass::kGenerated);
  s->params = std::move(params);
  s->age = rep_->next_age++;
  s->added = now;
  s->tenant = rep_->TenantOf(s->params.tenant);
  ++s->tenant->sequences;
  rep_->Arrive(s.get());
  for (; rep_->options.leaks_for_test > 0; --rep_->options.leaks_for_test) rep_->blocks.Allocate();
  rep_->waiting.insert(s.get());
  rep_->sequences.emplace(id, std::move(s));
  return absl::OkStatus();
}

LandedStep Scheduler::Land(StepId step, bool ok, Deadline now, const StepTimes& times) {
  LandedStep landed;
  if (rep_->flights.empty() || rep_->flights.front().step != step) return landed;
  Rep::Flight flight = std::move(rep_->flights.front());
  rep_->flights.pop_front();
  rep_->landed_step = static_cast<uint64_t>(step);
  // The ring was free for it when the step before had landed.
  if (ok) {
    rep_->budget.Observe(flight.decode_rows, flight.prompt_rows, now - std::max(flight.launched, rep_->last_landed));
    rep_->depth.Observe(flight.decode_rows, flight.prompt_rows, now - flight.launched, times);
  }
  rep_->last_landed = now;
  const bool alone = flight.items.size() == 1;
  for (auto& [s, item] : flight.items) rep_->LandItem(s, std::move(item), ok, alone, &landed);
  return landed;
}

std::vector<SeqId> Scheduler::LoseFlights(bool ring_lost, std::span<const SeqId> asked) {
  std::map<SeqId, uint32_t> lost;  // with their rows up to the last one in flight
  for (SeqId id : asked) {
    // The row that is asked about has landed already, and will again: only the next one proves something.
    ScheduledSequence* s = rep_->Find(id);
    if (s == nullptr || !s->running()) continue;
    lost[id] = s->size() + 1;
    if (ring_lost) s->proven = std::min(s->proven, s->size() - 1);
  }
  while (!rep_->flights.empty()) {
    const Rep::Flight flight = std::move(rep_->flights.front());
    rep_->flights.pop_front();
    for (const auto& [s, item] : flight.items) {
      const uint32_t end = item.first_position + item.count;
      if (s->running() && end > s->proven) lost[s->id] = std::max(lost[s->id], end);
      rep_->LoseItem(s);
    }
  }
  std::vector<SeqId> failed;
  if (!ring_lost) return failed;
  for (const auto& [id, end] : lost) {
    ScheduledSequence* s = rep_->Find(id);
    s->lost_end = std::max(s->losses > 0 ? s->lost_end : 0, end);
    if (s->suspected() && lost.size() > 1) continue;  // it was not alone
    if (++s->losses < 3) continue;
    failed.push_back(id);
    rep_->Leave(s, Rep::Stage::kFailed);
  }
  return failed;
}

void Scheduler::Hold(SeqId id) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr) return;
  s->held = true;
  if (rep_->starved == s) rep_->starved = nullptr;
  ++rep_->changes;
}

void Scheduler::Unhold(SeqId id) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr || !s->held) return;
  rep_->Arrive(s);
  s->held = false;
  ++rep_->changes;
}

void Scheduler::SetRing(uint32_t max_in_flight, uint32_t decode_groups, bool prefill_matches_decode, uint64_t salt) {
  SchedulerOptions o = rep_->options;
  o.max_in_flight = max_in_flight;
  o.decode_groups = decode_groups;
  rep_->depth.Begin(decode_groups);
  // Generated rows will be replayed as such, so their blocks must not be published as a prompt's.
  if (rep_->options.prefill_matches_decode && !prefill_matches_decode) {
    for (auto& [id, s] : rep_->sequences)
      std::fill(s->classes.begin() + s->prompt, s->classes.end(), RowClass::kGenerated);
  }
  o.prefill_matches_decode = prefill_matches_decode;
  rep_->options = Sane(o);
  rep_->ring_salts += salt != rep_->ring_salt ? 1 : 0;
  rep_->ring_salt = salt;
}

void Scheduler::Rep::PreemptAll() {
  while (!running.empty()) {
    ++counts.preemptions;
    Leave(running.back(), Stage::kWaiting);
  }
}

void Scheduler::PutBack() { rep_->PreemptAll(); }

std::vector<SeqId> Scheduler::Shrink(uint32_t num_blocks) {
  Rep& r = *rep_;
  r.PreemptAll();
  const MemoryCounts counts = r.whole.Shrunk(num_blocks);
  r.blocks.Shrink(counts.num_blocks);
  r.slots.Forget(counts.num_slots);
  r.window.Forget(counts.window_blocks);
  r.options.num_blocks = counts.num_blocks;
  r.options.window_blocks = counts.window_blocks;
  r.unfit = nullptr;
  ++r.changes;
  const auto capacity =
      static_cast<uint32_t>(std::min<uint64_t>(uint64_t{num_blocks} * r.options.block_size, UINT32_MAX));
  std::vector<SeqId> too_large;
  for (auto& [id, s] : r.sequences) {
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
  const MemoryCounts counts = r.whole.Shrunk(num_blocks);
  r.blocks.Grow(counts.num_blocks);
  r.window.Grow(std::max(r.window.units(), counts.window_blocks));
  r.options.num_blocks = counts.num_blocks;
  r.options.window_blocks = r.window.units();
  r.RaiseReserves();
  r.unfit = nullptr;  // whoever waits for blocks may have them now
  ++r.changes;
}

Status Scheduler::Append(SeqId id, TokenId token) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr || !s->sample_owed()) {
    return FailedPrecondition("sequence {} is owed no token", static_cast<uint64_t>(id));
  }
  if (s->size() >= s->params.max_positions) {
    return ResourceExhausted("sequence {} has all its {} positions", static_cast<uint64_t>(id),
                             s->params.max_positions);
  }
  s->params.tokens.push_back(token);
  s->classes.push_back(rep_->options.prefill_matches_decode ? RowClass::kPrompt : RowClass::kGenerated);
  rep_->PublishLanded(s);
  rep_->ReleaseBehind(s);
  return absl::OkStatus();
}

Status Scheduler::Restart(SeqId id, std::vector<TokenId> tokens) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr || !s->sample_owed() || s->in_flight > 0) {
    return FailedPrecondition("sequence {} is owed no token", static_cast<uint64_t>(id));
  }
  if (tokens.empty() || tokens.size() > s->params.max_positions) {
    return InvalidArgument("sequence {} can't go on with {} tokens, of at most {} positions", static_cast<uint64_t>(id),
                           tokens.size(), s->params.max_positions);
  }
  rep_->Leave(s, Rep::Stage::kWaiting);
  rep_->Arrive(s);
  s->params.tokens = std::move(tokens);
  s->params.needs_all_rows = false;
  s->prompt = s->size();
  s->classes.assign(s->size(), RowClass::kPrompt);
  s->high_water = 0;
  s->proven = 0;  // its rows have new positions
  s->lost_end = s->size() + 1;
  s->blamed_from = s->blamed_end = 0;
  return absl::OkStatus();
}

void Scheduler::Repeat(SeqId id) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr || !s->sample_owed()) return;
  if (rep_->has_state()) {  // the row is in the state already
    ++rep_->counts.preemptions;
    return rep_->Leave(s, Rep::Stage::kWaiting);
  }
  s->launched = s->landed = s->size() - 1;
}

std::vector<SeqId> Scheduler::Suspects() const {
  std::vector<SeqId> out;
  for (const auto& [id, s] : rep_->sequences) {
    if (s->suspected() && rep_->Find(id) != nullptr) out.push_back(id);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void Scheduler::Remove(SeqId id) {
  ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr) return;
  rep_->answer += (static_cast<double>(s->size() - s->prompt) - rep_->answer) / 16;
  rep_->Leave(s, Rep::Stage::kRemoved);
}

uint32_t Scheduler::Incarnation(SeqId id) const {
  const ScheduledSequence* s = rep_->Find(id);
  return s == nullptr ? 0 : s->incarnation;
}

std::optional<SeqState> Scheduler::State(SeqId id) const {
  const ScheduledSequence* s = rep_->Find(id);
  if (s == nullptr) return std::nullopt;
  if (!s->running()) return SeqState::kWaiting;
  return s->decoding() ? SeqState::kDecode : SeqState::kPrefill;
}

uint32_t Scheduler::Positions(SeqId id) const {
  const ScheduledSequence* s = rep_->Find(id);
  return s == nullptr || !s->running() ? 0 : s->landed;
}

uint32_t Scheduler::CachedPositions(SeqId id) const {
  const ScheduledSequence* s = rep_->Find(id);
  return s == nullptr || !s->running() ? 0 : s->cached;
}

uint32_t Scheduler::in_flight() const { return static_cast<uint32_t>(rep_->flights.size()); }

bool Scheduler::idle() const { return rep_->sequences.empty() && rep_->flights.empty(); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = rep_->counts;
  stats.waiting = static_cast<uint32_t>(rep_->waiting.size());
  for (const ScheduledSequence* s : rep_->running) {
    ++(s->decoding() ? stats.decode : stats.prefill);
    stats.held += s->held ? 1 : 0;
  }
  stats.in_flight = static_cast<uint32_t>(rep_->flights.size());
  stats.blocks_available = rep_->blocks.available();
  stats.blocks_cached = rep_->blocks.cached();
  stats.max_sequences = rep_->options.max_sequences;
  stats.num_blocks = rep_->blocks.num_blocks();
  stats.slots_available = rep_->slots.available();
  stats.snapshots = rep_->slots.published();
  stats.num_slots = rep_->slots.units();
  stats.window_blocks_available = rep_->window.available();
  stats.window_blocks_cached = rep_->window.kept();
  stats.window_blocks = rep_->window.units();
  stats.tenants = static_cast<uint32_t>(rep_->tenants.size());
  stats.step_tokens = rep_->PromptLimit(0);
  stats.most_in_flight = rep_->MostInFlight();
  stats.decode_groups = rep_->Groups();
  return stats;
}

}  // namespace gyre
