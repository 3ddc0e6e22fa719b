// How a step is made: decode rows, chunks of prompts, then sequences that wait.
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {
namespace {

// Two salts of the prefix cache as one (SplitMix64's finalizer).
uint64_t MixSalts(uint64_t a, uint64_t b) {
  uint64_t x = a + b * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

// The held sequence to preempt first: the worst-ranked, rather one with nothing in flight. Null: there is none.
Scheduler::Rep::Sequence* Scheduler::Rep::HeldVictim() const {
  Sequence* victim = nullptr;
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    if (!(*it)->held) continue;
    if (victim == nullptr) victim = *it;
    if ((*it)->in_flight == 0) return *it;
  }
  return victim;
}

// False: no sequence is held, or blocks are on their way back already.
bool Scheduler::Rep::PreemptHeld() {
  Sequence* victim = draining > 0 ? nullptr : HeldVictim();
  if (victim == nullptr) return false;
  ++counts.preemptions;
  Leave(victim, Stage::kWaiting);
  return true;
}

// A held sequence leaves, else the worst-ranked one below `needy`, rather one with nothing in flight, as its blocks
// come back at once. False: there is none, or blocks are on their way back already, so that nothing more needs to be
// thrown away.
bool Scheduler::Rep::PreemptBelow(const Sequence* needy) {
  if (draining > 0) return false;
  if (PreemptHeld()) return true;
  Sequence* victim = nullptr;
  for (size_t i = running.size(); i > 0 && running[i - 1] != needy; --i) {
    Sequence* s = running[i - 1];
    if (s->planned_in == next_step) continue;
    if (victim == nullptr || s->in_flight == 0) victim = s;
    if (victim->in_flight == 0) break;
  }
  if (victim == nullptr) return false;
  ++counts.preemptions;
  Leave(victim, Stage::kWaiting);
  return true;
}

// Grows the table to hold `want` positions if there are blocks, preempting only for `must` of them. Returns the
// positions up to `want` that it holds.
uint32_t Scheduler::Rep::Grow(Sequence* s, uint32_t must, uint32_t want) {
  const bool barred = starved != nullptr && ByRank()(starved, s);
  while (s->blocks.size() < BlocksFor(want)) {
    std::optional<BlockId> block;
    if (!barred) block = blocks.Allocate();
    if (block) {
      s->blocks.push_back(*block);
      continue;
    }
    if (s->blocks.size() >= BlocksFor(must) || barred) break;
    if (PreemptBelow(s)) continue;
    if (starved == nullptr || ByRank()(s, starved)) starved = s;
    break;
  }
  const auto held = static_cast<uint32_t>(std::min<uint64_t>(s->blocks.size() * uint64_t{options.block_size}, want));
  if (held >= must && starved == s) starved = nullptr;
  return held;
}

void Scheduler::Rep::Launch(Sequence* s, uint32_t count, Draft* draft) {
  const uint32_t end = s->launched + count;
  StepItem item{.seq = s->id,
                .incarnation = s->incarnation,
                .row_class = ClassAt(*s, s->launched),
                .first_position = s->launched,
                .count = count,
                .sample_last = end == s->size(),
                .blocks = {s->blocks.begin(), s->blocks.begin() + BlocksFor(end)}};
  counts.computed_rows += count;
  counts.replayed_rows += std::min(s->high_water, end) - std::min(s->high_water, s->launched);
  s->high_water = std::max(s->high_water, end);
  s->launched = end;
  s->planned_in = next_step;
  ++s->in_flight;
  draft->rows += count;
  draft->flight.items.emplace_back(s, item);
  draft->plan.items.push_back(std::move(item));
}

// A step for the best-ranked sequence that must run alone. False: no other step may be launched now.
bool Scheduler::Rep::PlanAlone(Draft* draft) {
  if (!flights.empty() && flights.back().items.front().first->needs_ring()) return false;
  Sequence* next = nullptr;
  for (Sequence* s : running) {
    if (!s->launchable() || !s->needs_step() || s->in_flight > 0) continue;
    if (s->needs_ring()) {
      if (!flights.empty()) return false;
      next = s;
      break;
    }
    if (next == nullptr) next = s;
  }
  if (next == nullptr) return true;
  if (next->decoding()) {
    if (Grow(next, next->size(), next->size()) == next->size()) Launch(next, 1, draft);
  } else {
    LaunchPrefill(next, draft);
  }
  return true;
}

void Scheduler::Rep::PlanDecodes(Draft* draft) {
  // A further step beside those of all groups would take the few rows that came back last, and stay small for ever:
  // each step costs a pass over the weights. Waiting for the next group to land evens the groups out.
  const auto groups = std::count_if(flights.begin(), flights.end(), [](const Flight& f) { return f.decodes; });
  if (groups >= static_cast<std::ptrdiff_t>(options.decode_groups)) return;
  uint32_t decoding = 0;
  for (const Sequence* s : running) decoding += s->decoding() ? 1 : 0;
  uint32_t left = (decoding + options.decode_groups - 1) / options.decode_groups;
  // The best-ranked sequence always gets on: decode rows leave room for a row of its prompt.
  const Sequence* best = running.empty() ? nullptr : running.front();
  const bool best_has_prompt = best != nullptr && !best->decoding() && best->launchable() && !best->needs_step();
  left = std::min(left, options.max_rows - (best_has_prompt ? 1 : 0));
  for (size_t i = 0; i < running.size() && left > 0; ++i) {
    Sequence* s = running[i];
    if (!s->decoding() || !s->launchable() || s->needs_step()) continue;
    const bool fits = Grow(s, s->size(), s->size()) == s->size();
    while (running[i] != s) --i;  // held ones before it were preempted
    if (!fits) continue;
    Launch(s, 1, draft);
    draft->flight.decodes = true;
    --left;
  }
}

// A lone prompt fills the stages only in pieces: with eight for each stage, filling and emptying costs them a
// sixteenth.
uint32_t Scheduler::Rep::Chunk(const Sequence& s) const {
  if (options.decode_groups == 1) return options.chunk;
  constexpr uint32_t kLeast = 64;  // fewer rows would not pay for the pass over the weights
  const uint32_t piece = (s.prompt / (8 * options.decode_groups) + 15) / 16 * 16;
  return std::clamp(piece, std::min(kLeast, options.chunk), options.chunk);
}

// The rows that the sequence's next item takes, blocks permitting: of one class, and of a chunk.
uint32_t Scheduler::Rep::PrefillCount(const Sequence& s, uint32_t rows_left) const {
  const uint32_t end = s.launched < s.prompt ? s.prompt : s.size();
  const uint32_t count = end - s.launched;
  return options.chunked_prefill ? std::min({count, Chunk(s), rows_left}) : count;
}

void Scheduler::Rep::LaunchPrefill(Sequence* s, Draft* draft) {
  const uint32_t count = PrefillCount(*s, options.max_rows - draft->rows);
  const uint32_t must = s->launched + (options.chunked_prefill ? 1 : count);
  const uint32_t held = Grow(s, must, s->launched + count);
  if (held >= must) Launch(s, held - s->launched, draft);
}

void Scheduler::Rep::PlanPrefills(Draft* draft) {
  for (size_t i = 0; i < running.size() && draft->rows < options.max_rows; ++i) {
    Sequence* s = running[i];
    if (s->decoding() || !s->launchable() || s->needs_step()) continue;
    LaunchPrefill(s, draft);
    while (running[i] != s) --i;  // held ones before it were preempted
  }
}

bool Scheduler::Rep::TryAdmit(Sequence* s) {
  BlockManager::Prefix prefix;
  const uint64_t salt = MixSalts(MixSalts(s->params.salt, s->params.tenant_salt), ring_salt);
  if (!s->params.needs_all_rows) {
    // At least the last row is computed, so that a shared block gets no new rows and there is something to sample.
    prefix = blocks.TakePrefix(salt, s->params.tokens, s->classes, s->size() - 1);
  }
  const uint32_t cached = static_cast<uint32_t>(prefix.blocks.size()) * options.block_size;
  // A preempted sequence comes back when all its tokens fit: else it would be thrown out again, its rows lost.
  const bool whole = s->incarnation > 1 || !options.chunked_prefill;
  const uint32_t end = whole ? s->size() : std::min(s->size(), cached + std::min(Chunk(*s), options.max_rows));
  const uint32_t needed = BlocksFor(end) - static_cast<uint32_t>(prefix.blocks.size());
  // A block for each running sequence stays free, so that the next decode rows don't preempt what was just admitted.
  const uint32_t watermark = std::min(static_cast<uint32_t>(running.size()), options.num_blocks / 4);
  if (needed + watermark > blocks.available()) {
    ReleaseTable(&prefix.blocks);
    return false;
  }
  waiting.erase(s);
  running.insert(std::upper_bound(running.begin(), running.end(), s, ByRank()), s);
  s->stage = Stage::kRunning;
  s->salt = salt;
  s->ring_salts = ring_salts;
  s->blocks = std::move(prefix.blocks);
  s->chain = prefix.chain;
  s->published = static_cast<uint32_t>(s->blocks.size());
  s->cached = s->launched = s->landed = cached;
  counts.cached_positions += cached;
  Grow(s, end, end);
  return true;
}

void Scheduler::Rep::Admit(Draft* draft) {
  const bool none_runs = std::all_of(running.begin(), running.end(), [](const Sequence* s) { return s->held; });
  if (starved != nullptr || (!options.continuous_batching && !none_runs)) return;
  for (;;) {
    // Without continuous batching those that get no row in this step come along in the next ones.
    if (options.continuous_batching && draft->rows >= options.max_rows) return;
    const auto first = std::find_if(waiting.begin(), waiting.end(), [](const Sequence* s) { return !s->held; });
    if (first == waiting.end()) return;
    Sequence* s = *first;
    if (s->in_flight > 0 || (unfit == s && unfit_at == changes)) return;
    if (running.size() >= options.max_sequences && !PreemptHeld()) return;
    while (!TryAdmit(s)) {
      if (PreemptHeld()) continue;
      unfit = s;
      unfit_at = changes;
      return;
    }
    if (s->needs_step()) {
      // Beside others it gets no row: the next step is its own.
      if (!draft->plan.items.empty() || (s->needs_ring() && !flights.empty())) continue;
      return LaunchPrefill(s, draft);
    }
    if (draft->rows < options.max_rows) LaunchPrefill(s, draft);
  }
}

std::optional<StepPlan> Scheduler::Next() {
  Rep& r = *rep_;
  if (r.flights.size() >= r.options.max_in_flight) return std::nullopt;
  Rep::Draft draft;
  if (r.starved != nullptr && r.blocks.available() == 0) r.PreemptBelow(r.starved);
  if (!r.PlanAlone(&draft)) return std::nullopt;
  if (draft.plan.items.empty()) {
    r.PlanDecodes(&draft);
    r.PlanPrefills(&draft);
    r.Admit(&draft);
  }
  if (draft.plan.items.empty()) return std::nullopt;
  draft.plan.step = draft.flight.step = StepId{r.next_step++};
  r.flights.push_back(std::move(draft.flight));
  ++r.counts.steps;
  return std::move(draft.plan);
}

}  // namespace gyre
