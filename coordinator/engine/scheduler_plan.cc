// The making of a step: which sequences get how many rows.
#include <algorithm>
#include <utility>

#include "coordinator/engine/scheduler_state.h"

namespace gyre {
namespace {

// A decoding sequence that could have got its row in so many shared steps goes before all others. With the rows of a
// step at least as many as the decoding sequences, that is the most that it ever waits.
constexpr uint64_t kPatientSteps = 8;

}  // namespace

void Scheduler::Rep::Launch(Sequence* s, uint32_t count, Draft* draft) {
  const uint32_t end = s->launched + count;
  (s->decoding() ? draft->flight.rows.decode : draft->flight.rows.prompt) += count;
  StepItem item{cache.Launch(s->launched, end, s->launched == s->cached, &s->kv)};
  item.seq = s->id;
  item.incarnation = s->incarnation;
  item.row_class = s->launched < s->prompt ? RowClass::kPrompt : RowClass::kGenerated;
  item.first_position = s->launched;
  item.count = count;
  item.sample_last = end == s->size();
  counts.computed_rows += count;
  counts.replayed_rows += std::min(s->high_water, end) - std::min(s->high_water, s->launched);
  s->high_water = std::max(s->high_water, end);
  s->launched = end;
  s->planned_in = next_step;
  s->ready_at = 0;
  ++s->in_flight;
  s->tenant->rows += count;
  CountAnswers(s, item, true);
  draft->flight.items.push_back({s, item});
  draft->plan.items.push_back(std::move(item));
}

// The answers for a prompt's rows that are on their way.
void Scheduler::Rep::CountAnswers(Sequence* s, const StepItem& item, bool launched) {
  const uint64_t bytes = s->AnswerBytes(item.first_position, item.known_end());
  s->answer_bytes += launched ? bytes : -bytes;
  answer_bytes += launched ? bytes : -bytes;
}

// Since when each decoding sequence could get a row.
void Scheduler::Rep::MarkReady() {
  for (Sequence* s : queue.running()) {
    if (!s->wants_decode_row()) {
      s->ready_at = 0;
    } else if (s->ready_at == 0) {
      s->ready_at = shared;
    }
  }
}

bool Scheduler::Rep::Overdue(const Sequence& s) const {
  return s.ready_at != 0 && shared - s.ready_at >= kPatientSteps;
}

// A step for the best-ranked sequence that must run alone. False: no other step may be launched now.
bool Scheduler::Rep::PlanAlone(Draft* draft) {
  if (!flights.empty() && flights.back().items.front().sequence->needs_ring()) return false;
  Sequence* next = nullptr;
  for (Sequence* s : queue.running()) {
    if (!s->launchable() || !s->needs_step() || s->in_flight > 0) continue;
    if (s->needs_ring()) {
      if (!flights.empty()) return false;
      next = s;
      break;
    }
    if (next == nullptr) next = s;
  }
  if (next == nullptr) return true;
  draft->prompt_limit = options.max_rows;
  if (!next->decoding()) {
    LaunchPrefill(next, draft);
  } else if (Grow(next, next->size(), next->size()) == next->size()) {
    Launch(next, 1, draft);
  }
  draft->alone = draft->rows() > 0;
  return true;
}

uint32_t Scheduler::Rep::PromptLimit(uint32_t decode_rows) const {
  uint32_t decoding = 0, prompts = 0;
  for (const Sequence* s : queue.running()) {
    if (!s->held) ++(s->decoding() ? decoding : prompts);
  }
  const size_t places = options.max_sequences - std::min<size_t>(options.max_sequences, queue.running().size());
  prompts += static_cast<uint32_t>(std::min(queue.waiting().size(), places));
  return pace.PromptRows(decode_rows, prompts, decoding);
}

uint32_t Scheduler::Rep::PromptRoom(const Draft& draft) const {
  if (draft.alone) return 0;
  const uint32_t prompts = draft.prompt_limit - std::min(draft.prompt_limit, draft.flight.rows.prompt);
  return std::min(prompts, options.max_rows - std::min(options.max_rows, draft.rows()));
}

void Scheduler::Rep::LaunchDecode(Sequence* s, Draft* draft) {
  if (draft->decode_left == 0 || draft->alone || draft->rows() >= options.max_rows) return;
  if (Grow(s, s->size(), s->size()) != s->size()) {
    s->ready_at = 0;  // it waits for a block, not for a turn
    return;
  }
  if (s->ready_at != 0) counts.longest_decode_gap = std::max(counts.longest_decode_gap, shared - s->ready_at);
  Launch(s, 1, draft);
  draft->flight.decodes = true;
  --draft->decode_left;
}

// Decode rows: overdue ones first, then in turn (kDecodeRoundRobin) or by rank. They leave room for `kept` rows.
void Scheduler::Rep::PlanDecodes(uint32_t kept, Draft* draft) {
  order.clear();
  bool overdue = false;
  for (Sequence* s : queue.running()) {
    if (!s->wants_decode_row() || s->planned_in == next_step) continue;  // a replay has come up to its last row
    order.push_back(s);
    overdue |= Overdue(*s);
  }
  if (options.policy == SchedulerPolicy::kDecodeRoundRobin) {
    std::stable_sort(order.begin(), order.end(),
                     [](const Sequence* a, const Sequence* b) { return a->planned_in < b->planned_in; });
  } else if (overdue) {
    std::stable_sort(order.begin(), order.end(), [this](const Sequence* a, const Sequence* b) {
      return (Overdue(*a) ? a->ready_at : UINT64_MAX) < (Overdue(*b) ? b->ready_at : UINT64_MAX);
    });
  }
  for (Sequence* s : order) {
    if (draft->rows() + kept >= options.max_rows) break;
    if (s->running() && s->launchable()) LaunchDecode(s, draft);  // else it was preempted for one before it
  }
}

// One queue by rank: each decoding sequence gets its row, and in the place of each prompt the prompt that is next does.
void Scheduler::Rep::PlanQueue(Draft* draft) {
  order = queue.running();
  for (Sequence* s : order) {
    if (!s->running() || s->planned_in == next_step) continue;
    if (s->wants_decode_row()) {
      LaunchDecode(s, draft);
    } else if (s->wants_prompt_rows()) {
      PlanPrompt(draft);
    }
  }
}

// The position before which the sequence's next item ends, so that the answers on their way stay within their limits.
uint32_t Scheduler::Rep::AnswerEnd(const Sequence& s) const {
  const RowAnswers& wanted = s.params.answers;
  if (wanted.bytes_each == 0) return UINT32_MAX;
  const uint64_t room =
      std::min(options.answer_bytes - std::min(options.answer_bytes, answer_bytes),
               options.sequence_answer_bytes - std::min(options.sequence_answer_bytes, s.answer_bytes));
  const uint64_t rows = std::max<uint64_t>(room / wanted.bytes_each, answer_bytes == 0 ? 1 : 0);
  const uint64_t end = std::max(s.launched, wanted.first) + rows;
  return end >= wanted.end ? UINT32_MAX : static_cast<uint32_t>(end);
}

// The rows that the sequence's next item takes, blocks permitting: of one class, and of a chunk. 0: answers on their
// way have to land first.
uint32_t Scheduler::Rep::PrefillCount(const Sequence& s, uint32_t rows_left) const {
  uint32_t end = std::min(s.launched < s.prompt ? s.prompt : s.size(), cache.NextSnapshot(s.kv, s.launched));
  end = s.quarantine.StepEnd(s.launched, end);
  const uint32_t count = end - s.launched;
  if (!options.chunked_prefill) return count;
  return std::min({count, pace.Chunk(s.prompt), rows_left, AnswerEnd(s) - s.launched});
}

void Scheduler::Rep::LaunchPrefill(Sequence* s, Draft* draft) {
  const uint32_t count = PrefillCount(*s, PromptRoom(*draft));
  if (count == 0) return;
  const uint32_t must = s->launched + (options.chunked_prefill ? 1 : count);
  const uint32_t held = Grow(s, must, s->launched + count);
  if (held >= must) Launch(s, held - s->launched, draft);
}

// Gives rows to the prompt that is next, or admits the sequence that goes before it. False: no more prompts in this
// step.
bool Scheduler::Rep::PlanPrompt(Draft* draft) {
  if (PromptRoom(*draft) == 0) return false;
  Sequence* next = queue.NextPrompt(next_step, tries);
  Sequence* waits = draft->admits ? NextWaiting() : nullptr;
  if (waits != nullptr && (next == nullptr || SequenceQueue::GoesFirst(*waits, *next))) {
    draft->admits = Admit(waits, draft);
    return draft->admits || next != nullptr;
  }
  if (next == nullptr) return false;
  next->tried_in = tries;
  LaunchPrefill(next, draft);
  return true;
}

void Scheduler::Rep::PlanTogether(Draft* draft) {
  const std::vector<Sequence*>& running = queue.running();
  const bool none_runs = std::all_of(running.begin(), running.end(), [](const Sequence* s) { return s->held; });
  draft->admits = starved == nullptr && (options.continuous_batching || none_runs);
  const auto groups = std::count_if(flights.begin(), flights.end(), [](const Flight& f) { return f.decodes; });
  draft->decode_left = pace.DecodeRows(queue.Decoding(), static_cast<uint32_t>(groups));
  draft->prompt_limit = PromptLimit(draft->decode_left);
  const bool overdue = std::any_of(running.begin(), running.end(), [this](const Sequence* s) { return Overdue(*s); });
  if (overdue || options.policy == SchedulerPolicy::kDecodeRoundRobin) {
    // Prompts get on too: where decode rows would fill every step, they leave room for one row.
    const bool may_come = draft->admits && !queue.waiting().empty() && running.size() < options.max_sequences;
    PlanDecodes(!overdue && (may_come || queue.NextPrompt(next_step, tries) != nullptr) ? 1 : 0, draft);
  } else if (options.policy == SchedulerPolicy::kFcfs) {
    PlanQueue(draft);
  }
  while (PlanPrompt(draft)) {
  }
  PlanDecodes(0, draft);
  if (!options.continuous_batching) AdmitRest(draft);
  if (draft->alone) return;
  PlanDrafts(draft);
  PlanBehind(draft);
}

// Rows of drafts, behind the last tokens' rows: in what is left of the step, the likeliest first.
void Scheduler::Rep::PlanDrafts(Draft* draft) {
  struct Wish {
    double chance;
    size_t item;
  };
  std::vector<Wish> wishes;
  uint32_t tokens = 0;
  for (size_t i = 0; i < draft->flight.items.size(); ++i) {
    const auto& [s, item, is_void] = draft->flight.items[i];
    if (!item.sample_last) continue;
    ++tokens;
    const bool takes = s->running() && item.row_class == RowClass::kGenerated && s->may_draft();
    // The last position's row decides a token that has no place.
    const uint32_t most = takes && s->size() < s->params.max_positions ? s->params.max_positions - s->size() - 1 : 0;
    for (size_t n = 0; n < std::min<size_t>(most, s->proposed.tokens.size()); ++n)
      wishes.push_back({s->proposed.chances[n], i});
  }
  if (wishes.empty()) return;
  std::stable_sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) { return a.chance > b.chance; });
  wishes.resize(std::min<size_t>(wishes.size(), options.max_rows - std::min(options.max_rows, draft->rows())));
  if (!options.takes_all_drafts) {
    std::vector<double> chances;
    for (const Wish& wish : wishes) chances.push_back(wish.chance);
    wishes.resize(pace.Drafts(draft->flight.rows, tokens, chances));
  }
  std::vector<uint32_t> counts_of(draft->flight.items.size());
  for (const Wish& wish : wishes) ++counts_of[wish.item];
  for (size_t i = 0; i < counts_of.size(); ++i) {
    if (counts_of[i] > 0 && counts_of[i] >= draft->flight.items[i].sequence->proposed.least)
      AddDrafts(i, counts_of[i], draft);
  }
}

