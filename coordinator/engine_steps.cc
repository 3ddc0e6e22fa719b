// Steps and questions on their way round the ring, and the tokens that result.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coordinator/engine_state.h"

namespace gyre {

// The answer that decides the next token.
RowRequest Engine::Impl::SampleRequest(Sequence& s, const StepItem& item) {
  RowRequest request;
  if (options_.candidates_path && !s.wants_full_logits) {
    request = MakeRowRequest(s.request.sampling, s.History(), {}, options_.candidates);
  } else {
    request.mode = RowMode::kFullLogits;
  }
  request.first = item.count - 1;
  request.count = 1;
  request.logprobs = s.request.logprobs;
  s.row_request = request;
  return request;
}

Status Engine::Impl::SendStep(const StepPlan& plan) {
  batch_.seqs.clear();
  ids_.clear();
  for (const StepItem& item : plan.items) {
    Sequence* s = Find(item.seq);
    if (s == nullptr) return Internal("step {} names an unknown sequence", static_cast<uint64_t>(plan.step));
    SeqRows rows{.seq = item.seq,
                 .incarnation = item.incarnation,
                 .model = options_.model,
                 .adapter = 0,
                 .row_class = item.row_class,
                 .first_position = item.first_position,
                 .row_count = item.count,
                 .blocks = {item.blocks},
                 .requests = {}};
    if (options_.scheduler.num_slots > 0) rows.blocks.push_back(item.slots.Entries());
    if (options_.scheduler.window_blocks > 0) {
      rows.blocks.resize(kWindowGroup);
      rows.blocks.push_back(item.window.Entries());
    }
    if (!s->cached) {
      s->cached = item.first_position;
      Trace(TraceKind::kRequestBegan, static_cast<uint64_t>(item.seq));
    }
    AskRows(*s, item, &rows.requests);
    if (item.row_class == RowClass::kPrompt) counts_.prompt_rows += item.count;
    for (uint32_t i = 0; i < item.count; ++i) ids_.push_back(s->tokens[s->window.IndexAt(item.first_position + i)]);
    batch_.seqs.push_back(std::move(rows));
  }
  Trace(TraceKind::kStepLaunched, static_cast<uint64_t>(plan.step), static_cast<uint32_t>(ids_.size()));
  encoder_.Reset();
  EncodeStepPrefix(batch_, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes(), std::as_bytes(std::span(ids_))};
  counts_.step_bytes_sent += kFrameHeaderBytes + parts[0].size() + parts[1].size();
  step_sent_ = static_cast<uint64_t>(plan.step);
  return ring_.to_first->Send({.kind = FrameKind::kTokens,
                               .dtype = WireType::kI32,
                               .epoch = ring_.epoch,
                               .step = plan.step,
                               .rows = static_cast<uint32_t>(ids_.size())},
                              parts, RealTime(SilenceDeadline()), [this] { StashResults(); });
}

void Engine::Impl::Came(const FrameHeader& h) {
  if (h.kind != FrameKind::kAnswer && h.kind != FrameKind::kStepError) return;
  step_came_ = std::max(step_came_.load(), static_cast<uint64_t>(h.step));
}

// A ring whose hops all wait to send stands still, so results are taken in while a Send waits.
void Engine::Impl::StashResults() {
  if (SendIsVain()) ring_.to_first->Close();  // ends the Send
  for (;;) {
    StatusOr<Frame> frame = ring_.from_last->Recv(Clock::now());
    if (!frame.ok()) return;  // an end shows again in TakeResults
    Came(frame->header);
    stash_.push_back(*std::move(frame));
  }
}

void Engine::Impl::OnFrame(const Frame& frame) {
  const FrameHeader& h = frame.header;
  if (h.epoch != ring_.epoch) {
    ++counts_.discarded_results;
    return;
  }
  quiet_since_ = Now();
  sequences_stale_ = true;
  Came(h);
  switch (h.kind) {
    case FrameKind::kAnswer: {
      StatusOr<StepAnswer> answer = DecodeStepAnswer(frame.payload);
      if (!answer.ok()) return Break(Annotate(answer.status(), "an answer of the last stage"));
      const auto us = [](uint32_t n) { return Duration(std::chrono::microseconds(n)); };
      return OnStepLanded(h.step, *answer,
                          {.computed = us(h.computed_us), .slowest = us(h.slowest_us), .queued = h.queued});
    }
    case FrameKind::kStepError: {
      StatusOr<StepError> error = DecodeStepError(frame.payload);
      if (!error.ok()) return Break(Annotate(error.status(), "a step error"));
      return OnStepFailed(h.step, *error);
    }
    case FrameKind::kLogitsAnswer: {
      StatusOr<LogitsAnswer> answer = DecodeLogitsAnswer(frame.payload);
      if (!answer.ok()) return Break(Annotate(answer.status(), "a logits answer"));
      return OnLogitsAnswer(*answer);
    }
    default:
      return Break(DataLoss("the last stage sent a frame of kind {}, which is no answer", static_cast<int>(h.kind)));
  }
}

void Engine::Impl::OnStepLanded(StepId step, const StepAnswer& answer, const StepTimes& times) {
  Trace(TraceKind::kStepLanded, static_cast<uint64_t>(step));
  const LandedStep landed = scheduler_->Land(step, true, Now(), times);
  // Answers stand in the order of the step's items; an item whose rows were only computed has none.
  auto next = answer.rows.begin();
  for (const StepItem& item : landed.valid) {
    auto row = std::find_if(next, answer.rows.end(), [&item](const RowAnswer& r) { return r.seq == item.seq; });
    bool sampled = false;
    for (; row != answer.rows.end() && row->seq == item.seq; next = ++row) {
      Sequence* s = Find(item.seq);
      if (s == nullptr) continue;
      sampled |= row->position == item.first_position + item.count - 1;
      OnAnswer(*s, item, *row);
    }
    if (Sequence* s = Find(item.seq); s != nullptr && item.sample_last && !sampled) {
      Fail(*s, Internal("the last stage gave no answer for position {}", item.first_position + item.count - 1));
    }
  }
}

void Engine::Impl::OnStepFailed(StepId step, const StepError& error) {
  ++counts_.step_errors;
  Trace(TraceKind::kStepFailed, static_cast<uint64_t>(step));
  Log(LogLevel::kWarn, "stage {} failed step {}: {}", error.stage, static_cast<uint64_t>(step), error.message);
  for (SeqId seq : scheduler_->Land(step, false, Now()).failed) {
    if (Sequence* s = Find(seq)) Fail(*s, Internal("stage {} failed repeatedly: {}", error.stage, error.message));
  }
}

void Engine::Impl::OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer) {
  const bool last = item.sample_last && answer.position == item.first_position + item.count - 1;
  const Request& r = s.request;
  if (const Status status = TakePromptRow(s, item, answer); !status.ok()) return Fail(s, status);
  if (!last) return;
  if (const Status status = EndPrompt(s); !status.ok()) return Fail(s, status);
  if (r.max_new_tokens == 0) return Finish(s, FinishReason::kLength);
  if (r.logprobs) {
    StatusOr<RowLogprobs> logprobs = RowLogprobs::Read(answer, *r.logprobs, options_.vocab);
    if (!logprobs.ok()) return Fail(s, logprobs.status());
    s.logprobs = *std::move(logprobs);
  }
  if (answer.mode == RowMode::kFullLogits) {
    s.wants_full_logits = false;
    return SampleFrom(s, answer.values, answer.position);
  }
  StatusOr<std::optional<Draw>> draw = SampleCandidates(r.sampling, s.History(), s.row_request, answer, options_.vocab,
                                                        static_cast<uint32_t>(s.window.gap()));
  if (!draw.ok()) return Fail(s, draw.status());
  if (!draw->has_value()) return Ask(s, answer.position);
  if (!r.logprobs) return Emit(s, **draw, 0);
  const StatusOr<float> logit = RawLogit(answer, (*draw)->token);
  return logit.ok() ? Emit(s, **draw, *logit) : Fail(s, logit.status());
}

