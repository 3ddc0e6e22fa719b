#include "coordinator/scheduler.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <set>
#include <unordered_map>

#include "coordinator/block_manager.h"

namespace gyre {
namespace {

struct Seq {
  SeqId id{};
  SequenceParams params;
  size_t prompt = 0;
  uint64_t age = 0;           // order of arrival, kept over preemptions
  uint32_t incarnation = 0;
  bool running = false;       // admitted: has a table
  bool removed = false;       // kept until its last step in flight has landed
  bool poisoned = false;      // a step failed: what is in flight is worthless
  bool in_plan = false;       // stands in the step that is being made
  uint32_t errors = 0;        // since the last landed row
  uint32_t launched = 0, landed = 0;  // positions [0, ...)
  uint32_t in_flight = 0;     // steps, of all incarnations
  uint32_t cached = 0;
  uint32_t high_water = 0;    // rows landed in any incarnation
  std::vector<BlockId> blocks;
  std::vector<BlockId> draining;  // of preempted incarnations, until their steps have landed
  uint32_t published = 0;     // blocks
  ChainId chain = kNoChain;   // of the last published block

  uint32_t size() const { return static_cast<uint32_t>(params.tokens.size()); }
  bool decoding() const { return size() > prompt && launched + 1 >= size(); }
  RowClass ClassAt(uint32_t position) const { return position < prompt ? RowClass::kPrompt : RowClass::kGenerated; }
};

struct BetterRank {
  bool operator()(const Seq* a, const Seq* b) const {
    return a->params.priority != b->params.priority ? a->params.priority > b->params.priority : a->age < b->age;
  }
};

struct Flight {
  StepId step{};
  std::vector<std::pair<Seq*, StepItem>> items;
};

}  // namespace

struct Scheduler::Rep {
  explicit Rep(const SchedulerOptions& o)
      : options(o), blocks(o.num_blocks, o.block_size, o.prefix_cache) {}

  const SchedulerOptions options;
  BlockManager blocks;
  std::unordered_map<SeqId, std::unique_ptr<Seq>> seqs;
  std::set<Seq*, BetterRank> running, waiting;
  std::deque<Flight> flights;
  std::vector<Seq*> order;  // scratch of Next
  bool preempted = false;    // in this Next: nothing is admitted into the room that was just made
  uint64_t next_age = 0;
  uint64_t next_step = 1;
  SchedulerStats counts;

  Seq* Find(SeqId id) {
    const auto it = seqs.find(id);
    return it == seqs.end() || it->second->removed ? nullptr : it->second.get();
  }
  std::vector<RowClass> Classes(const Seq& s, uint32_t begin, uint32_t end) const {
    std::vector<RowClass> classes(end - begin, RowClass::kPrompt);
    if (options.one_class) return classes;
    for (uint32_t p = begin; p < end; ++p) classes[p - begin] = s.ClassAt(p);
    return classes;
  }

  // Blocks go back tail first, so that a chain's head is the last to be evicted.
  void ReleaseAll(std::vector<BlockId>* table) {
    for (size_t i = table->size(); i > 0; --i) blocks.Release((*table)[i - 1]);
    table->clear();
  }
  void DropBlocks(Seq* s) {
    if (s->in_flight == 0) {
      ReleaseAll(&s->blocks);
    } else {
      s->draining.insert(s->draining.end(), s->blocks.begin(), s->blocks.end());
      s->blocks.clear();
    }
  }

  void Preempt(Seq* s) {
    ++counts.preemptions;
    preempted = true;
    DropBlocks(s);
    running.erase(s);
    waiting.insert(s);
    s->running = false;
    s->poisoned = false;
    ++s->incarnation;
    s->launched = s->landed = s->published = s->cached = 0;
    s->chain = kNoChain;
  }

  // Preempts the worst-ranked running sequence below `needy`, one with nothing in flight if there is such. False: none.
  bool PreemptBelow(const Seq* needy) {
    Seq* victim = nullptr;
    for (auto it = running.rbegin(); it != running.rend() && *it != needy; ++it) {
      if ((*it)->in_plan) continue;
      if ((*it)->in_flight == 0) {
        victim = *it;
        break;
      }
      if (victim == nullptr) victim = *it;
    }
    if (victim == nullptr) return false;
    Preempt(victim);
    return true;
  }

