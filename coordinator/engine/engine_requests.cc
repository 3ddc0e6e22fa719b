// Requests: what is refused, how they begin, are held back, expire and end.
#include <algorithm>
#include <span>
#include <utility>

#include "base/counted.h"
#include "base/log_output.h"
#include "coordinator/engine/engine_state.h"
#include "coordinator/engine/kv_cache.h"

namespace gyre {
namespace {

constexpr Duration kCheckInterval = std::chrono::seconds(10);

// Requests for what the model makes of a prompt.
Status CheckPromptAnswers(const Request& r, int dim) {
  if (r.prompt_logits && r.prompt_logprobs) {
    return InvalidArgument("a request asks for its prompt's logits or for log-probabilities, not for both");
  }
  if (r.score && (r.prompt_logits || r.prompt_logprobs || r.embedding)) {
    return InvalidArgument("a request for a score asks for no other answers of its prompt's rows");
  }
  if (r.score && (r.score->from > r.prompt.size() || r.score->named.size() > r.prompt.size() - r.score->from)) {
    return InvalidArgument("the score begins at position {} and names ids for {} positions, the prompt has {}",
                           r.score->from, r.score->named.size(), Counted(r.prompt.size(), "token"));
  }
  if (!r.embedding) return absl::OkStatus();
  if (r.max_new_tokens > 0 || r.prompt_logits || r.prompt_logprobs || r.logprobs) {
    return InvalidArgument("a request for an embedding generates no text and asks for no logits or log-probabilities");
  }
  if (dim <= 0) return FailedPrecondition("this engine does not know how wide its hidden states are");
  return absl::OkStatus();
}

// Checks the tokens that were generated before.
Status CheckGenerated(const Request& r, int vocab) {
  if (r.generated.empty()) return absl::OkStatus();
  if (r.prompt_logits || r.prompt_logprobs || r.score || r.embedding) {
    return InvalidArgument("a request for what the model makes of its prompt generates nothing to go on behind");
  }
  if (r.generated.size() > r.max_new_tokens) {
    return InvalidArgument("{} generated before, the request is for at most {}",
                           Counted(r.generated.size(), "token was", "tokens were"), r.max_new_tokens);
  }
  for (const TokenEvent& t : r.generated) {
    if (t.token < 0 || t.token >= vocab) {
      return InvalidArgument("token id {} that was generated before is out of range, the vocabulary has 0-{}", t.token,
                             vocab - 1);
    }
  }
  return absl::OkStatus();
}

Status CheckRequest(const Request& r, const EngineOptions& options) {
  const int vocab = options.vocab;
  GYRE_RETURN_IF_ERROR(CheckSettings(r, options.limits, vocab));
  if (r.prompt.empty()) return InvalidArgument("the prompt is empty, at least one token is needed");
  if (r.adapter > options.adapters) return InvalidArgument("adapter {}, the model has {}", r.adapter, options.adapters);
  if (options.encoder && !r.embedding) return InvalidArgument("{}", kEncoderMakesNoText);
  GYRE_RETURN_IF_ERROR(CheckPromptAnswers(r, options.dim));
  for (const auto& [ids, where] : {std::pair(&r.prompt, "prompt"), {&r.prediction, "prediction"}}) {
    for (const TokenId id : *ids) {
      if (id < 0 || id >= vocab) {
        return InvalidArgument("token id {} of the {} is out of range, the vocabulary has 0-{}", id, where, vocab - 1);
      }
    }
  }
  return CheckGenerated(r, vocab);
}

}  // namespace

void Engine::Impl::Refuse(const Status& why) {
  MutexLock lock(&mutex_);
  refusing_ = why;
}

StatusOr<SeqId> Engine::Impl::Submit(Request request, EventSink sink) {
  {
    MutexLock lock(&mutex_);
    GYRE_RETURN_IF_ERROR(refusing_);
  }
  GYRE_RETURN_IF_ERROR(CheckRequest(request, options_));
  GYRE_RETURN_IF_ERROR(poison_.Check(request.prompt, Now()));
  const uint64_t limit = ContextLimit();
  if (request.prompt.size() > limit) {
    return OutOfRange("the prompt has {} tokens, the context and the KV cache hold {}", request.prompt.size(), limit);
  }
  if (accepted_++ >= uint64_t{options_.scheduler.max_sequences} + options_.limits.max_waiting) {
    --accepted_;
    return ResourceExhausted("the queue is full: {} may run at once, and {} wait; try again later",
                             Counted(options_.scheduler.max_sequences, "request"), options_.limits.max_waiting);
  }
  if (request.prompt_logprobs) request.score = {.from = 1, .top = *request.prompt_logprobs};
  const SeqId seq{next_seq_++};
  if (request.adapter == 0) request.adapter = options_.adapter;
  auto s = std::make_shared<std::unique_ptr<Sequence>>(
      std::make_unique<Sequence>(seq, std::move(request), std::move(sink), Now()));
  speculator_.Prepare(s->get());
  Post([this, s] { OnSubmit(std::move(*s)); });
  return seq;
}

void Engine::Impl::OnSubmit(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  Status refused;
  {
    MutexLock lock(&mutex_);
    refused = refusing_;
  }
  if (!refused.ok()) {
    --accepted_;
    return Deliver(s, Failed{refused});
  }
  ++counts_.requests;
  Trace(TraceKind::kRequestCame, static_cast<uint64_t>(s.id));
  counts_.prompt_tokens += s.request.prompt.size();
  unchecked_ = true;
  const Request& r = s.request;
  speculator_.Begin(&s);
  // The limit may have shrunk since Submit: then the scheduler refuses the prompt.
  const uint64_t wanted = std::min<uint64_t>(ContextLimit(), uint64_t{r.prompt.size()} + r.max_new_tokens);
  const auto positions = static_cast<uint32_t>(std::max<uint64_t>(r.prompt.size(), wanted));
  const SeqId id = s.id;
  sequences_[id] = std::move(sequence);
  if (r.deadline != kNoDeadline) ++with_deadline_;
  s.answers = AnswersOf(r, options_);
  s.scored = s.answers.first;
  uint32_t behind = 0;
  if (const std::optional<FinishReason> end = TakeGenerated(s, positions, &behind)) return Finish(s, *end);
  SequenceParams params{.tokens = ContextOf(s),
                        .generated = behind,
                        .max_positions = positions,
                        .boundaries = s.window.shifts() == 0 ? r.boundaries : std::vector<uint32_t>(),
                        .answers = s.answers,
                        .priority = r.priority,
                        .tenant = r.tenant,
                        .salt = r.adapter == 0 ? options_.salt : MixSalts(options_.salt, r.adapter),
                        .tenant_salt = r.cache_salt};
  if (r.embedding == Pooling::kFirst && !options_.encoder) params.tokens.resize(1);  // no other row counts
  if (r.score && r.max_new_tokens == 0 && params.tokens.size() > 1)
    params.tokens.pop_back();  // its row decides nothing
  if (r.score && r.score->generated) {
    const auto rows = static_cast<uint32_t>(params.tokens.size());
    params.generated = rows - std::min(rows, r.score->from);
  }
  if (Status status = scheduler_->Add(id, std::move(params), Now()); !status.ok()) return Fail(s, status);
  if (awaited_) Deliver(s, Waiting{*awaited_});
  Guide(s, guide_.Begin(s.id, r, std::span(s.tokens).subspan(r.prompt.size())));
}

// Sends the events of earlier tokens again and restores the text's state: as Emit, with the context shifted where
// it was full. `behind`: the number of these tokens in the context after its prompt. Returns a reason if they
// end the text.
std::optional<FinishReason> Engine::Impl::TakeGenerated(Sequence& s, uint32_t positions, uint32_t* behind) {
  const Deadline now = Now();
  for (const TokenEvent& before : s.request.generated) {
    Sequence::Accepted accepted =
        s.Accept({.token = before.token, .probability = before.probability}, options_.tokenizer, now);
    ++*behind;
    TokenEvent event = before;
    event.text = std::move(accepted.text);
    Deliver(s, std::move(event));
    if (accepted.stopped) return FinishReason::kStop;
    if (s.generated() >= s.request.max_new_tokens) return FinishReason::kLength;
    if (ContextIsFull(s)) return FinishReason::kLength;
    if (!options_.context_keep || s.tokens.size() - s.window.gap() <= positions) continue;
    ShiftWindow(s);
    *behind = 0;
  }
  return std::nullopt;
}

void Engine::Impl::Cancel(SeqId seq) {
  Post([this, seq] {
    if (Sequence* s = Find(seq)) End(*s, Cancelled{});
  });
}

void Engine::Impl::Hold(SeqId seq) {
  Post([this, seq] { scheduler_->Hold(seq); });
}

void Engine::Impl::Unhold(SeqId seq) {
  Post([this, seq] { scheduler_->Unhold(seq); });
}

void Engine::Impl::ExpireDeadlines() {
  if (with_deadline_ == 0) return;
  const Deadline now = Now();
  std::vector<Sequence*> late;
  for (auto& [id, s] : sequences_) {
    if (s->request.deadline <= now) late.push_back(s.get());
  }
  for (Sequence* s : late) Fail(*s, DeadlineExceeded("the request's deadline passed"));
}

// The KV bookkeeping is checked while nobody waits, and not after every lone request.
void Engine::Impl::CheckWhenIdle() {
  if (!unchecked_ || !scheduler_->idle()) return;
  const Deadline now = Now();
  if (now < next_check_) return;
  unchecked_ = false;
  next_check_ = now + kCheckInterval;
  ++counts_.integrity_checks;
  const Status found = scheduler_->CheckIntegrity();
  if (found.ok()) return;
  ++counts_.integrity_faults;
  const uint32_t blocks = scheduler_->Reclaim();
  Log(LogLevel::kError, "the KV bookkeeping was wrong: {}; {} leaked blocks were given back", Message(found), blocks);
  if (const Status still = scheduler_->CheckIntegrity(); !still.ok()) {
    Log(LogLevel::kError, "the KV bookkeeping is still wrong: {}; all that is cached is forgotten", Message(still));
    scheduler_->Shrink(num_blocks_);
  }
}

// A block that was given back twice, or used after that, may stand in two tables. So nothing more is computed with it:
// the ring is made anew, and everything is computed again. Returns whether there was no fault.
bool Engine::Impl::CheckPools() {
  const Status fault = scheduler_->TakeFault();
  if (fault.ok()) return true;
  ++counts_.integrity_faults;
  Log(LogLevel::kError, "the KV bookkeeping was used wrongly: {}; all that is cached is forgotten", Message(fault));
  distrusts_cache_ = true;
  Break(fault);
  return false;
}

void Engine::Impl::Finish(Sequence& s, FinishReason reason) {
  ++counts_.finished;
  const Deadline now = Now();
  counts_.request_time.Add(now - s.submitted());
  End(s, s.MakeFinished(reason, now));
}

void Engine::Impl::End(Sequence& s, const Event& terminal) {
  if (const auto* failed = std::get_if<Failed>(&terminal)) {
    ++counts_.failed;
    LogWith(LogLevel::kInfo, fmt::format("request {} failed: {}", s.log_id(), Message(failed->status)),
            {{"request", s.log_id()}});
  }
  if (std::holds_alternative<Cancelled>(terminal)) ++counts_.cancelled;
  if (s.request.deadline != kNoDeadline) --with_deadline_;
  --accepted_;
  Trace(TraceKind::kRequestEnded, static_cast<uint64_t>(s.id));
  scheduler_->Remove(s.id);
  full_logits_.Drop(s.id);
  guide_.End(s.id);
  speculator_.End(s);
  board_.Stale();
  const auto node = sequences_.extract(s.id);  // `s` lives to the end of this function
  Deliver(s, terminal);
}

void Engine::Impl::EndAll(const Event& terminal) {
  while (!sequences_.empty()) End(*sequences_.begin()->second, terminal);
  HandOver();
  PublishStats();
}

}  // namespace gyre
