// Sequences that wait: who comes in next, and when it fits.
#include <algorithm>

#include "coordinator/engine/scheduler_state.h"

namespace gyre {
namespace {

// Tokens of a common beginning that another sequence still computes, from which on it is waited for.
constexpr uint32_t kWorthWaiting = 64;

}  // namespace

// Whether a running sequence is about to compute what this one begins with: to wait for it costs less than to compute
// it twice.
bool Scheduler::Rep::Follows(const Sequence& s) const {
  if (!options.prefix_cache || !options.continuous_batching || s.params.answers.first == 0 || s.aged) return false;
  for (Sequence* r : queue.running()) {
    if (r->held || r->needs_step() || r->landed >= r->prompt || r->kv.ring != cache.rings()) continue;
    if (r->params.salt != s.params.salt || r->params.tenant_salt != s.params.tenant_salt) continue;
    if (r->params.priority < s.params.priority) continue;
    const uint32_t done = r->kv.published * options.block_size;
    const uint32_t most = std::min({r->prompt, s.prompt - 1, s.params.answers.first});
    if (most < done + kWorthWaiting) continue;
    // With recurrent state only a snapshot can be shared, not any position.
    if (cache.has_state()) {
      const uint32_t next = cache.NextSnapshot(r->kv, r->landed);
      if (next > most || next < done + kWorthWaiting) continue;
      if (!std::equal(r->params.tokens.begin(), r->params.tokens.begin() + next, s.params.tokens.begin())) continue;
      return true;
    }
    const auto begin = r->params.tokens.begin();
    if (!std::equal(begin, begin + done + kWorthWaiting, s.params.tokens.begin())) continue;
    if (cache.has_window()) {  // what it reads before the place where they part is kept for this one
      const auto parts = std::mismatch(begin, begin + most, s.params.tokens.begin()).first - begin;
      r->kv.shared = static_cast<uint32_t>(parts) / options.block_size * options.block_size;
    }
    return true;
  }
  return false;
}

// The sequence to admit next; null: none waits.
Scheduler::Rep::Sequence* Scheduler::Rep::NextWaiting() const {
  return queue.NextWaiting([this](const Sequence& s) { return !Follows(s); });
}

// Units beyond its tokens that the sequence is going to need, as far as one can tell: those that run have half of their
// answers before them in the mean.
KvUnits Scheduler::Rep::Growth(const Sequence& s) const {
  const uint64_t expected = uint64_t{s.size()} + static_cast<uint64_t>(answer / 2);
  return cache.Growth(s.size(), static_cast<uint32_t>(std::min<uint64_t>(expected, s.params.max_positions)));
}

// Units that must stay free when `s` comes in, so that those that run need not throw it out again.
KvUnits Scheduler::Rep::Margin(const Sequence& s) const {
  if (options.reserve_positions > 0) return {};
  KvUnits margin = Growth(s);
  bool runs = false;
  for (const Sequence* r : queue.running()) {
    if (r->held) continue;
    const KvUnits growth = Growth(*r);
    for (int group = 0; group < kKvGroups; ++group) margin[group] += growth[group];
    runs = true;
  }
  if (!runs) return {};
  // More would leave a small cache half empty.
  for (int group = 0; group < kKvGroups; ++group)
    margin[group] = std::min(margin[group], cache.pool(group).units() / 3);
  return margin;
}

bool Scheduler::Rep::TryAdmit(Sequence* s) {
  const bool reserves = options.reserve_positions > 0;
  const bool fits =
      cache.Admit({.rows = s->rows(),
                   .prompt = s->prompt,
                   .boundaries = s->params.boundaries,
                   .salt = SaltOf(*s),
                   .most_found = s->params.answers.first,
                   .positions = reserves ? std::max(options.reserve_positions, s->params.max_positions) : 0,
                   .margin = Margin(*s)},
                  &s->kv);
  if (!fits) return false;
  s->cached = s->launched = s->arrived = s->landed = s->kv.published * options.block_size;
  counts.cached_positions += s->cached;
  if (options.prefix_cache && s->params.answers.first > 0) {
    ++counts.cache_lookups;
    counts.cache_lookup_tokens += s->size();
    counts.cache_hits += s->cached > 0 ? 1 : 0;
  }
  if (s->incarnation > 1) {
    ++counts.readmitted;
  } else {
    ++counts.admitted;
    counts.queue_wait.Add(now - s->added);
  }
  queue.Run(s);
  return true;
}

// False: nobody comes in now.
bool Scheduler::Rep::Admit(Sequence* s, Draft* draft) {
  if (starved != nullptr || s->in_flight > 0 || (unfit == s && unfit_at == Changes())) return false;
  if (queue.running().size() >= options.max_sequences && !PreemptHeld()) return false;
  while (!TryAdmit(s)) {
    if (TakeBackDrafts() || PreemptHeld()) continue;
    unfit = s;
    unfit_at = Changes();
    return false;
  }
  if (!s->needs_step()) {
    // All but its last row came from the prefix cache: it is no prompt any more, and the decode rows are dealt already.
    // A row before its mask is known would be drawn from any ids.
    if (s->decoding() && s->launchable() && PromptRoom(*draft) > 0) LaunchPrefill(s, draft);
    return true;
  }
  // Beside others it gets no row: the next step is its own.
  if (!s->launchable() || draft->rows() > 0 || (s->needs_ring() && !flights.empty())) return true;
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
