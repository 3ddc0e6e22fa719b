// Rings: how one is drained, resumed, replaced and lost, and when it counts as broken.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/engine/engine_state.h"

namespace gyre {

void Engine::Impl::Drain(std::function<void(std::vector<BlockId>)> drained) {
  Post([this, drained = std::move(drained)] {
    if (ring_.broke().ok()) paused_since_ = Now();
    drained_ = drained;
    draining_ = true;
  });
}

void Engine::Impl::CheckDrained() {
  if (!draining_ || !drained_ || !ring_.linked() || OwesResults()) return;
  const auto drained = std::move(drained_);
  drained_ = {};
  drained(scheduler_->LiveBlocks());
}

void Engine::Impl::Shrink(uint32_t num_blocks, bool whole) {
  num_blocks_ = num_blocks;
  Post([this, num_blocks, whole] { OnShrink(num_blocks, whole); });
}

void Engine::Impl::Grow(uint32_t num_blocks) {
  num_blocks_ = num_blocks;
  Post([this, num_blocks] { scheduler_->Grow(num_blocks); });
}

void Engine::Impl::BreakRing(Epoch epoch, const Status& why) {
  Post([this, epoch, why] {
    if (ring_.epoch() == epoch) Break(why);
  });
}

void Engine::Impl::OnShrink(uint32_t num_blocks, bool whole) {
  LoseFlights(absl::OkStatus());
  ForgetCache(num_blocks, whole);
}

void Engine::Impl::ForgetCache(uint32_t num_blocks, bool whole) {
  restorable_ = false;
  if (whole) whole_blocks_ = num_blocks;
  for (SeqId id : scheduler_->Shrink(num_blocks, whole)) {
    Sequence& s = *sequences_.at(id);
    Fail(s, ResourceExhausted("the KV cache was made smaller, to {} tokens; the {} of this request no longer fit",
                              uint64_t{num_blocks} * options_.scheduler.block_size, s.tokens.size()));
  }
}

// The results of Submit change at once, so that a request after Resume is never refused.
void Engine::Impl::Resume(std::optional<Ring> ring) {
  if (ring) Refuse(absl::OkStatus());
  Post([this, ring = std::move(ring)] { OnResume(ring); });
}

void Engine::Impl::OnResume(const std::optional<Ring>& ring) {
  bool repaired = false;
  if (ring) {
    const Status broke = ring_.broke();
    ring_.Begin(*ring, Now());
    // Whether the old ring broke or a drain of it was given up: what it still owes will not be heard any more.
    repaired = !broke.ok();
    LoseFlights(broke);
    if (std::exchange(distrusts_cache_, false) || (restorable_ && !ring->restores)) ForgetCache(num_blocks_);
    if (restorable_) scheduler_->Forget(ring->missing);
    restorable_ = false;
    cache_.DropFound();
    scheduler_->SkipSteps(ring->step_floor);
    ring_began_ = scheduler_->last_step();
    const uint32_t fixed = options_.steps_in_flight;
    scheduler_->SetRing(fixed > 0 ? fixed : ring->stages + 1, fixed > 0 ? fixed : ring->stages,
                        ring->prefill_matches_decode, ring->cache_namespace);
    if (ring->own_member) FailQuarantined();
  }
  if (ring && awaited_) {
    counts_.last_wait = Now() - await_started_;
    counts_.longest_wait = std::max(counts_.longest_wait, counts_.last_wait);
    awaited_.reset();
  }
  if (draining_ || repaired) {
    ++counts_.pauses;
    counts_.last_pause = Now() - paused_since_;
    counts_.longest_pause = std::max(counts_.longest_pause, counts_.last_pause);
    for (const auto& [id, s] : sequences_) {
      const uint32_t positions = scheduler_->Positions(id);
      counts_.held_in_prefill += positions > 0 && scheduler_->State(id) == SeqState::kPrefill;
      counts_.held_in_partial_block += positions % options_.scheduler.block_size != 0;
    }
  }
  draining_ = false;
  drained_ = {};
}

// Nothing that is in flight or asked will be answered: it is sent again. `why`: the ring broke, perhaps by what was in
// flight; OK: it was replaced.
void Engine::Impl::LoseFlights(const Status& why) {
  for (SeqId id : scheduler_->LoseFlights(!why.ok(), full_logits_.Asked())) {
    Blame(*sequences_.at(id), fmt::format("was in the ring each of the three times that it broke, the last time alone, "
                                          "so it is taken to be the cause: {}",
                                          Message(why)));
  }
  // The hidden state that a question is about may be gone: the row is computed once more.
  for (SeqId id : full_logits_.Asking()) {
    sequences_.at(id)->wants_full_logits = true;
    scheduler_->Repeat(id);
  }
  full_logits_.Clear();
  guide_.ForgetNumbers();
}

// InvalidArgument, as clients and proxies send what fails otherwise again by themselves.
void Engine::Impl::Blame(Sequence& s, const std::string& why) {
  ++counts_.poison_requests;
  poison_.Add(s.request.prompt, Now());
  Fail(s, InvalidArgument("this request {}", why));
}

void Engine::Impl::FailQuarantined() {
  for (SeqId id : scheduler_->Quarantined()) {
    Blame(*sequences_.at(id),
          "was in the ring both times that it broke, and the ring that is left has layers in the coordinator's own "
          "process, which it might end");
  }
}

void Engine::Impl::Await(const Status& why, bool crashed, bool replicated, std::optional<Deadline> since) {
  Refuse(absl::OkStatus());
  Post([this, why, crashed, replicated, since] { OnAwait(why, crashed, replicated, since.value_or(Now())); });
}

void Engine::Impl::Restore(std::optional<uint64_t> step, std::function<void(UnitList)> restored) {
  Post([this, step, restored = std::move(restored)] {
    const bool takes_over = !restorable_ && cache_.has_found();
    if (takes_over) {
      scheduler_->Restore(cache_.TakeFound());
      restorable_ = true;
    }
    if (!restorable_) return restored({});
    scheduler_->ForgetAfter(step ? std::max(*step, ring_began_) : 0);
    UnitList list = scheduler_->RestoreList();
    // What the process before did after the index was kept is not known.
    if (takes_over) list.steps = scheduler_->StepsOf(list.units);
    restored(std::move(list));
  });
}

void Engine::Impl::OnAwait(const Status& why, bool crashed, bool replicated, Deadline since) {
  if (!awaited_) {
    ++counts_.rings_lost;
    await_started_ = since;
    DropRing();
    LoseFlights(crashed ? why : absl::OkStatus());
    if (replicated) {
      scheduler_->PutBack();
      restorable_ = true;
    } else {
      ForgetCache(num_blocks_);  // the lost member's part of every block is gone
    }
  }
  if (awaited_ == why) return;
  awaited_ = why;
  board_.Stale();
  for (const auto& [id, s] : sequences_) Deliver(*s, Waiting{why});
}

void Engine::Impl::Lose(const Status& why) {
  Refuse(why);
  Post([this, why] { OnLose(why); });
}

void Engine::Impl::DropRing() {
  ring_.Drop();
  draining_ = false;
  drained_ = {};
}

void Engine::Impl::OnLose(const Status& why) {
  DropRing();
  awaited_.reset();
  restorable_ = false;
  EndAll(Failed{why});
  scheduler_ = std::make_unique<Scheduler>(options_.scheduler);
  cache_.BeginAnew();
  if (whole_blocks_) scheduler_->Shrink(*whole_blocks_, true);
  scheduler_->Shrink(num_blocks_);
}

// REQUIRES: the caller does not go on with a sequence or the ring: without on_broken all sequences end here.
void Engine::Impl::Break(const Status& why) {
  if (!ring_.linked()) return;
  // Members that begin anew with the next plan close the links of a ring that owes nothing any more.
  const bool replaced = draining_ && !drained_ && !OwesResults();
  // Whoever hears of it says what was lost, or that the ring is repaired.
  const LogLevel told = options_.on_broken ? LogLevel::kInfo : LogLevel::kWarn;
  Log(replaced ? LogLevel::kDebug : told, "plan {}: {}", ring_.epoch().number, Message(why));
  const Epoch epoch = ring_.epoch();
  ring_.Break(why);
  if (!draining_) paused_since_ = OwesResults() ? ring_.quiet_since() : Now();
  if (stopping_) return;  // everything ends in Cancelled
  if (options_.on_broken) {
    options_.on_broken(epoch, why);
  } else {
    Refuse(why);
    OnLose(why);
  }
}

// A step or an answer that is lost somewhere in a ring whose links live.
void Engine::Impl::CheckSilence() {
  if (!ring_.linked()) return;
  const Deadline now = Now();
  if (!OwesResults()) {
    ring_.NoteQuiet(now);
  } else if (now >= ring_.silence_deadline()) {
    const auto seconds = [](Duration d) { return std::chrono::duration_cast<std::chrono::seconds>(d).count(); };
    Break(Unavailable("nothing came back round the ring for {} s, at most {} s are expected",
                      seconds(now - ring_.quiet_since()), seconds(options_.step_timeout)));
  }
}

}  // namespace gyre
