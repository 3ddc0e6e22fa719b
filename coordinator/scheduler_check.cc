// Contradictions in what the scheduler keeps.
#include <algorithm>

#include "coordinator/scheduler_state.h"

namespace gyre {

Status Scheduler::Rep::CheckSequence(const Sequence& s) const {
  const auto id = static_cast<uint64_t>(s.id);
  if (s.landed > s.launched || s.launched > s.size()) {
    return Internal("sequence {}: {} rows landed, {} launched, {} tokens", id, s.landed, s.launched, s.size());
  }
  if (s.classes.size() != s.size() || s.prompt == 0 || s.prompt > s.size()) {
    return Internal("sequence {}: {} tokens, {} classes, {} of the prompt", id, s.size(), s.classes.size(), s.prompt);
  }
  if (s.size() > s.params.max_positions) {
    return Internal("sequence {}: {} tokens, at most {} positions", id, s.size(), s.params.max_positions);
  }
  if (s.blocks.size() < BlocksFor(s.launched)) {
    return Internal("sequence {}: {} blocks for {} launched rows", id, s.blocks.size(), s.launched);
  }
  if (s.blocks.size() > std::max(BlocksFor(s.size()), Reserved(s))) {
    return Internal("sequence {}: {} blocks for {} tokens", id, s.blocks.size(), s.size());
  }
  if (uint64_t{s.published} * options.block_size > s.landed || s.cached > s.landed) {
    return Internal("sequence {}: {} blocks published, {} rows cached, {} landed", id, s.published, s.cached, s.landed);
  }
  if (s.in_flight == 0 && (s.launched != s.landed || s.poisoned)) {
    return Internal("sequence {}: nothing in flight, {} rows launched, {} landed, poisoned {}", id, s.launched,
                    s.landed, s.poisoned);
  }
  if (!s.running() && s.in_flight == 0 && !s.blocks.empty()) {
    return Internal("sequence {} holds {} blocks, has left, and nothing is in flight", id, s.blocks.size());
  }
  if (s.stage == Stage::kRemoved && s.in_flight == 0) return Internal("sequence {} was removed and is kept", id);
  if (has_state() && (s.running() || s.in_flight > 0) != (s.slot != kNoBlock)) {
    return Internal("sequence {} has slot {} and {} steps in flight, running {}", id, s.slot, s.in_flight, s.running());
  }
  GYRE_RETURN_IF_ERROR(CheckWindow(s));
  // Blocks that are still to be written, or written again, have no other owner.
  for (size_t i = s.published; i < s.blocks.size(); ++i) {
    if (blocks.references(s.blocks[i]) != 1) {
      return Internal("sequence {}: block {} of its table is open and has {} references", id, i,
                      blocks.references(s.blocks[i]));
    }
  }
  return absl::OkStatus();
}

Status Scheduler::Rep::CheckLists() const {
  if (!std::is_sorted(running.begin(), running.end(), ByRank())) return Internal("the running are not in order");
  if (running.size() > options.max_sequences) return Internal("{} sequences run at once", running.size());
  size_t runs = 0, waits = 0, drains = 0;
  for (const auto& [id, s] : sequences) {
    if (s->id != id)
      return Internal("sequence {} is kept as {}", static_cast<uint64_t>(s->id), static_cast<uint64_t>(id));
    runs += s->running() ? 1 : 0;
    waits += s->stage == Stage::kWaiting ? 1 : 0;
    drains += !s->running() && s->in_flight > 0 ? 1 : 0;
    if (s->running() != (std::find(running.begin(), running.end(), s.get()) != running.end()) ||
        (s->stage == Stage::kWaiting) != (waiting.count(s.get()) > 0)) {
      return Internal("sequence {} stands in a wrong list", static_cast<uint64_t>(id));
    }
  }
  if (runs != running.size() || waits != waiting.size() || drains != draining) {
    return Internal("{} sequences run, {} listed; {} wait, {} listed; {} drain, {} counted", runs, running.size(),
                    waits, waiting.size(), drains, draining);
  }
  if (starved != nullptr && starved->held) return Internal("the starved sequence is held");
  if (starved != nullptr && std::find(running.begin(), running.end(), starved) == running.end()) {
    return Internal("the starved sequence does not run");
  }
  return absl::OkStatus();
}

Status Scheduler::Rep::CheckFlights() const {
  if (flights.size() > (options.adapts_in_flight ? StepsInFlight::kMost : options.max_in_flight))
    return Internal("{} steps in flight", flights.size());
  struct Seen {
    uint32_t steps = 0, end = 0;
  };
  std::unordered_map<const Sequence*, Seen> seen;
  StepId last{};
  for (const Flight& flight : flights) {
    if (flight.step <= last)
      return Internal("step {} is in flight after {}", static_cast<uint64_t>(flight.step), static_cast<uint64_t>(last));
    last = flight.step;
    for (const auto& [s, item] : flight.items) {
      const auto id = static_cast<uint64_t>(item.seq);
      const auto kept = sequences.find(item.seq);
      if (kept == sequences.end() || kept->second.get() != s) return Internal("sequence {} in flight is gone", id);
      if (item.incarnation + (s->running() ? 0 : 1) > s->incarnation ||
          (s->running() && item.incarnation != s->incarnation)) {
        return Internal("sequence {}: incarnation {} is in flight in {}", id, item.incarnation, s->incarnation);
      }
      if (item.blocks.size() != BlocksFor(uint64_t{item.first_position} + item.count) ||
          item.blocks.size() > s->blocks.size() ||
          !std::equal(item.blocks.begin(), item.blocks.end(), s->blocks.begin())) {
        return Internal("sequence {}: a step in flight has another table", id);
      }
      for (size_t i = 0; i < item.window.blocks.size(); ++i) {
        const size_t block = item.window.first + i;
        if (block >= s->window_first &&
            (block >= s->WindowEnd() || s->window[block - s->window_first] != item.window.blocks[i]))
          return Internal("sequence {}: a step in flight has another windowed table", id);
      }
      Seen& of = seen[s];
      const uint32_t expected = of.steps > 0 ? of.end : s->poisoned ? item.first_position : s->landed;
      if (item.first_position != expected) {
        return Internal("sequence {}: position {} is in flight where {} is next", id, item.first_position, expected);
      }
      ++of.steps;
      of.end = item.first_position + item.count;
    }
  }
  for (const auto& [id, s] : sequences) {
    const Seen& of = seen[s.get()];
    if (of.steps != s->in_flight || (of.steps > 0 && of.end != s->launched)) {
      return Internal("sequence {}: {} steps in flight up to {}, counted are {} up to {}", static_cast<uint64_t>(id),
                      of.steps, of.end, s->in_flight, s->launched);
    }
  }
  return absl::OkStatus();
}

Status Scheduler::CheckIntegrity() const {
  for (const auto& [id, s] : rep_->sequences) {
    GYRE_RETURN_IF_ERROR(rep_->CheckSequence(*s));
    for (BlockId block : s->blocks) {
      if (block >= rep_->blocks.num_blocks())
        return Internal("sequence {} holds block {}", static_cast<uint64_t>(id), block);
    }
  }
  GYRE_RETURN_IF_ERROR(rep_->CheckLists());
  GYRE_RETURN_IF_ERROR(rep_->CheckFlights());
  GYRE_RETURN_IF_ERROR(rep_->CheckReserve());
  GYRE_RETURN_IF_ERROR(rep_->slots.CheckIntegrity("slot", rep_->SlotOwners()));
  GYRE_RETURN_IF_ERROR(rep_->window.CheckIntegrity("windowed block", rep_->WindowOwners()));
  return rep_->blocks.CheckIntegrity(rep_->Owners());
}

}  // namespace gyre
