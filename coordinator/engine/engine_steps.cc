// Steps and questions on their way round the ring, and the tokens that result.
#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/log.h"
#include "coordinator/engine/engine_state.h"

namespace gyre {

// The settings for the next token. Where the text may not end yet, the ids that would end it are banned.
const SamplingParams& Engine::Impl::SamplingOf(Sequence& s, uint32_t generated, bool only_ends) const {
  const Request& r = s.request;
  const bool may_end = guide_.MayEnd(s.id) && generated >= r.min_new_tokens;
  if (may_end || r.ignore_end || only_ends) return r.sampling;
  if (!s.endless_sampling) {
    SamplingParams& params = s.endless_sampling.emplace(r.sampling);
    std::vector<TokenId> ends = r.stop_ids;
    for (TokenId id = 0; options_.tokenizer != nullptr && id < options_.tokenizer->size(); ++id) {
      if (options_.tokenizer->IsEndOfGeneration(id) || id == options_.tokenizer->bos()) ends.push_back(id);
    }
    for (const TokenId id : ends) {
      if (id >= 0 && id < options_.vocab) params.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
    }
  }
  return *s.endless_sampling;
}

// The answers that decide the next token, and those behind the drafts. REQUIRES: the drafts stand behind the tokens.
void Engine::Impl::AskSamples(Sequence& s, const StepItem& item, StepId step, std::vector<RowRequest>* requests) {
  const size_t known = s.tokens.size() - item.drafts.size();
  if (!item.goes_on()) {
    s.row_requests.clear();
    s.behind.clear();
  }
  // A step behind drafts in flight has no row of a known token.
  for (size_t ahead = item.goes_on() ? 1 : 0; ahead <= item.drafts.size(); ++ahead) {
    GrammarGuide::Mask mask;
    if (s.request.grammar != nullptr) mask = item.drafts.empty() ? guide_.MaskOf(s.id) : s.masks[ahead];
    RowRequest request;
    if (options_.candidates_path && !s.wants_full_logits) {
      const auto generated = static_cast<uint32_t>(known + ahead - s.request.prompt.size());
      TokenHistory history = s.History();
      history.tokens = history.tokens.first(known + ahead);
      request = MakeRowRequest(SamplingOf(s, generated, mask != nullptr && mask->only_ends), history,
                               mask == nullptr ? std::span<const uint64_t>() : mask->words, options_.candidates);
    } else {
      request.mode = RowMode::kFullLogits;
    }
    request.first = static_cast<uint32_t>(item.known_end() - item.first_position - 1 + ahead);
    request.count = 1;
    request.logprobs = s.request.logprobs;
    s.row_requests.push_back(request);
    guide_.Name(mask, step, &request);
    requests->push_back(std::move(request));
  }
}

// What the last stage's layer for drafts needs of an item's rows. REQUIRES: as AskSamples.
void Engine::Impl::AskMtp(Sequence& s, const StepItem& item, SeqRows* rows) const {
  const Speculator::MtpWish wish = speculator_.WishOf(&s, item.samples(), *scheduler_);
  if (!wish.rows) return;
  MtpRows& mtp = rows->mtp.emplace();
  mtp.next = {s.tokens[s.window.IndexAt(item.first_position)]};
  for (uint32_t i = 0; i < item.count; ++i) {
    const size_t behind = s.window.IndexAt(item.first_position + i) + 1;
    mtp.next.push_back(behind < s.tokens.size() ? s.tokens[behind] : MtpRows::kUnknown);
  }
  mtp.first = item.count;
  if (wish.drafts == 0) return;
  mtp.first = item.goes_on() ? 0 : item.known_end() - item.first_position - 1;
  mtp.most = wish.drafts;
  std::vector<BlockId>& pages = rows->blocks[kPageGroup];
  const std::vector<BlockId> behind = scheduler_->BlocksBehind(item.seq, pages.size());
  pages.insert(pages.end(), behind.begin(), behind.end());
}

Status Engine::Impl::SendStep(const StepPlan& plan) {
  batch_.seqs.clear();
  ids_.clear();
  // Rows of one class with the same adapter lie together, so that a stage reads each adapter once.
  order_.clear();
  for (const StepItem& item : plan.items) order_.push_back(&item);
  const auto group = [this](const StepItem* item) {
    const Sequence* s = Find(item->seq);
    return std::pair(item->row_class, s == nullptr ? 0 : s->request.adapter);
  };
  if (options_.adapters > 0) std::ranges::stable_sort(order_, {}, group);
  for (const StepItem* const next : order_) {
    const StepItem& item = *next;
    Sequence* s = Find(item.seq);
    if (s == nullptr) return Internal("step {} names an unknown sequence", static_cast<uint64_t>(plan.step));
    SeqRows rows{.seq = item.seq,
                 .incarnation = item.incarnation,
                 .model = options_.model,
                 .adapter = s->request.adapter,
                 .row_class = item.row_class,
                 .first_position = item.first_position,
                 .row_count = item.count,
                 .blocks = item.Entries(options_.scheduler.memory),
                 .requests = {}};
    if (!s->cached) {
      s->cached = item.first_position;
      s->began = Now();
      Trace(TraceKind::kRequestBegan, static_cast<uint64_t>(item.seq));
    }
    const size_t known = s->tokens.size();
    if (item.samples()) {
      const std::vector<TokenId> undecided = scheduler_->Undecided(item.seq);
      s->tokens.insert(s->tokens.end(), undecided.begin(), undecided.end());
    }
    AskRows(*s, item, plan.step, &rows.requests);
    AskMtp(*s, item, &rows);
    if (item.row_class == RowClass::kPrompt) counts_.prompt_rows += item.count;
    for (uint32_t i = 0; i < item.count; ++i) ids_.push_back(s->tokens[s->window.IndexAt(item.first_position + i)]);
    s->tokens.resize(known);
    s->drafted += static_cast<uint32_t>(item.drafts.size());
    counts_.drafted_tokens += item.drafts.size();
    batch_.seqs.push_back(std::move(rows));
  }
  GYRE_RETURN_IF_ERROR(SendMasks());
  Trace(TraceKind::kStepLaunched, static_cast<uint64_t>(plan.step), static_cast<uint32_t>(ids_.size()));
  encoder_.Reset();
  EncodeStepPrefix(batch_, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes(), std::as_bytes(std::span(ids_))};
  counts_.step_bytes_sent += kFrameHeaderBytes + parts[0].size() + parts[1].size();
  return ring_.SendStep(plan.step, static_cast<uint32_t>(ids_.size()), parts, RealTime(ring_.silence_deadline()));
}

void Engine::Impl::OnFrame(const Frame& frame) {
  const FrameHeader& h = frame.header;
  if (h.epoch != ring_.epoch()) {
    ++counts_.discarded_results;
    return;
  }
  ring_.Heard(h, Now());
  board_.Stale();
  switch (h.kind) {
    case FrameKind::kAnswer: {
      StatusOr<StepAnswer> answer = DecodeStepAnswer(frame.payload);
      if (!answer.ok()) return Break(Annotate(answer.status(), "an answer of the last stage"));
      const auto us = [](uint32_t n) { return Duration(std::chrono::microseconds(n)); };
      return OnStepLanded(h.step, *answer,
                          {.computed = us(h.computed_us),
                           .slowest = us(h.slowest_us),
                           .drafts = us(answer->drafts_us),
                           .queued = h.queued});
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

// Learns how long a draft of the last stage takes, from steps without rows of prompts, which go through its layer, too.
void Engine::Impl::NoteMtp(const LandedStep& landed, const StepAnswer& answer) {
  for (const StepItem& item : landed.valid) {
    if (item.known_end() > item.first_position + 1) return;
  }
  size_t made = 0;
  for (const RowAnswer& row : answer.rows) made = std::max(made, row.drafts.size());
  if (made > 1) speculator_.NoteMtp(std::chrono::microseconds(answer.drafts_us), made - 1);
}

void Engine::Impl::OnStepLanded(StepId step, const StepAnswer& answer, const StepTimes& times) {
  Trace(TraceKind::kStepLanded, static_cast<uint64_t>(step));
  const LandedStep landed = scheduler_->Land(step, true, Now(), times);
  NoteMtp(landed, answer);
  // Answers stand in the order of the frame's sequences, mostly that of the items, and those of one sequence together;
  // an item whose rows were only computed has none.
  auto next = answer.rows.begin();
  for (const StepItem& item : landed.valid) {
    if (Sequence* s = Find(item.seq); s != nullptr && s->request.progress) TellProgress(*s, item);
    const auto own = [&item](const RowAnswer& r) { return r.seq == item.seq; };
    auto row = std::find_if(next, answer.rows.end(), own);
    if (row == answer.rows.end()) row = std::find_if(answer.rows.begin(), next, own);
    for (; row != answer.rows.end() && row->seq == item.seq; next = ++row) {
      Sequence* s = Find(item.seq);
      if (s == nullptr) continue;
      OnAnswer(*s, item, *row);
    }
    CheckAnswered(Find(item.seq));
  }
}

void Engine::Impl::CheckAnswered(Sequence* s) {
  if (s == nullptr || !scheduler_->SampleOwed(s->id) || full_logits_.Asks(s->id)) return;
  Fail(*s, Internal("the last stage gave no answer for position {}", scheduler_->Positions(s->id) - 1));
}

void Engine::Impl::OnStepFailed(StepId step, const StepError& error) {
  ++counts_.step_errors;
  Trace(TraceKind::kStepFailed, static_cast<uint64_t>(step));
  Log(LogLevel::kWarn, "stage {} failed step {}: {}", error.stage, static_cast<uint64_t>(step), error.message);
  guide_.ForgetNumbers();  // it may be that the last stage lost some
  for (SeqId seq : scheduler_->Land(step, false, Now()).failed) {
    if (Sequence* s = Find(seq)) Fail(*s, Internal("stage {} failed repeatedly: {}", error.stage, error.message));
  }
}

void Engine::Impl::OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer) {
  if (const Status status = TakePromptRow(s, item, answer); !status.ok()) return Fail(s, status);
  if (!item.samples() || answer.position + 1 < item.known_end()) return;
  if (answer.position + 1 == item.known_end()) {
    if (const Status status = EndPrompt(s); !status.ok()) return Fail(s, status);
    return OnSampledRow(s, answer);
  }
  if (full_logits_.Asks(s.id)) return s.behind.push_back(answer);
  // Behind a draft that was not drawn, no row counts.
  if (scheduler_->SampleOwed(s.id) && answer.position + 1 == scheduler_->Positions(s.id)) OnSampledRow(s, answer);
}

// The answer of the row whose token is owed.
void Engine::Impl::OnSampledRow(Sequence& s, const RowAnswer& answer) {
  const Request& r = s.request;
  if (r.max_new_tokens == 0 || ContextIsFull(s)) return Finish(s, FinishReason::kLength);
  if (s.drafts) s.drafts->Expect(answer.drafts);
  if (r.logprobs) {
    StatusOr<RowLogprobs> logprobs = RowLogprobs::Read(answer, *r.logprobs, options_.vocab);
    if (!logprobs.ok()) return Fail(s, logprobs.status());
    s.logprobs = *std::move(logprobs);
  }
  if (answer.mode == RowMode::kFullLogits) {
    s.wants_full_logits = false;
    return SampleFrom(s, answer.values, answer.position);
  }
  StatusOr<std::optional<Draw>> draw = SampleCandidates(SamplingNow(s), s.History(), s.row_requests.front(), answer,
                                                        options_.vocab, static_cast<uint32_t>(s.window.gap()));
  if (!draw.ok()) return Fail(s, draw.status());
  if (!draw->has_value()) return Ask(s, answer.position);
  if (!r.logprobs) return Emit(s, **draw, 0);
  const StatusOr<float> logit = RawLogit(answer, (*draw)->token);
  return logit.ok() ? Emit(s, **draw, *logit) : Fail(s, logit.status());
}

// Sent by SendFullLogitsRequests: an answer is taken in without anything that could break the ring.
void Engine::Impl::Ask(const Sequence& s, uint32_t position) {
  ++counts_.full_logits_requests;
  full_logits_.Ask(
      {.seq = s.id, .incarnation = scheduler_->Incarnation(s.id), .model = options_.model, .position = position});
}

void Engine::Impl::SendFullLogitsRequests() {
  while (ring_.linked()) {
    const FullLogitsRequest* question = full_logits_.NextToSend();
    if (question == nullptr) return;
    encoder_.Reset();
    EncodeFullLogitsRequest(*question, &encoder_);
    const ByteSpan parts[] = {encoder_.bytes()};
    const Status status = ring_.Send(FrameKind::kFullLogitsRequest, parts, RealTime(ring_.silence_deadline()));
    if (!status.ok()) return Break(Annotate(status, "the ring"));
  }
}

void Engine::Impl::OnLogitsAnswer(const LogitsAnswer& answer) {
  // An answer to a sequence that ended or was preempted meanwhile has no question any more.
  if (!full_logits_.Answered(answer.question)) {
    ++counts_.discarded_results;
    return;
  }
  const SeqId id = answer.question.seq;
  Sequence* s = sequences_.at(id).get();
  if (answer.logits.empty()) {
    s->wants_full_logits = true;
    s->behind.clear();
    scheduler_->Repeat(id);
    return;
  }
  SampleFrom(*s, answer.logits, answer.question.position);
  while ((s = Find(id)) != nullptr && !s->behind.empty() && !full_logits_.Asks(id)) {
    const RowAnswer next = std::move(s->behind.front());
    s->behind.pop_front();
    if (!scheduler_->SampleOwed(id) || next.position + 1 != scheduler_->Positions(id)) return s->behind.clear();
    OnSampledRow(*s, next);
  }
  CheckAnswered(s);
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
  const StatusOr<Draw> draw = SampleFull(SamplingNow(s), s.History(), guide_.WordsOf(s.id), logits, text_position);
  return draw.ok() ? Emit(s, *draw, logits[static_cast<size_t>(draw->token)]) : Fail(s, draw.status());
}

bool Engine::Impl::Accept(Sequence& s, const Draw& draw, float raw_logit) {
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
  if (accepted.stopped) {
    Finish(s, FinishReason::kStop);
    return false;
  }
  if (s.generated() >= s.request.max_new_tokens || ContextIsFull(s)) {
    Finish(s, FinishReason::kLength);
    return false;
  }
  if (s.request.grammar == nullptr) return true;
  const SeqId id = s.id;
  Guide(s, guide_.Advance(id, draw.token));
  return Find(id) != nullptr;
}

void Engine::Impl::Emit(Sequence& s, const Draw& draw, float raw_logit) {
  const SeqId id = s.id;
  if (!s.row_requests.empty()) s.row_requests.pop_front();
  // It is counted before the token is accepted, as that may end the request.
  if (scheduler_->IsNextDraft(id, draw.token)) {
    ++s.accepted_drafts;
    ++counts_.accepted_drafts;
  }
  if (!Accept(s, draw, raw_logit)) return;
  if (!scheduler_->Append(id, draw.token).ok() && !ShiftContext(s)) return Finish(s, FinishReason::kLength);
  if (scheduler_->SampleOwed(id)) {
    // The mask that the next row had is known, but not the grammar's state, which the one behind it needs.
    if (!guide_.Awaits(id)) return;
    scheduler_->DropDrafts(id);
    scheduler_->Repeat(id);
  }
  ForceTokens(s);
  if (Sequence* alive = Find(id)) speculator_.Speculate(alive, scheduler_.get());
}

void Engine::Impl::OnDrafts(SeqId seq, uint64_t question, std::vector<TokenId> drafts) {
  if (Sequence* s = Find(seq)) speculator_.Take(s, question, std::move(drafts), scheduler_.get());
}

void Engine::Impl::Guide(Sequence& s, const Status& status) {
  if (!status.ok()) return Fail(s, status);
  if (guide_.Awaits(s.id)) scheduler_->AwaitMask(s.id);
}

void Engine::Impl::OnMask(SeqId seq, const Status& found, Duration took) {
  counts_.mask_time.Add(took);
  Sequence* s = Find(seq);
  if (s == nullptr) return;
  if (!found.ok()) return Fail(*s, found);
  scheduler_->MaskReady(seq);
  // The token before was drawn: if it has no rows on their way, those that must follow can go with it.
  if (s->generated() == 0) return;
  ForceTokens(*s);
  if (Sequence* alive = Find(seq)) speculator_.Speculate(alive, scheduler_.get());
}

// Tokens that must come whatever the model says need no answer: their rows go in one step.
void Engine::Impl::ForceTokens(Sequence& s) {
  const SeqId id = s.id;
  for (TokenId token; (token = guide_.Forced(id)) >= 0;) {
    if (!scheduler_->AppendForced(id, token).ok()) return;
    ++counts_.forced_tokens;
    if (!Accept(s, {.token = token, .probability = 1}, 0)) return;
  }
}

Status Engine::Impl::SendMasks() {
  encoder_.Reset();
  if (!guide_.TakeNews(&encoder_)) return absl::OkStatus();
  counts_.mask_bytes_sent += kFrameHeaderBytes + encoder_.size();
  const ByteSpan parts[] = {encoder_.bytes()};
  return ring_.Send(FrameKind::kMasks, parts, RealTime(ring_.silence_deadline()));
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
