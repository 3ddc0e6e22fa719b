#include "tests/testing/plan_checks.h"

#include <algorithm>
#include <set>
#include <span>

namespace gyre::testing {

Status PlanChecks::CheckPlan(const StepPlan& plan, const SchedulerStats& before, const Sequences& live,
                             const Flights& flights) {
  const uint64_t step = Num(plan.step);
  if (plan.step <= last_step_) return Internal("step {} after {}", step, Num(last_step_));
  last_step_ = plan.step;
  if (plan.items.empty()) return Internal("step {} is empty", step);
  // Steps of nothing but rows behind drafts in flight keep no other step out.
  const auto steady = std::count_if(flights.begin(), flights.end(), [](const StepInFlight& flight) {
    return std::any_of(flight.items.begin(), flight.items.end(),
                       [](const StepInFlight::Rows& rows) { return !rows.item.goes_on(); });
  });
  if (steady >= o_.max_in_flight) return Internal("{} steps in flight", steady + 1);
  uint32_t rows = 0, largest = 0, decodes = 0, prompts = 0;
  std::set<SeqId> seen;
  for (const StepItem& item : plan.items) {
    rows += item.count;
    largest = std::max(largest, item.count);
    if (!seen.insert(item.seq).second) return Internal("step {} has sequence {} twice", step, Num(item.seq));
    const auto it = live.find(item.seq);
    if (it == live.end()) return Internal("step {} has unknown sequence {}", step, Num(item.seq));
    const TrackedSequence& s = it->second;
    const auto drafts = static_cast<uint32_t>(item.drafts.size());
    const bool last = s.tokens.size() > s.prompt && item.first_position + 1 == s.tokens.size();
    decodes += last && s.started ? 1 : 0;
    // One that came in with all but its last row is neither: decode rows were dealt before.
    prompts += last ? 0 : item.count - drafts;
    if (o_.chunked_prefill && item.count - drafts > o_.chunk)
      return Internal("sequence {} has a chunk of {}", Num(item.seq), item.count);
  }
  if (o_.chunked_prefill) GYRE_RETURN_IF_ERROR(CheckAnswers(plan, live, flights));
  if (rows > o_.max_rows && (o_.chunked_prefill || rows - largest >= o_.max_rows))
    return Internal("a step of {} rows", rows);
  if (decodes > 0 && plan.items.size() > 1 && o_.step_tokens > 0 && o_.chunked_prefill && prompts > o_.step_tokens)
    return Internal("{} prompt rows beside {} that decode", prompts, decodes);
  const uint32_t groups = std::min(o_.decode_groups, o_.max_in_flight);
  if (decodes > (before.decode + groups - 1) / groups) return Internal("{} decode rows of {}", decodes, before.decode);
  return absl::OkStatus();
}

// The answers on their way stay within their limits; a single row may pass them.
Status PlanChecks::CheckAnswers(const StepPlan& plan, const Sequences& live, const Flights& flights) const {
  const auto bytes = [](const TrackedSequence& s, const StepItem& item) -> uint64_t {
    const uint32_t from = std::max(item.first_position, s.answers.first),
                   to = std::min(item.known_end(), s.answers.end);
    return from < to ? (to - from) * s.answers.bytes_each : 0;
  };
  uint64_t all = 0, largest = 0;
  std::map<SeqId, uint64_t> of;
  const auto add = [&](const StepItem& item) {
    const auto it = live.find(item.seq);
    if (it == live.end()) return;
    all += bytes(it->second, item);
    of[item.seq] += bytes(it->second, item);
    largest = std::max(largest, it->second.answers.bytes_each);
  };
  for (const StepInFlight& flight : flights) {
    for (const StepInFlight::Rows& rows : flight.items) add(rows.item);
  }
  for (const StepItem& item : plan.items) add(item);
  if (all > std::max(o_.answer_bytes, largest)) return Internal("{} bytes of answers are on their way", all);
  for (const auto& [id, n] : of) {
    if (n > std::max(o_.sequence_answer_bytes, largest))
      return Internal("{} bytes of answers of sequence {} are on their way", n, Num(id));
  }
  return absl::OkStatus();
}

Status PlanChecks::CheckItem(const StepPlan& plan, const StepItem& item, const TrackedSequence& sequence,
                             uint32_t cached, const Flights& flights) {
  GYRE_RETURN_IF_ERROR(CheckRows(item, sequence, cached));
  GYRE_RETURN_IF_ERROR(CheckMemory(item));
  GYRE_RETURN_IF_ERROR(CheckExclusive(item, flights));
  return CheckAlone(plan, item, sequence, flights);
}

Status PlanChecks::CheckRows(const StepItem& item, const TrackedSequence& s, uint32_t cached) const {
  const uint64_t id = Num(item.seq);
  const uint32_t end = item.known_end();
  GYRE_RETURN_IF_ERROR(CheckDrafts(item, s));
  if (item.incarnation != s.incarnation) return Internal("sequence {}: incarnation {}", id, item.incarnation);
  if (s.held) return Internal("sequence {} is held and launched", id);
  if (s.poisoned || (s.owed && !item.goes_on())) return Internal("sequence {} is launched while it waits", id);
  if (!s.started) {
    if (item.first_position != cached || cached % o_.block_size != 0)
      return Internal("sequence {} starts at {}", id, item.first_position);
    if (cached > s.answers.first || (cached > 0 && !o_.prefix_cache))
      return Internal("sequence {} takes {} rows", id, cached);
  }
  const uint32_t launched = s.started ? s.launched : cached;
  const bool behind = item.goes_on() && s.started && launched >= s.tokens.size() && launched == item.first_position;
  if (behind) return absl::OkStatus();
  if (end <= item.first_position || item.first_position != launched || end > s.tokens.size()) {
    return Internal("sequence {}: rows {}+{} where {} of {} are launched", id, item.first_position, item.count,
                    launched, s.tokens.size());
  }
  if (s.ClassOf(item.first_position) != item.row_class || s.ClassOf(end - 1) != item.row_class) {
    return Internal("sequence {}: rows {}+{} have class {}", id, item.first_position, item.count, Num(item.row_class));
  }
  if (item.sample_last != (end == s.tokens.size()))
    return Internal("sequence {}: sample_last {}", id, item.sample_last);
  return absl::OkStatus();
}

// Drafts stand behind the last token of a sequence that decodes, within its positions.
Status PlanChecks::CheckDrafts(const StepItem& item, const TrackedSequence& s) const {
  if (item.drafts.empty()) return absl::OkStatus();
  const uint64_t id = Num(item.seq);
  if (item.goes_on() && o_.memory[kSlotGroup] > 0) return Internal("sequence {} has nothing but drafts", id);
  if (item.sample_last == item.goes_on() || item.row_class != RowClass::kGenerated)
    return Internal("sequence {} has drafts behind another row than its last one", id);
  if (o_.memory[kSlotGroup] > 0 && item.slots.marks.size() != item.drafts.size())
    return Internal("sequence {} has {} marks for {} drafts", id, item.slots.marks.size(), item.drafts.size());
  if (item.first_position + item.count >= s.max_positions)
    return Internal("sequence {}: drafts up to {} of {} positions", id, item.first_position + item.count,
                    s.max_positions);
  if (s.takes_no_drafts || s.suspect || s.losses > 0) return Internal("sequence {} has drafts after a fault", id);
  return absl::OkStatus();
}

// The tables name units that there are. The windowed one has the blocks that the rows read, and no more than a window
// and the rows in flight need.
Status PlanChecks::CheckMemory(const StepItem& item) {
  const uint64_t id = Num(item.seq);
  const uint32_t end = item.first_position + item.count, blocks = (end + o_.block_size - 1) / o_.block_size;
  if (item.blocks.size() != blocks) return Internal("sequence {}: {} blocks", id, item.blocks.size());
  for (BlockId block : item.blocks) {
    if (block >= o_.memory[kPageGroup]) return Internal("sequence {} has block {}", id, block);
  }
  if ((item.slots.slot < o_.memory[kSlotGroup]) != (o_.memory[kSlotGroup] > 0))
    return Internal("sequence {}: {} slots", id, item.slots.slot);
  if (o_.memory[kWindowGroup] == 0) {
    if (!item.window.blocks.empty()) return Internal("sequence {} has windowed blocks", id);
    return absl::OkStatus();
  }
  if (item.window.first > FirstInWindow(o_, item.first_position) / o_.block_size ||
      item.window.first + item.window.blocks.size() != blocks) {
    return Internal("sequence {}: windowed blocks {}+{} for rows {}+{}", id, item.window.first,
                    item.window.blocks.size(), item.first_position, item.count);
  }
  for (BlockId block : item.window.blocks) {
    if (block >= o_.memory[kWindowGroup]) return Internal("sequence {} has windowed block {}", id, block);
  }
  most_windowed_ = std::max<uint64_t>(most_windowed_, item.window.blocks.size());
  return absl::OkStatus();
}

// No other step in flight reads or writes a block that this one writes, and none writes a block that this one reads.
Status PlanChecks::CheckExclusive(const StepItem& item, const Flights& flights) const {
  const auto writes = [this](const StepItem& i, BlockId block) {
    const auto first = i.blocks.begin() + i.first_position / o_.block_size;
    return std::find(first, i.blocks.end(), block) != i.blocks.end();
  };
  const auto share = [](std::span<const BlockId> a, std::span<const BlockId> b) {
    return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
  };
  // The blocks that an item's rows read or write in the windowed group, and those of them that they write.
  const auto from = [this](const StepItem& i, uint32_t position) -> std::span<const BlockId> {
    if (o_.memory[kWindowGroup] == 0) return {};
    return std::span(i.window.blocks).subspan(position / o_.block_size - i.window.first);
  };
  const auto windowed = [this, from](const StepItem& i) { return from(i, FirstInWindow(o_, i.first_position)); };
  const auto written = [from](const StepItem& i) { return from(i, i.first_position); };
  for (const StepInFlight& flight : flights) {
    for (const StepInFlight::Rows& rows : flight.items) {
      const StepItem& other = rows.item;
      if (other.seq == item.seq && other.incarnation == item.incarnation) continue;
      for (BlockId block : other.blocks) {
        if (writes(item, block)) return Internal("block {} of sequence {} is in use", block, Num(item.seq));
      }
      if (share(written(item), windowed(other)) || share(written(other), windowed(item)))
        return Internal("a windowed block of sequences {} and {} is in use", Num(item.seq), Num(other.seq));
      for (BlockId block : item.blocks) {
        if (writes(other, block)) return Internal("block {} of sequence {} is being written", block, Num(item.seq));
      }
    }
  }
  return absl::OkStatus();
}

// After a failed step each sequence has a step of its own; after two lost rings, nothing else is in flight.
Status PlanChecks::CheckAlone(const StepPlan& plan, const StepItem& item, const TrackedSequence& s,
                              const Flights& flights) const {
  // Rows that were computed once may go together with others.
  const bool lone = s.losses >= 2 && item.first_position + item.count > s.proven;
  const bool suspect = s.suspect && (o_.memory[kSlotGroup] == 0 || item.first_position >= s.failed_from);
  if (!suspect && !lone) return absl::OkStatus();
  if (plan.items.size() > 1 || s.in_flight > 0) return Internal("sequence {} does not run alone", Num(item.seq));
  if (lone && !flights.empty()) return Internal("sequence {} is not alone in the ring", Num(item.seq));
  return absl::OkStatus();
}

}  // namespace gyre::testing
