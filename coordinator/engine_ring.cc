// Rings: how one is drained, resumed, replaced and lost, and when it counts as broken.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/engine_state.h"
#include "xxhash.h"

namespace gyre {
namespace {

// A prompt that cost three rings is not taken in again for so long, as whoever asked may ask again.
constexpr Duration kRemembered = std::chrono::minutes(10);
constexpr size_t kBlamedPrompts = 64;

uint64_t HashOf(const std::vector<TokenId>& prompt) {
  return XXH3_64bits(prompt.data(), prompt.size() * sizeof(TokenId));
}

}  // namespace

Status Engine::Impl::CheckBlamed(const std::vector<TokenId>& prompt) {
  MutexLock lock(&mutex_);
  while (!blamed_prompts_.empty() && blamed_prompts_.front().second < Now()) blamed_prompts_.pop_front();
  if (blamed_prompts_.empty()) return absl::OkStatus();
  const uint64_t hash = HashOf(prompt);
  for (const auto& [blamed, until] : blamed_prompts_) {
    if (blamed == hash) {
      return InvalidArgument(
          "a request with this prompt was taken to be the cause of lost workers; it is refused for {} s",
          std::chrono::duration_cast<std::chrono::seconds>(until - Now()).count());
    }
  }
  return absl::OkStatus();
}

void Engine::Impl::Drain(std::function<void(std::vector<BlockId>)> drained) {
  Post([this, drained = std::move(drained)] {
    drain_started_ = Now();
    drained_ = drained;
    draining_ = true;
  });
}

void Engine::Impl::CheckDrained() {
  if (!draining_ || !drained_ || ring_.from_last == nullptr || OwesResults()) return;
  const auto drained = std::move(drained_);
  drained_ = {};
  drained(scheduler_->LiveBlocks());
}

void Engine::Impl::Shrink(uint32_t num_blocks) {
  num_blocks_ = num_blocks;
  Post([this, num_blocks] { OnShrink(num_blocks); });
}

void Engine::Impl::Grow(uint32_t num_blocks) {
  num_blocks_ = num_blocks;
  Post([this, num_blocks] { scheduler_->Grow(num_blocks); });
}

RingProgress Engine::Impl::progress() const {
  MutexLock lock(&mutex_);
  if (receiving_ == nullptr) return {};
  return {.plan = linked_epoch_.number,
          .step_sent = step_sent_,
          .step_came = step_came_,
          .bytes_received = receiving_->received()};
}

void Engine::Impl::BreakRing(Epoch epoch, const Status& why) {
  {
    MutexLock lock(&mutex_);
    to_break_ = epoch;
  }
  Post([this, epoch, why] {
    if (ring_.epoch == epoch) Break(why);
  });
}

void Engine::Impl::OnShrink(uint32_t num_blocks) {
  LoseFlights(absl::OkStatus());
  ForgetCache(num_blocks);
}

void Engine::Impl::ForgetCache(uint32_t num_blocks) {
  recallable_ = false;
  for (SeqId id : scheduler_->Shrink(num_blocks)) {
    Sequence& s = *sequences_.at(id);
    Fail(s, ResourceExhausted(
                "the KV cache was made smaller for the workers, to {} tokens; the {} of this request no longer fit",
                uint64_t{num_blocks} * options_.scheduler.block_size, s.tokens.size()));
  }
}

// The results of Submit change at once, so that a request after Resume is never refused.
void Engine::Impl::Resume(std::optional<Ring> ring) {
  if (ring) Refuse(absl::OkStatus());
  Post([this, ring = std::move(ring)] { OnResume(ring); });
}

void Engine::Impl::OnResume(const std::optional<Ring>& ring) {
  if (ring) {
    ring_ = *ring;
    stash_.clear();
    quiet_since_ = Now();
    {
      MutexLock lock(&mutex_);
      receiving_ = ring_.from_last;
      linked_epoch_ = ring_.epoch;
      step_sent_ = step_came_ = 0;
    }
    // Whether the old ring broke or a drain of it was given up: what it still owes will not be heard any more.
    LoseFlights(broke_);
    broke_ = absl::OkStatus();
    if (recallable_ && !ring->recalls) ForgetCache(num_blocks_);
    if (recallable_) scheduler_->Forget(ring->missing);
    recallable_ = false;
    found_.clear();
    scheduler_->SkipSteps(ring->step_floor);
    ring_began_ = scheduler_->last_step();
    const uint32_t fixed = options_.steps_in_flight;
    scheduler_->SetRing(fixed > 0 ? fixed : ring->stages + 1, fixed > 0 ? fixed : ring->stages,
                        ring->prefill_matches_decode, ring->salt);
    if (ring->own_member) FailSuspects();
  }
  if (ring && awaited_) {
    counts_.last_wait = Now() - await_started_;
    counts_.longest_wait = std::max(counts_.longest_wait, counts_.last_wait);
    awaited_.reset();
  }
  if (draining_) {
    ++counts_.pauses;
    counts_.last_pause = Now() - drain_started_;
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
  std::vector<SeqId> asked;
  for (const auto& [id, open] : questions_) {
    if (open.sent) asked.push_back(id);
  }
  for (SeqId id : scheduler_->LoseFlights(!why.ok(), asked)) {
    Blame(*sequences_.at(id), fmt::format("was in the ring each of the three times that it broke, the last time alone, "
                                          "so it is taken to be the cause: {}",
                                          Message(why)));
  }
  // The hidden state that a question is about may be gone: the row is computed once more.
  for (const auto& [id, question] : questions_) {
    sequences_.at(id)->wants_full_logits = true;
    scheduler_->Repeat(id);
  }
  questions_.clear();
}

// InvalidArgument, as clients and proxies send what fails otherwise again by themselves.
void Engine::Impl::Blame(Sequence& s, const std::string& why) {
  ++counts_.blamed;
  {
    MutexLock lock(&mutex_);
    blamed_prompts_.emplace_back(HashOf(s.request.prompt), Now() + kRemembered);
    if (blamed_prompts_.size() > kBlamedPrompts) blamed_prompts_.pop_front();
  }
  Fail(s, InvalidArgument("this request {}", why));
}

void Engine::Impl::FailSuspects() {
  for (SeqId id : scheduler_->Suspects()) {
    Blame(*sequences_.at(id),
          "was in the ring both times that it broke, and the ring that is left has layers in the coordinator's own "
          "process, which it might end");
  }
}

// The command drops the ring, whichever it is by then.
void Engine::Impl::PostDrop(LinkInbox::Command command) {
  ++drops_;
  Post([this, command = std::move(command)] {
    --drops_;
    command();
  });
}

// A stage that takes nothing in must not hold up the command that gives its ring up.
bool Engine::Impl::SendIsVain() const {
  if (stopping_ || drops_ > 0) return true;
  MutexLock lock(&mutex_);
  return to_break_ == ring_.epoch;
}

void Engine::Impl::Await(const Status& why, bool crashed, bool mirrored) {
  Refuse(absl::OkStatus());
  PostDrop([this, why, crashed, mirrored] { OnAwait(why, crashed, mirrored); });
}

void Engine::Impl::Recall(std::optional<uint64_t> step, std::function<void(UnitList)> recalled) {
  Post([this, step, recalled = std::move(recalled)] {
    const bool takes_over = !recallable_ && !found_.empty();
    if (takes_over) {
      scheduler_->Restore(std::exchange(found_, {}));
      generation_ = options_.cache.generation;
      recallable_ = true;
    }
    if (!recallable_) return recalled({});
    scheduler_->ForgetAfter(step ? std::max(*step, ring_began_) : 0);
    UnitList list = scheduler_->RecallList();
    // What the process before did after the index was kept is not known.
    if (takes_over) list.steps = scheduler_->StepsOf(list.units);
    recalled(std::move(list));
  });
}

void Engine::Impl::OnAwait(const Status& why, bool crashed, bool mirrored) {
  if (!awaited_) {
    ++counts_.rings_lost;
    await_started_ = Now();
    DropRing();
    LoseFlights(crashed ? why : absl::OkStatus());
    if (mirrored) {
      scheduler_->PutBack();
      recallable_ = true;
    } else {
      ForgetCache(num_blocks_);  // the lost member's part of every block is gone
    }
  }
  if (awaited_ == why) return;
  awaited_ = why;
  sequences_stale_ = true;
  for (const auto& [id, s] : sequences_) Deliver(*s, Waiting{why});
}

void Engine::Impl::Lose(const Status& why) {
  Refuse(why);
  PostDrop([this, why] { OnLose(why); });
}

void Engine::Impl::DropRing() {
  {
    MutexLock lock(&mutex_);
    receiving_ = nullptr;
  }
  ring_ = {};
  broke_ = absl::OkStatus();
  stash_.clear();
  draining_ = false;
  drained_ = {};
}

void Engine::Impl::OnLose(const Status& why) {
  DropRing();
  awaited_.reset();
  recallable_ = false;
  EndAll(Failed{why});
  scheduler_ = std::make_unique<Scheduler>(options_.scheduler);
  ++generation_;
  scheduler_->Shrink(num_blocks_);
}

// REQUIRES: the caller does not go on with a sequence or the ring: without on_broken all sequences end here.
void Engine::Impl::Break(const Status& why) {
  if (ring_.from_last == nullptr) return;
  Log(LogLevel::kWarn, "plan {}: {}", ring_.epoch.number, Message(why));
  const Epoch epoch = ring_.epoch;
  ring_.to_first->Close();
  ring_.from_last->Close();
  ring_.to_first = ring_.from_last = nullptr;
  broke_ = why;
  stash_.clear();
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
  if (ring_.from_last == nullptr) return;
  const Deadline now = Now();
  if (!OwesResults()) {
    quiet_since_ = now;
  } else if (now >= SilenceDeadline()) {
    Break(Unavailable("nothing came back round the ring for {} s, at most {} s are expected",
                      std::chrono::duration_cast<std::chrono::seconds>(now - quiet_since_).count(),
                      std::chrono::duration_cast<std::chrono::seconds>(options_.step_timeout).count()));
  }
}

}  // namespace gyre