// Blocks for so many drafts behind the launched rows. Returns the number of drafts that have some: none takes a block
// that somebody waits for.
uint32_t Scheduler::Rep::HoldDrafts(Sequence* s, uint32_t count) {
  const bool short_of_blocks = starved != nullptr || !queue.waiting().empty();
  const uint32_t want = s->launched + count;
  const uint32_t held = short_of_blocks ? cache.Held(s->kv, want) : Grow(s, s->launched, want);
  if (!short_of_blocks) s->reach = std::max(s->reach, want);
  return held - std::min(held, s->launched);
}

// The first `count` proposed drafts are launched.
void Scheduler::Rep::CountDrafts(Sequence* s, uint32_t count, Draft* draft) {
  std::vector<TokenId>& tokens = s->proposed.tokens;
  s->drafted.insert(s->drafted.end(), tokens.begin(), tokens.begin() + count);
  if (s->proposed.in_one_step) {
    s->proposed = {};
  } else {
    tokens.erase(tokens.begin(), tokens.begin() + count);
    s->proposed.chances.erase(s->proposed.chances.begin(), s->proposed.chances.begin() + count);
  }
  s->launched += count;
  s->tenant->rows += count;
  counts.computed_rows += count;
  counts.draft_rows += count;
  draft->flight.rows.decode += count;
}