  // Grows the table to hold `end` positions, preempting worse ones; returns the positions that it holds now.
  uint32_t Grow(Seq* s, uint32_t end) {
    while (s->blocks.size() * options.block_size < end) {
      std::optional<BlockId> block = blocks.Allocate();
      if (!block && !PreemptBelow(s)) break;
      if (!block) block = blocks.Allocate();  // none yet where the victim's steps are still in flight
      if (!block) break;
      s->blocks.push_back(*block);
    }
    return static_cast<uint32_t>(std::min<size_t>(s->blocks.size() * options.block_size, end));
  }

  void Launch(Seq* s, uint32_t count, StepPlan* plan) {
    StepItem item{.seq = s->id,
                  .incarnation = s->incarnation,
                  .row_class = s->ClassAt(s->launched),
                  .first_position = s->launched,
                  .count = count,
                  .sample_last = s->launched + count == s->size(),
                  .blocks = {}};
    const uint32_t end = s->launched + count;
    const size_t needed = (end + options.block_size - 1) / options.block_size;
    item.blocks.assign(s->blocks.begin(), s->blocks.begin() + static_cast<std::ptrdiff_t>(needed));
    counts.computed_rows += count;
    if (s->high_water > s->launched) counts.replayed_rows += std::min(s->high_water, end) - s->launched;
    s->launched = end;
    s->in_plan = true;
    plan->items.push_back(std::move(item));
  }