// Sent by SendQuestions: an answer is taken in without anything that could break the ring.
void Engine::Impl::Ask(const Sequence& s, uint32_t position) {
  ++counts_.full_logits_questions;
  questions_[s.id].question = {
      .seq = s.id, .incarnation = scheduler_->Incarnation(s.id), .model = options_.model, .position = position};
}

void Engine::Impl::SendQuestions() {
  for (auto& [id, open] : questions_) {
    if (open.sent) continue;
    if (ring_.to_first == nullptr) return;
    open.sent = true;
    encoder_.Reset();
    EncodeLogitsQuestion(open.question, &encoder_);
    const ByteSpan parts[] = {encoder_.bytes()};
    const Status status = ring_.to_first->Send({.kind = FrameKind::kLogitsQuestion, .epoch = ring_.epoch}, parts,
                                               RealTime(SilenceDeadline()), [this] { StashResults(); });
    if (!status.ok()) return Break(Annotate(status, "the ring"));
  }
}

// A preempted sequence does not wait for its answer: its replay samples the row again.
void Engine::Impl::DropStaleQuestions() {
  std::erase_if(questions_, [this](const auto& entry) {
    return entry.second.question.incarnation != scheduler_->Incarnation(entry.first);
  });
}

void Engine::Impl::OnLogitsAnswer(const LogitsAnswer& answer) {
  // An answer to a sequence that ended or was preempted meanwhile has no question any more.
  const auto open = questions_.find(answer.question.seq);
  if (open == questions_.end() || open->second.question != answer.question) {
    ++counts_.discarded_results;
    return;
  }
  questions_.erase(open);
  Sequence& s = *sequences_.at(answer.question.seq);
  if (answer.logits.empty()) {
    s.wants_full_logits = true;
    scheduler_->Repeat(s.id);
    return;
  }
  SampleFrom(s, answer.logits, answer.question.position);
}

