#include "worker/stage_runner.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "worker/catch_exhausted.h"
#include "worker/migration.h"
#include "worker/settle.h"
#include "worker/wire_rows.h"

namespace gyre {

namespace {

// A frame that takes longer to come was not there yet when the stage was free.
constexpr auto kAtOnce = std::chrono::microseconds(50);
constexpr auto kReadOneByte = std::chrono::nanoseconds(2);

// Adds this stage's time to those of the stages before.
void AddTimes(const FrameHeader& came, Duration computed, bool queued, FrameHeader* goes) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(computed).count();
  const auto own = static_cast<uint32_t>(std::clamp<int64_t>(us, 1, UINT32_MAX));
  goes->computed_us = came.computed_us > UINT32_MAX - own ? UINT32_MAX : came.computed_us + own;
  goes->slowest_us = std::max(came.slowest_us, own);
  goes->queued = came.queued || queued;
}

}  // namespace

void StageRunner::Start() {
  thread_ = MakeThread("stage", [this] { worker_.guard("stage", [this] { Loop(); }); });
}

void StageRunner::Close() {
  stopping_ = true;
  Post([] {});
  CloseOut();
}

void StageRunner::CloseOut() {
  MutexLock lock(&mutex_);
  if (running_out_ != nullptr) running_out_->Close();
}

void StageRunner::EndRing(std::function<void()> job) {
  CloseOut();
  Post([this, job = std::move(job)] {
    if (running_ != nullptr && running_->stage != nullptr && !broken_) BreakLinks(Unavailable("its plan is lost"));
    if (job) job();
  });
}

// The worker's main loop: jobs between steps, then frames in order.
void StageRunner::Loop() {
  while (!stopping_) {
    const bool ran = RunJobs();
    if (stopping_) break;  // the job that Close posted may have run
    if (running_ == nullptr || running_->stage == nullptr || broken_) {
      if (!ran) jobs_.Wait(kNoDeadline);
      continue;
    }
    // Steps and jobs take turns, so that a long copy does not hold steps up.
    const Deadline asked = Clock::now();
    const bool was_there = !ahead_.empty();
    StatusOr<Frame> frame = NextFrame();
    if (frame.ok()) {
      queued_ = was_there || Clock::now() - asked < kAtOnce + frame->payload.size() * kReadOneByte;
      in_step_ = true;
      OnFrame(*frame);
      {
        MutexLock lock(&mutex_);
        free_since_ = Clock::now();
        in_step_ = false;
      }
    } else if (!absl::IsCancelled(frame.status()) && !absl::IsDeadlineExceeded(frame.status())) {
      BreakLinks(frame.status());
    }
  }
  running_ = retired_ = nullptr;
}

StatusOr<Frame> StageRunner::NextFrame() {
  if (ahead_.empty()) return jobs_.Recv(*running_->in, kNoDeadline, LinkInbox::IfCommands::kLook);
  Frame frame = std::move(ahead_.front().frame);
  ahead_.pop_front();
  return frame;
}

// Takes in what lies in the link. An error of the link comes again when all of this is done.
void StageRunner::ReadAhead() {
  constexpr size_t kFrames = 16, kBytes = 16 << 20;
  size_t bytes = 0;
  for (const AheadFrame& ahead : ahead_) bytes += ahead.frame.payload.size();
  while (ahead_.size() < kFrames && bytes < kBytes) {
    StatusOr<Frame> frame = running_->in->Recv(Clock::now());
    if (!frame.ok()) return;
    bytes += frame->payload.size();
    AheadFrame ahead{.frame = *std::move(frame), .seqs = {}};
    const FrameHeader& header = ahead.frame.header;
    if ((header.kind == FrameKind::kTokens || header.kind == FrameKind::kHidden) && header.rows > 0 &&
        header.epoch == running_->epoch) {
      // One that can't be read is refused in its turn.
      StatusOr<StepPayload> step = DecodeStepPayload(ahead.frame.payload, running_->stage->input_width());
      if (step.ok()) ahead.seqs = std::move(step->batch.seqs);
      for (SeqRows& s : ahead.seqs) s.blocks.clear(), s.requests.clear();
    }
    ahead_.push_back(std::move(ahead));
  }
}