void Scheduler::Rep::AddDrafts(size_t at, uint32_t count, Draft* draft) {
  StepItem& item = draft->flight.items[at].item;
  Sequence* s = draft->flight.items[at].sequence;
  // A snapshot is of a state that counts, so the row before it is the last one of a step without drafts.
  if (item.slots.copy != kNoBlock) return;
  const uint32_t before = cache.NextSnapshot(s->kv, item.first_position);
  count = std::min(count, before - std::min(before, s->launched + 1));
  if (count == 0 || (cache.has_state() && !queue.waiting().empty())) return;  // who waits may wait for a slot
  count = cache.TakeMarks(s->launched, HoldDrafts(s, count), &s->kv);
  if (count == 0) return;
  const uint32_t end = s->launched + count;
  static_cast<StepTables&>(item) = cache.Launch(item.first_position, end, item.slots.begin != kNoBlock, &s->kv);
  const auto begin = s->proposed.tokens.begin();
  item.drafts.assign(begin, begin + count);
  item.count += count;
  CountDrafts(s, count, draft);
  draft->plan.items[at] = item;
}

// Rows behind drafts that are in flight, on the assumption that these are drawn.
void Scheduler::Rep::PlanBehind(Draft* draft) {
  if (flights.size() - VoidFlights() >= pace.most_in_flight()) return;
  order = queue.running();
  for (Sequence* s : order) {
    if (!s->running() || s->planned_in == next_step || s->proposed.tokens.empty() || !MayGoOn(*s)) continue;
    const uint32_t places = s->params.max_positions - std::min(s->params.max_positions, s->launched + 1);
    const uint32_t room = options.max_rows - std::min(options.max_rows, draft->rows());
    size_t most = std::min<size_t>({s->proposed.tokens.size(), places, room, kMostUndecided - s->drafted.size()});
    if (!options.takes_all_drafts) {
      const std::vector<double> chances(s->proposed.chances.begin(),
                                        s->proposed.chances.begin() + static_cast<std::ptrdiff_t>(most));
      most = pace.DraftsBehind(draft->flight.rows, queue.Decoding(), chances);
    }
    if (most > 0 && most >= s->proposed.least) LaunchBehind(s, static_cast<uint32_t>(most), draft);
  }
}