Status Engine::Impl::CheckFull(const std::vector<float>& logits, uint32_t position) const {
  if (logits.size() == static_cast<size_t>(options_.vocab)) return absl::OkStatus();
  return Internal("the last stage sent {} logits for position {}, the vocabulary has {}", logits.size(), position,
                  options_.vocab);
}

// From every logit of the row.
void Engine::Impl::SampleFrom(Sequence& s, const std::vector<float>& logits, uint32_t position) {
  if (const Status status = CheckFull(logits, position); !status.ok()) return Fail(s, status);
  const auto text_position = static_cast<uint32_t>(position + s.window.gap());
  const StatusOr<Draw> draw = SampleFull(s.request.sampling, s.History(), {}, logits, text_position);
  return draw.ok() ? Emit(s, *draw, logits[static_cast<size_t>(draw->token)]) : Fail(s, draw.status());
}

void Engine::Impl::Emit(Sequence& s, const Draw& draw, float raw_logit) {
  ++counts_.tokens_generated;
  const Deadline now = Now();
  if (const std::optional<Deadline>& last = s.last_token(); last) {
    counts_.between_tokens.Add(now - *last);
  } else {
    counts_.to_first_token.Add(now - s.submitted());
    Trace(TraceKind::kRequestAnswered, static_cast<uint64_t>(s.id));
  }
  const Sequence::Accepted accepted = s.Accept(draw, options_.tokenizer, now);
  TokenEvent event{.token = draw.token, .probability = draw.probability, .text = accepted.text};
  if (s.request.logprobs) {
    event.logprob = s.logprobs.Of(raw_logit);
    event.top = s.logprobs.top();
  }
  Deliver(s, std::move(event));
  if (accepted.stopped) return Finish(s, FinishReason::kStop);
  if (s.generated() >= s.request.max_new_tokens) return Finish(s, FinishReason::kLength);
  if (scheduler_->Append(s.id, draw.token).ok() || ShiftContext(s)) return;
  Finish(s, FinishReason::kLength);
}

void Engine::Impl::ShiftWindow(Sequence& s) const {
  const auto keep = *options_.context_keep < 0 ? static_cast<uint32_t>(s.request.prompt.size())
                                               : static_cast<uint32_t>(*options_.context_keep);
  s.window.Shift(keep, s.tokens.size(), static_cast<uint32_t>(ContextLimit()));
}

std::vector<TokenId> Engine::Impl::ContextOf(const Sequence& s) {
  std::vector<TokenId> tokens(s.tokens.begin(), s.tokens.begin() + s.window.kept());
  tokens.insert(tokens.end(), s.tokens.begin() + static_cast<std::ptrdiff_t>(s.window.IndexAt(s.window.kept())),
                s.tokens.end());
  return tokens;
}

// The context is full: goes on without its older tokens, as a prompt that is computed anew from position 0. False: that
// is not allowed.
bool Engine::Impl::ShiftContext(Sequence& s) {
  if (!options_.context_keep) return false;
  ShiftWindow(s);
  if (const Status status = scheduler_->Restart(s.id, ContextOf(s)); !status.ok()) {
    Log(LogLevel::kError, "a full context can't be shifted: {}", Message(status));
    return false;
  }
  ++counts_.context_shifts;
  Log(LogLevel::kDebug, "request {}: the context of {} tokens was full, {} older ones are left out", s.log_id(),
      ContextLimit(), s.window.gap());
  return true;
}

}  // namespace gyre
