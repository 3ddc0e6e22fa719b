// Contradictions in what the scheduler keeps.
#include <algorithm>
#include <unordered_map>

#include "coordinator/engine/scheduler_state.h"

namespace gyre {

std::vector<const KvTables*> Scheduler::Rep::Tables() const {
  std::vector<const KvTables*> all;
  for (const auto& [id, s] : queue.all()) all.push_back(&s->kv);
  return all;
}

Status Scheduler::Rep::CheckSequence(const Sequence& s) const {
  const auto id = static_cast<uint64_t>(s.id);
  if (s.landed != std::min(s.arrived, s.size()) || s.arrived > s.launched || s.launched > s.size() + s.drafted.size()) {
    return Internal("sequence {}: {} rows landed, {} with drafts, {} launched, {} tokens, {} drafts", id, s.landed,
                    s.arrived, s.launched, s.size(), s.drafted.size());
  }
  if (!s.drafted.empty() && s.launched != s.size() + s.drafted.size()) {
    return Internal("sequence {}: {} drafts behind {} tokens, {} rows launched", id, s.drafted.size(), s.size(),
                    s.launched);
  }
  if (s.classes.size() != s.size() || s.prompt == 0 || s.prompt > s.size()) {
    return Internal("sequence {}: {} tokens, {} classes, {} of the prompt", id, s.size(), s.classes.size(), s.prompt);
  }
  if (s.size() > s.params.max_positions) {
    return Internal("sequence {}: {} tokens, at most {} positions", id, s.size(), s.params.max_positions);
  }
  if (s.kv.blocks.size() > std::max(cache.BlocksFor(std::max(s.size(), s.reach)), s.kv.least)) {
    return Internal("sequence {}: {} blocks for {} tokens", id, s.kv.blocks.size(), s.size());
  }
  if (uint64_t{s.kv.published} * options.block_size > s.landed || s.cached > s.landed) {
    return Internal("sequence {}: {} blocks published, {} rows cached, {} landed", id, s.kv.published, s.cached,
                    s.landed);
  }
  if (s.in_flight == 0 && (s.launched != s.arrived || s.poisoned)) {
    return Internal("sequence {}: nothing in flight, {} rows launched, {} landed, {} drafts, poisoned {}", id,
                    s.launched, s.landed, s.drafted.size(), s.poisoned);
  }
  if (s.stage == Stage::kRemoved && s.in_flight == 0) return Internal("sequence {} was removed and is kept", id);
  return Annotate(cache.CheckTables(s.kv, s.launched, s.settled(), s.running(), s.in_flight > 0),
                  fmt::format("sequence {}", id));
}

Status Scheduler::Rep::CheckLists() const {
  GYRE_RETURN_IF_ERROR(queue.CheckIntegrity());
  const std::vector<Sequence*>& running = queue.running();
  if (running.size() > options.max_sequences) return Internal("{} sequences run at once", running.size());
  size_t drains = 0;
  for (const auto& [id, s] : queue.all()) drains += !s->running() && s->in_flight > 0 ? 1 : 0;
  if (drains != draining) return Internal("{} sequences drain, {} counted", drains, draining);
  if (starved != nullptr && starved->held) return Internal("the starved sequence is held");
  if (starved != nullptr && std::find(running.begin(), running.end(), starved) == running.end()) {
    return Internal("the starved sequence does not run");
  }
  return absl::OkStatus();
}

Status Scheduler::Rep::CheckFlights() const {
  if (SteadyFlights() > (options.adapts_in_flight ? StepsInFlight::kMost : options.max_in_flight))
    return Internal("{} steps in flight", SteadyFlights());
  struct Seen {
    uint32_t steps = 0, end = 0;
    uint64_t answer_bytes = 0;
    bool valid = false;
  };
  std::unordered_map<const Sequence*, Seen> seen;
  StepId last{};
  uint64_t answers = 0;
  for (const Flight& flight : flights) {
    if (flight.step <= last)
      return Internal("step {} is in flight after {}", static_cast<uint64_t>(flight.step), static_cast<uint64_t>(last));
    last = flight.step;
    for (const auto& [s, item, is_void] : flight.items) {
      const auto id = static_cast<uint64_t>(item.seq);
      const auto kept = queue.all().find(item.seq);
      if (kept == queue.all().end() || kept->second.get() != s) return Internal("sequence {} in flight is gone", id);
      if (item.incarnation + (s->running() ? 0 : 1) > s->incarnation ||
          (s->running() && item.incarnation != s->incarnation)) {
        return Internal("sequence {}: incarnation {} is in flight in {}", id, item.incarnation, s->incarnation);
      }
      if (item.blocks.size() != cache.BlocksFor(uint64_t{item.first_position} + item.count) ||
          item.blocks.size() > s->kv.blocks.size() ||
          !std::equal(item.blocks.begin(), item.blocks.end(), s->kv.blocks.begin())) {
        return Internal("sequence {}: a step in flight has another table", id);
      }
      for (size_t i = 0; i < item.window.blocks.size(); ++i) {
        const size_t block = item.window.first + i;
        if (block >= s->kv.window_first &&
            (block >= s->kv.WindowEnd() || s->kv.window[block - s->kv.window_first] != item.window.blocks[i]))
          return Internal("sequence {}: a step in flight has another windowed table", id);
      }
      Seen& of = seen[s];
      of.answer_bytes += s->AnswerBytes(item.first_position, item.known_end());
      ++of.steps;
      if (is_void) {
        if (item.drafts.empty() || (s->running() && item.first_position + 1 < s->landed))
          return Internal("sequence {}: void rows from {} on, {} have landed", id, item.first_position, s->landed);
        continue;
      }
      const uint32_t expected = of.valid ? of.end : s->poisoned ? item.first_position : s->arrived;
      if (item.first_position != expected) {
        return Internal("sequence {}: position {} is in flight where {} is next", id, item.first_position, expected);
      }
      of.valid = true;
      of.end = item.first_position + item.count;
    }
  }
  for (const auto& [id, s] : queue.all()) {
    const Seen& of = seen[s.get()];
    if (of.steps != s->in_flight || (of.valid && s->running() && of.end != s->launched)) {
      return Internal("sequence {}: {} steps in flight up to {}, counted are {} up to {}", static_cast<uint64_t>(id),
                      of.steps, of.end, s->in_flight, s->launched);
    }
    if (of.answer_bytes != s->answer_bytes)
      return Internal("sequence {}: {} bytes of answers are in flight, counted are {}", static_cast<uint64_t>(id),
                      of.answer_bytes, s->answer_bytes);
    answers += of.answer_bytes;
  }
  if (answers != answer_bytes)
    return Internal("{} bytes of answers are in flight, counted are {}", answers, answer_bytes);
  return absl::OkStatus();
}

Status Scheduler::CheckIntegrity() const {
  for (const auto& [id, s] : rep_->queue.all()) GYRE_RETURN_IF_ERROR(rep_->CheckSequence(*s));
  GYRE_RETURN_IF_ERROR(rep_->CheckLists());
  GYRE_RETURN_IF_ERROR(rep_->CheckFlights());
  return rep_->cache.CheckIntegrity(rep_->Tables());
}

Status Scheduler::TakeFault() { return rep_->cache.TakeFault(); }

uint32_t Scheduler::Reclaim() {
  const uint32_t units = rep_->cache.Reclaim(rep_->Tables());
  rep_->counts.leaked_blocks += units;
  return units;
}

}  // namespace gyre