void Scheduler::Rep::LaunchBehind(Sequence* s, uint32_t count, Draft* draft) {
  count = std::min(count, HoldDrafts(s, count));
  if (count == 0) return;
  StepItem item{cache.Launch(s->launched, s->launched + count, false, &s->kv)};
  item.seq = s->id;
  item.incarnation = s->incarnation;
  item.row_class = RowClass::kGenerated;
  item.first_position = s->launched;
  item.count = count;
  item.drafts.assign(s->proposed.tokens.begin(), s->proposed.tokens.begin() + count);
  draft->flight.goes_on = draft->flight.items.empty() || draft->flight.goes_on;
  CountDrafts(s, count, draft);
  s->planned_in = next_step;
  ++s->in_flight;
  draft->flight.items.push_back({s, item});
  draft->plan.items.push_back(std::move(item));
}

std::optional<StepPlan> Scheduler::Next(Deadline now) {
  Rep& r = *rep_;
  r.pace.Choose(r.queue.Decoding());
  if (r.SteadyFlights() >= r.pace.most_in_flight()) return std::nullopt;
  r.now = now;
  ++r.tries;
  Rep::Draft draft;
  if (r.starved != nullptr && r.cache.Starves(r.starved->kv, r.starved->launched)) r.PreemptBelow(r.starved);
  r.MarkReady();
  if (!r.PlanAlone(&draft)) return std::nullopt;
  if (!draft.alone) r.PlanTogether(&draft);
  if (draft.plan.items.empty()) return std::nullopt;
  if (!draft.alone) ++r.shared;
  draft.plan.step = draft.flight.step = StepId{r.next_step++};
  draft.flight.launched = now;
  r.flights.push_back(std::move(draft.flight));
  ++r.counts.steps;
  return std::move(draft.plan);
}

}  // namespace gyre
