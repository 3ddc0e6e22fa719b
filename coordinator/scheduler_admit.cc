// Sequences that wait: who comes in next, when it fits, and whose prompt goes first.
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {
namespace {

// The oldest sequence without its whole prompt goes before all others when so many younger ones were admitted.
constexpr uint32_t kOvertakes = 16;

// Tokens of a common beginning that another sequence still computes, from which on it is waited for.
constexpr uint32_t kWorthWaiting = 64;

// Tenants without sequences are remembered up to this number.
constexpr size_t kTenants = 1024;

// Two salts of the prefix cache as one (SplitMix64's finalizer).
uint64_t MixSalts(uint64_t a, uint64_t b) {
  uint64_t x = a + b * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t Scheduler::Rep::SaltOf(const Sequence& s) const {
  return MixSalts(MixSalts(s.params.salt, s.params.tenant_salt), ring_salt);
}

Tenant* Scheduler::Rep::TenantOf(uint64_t id) {
  if (tenants.size() >= kTenants) {
    for (auto it = tenants.begin(); it != tenants.end();) it = it->second.sequences == 0 ? tenants.erase(it) : ++it;
  }
  return &tenants[id];
}

// The sequence's tenant wants rows: from now on it is served like the others, whatever it missed before. What it took
// beyond its share stays known.
void Scheduler::Rep::Arrive(Sequence* s) {
  uint64_t least = UINT64_MAX, most = 0;
  const auto see = [&](const Sequence* other) {
    if (other == s || other->held) return;
    least = std::min(least, other->tenant->rows);
  };
  for (const Sequence* other : waiting) see(other);
  for (const Sequence* other : running) {
    most = std::max(most, other->tenant->rows);
    if (!other->decoding()) see(other);
  }
  s->tenant->rows = std::max(s->tenant->rows, least == UINT64_MAX ? most : least);
}

// Counts an admission against the oldest sequence that is older and still without its whole prompt.
void Scheduler::Rep::Age(const Sequence& admitted) {
  Sequence* oldest = nullptr;
  const auto see = [&oldest](Sequence* s) {
    if (!s->held && (oldest == nullptr || s->age < oldest->age)) oldest = s;
  };
  for (Sequence* s : waiting) see(s);
  for (Sequence* s : running) {
    if (!s->decoding()) see(s);
  }
  if (oldest == nullptr || oldest->age >= admitted.age || oldest->aged || ++oldest->overtaken < kOvertakes) return;
  const bool waits = waiting.erase(oldest) > 0;
  if (!waits) running.erase(std::lower_bound(running.begin(), running.end(), oldest, ByRank()));
  oldest->aged = true;
  ++counts.aged;
  if (waits) {
    waiting.insert(oldest);
  } else {
    running.insert(std::upper_bound(running.begin(), running.end(), oldest, ByRank()), oldest);
  }
}

// Whether the prompt of `a` gets rows before that of `b`. Among equal ranks those come first that were preempted, then
// the tenant that got fewer rows.
bool Scheduler::Rep::GoesFirst(const Sequence& a, const Sequence& b) const {
  if (a.aged != b.aged) return a.aged;
  if (!a.aged) {
    if (a.params.priority != b.params.priority) return a.params.priority > b.params.priority;
    const bool a_again = a.incarnation > 1, b_again = b.incarnation > 1;
    if (a_again != b_again) return a_again;
    if (!a_again && a.tenant->rows != b.tenant->rows) return a.tenant->rows < b.tenant->rows;
    if (!a_again && a.running() != b.running()) return a.running();
  }
  return a.age < b.age;
}

// The running sequence whose prompt gets rows next; null: none wants any.
Scheduler::Rep::Sequence* Scheduler::Rep::NextPrompt() const {
  Sequence* best = nullptr;
  for (Sequence* s : running) {
    if (!s->wants_prompt_rows() || s->planned_in == next_step || s->tried_in == tries) continue;
    if (best == nullptr || GoesFirst(*s, *best)) best = s;
  }
  return best;
}

// Whether a running sequence is about to compute what this one begins with: to wait for it costs less than to compute
// it twice.
bool Scheduler::Rep::Follows(const Sequence& s) const {
  if (!options.prefix_cache || !options.continuous_batching || s.params.needs_all_rows || s.aged) return false;
  for (Sequence* r : running) {
    if (r->held || r->needs_step() || r->launched >= r->prompt || r->ring_salts != ring_salts) continue;
    if (r->params.salt != s.params.salt || r->params.tenant_salt != s.params.tenant_salt) continue;
    if (r->params.priority < s.params.priority) continue;
    const uint32_t done = r->published * options.block_size, most = std::min(r->prompt, s.prompt - 1);
    if (most < done + kWorthWaiting) continue;
    // With recurrent state only a snapshot can be shared, not any position.
    if (has_state()) {
      const uint32_t next = NextSnapshot(*r);
      if (next > most || next < done + kWorthWaiting) continue;
      if (!std::equal(r->params.tokens.begin(), r->params.tokens.begin() + next, s.params.tokens.begin())) continue;
      return true;
    }
    const auto begin = r->params.tokens.begin();
    if (!std::equal(begin, begin + done + kWorthWaiting, s.params.tokens.begin())) continue;
    if (has_window()) {  // what it reads before the place where they part is kept for this one
      const auto parts = std::mismatch(begin, begin + most, s.params.tokens.begin()).first - begin;
      r->shared = static_cast<uint32_t>(parts) / options.block_size * options.block_size;
    }
    return true;
  }
  return false;
}

// The sequence to admit next; null: none waits.
Scheduler::Rep::Sequence* Scheduler::Rep::NextWaiting() const {
  Sequence* best = nullptr;
  for (Sequence* s : waiting) {
    if (s->held || Follows(*s)) continue;
    if (best != nullptr && (s->aged != best->aged || s->params.priority != best->params.priority)) break;
    if (best == nullptr || GoesFirst(*s, *best)) best = s;
    if (best->aged) break;
  }
  return best;
}

// The blocks that the sequence gets at admission, whatever its tokens are.
uint32_t Scheduler::Rep::Reserved(const Sequence& s) const {
  const uint32_t positions = std::max(options.reserve_positions, s.params.max_positions);
  return options.reserve_positions == 0 ? 0 : std::min(BlocksFor(positions), options.num_blocks);
}

// Blocks beyond its tokens that the sequence is going to need, as far as one can tell: those that run have half of
// their answers before them in the mean.
Scheduler::Rep::Need Scheduler::Rep::Growth(const Sequence& s) const {
  const uint64_t expected = uint64_t{s.size()} + static_cast<uint64_t>(answer / 2);
  const uint64_t end = std::min<uint64_t>(expected, s.params.max_positions);
  Need need{.pages = BlocksFor(end) - BlocksFor(s.size())};
  if (has_window()) need.window = WindowNeed(end) - WindowNeed(s.size());
  return need;
}

// Blocks that must stay free when `s` comes in, so that those that run need not throw it out again.
Scheduler::Rep::Need Scheduler::Rep::Margin(const Sequence& s) const {
  if (options.reserve_positions > 0) return {};
  Need margin = Growth(s);
  bool runs = false;
  for (const Sequence* r : running) {
    if (r->held) continue;
    const Need growth = Growth(*r);
    margin.pages += growth.pages;
    margin.window += growth.window;
    runs = true;
  }
  if (!runs) return {};
  // More would leave a small cache half empty.
  return {std::min(margin.pages, options.num_blocks / 3), std::min(margin.window, options.window_blocks / 3)};
}

bool Scheduler::Rep::TryAdmit(Sequence* s) {
  BlockManager::Prefix prefix;
  const uint64_t salt = SaltOf(*s);
  if (!s->params.needs_all_rows) {
    // At least the last row is computed, so that a shared block gets no new rows and there is something to sample.
    prefix = blocks.TakePrefix(salt, s->params.tokens, s->classes, s->size() - 1);
  }
  // Where texts part, what the groups but that of pages keep is worth most: the next text that begins so finds it.
  s->branch = static_cast<uint32_t>(prefix.blocks.size()) * options.block_size;
  for (size_t common = CommonPrefix(prefix.blocks); prefix.blocks.size() > common; prefix.blocks.pop_back())
    blocks.Release(prefix.blocks.back());
  prefix.chain = prefix.blocks.empty() ? kNoChain : blocks.chain(prefix.blocks.back());
  bool fits = !has_state() || TakeSlot(s, prefix);
  if (has_window()) TakeWindow(s, prefix.blocks);
  const uint32_t taken = static_cast<uint32_t>(prefix.blocks.size());
  // All that its tokens need: else it might be thrown out in the middle of its prompt, its rows lost.
  const uint32_t needed = std::max(BlocksFor(s->size()), Reserved(*s)) - taken;
  const uint32_t reserve = has_window() ? std::min(needed, WindowQuota() - static_cast<uint32_t>(s->window.size())) : 0;
  const Need margin = Margin(*s);
  fits = fits && uint64_t{needed} + margin.pages <= blocks.available() &&
         uint64_t{window_reserved} + reserve + margin.window <= window.available();
  if (!fits) {
    ReleaseTable(&prefix.blocks);
    ReleaseSlots(s);
    ReleaseWindow(s, true);
    return false;
  }
  s->window_reserved = reserve;
  window_reserved += reserve;
  waiting.erase(s);
  running.insert(std::upper_bound(running.begin(), running.end(), s, ByRank()), s);
  s->stage = Stage::kRunning;
  s->salt = salt;
  s->ring_salts = ring_salts;
  s->blocks = std::move(prefix.blocks);
  s->chain = prefix.chain;
  s->published = taken;
  s->cached = s->launched = s->landed = taken * options.block_size;
  for (uint32_t i = 0; i < needed; ++i) s->blocks.push_back(*blocks.Allocate());
  counts.cached_positions += s->cached;
  if (options.prefix_cache && !s->params.needs_all_rows) {
    ++counts.cache_lookups;
    counts.cache_lookup_tokens += s->size();
    counts.cache_hits += taken > 0 ? 1 : 0;
  }
  if (s->incarnation > 1) {
    ++counts.readmitted;
  } else {
    ++counts.admitted;
    counts.queue_wait.Add(now - s->added);
  }
  Age(*s);
  return true;
}

// False: nobody comes in now.
bool Scheduler::Rep::Admit(Sequence* s, Draft* draft) {
  if (starved != nullptr || s->in_flight > 0 || (unfit == s && unfit_at == changes)) return false;
  if (running.size() >= options.max_sequences && !PreemptHeld()) return false;
  while (!TryAdmit(s)) {
    if (PreemptHeld()) continue;
    unfit = s;
    unfit_at = changes;
    return false;
  }
  if (!s->needs_step()) {
    // All but its last row came from the prefix cache: it is no prompt any more, and the decode rows are dealt already.
    if (s->decoding() && PromptRoom(*draft) > 0) LaunchPrefill(s, draft);
    return true;
  }
  // Beside others it gets no row: the next step is its own.
  if (draft->rows() > 0 || (s->needs_ring() && !flights.empty())) return true;
  LaunchPrefill(s, draft);
  draft->alone = true;
  return false;
}

// Without continuous batching those that get no row in this step come along in the next ones.
void Scheduler::Rep::AdmitRest(Draft* draft) {
  while (draft->admits && !draft->alone) {
    Sequence* s = NextWaiting();
    draft->admits = s != nullptr && Admit(s, draft);
  }
}

}  // namespace gyre