  void PlanDecodes(StepPlan* plan, uint32_t* rows);
  void Admit(uint32_t rows);
  bool TryAdmit(Seq* s, uint32_t* reserved);
  void PlanPrefills(StepPlan* plan, uint32_t* rows);
  void PublishLanded(Seq* s);
  void FreeIfGone(Seq* s);
  Status CheckSequence(const Seq& s) const;
};

void Scheduler::Rep::PlanDecodes(StepPlan* plan, uint32_t* rows) {
  uint32_t decoding = 0;
  order.clear();
  for (Seq* s : running) {
    if (!s->decoding()) continue;
    ++decoding;
    if (s->launched + 1 == s->size() && !s->poisoned && s->in_flight == 0) order.push_back(s);
  }
  const uint32_t cap = (decoding + options.decode_groups - 1) / options.decode_groups;
  uint32_t taken = 0;
  for (Seq* s : order) {
    if (taken == cap || *rows == options.max_rows) break;
    if (!s->running) continue;  // preempted for a better one
    if (Grow(s, s->size()) < s->size()) continue;
    Launch(s, 1, plan);
    ++taken;
    ++*rows;
  }
}

bool Scheduler::Rep::TryAdmit(Seq* s, uint32_t* reserved) {
  BlockManager::Prefix prefix;
  const size_t reusable = s->params.needs_all_rows ? 0 : s->size() - 1;
  prefix = blocks.TakePrefix(s->params.salt, s->params.tokens, Classes(*s, 0, s->size()), reusable);
  const auto cached = static_cast<uint32_t>(prefix.blocks.size()) * options.block_size;
  const uint32_t chunk = options.chunked_prefill ? std::min(options.chunk, options.max_rows) : s->size();
  const uint32_t first = std::min(s->size() - cached, chunk);
  const uint32_t needed = (cached + first + options.block_size - 1) / options.block_size - cached / options.block_size;
  // A block for each running sequence stays free, so that admission is not undone by the next decode step.
  const auto watermark = static_cast<uint32_t>(running.size());
  if (!running.empty() && needed + watermark + *reserved > blocks.available()) {
    ReleaseAll(&prefix.blocks);
    return false;
  }
  *reserved += needed;
  waiting.erase(s);
  running.insert(s);
  s->running = true;
  s->blocks = std::move(prefix.blocks);
  s->chain = prefix.chain;
  s->cached = s->launched = s->landed = cached;
  s->published = cached / options.block_size;
  counts.cached_positions += cached;
  return true;
}

void Scheduler::Rep::Admit(uint32_t rows) {
  if (preempted || (!options.continuous_batching && !running.empty())) return;
  uint64_t pending = rows;
  for (const Seq* s : running) {
    if (!s->decoding()) pending += s->size() - s->launched;
  }
  uint32_t reserved = 0;
  while (!waiting.empty() && running.size() < options.max_sequences) {
    if (options.continuous_batching && pending >= options.max_rows) return;
    Seq* s = *waiting.begin();
    if (s->in_flight > 0 || !TryAdmit(s, &reserved)) return;
    pending += s->size() - s->launched;
  }
}

void Scheduler::Rep::PlanPrefills(StepPlan* plan, uint32_t* rows) {
  order.assign(running.begin(), running.end());
  for (Seq* s : order) {
    if (!s->running || s->decoding() || s->poisoned || s->in_plan || s->launched == s->size()) continue;
    uint32_t count = s->size() - s->launched;
    if (s->launched < s->prompt) count = std::min(count, static_cast<uint32_t>(s->prompt) - s->launched);
    if (options.chunked_prefill) count = std::min({count, options.chunk, options.max_rows - std::min(*rows, options.max_rows)});
    if (count == 0) break;
    const uint32_t end = Grow(s, s->launched + count);
    if (!options.chunked_prefill && end < s->launched + count) continue;
    if (end <= s->launched) continue;
    count = end - s->launched;
    Launch(s, count, plan);
    *rows += count;
  }
}

void Scheduler::Rep::PublishLanded(Seq* s) {
  if (!options.prefix_cache) return;
  const uint32_t full = s->landed / options.block_size;
  for (; s->published < full; ++s->published) {
    const uint32_t begin = s->published * options.block_size;
    s->chain = blocks.Publish(s->chain, s->blocks[s->published],
                              std::span(s->params.tokens).subspan(begin, options.block_size),
                              Classes(*s, begin, begin + options.block_size));
  }
}

// Once nothing of it is in flight: blocks of old incarnations come back, and a removed sequence is forgotten.
void Scheduler::Rep::FreeIfGone(Seq* s) {
  if (s->in_flight > 0) return;
  ReleaseAll(&s->draining);
  if (s->removed) seqs.erase(s->id);
}

Scheduler::Scheduler(const SchedulerOptions& options) : rep_(std::make_unique<Rep>(options)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::Add(SeqId id, SequenceParams params) {
  if (params.tokens.empty()) return InvalidArgument("a sequence needs at least one token");
  if (rep_->seqs.count(id) > 0) return InvalidArgument("sequence {} is known already", static_cast<uint64_t>(id));
  const uint64_t room = uint64_t{rep_->options.num_blocks} * rep_->options.block_size;
  if (params.max_positions > room || params.tokens.size() > room) {
    return ResourceExhausted("{} positions do not fit into {} blocks of {}",
                             std::max<uint64_t>(params.max_positions, params.tokens.size()), rep_->options.num_blocks,
                             rep_->options.block_size);
  }
  auto s = std::make_unique<Seq>();
  s->id = id;
  s->prompt = params.tokens.size();
  s->params = std::move(params);
  s->age = rep_->next_age++;
  rep_->waiting.insert(s.get());
  rep_->seqs.emplace(id, std::move(s));
  return absl::OkStatus();
}

std::optional<StepPlan> Scheduler::Next() {
  Rep& r = *rep_;
  if (r.flights.size() >= r.options.max_in_flight) return std::nullopt;
  StepPlan plan;
  uint32_t rows = 0;
  r.preempted = false;
  r.PlanDecodes(&plan, &rows);
  r.Admit(rows);
  r.PlanPrefills(&plan, &rows);
  if (plan.items.empty()) return std::nullopt;
  plan.step = StepId{r.next_step++};
  Flight flight{.step = plan.step, .items = {}};
  for (const StepItem& item : plan.items) {
    Seq* s = r.seqs.find(item.seq)->second.get();
    s->in_plan = false;
    ++s->in_flight;
    flight.items.emplace_back(s, item);
  }
  r.flights.push_back(std::move(flight));
  ++r.counts.steps;
  return plan;
}

LandedStep Scheduler::Land(StepId step, bool ok) {
  Rep& r = *rep_;
  LandedStep landed;
  if (r.flights.empty() || r.flights.front().step != step) return landed;  // of a plan before
  Flight flight = std::move(r.flights.front());
  r.flights.pop_front();
  for (auto& [s, item] : flight.items) {
    --s->in_flight;
    if (s->removed || item.incarnation != s->incarnation) {
      r.FreeIfGone(s);
      continue;
    }
    if (!ok && !s->poisoned) {
      s->poisoned = true;
      if (++s->errors >= 2) landed.failed.push_back(s->id);
    } else if (ok && !s->poisoned) {
      s->errors = 0;
      s->landed = item.first_position + item.count;
      s->high_water = std::max(s->high_water, s->landed);
      r.PublishLanded(s);
      landed.valid.push_back(std::move(item));
    }
    if (s->poisoned && s->in_flight == 0) {
      s->poisoned = false;
      s->launched = s->landed;
    }
    r.FreeIfGone(s);
  }
  return landed;
}

Status Scheduler::Append(SeqId id, TokenId token) {
  Seq* s = rep_->Find(id);
  if (s == nullptr || s->landed != s->size()) {
    return FailedPrecondition("sequence {}: no sample is owed", static_cast<uint64_t>(id));
  }
  if (s->size() >= s->params.max_positions) {
    return ResourceExhausted("sequence {} has its {} positions", static_cast<uint64_t>(id), s->params.max_positions);
  }
  s->params.tokens.push_back(token);
  return absl::OkStatus();
}

void Scheduler::Repeat(SeqId id) {
  Seq* s = rep_->Find(id);
  if (s == nullptr || s->landed != s->size() || s->in_flight > 0) return;
  // The row is written again into the same place, also where its block is shared by now: the same bits.
  s->launched = s->landed = s->size() - 1;
}

void Scheduler::Remove(SeqId id) {
  Seq* s = rep_->Find(id);
  if (s == nullptr) return;
  rep_->running.erase(s);
  rep_->waiting.erase(s);
  rep_->DropBlocks(s);
  s->removed = true;
  s->running = false;
  rep_->FreeIfGone(s);
}

uint32_t Scheduler::Incarnation(SeqId id) const {
  const Seq* s = rep_->Find(id);
  return s != nullptr ? s->incarnation : 0;
}

std::optional<SeqState> Scheduler::State(SeqId id) const {
  const Seq* s = rep_->Find(id);
  if (s == nullptr) return std::nullopt;
  if (!s->running) return SeqState::kWaiting;
  return s->decoding() ? SeqState::kDecode : SeqState::kPrefill;
}

uint32_t Scheduler::CachedPositions(SeqId id) const {
  const Seq* s = rep_->Find(id);
  return s != nullptr ? s->cached : 0;
}

bool Scheduler::idle() const { return rep_->seqs.empty() && rep_->flights.empty(); }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = rep_->counts;
  stats.waiting = static_cast<uint32_t>(rep_->waiting.size());
  for (const Seq* s : rep_->running) ++(s->decoding() ? stats.decode : stats.prefill);
  stats.in_flight = static_cast<uint32_t>(rep_->flights.size());
  stats.blocks_available = rep_->blocks.available();
  stats.blocks_cached = rep_->blocks.cached();
  stats.num_blocks = rep_->blocks.num_blocks();
  return stats;
}

Status Scheduler::Rep::CheckSequence(const Seq& s) const {
  const auto id = static_cast<uint64_t>(s.id);
  const bool runs = running.count(const_cast<Seq*>(&s)) > 0, waits = waiting.count(const_cast<Seq*>(&s)) > 0;
  if (s.removed ? runs || waits : runs == waits) return Internal("sequence {} stands in a wrong list", id);
  if (runs != s.running) return Internal("sequence {}: its running mark is wrong", id);
  if (s.removed && s.in_flight == 0) return Internal("sequence {} is removed and was not forgotten", id);
  if (s.landed > s.launched || s.launched > s.size()) {
    return Internal("sequence {}: {} landed, {} launched, {} tokens", id, s.landed, s.launched, s.size());
  }
  if (!s.running && !s.removed && !s.blocks.empty()) return Internal("sequence {} waits and holds blocks", id);
  if (s.in_flight == 0 && !s.draining.empty()) return Internal("sequence {}: drained blocks were kept", id);
  if (s.running && s.blocks.size() * options.block_size < s.launched) {
    return Internal("sequence {}: {} blocks for {} launched rows", id, s.blocks.size(), s.launched);
  }
  if (s.in_plan) return Internal("sequence {}: still marked as planned", id);
  return absl::OkStatus();
}

Status Scheduler::CheckIntegrity() const {
  std::vector<uint32_t> owners(rep_->options.num_blocks, 0);
  std::unordered_map<const Seq*, uint32_t> flying;
  for (const Flight& f : rep_->flights) {
    for (const auto& [s, item] : f.items) ++flying[s];
  }
  for (const auto& [id, s] : rep_->seqs) {
    if (s->id != id) return Internal("sequence {} is kept under another id", static_cast<uint64_t>(s->id));
    GYRE_RETURN_IF_ERROR(rep_->CheckSequence(*s));
    if (flying[s.get()] != s->in_flight) {
      return Internal("sequence {}: {} steps in flight, {} counted", static_cast<uint64_t>(id), flying[s.get()],
                      s->in_flight);
    }
    for (BlockId b : s->blocks) ++owners[b];
    for (BlockId b : s->draining) ++owners[b];
  }
  return rep_->blocks.CheckIntegrity(owners);
}

}  // namespace gyre