// Whether a frame that came behind this step has all its rows again: then drafts before them were not drawn, and nobody
// reads what they would leave (docs/speculation.md). Only generated rows are launched on that assumption.
bool StageRunner::IsVoid(const StepBatch& batch) {
  const auto generated = [](const SeqRows& s) { return s.row_class == RowClass::kGenerated; };
  if (!std::all_of(batch.seqs.begin(), batch.seqs.end(), generated)) return false;
  ReadAhead();
  return std::all_of(batch.seqs.begin(), batch.seqs.end(), [this](const SeqRows& s) {
    return std::any_of(ahead_.begin(), ahead_.end(), [&s](const AheadFrame& ahead) {
      return std::any_of(ahead.seqs.begin(), ahead.seqs.end(), [&s](const SeqRows& again) {
        return again.seq == s.seq && again.incarnation == s.incarnation && again.first_position <= s.first_position;
      });
    });
  });
}

// In the place of a void step goes a frame without rows, and at last an answer without any.
void StageRunner::PassVoid(const FrameHeader& came) {
  ++void_steps_;
  FrameHeader header{.kind = FrameKind::kHidden, .dtype = running_->wire, .epoch = came.epoch, .step = came.step};
  AddTimes(came, Duration{}, true, &header);
  if (!running_->stage->parts().last) return Send(header, {});
  header.kind = FrameKind::kAnswer;
  header.dtype = WireType::kNone;
  answer_.rows.clear();
  encoder_.Reset();
  EncodeStepAnswer(answer_, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send(header, parts);
}

// Runs waiting jobs for a few milliseconds or a twentieth of the last step, whichever is longer. With one job a step,
// copying would stand still when steps are long. False: none waited.
bool StageRunner::RunJobs() {
  slice_end_ = After(std::max(options_.export_slice, last_step_ / 20));
  bool ran = false;
  while (auto job = jobs_.TryPop()) {
    ran = true;
    (*job)();
    if (Clock::now() >= slice_end_) break;
  }
  return ran;
}

void StageRunner::OnFrame(Frame& frame) {
  if (frame_hook_) frame_hook_(frame);
  // A link carries the frames of one plan; the next plan has links of its own.
  if (frame.header.epoch != running_->epoch) {
    ++dropped_;
    return;
  }
  // Questions and masks belong to no step; an error stands in a step's place.
  if (frame.header.kind != FrameKind::kFullLogitsRequest && frame.header.kind != FrameKind::kMasks) {
    constexpr uint64_t kMost = uint64_t{1} << 62;  // no step has this number
    step_taken_ = static_cast<uint64_t>(frame.header.step);
    step_count_ = std::max(step_count_ + 1, std::min(step_taken_.load(), kMost));
  }
  switch (frame.header.kind) {
    case FrameKind::kTokens:
    case FrameKind::kHidden: return RunStep(frame);
    case FrameKind::kFullLogitsRequest: return OnQuestion(frame);
    case FrameKind::kMasks: return OnMasks(frame);
    default: {  // a step that an earlier stage failed, passed on in its place
      const ByteSpan parts[] = {frame.payload};
      return Send(frame.header, parts);
    }
  }
}

void StageRunner::RunStep(const Frame& frame) {
  const Status status = CatchExhausted([&] { return TryStep(frame); });
  if (status.ok()) return;
  ++step_errors_;
  encoder_.Reset();
  EncodeStepError({.stage = static_cast<uint32_t>(running_->stage_index), .message = Message(status)}, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send({.kind = FrameKind::kStepError, .epoch = frame.header.epoch, .step = frame.header.step}, parts);
}

Status StageRunner::TryStep(const Frame& frame) {
  if (hooked_) {
    std::function<Status()> hook;
    {
      MutexLock lock(&mutex_);
      hook = hook_;
    }
    if (hook) GYRE_RETURN_IF_ERROR(hook());
  }
  Stage& stage = *running_->stage;
  const FrameKind expected = stage.parts().first ? FrameKind::kTokens : FrameKind::kHidden;
  if (frame.header.kind != expected) {
    return InvalidArgument("a frame of kind {}, this stage takes {}", static_cast<int>(frame.header.kind),
                           static_cast<int>(expected));
  }
  const WireType type = stage.parts().first ? WireType::kI32 : running_->wire;
  if (frame.header.dtype != type) {
    return InvalidArgument("rows of {} came, this plan's are {}", WireTypeName(frame.header.dtype), WireTypeName(type));
  }
  if (!stage.parts().first && frame.header.rows == 0 && frame.payload.empty()) {
    PassVoid(frame.header);
    return absl::OkStatus();
  }
  GYRE_ASSIGN_OR_RETURN(const StepPayload step, DecodeStepPayload(frame.payload, stage.input_width()));
  if (IsVoid(step.batch)) {
    PassVoid(frame.header);
    return absl::OkStatus();
  }
  GYRE_RETURN_IF_ERROR(CheckFrameSizes(stage, step.batch, frame.payload.size() - step.rows.size()));
  answer_.rows.clear();
  const Deadline start = Clock::now();
  const bool last = stage.parts().last;
  ByteSpan rows;
  try {
    GYRE_RETURN_IF_ERROR(stage.Run(step.batch, step.rows, step_count_, &answer_, &layer_clock_));
  } catch (const OutOfDeviceMemory& e) {
    return ResourceExhausted("no memory for a step of {} rows: {}", step.batch.TotalRows(), e.what());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a step of {} rows", step.batch.TotalRows());
  }
  if (!last) rows = RowsToSend(stage);
  last_step_ = Clock::now() - start;
  record_.AddBusy(last_step_);
  FrameHeader header{.epoch = frame.header.epoch, .step = frame.header.step, .rows = step.batch.TotalRows()};
  AddTimes(frame.header, last_step_, queued_, &header);
  encoder_.Reset();
  if (last) {
    EncodeStepAnswer(answer_, &encoder_);
    header.kind = FrameKind::kAnswer;
    const ByteSpan parts[] = {encoder_.bytes()};
    answers_sent_ += answer_.rows.size();
    answer_bytes_sent_ += kFrameHeaderBytes + encoder_.bytes().size();
    Send(header, parts);
  } else {
    // The descriptor goes on as it came.
    header.kind = FrameKind::kHidden;
    header.dtype = running_->wire;
    const ByteSpan prefix = ByteSpan(frame.payload).first(frame.payload.size() - step.rows.size());
    const ByteSpan ids = std::as_bytes(stage.tokens());
    const ByteSpan parts[] = {prefix, rows, ids};
    rows_sent_ += header.rows;
    row_bytes_sent_ += kFrameHeaderBytes + prefix.size() + rows.size() + ids.size();
    Send(header, parts);
  }
  record_.Add({.step = static_cast<uint64_t>(header.step),
               .stage = static_cast<uint32_t>(running_->stage_index),
               .rows = header.rows,
               .last = last,
               .began = start,
               .computed = last_step_,
               .sent = Clock::now() - start});
  return absl::OkStatus();
}

// A step's output must fit a frame. This is checked before anything is computed, and at the first stage already, as a
// step that breaks the link would be sent again after each repair.
Status StageRunner::CheckFrameSizes(const Stage& stage, const StepBatch& batch, size_t descriptor) const {
  const ModelSpec& spec = stage.parts().model->spec();
  const uint64_t answer = MaxAnswerBytes(batch, static_cast<size_t>(spec.vocab), static_cast<size_t>(spec.dim));
  if (answer > options_.max_payload) {
    return InvalidArgument(
        "the answer to a step of {} rows has up to {} bytes, a frame carries {}: ask for the logits of fewer rows at a "
        "time (--max-rows)",
        batch.TotalRows(), answer, options_.max_payload);
  }
  if (stage.parts().last) return absl::OkStatus();
  const uint64_t row = WireRowBytes(running_->wire, static_cast<size_t>(spec.RowElems())) +
                       (spec.per_layer_width > 0 ? sizeof(TokenId) : 0),
                 rows = batch.TotalRows() * row;
  if (rows + descriptor > options_.max_payload) {
    return InvalidArgument("the hidden states of a step of {} rows have {} bytes, a frame carries {} (--max-rows)",
                           batch.TotalRows(), rows + descriptor, options_.max_payload);
  }
  return absl::OkStatus();
}

// The stage's hidden states as they travel; good until the next step.
ByteSpan StageRunner::RowsToSend(const Stage& stage) {
  if (stage.saturated() > 0 && !running_->told_saturated) {
    running_->told_saturated = true;
    Log(LogLevel::kWarn,
        "{}: activations of plan {} are beyond what {} holds and saturate ({} in one step); --wire f32 has room",
        options_.name, running_->epoch.number, WireTypeName(running_->wire), stage.saturated());
  }
  return stage.rows();
}

void StageRunner::OnQuestion(const Frame& frame) {
  if (!running_->stage->parts().last) {
    const ByteSpan parts[] = {frame.payload};
    return Send(frame.header, parts);
  }
  StatusOr<FullLogitsRequest> question = DecodeFullLogitsRequest(frame.payload);
  if (!question.ok()) {
    ++dropped_;
    Log(LogLevel::kWarn, "{}: {}", options_.name, Message(question.status()));
    return;
  }
  StatusOr<LogitsAnswer> answer =
      CatchExhausted([&]() -> StatusOr<LogitsAnswer> { return running_->stage->Answer(*question); });
  if (!answer.ok()) {  // no logits: the row is sent again
    answer = LogitsAnswer{.question = *question, .logits = {}};
  }
  encoder_.Reset();
  EncodeLogitsAnswer(*answer, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send({.kind = FrameKind::kLogitsAnswer, .epoch = frame.header.epoch}, parts);
}

// A mask that is lost here is unknown to the steps that name it, which fail then.
void StageRunner::OnMasks(const Frame& frame) {
  Stage& stage = *running_->stage;
  if (!stage.parts().last) {
    const ByteSpan parts[] = {frame.payload};
    return Send(frame.header, parts);
  }
  const auto vocab = static_cast<uint32_t>(stage.parts().model->spec().vocab);
  const Status status = CatchExhausted([&]() -> Status {
    GYRE_ASSIGN_OR_RETURN(const std::vector<NumberedMask> masks, DecodeMasks(frame.payload, vocab));
    stage.SetMasks(masks);
    return absl::OkStatus();
  });
  if (status.ok()) return;
  ++dropped_;
  Log(LogLevel::kWarn, "{}: {}", options_.name, Message(status));
}

void StageRunner::Send(FrameHeader header, std::span<const ByteSpan> parts) {
  {
    MutexLock lock(&mutex_);
    sending_ = true;
    if (commits_ > 0) running_->out->Close();
  }
  // It waits only where more is queued than the link takes: the next stage does not read while it computes, and a step
  // may take minutes. A machine that is gone is noticed by its heartbeats, and the next plan's Commit ends this wait.
  const Status status = running_->out->Send(header, parts, After(std::chrono::minutes(10)));
  {
    MutexLock lock(&mutex_);
    sending_ = false;
  }
  if (!status.ok()) BreakLinks(status);
}

// A stage that loses one link closes the other, so the end travels round the ring to the coordinator.
void StageRunner::BreakLinks(const Status& why) {
  if (!stopping_)
    Log(LogLevel::kInfo, "{}: plan {} runs no more: {}", options_.name, running_->epoch.number, Message(why));
  running_->in->Close();
  running_->out->Close();
  broken_ = true;
  ahead_.clear();
}

std::shared_ptr<Link> StageRunner::RunningOut() {
  MutexLock lock(&mutex_);
  return running_out_;
}

// The thread answers between steps and while it waits for one, as jobs wake it.
Duration StageRunner::Unanswered() {
  {
    MutexLock lock(&mutex_);
    if (called_at_) return in_step_ ? Duration{} : Clock::now() - std::max(*called_at_, free_since_);
    called_at_ = Clock::now();
  }
  Post([this] {
    MutexLock lock(&mutex_);
    called_at_.reset();
  });
  return {};
}

void StageRunner::FillPlanLoad(MemberLoad* load) {
  MutexLock lock(&mutex_);
  if (running_in_ == nullptr) return;
  load->plan = running_plan_;
  load->step_taken = step_taken_;
  load->bytes_received = running_in_->received();
  load->in_step = in_step_;
  load->sending = sending_;
}

void StageRunner::SetFaultHook(std::function<Status()> hook) {
  MutexLock lock(&mutex_);
  hook_ = std::move(hook);
  hooked_ = hook_ != nullptr;
}

void StageRunner::BreakRunning() {
  Post([this] {
    if (running_ != nullptr && running_->stage != nullptr) BreakLinks(Unavailable("as the test asked"));
  });
}

void StageRunner::Commit(Epoch epoch, uint64_t reset) {
  uint64_t own_reset = 0;
  {
    MutexLock lock(&mutex_);
    own_reset = resets_;
    ++commits_;
    // All steps have landed, or their ring is given up: a Send that waits, or comes before the next plan, is for a
    // stage that is gone.
    if (sending_ && running_out_ != nullptr) running_out_->Close();
  }
  Post([this, epoch, reset, own_reset] { OnCommit(epoch, reset, own_reset); });
}

void StageRunner::Reset() {
  {
    MutexLock lock(&mutex_);
    ++resets_;
    if (running_out_ != nullptr) running_out_->Close();
    running_out_ = running_in_ = nullptr;
  }
  Post([this] {
    Retire();
    retired_ = std::move(running_);
    running_ = nullptr;
    broken_ = false;
    ahead_.clear();
    Retire();
    weight_bytes_ = 0;
  });
}

void StageRunner::Release(Epoch epoch) {
  Post([this, epoch] {
    if (running_ == nullptr || running_->epoch == epoch) Retire();
  });
}

void StageRunner::OnCommit(Epoch epoch, uint64_t reset, uint64_t own_reset) {
  std::shared_ptr<PreparedStage> prepared = loader_.take_prepared(epoch, reset);
  bool lost = false;  // the coordinator that asked: nothing of its term may stay
  {
    MutexLock lock(&mutex_);
    --commits_;
    lost = own_reset != resets_;
    if (!lost && prepared != nullptr) {
      running_out_ = prepared->out;
      running_in_ = prepared->in;
      running_plan_ = epoch.number;
      step_taken_ = 0;
    }
  }
  if (lost) return loader_.dispose(std::move(prepared));
  if (prepared == nullptr) {
    return worker_.say(epoch,
                       StageFault{FailedPrecondition("commit of plan {}, which is not prepared here", epoch.number)});
  }
  Retire();
  retired_ = std::move(running_);
  running_ = std::move(prepared);
  ahead_.clear();
  step_count_ = std::max(step_count_.load(), running_->last_step);
  // Nobody asks for pages of a cache that is forgotten, and the coordinator counts on their memory from here on.
  if (running_->fresh) Retire();
  broken_ = false;
  size_t bytes = 0;
  if (running_->stage) {
    for (const auto& layer : running_->stage->parts().layers) bytes += layer->weight_bytes();
    if (const auto& output = running_->stage->parts().ends.output; output != nullptr) bytes += output->bytes;
  }
  weight_bytes_ = bytes;
  worker_.say(epoch, StageDone{.verb = ChangeVerb::kCommit});
}

void StageRunner::Retire() {
  if (retired_ != nullptr) loader_.dispose(std::exchange(retired_, nullptr));
}

// One answer at least, and more while there is time before the next step.
Status StageRunner::ReadPages(PageExport& e) {
  const auto index = static_cast<int>(e.request.layer);
  if (running_ == nullptr || running_->stage == nullptr || index < running_->stage->parts().range.begin ||
      index >= running_->stage->parts().range.end) {
    return FailedPrecondition("{} does not run layer {}", options_.name, index);
  }
  const StageParts& parts = running_->stage->parts();
  const Layer& layer = *parts.layers[static_cast<size_t>(index - parts.range.begin)];
  if (layer.pages == nullptr) return FailedPrecondition("layer {} has no pages", index);
  // A replica belongs to one plan. Pages that steps of another plan write are not copied.
  if (e.request.kind == PullKind::kFull && running_->epoch != e.epoch) {
    return FailedPrecondition("{} runs plan {}, its pages are to be replicated in plan {}", options_.name,
                              running_->epoch.number, e.epoch.number);
  }
  const uint64_t most = std::min(e.request.max_bytes, kPullBytes);
  uint64_t bytes = 0;
  for (PullPages request = e.request;;) {
    PageExport::Answer answer;
    const SettleOnError settle(*running_->queue);
    GYRE_ASSIGN_OR_RETURN(answer.pages, ExportPages(layer, request, step_count_, &answer.data, *running_->queue));
    running_->queue->Finish();
    answer.pages.ring_step = step_taken_;
    bytes += answer.data.size();
    const BlockId next = answer.pages.next;
    const bool more = next != kNoBlock && bytes < most && Clock::now() < slice_end_;
    if (more) answer.pages.next = kMoreFollows;
    e.answers.push_back(std::move(answer));
    if (!more) return absl::OkStatus();
    request.from = next;
    if (!request.only) request.check.clear();
  }
}

}  // namespace gyre
