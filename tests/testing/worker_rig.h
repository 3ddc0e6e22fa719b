// A ring of local workers without an engine: the test is the coordinator.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/inbox.h"
#include "base/step_codec.h"
#include "tests/testing/memory_model.h"
#include "tests/testing/stage_chain.h"
#include "transport/inproc_link.h"
#include "worker/local_worker.h"

namespace gyre::testing {

inline Deadline Soon() {
  return After(std::chrono::seconds(30));
}

struct RigOptions {
  int stages = 1;
  KvShape kv{.type = KvType::kF32, .block_size = 4, .num_blocks = 64};
  InprocOptions links{.check_crc = true};
};

class WorkerRig {
 public:
  explicit WorkerRig(std::shared_ptr<const Model> model, const RigOptions& options = {})
      : model_(std::move(model)), options_(options) {
    const auto stages = static_cast<size_t>(options_.stages);
    for (size_t hop = 0; hop <= stages; ++hop) {
      auto [sender, receiver] = MakeInprocLinkPair(options_.links);
      links_.push_back(std::move(sender));
      links_.push_back(std::move(receiver));
    }
    for (size_t i = 0; i < stages; ++i) {
      names_.push_back("w" + std::to_string(i));
      LocalWorkerOptions w;
      w.name = names_.back();
      w.model = model_;
      w.in = links_[2 * i + 1].get();
      w.out = links_[2 * i + 2].get();
      workers_.push_back(std::make_unique<LocalWorker>(std::move(w)));
      workers_.back()->control().SetEventSink([events = events_](StageEvent e) { events->Push(std::move(e)); });
    }
  }
  ~WorkerRig() {
    for (auto& link : links_) link->Close();
  }

  LocalWorker& worker(size_t i) { return *workers_[i]; }
  StageControl& control(size_t i) { return workers_[i]->control(); }
  Link& to_first() { return *links_.front(); }
  Link& from_last() { return *links_.back(); }

  PrepareRequest Request(uint64_t number, int stage = 0, uint64_t term = 7) const {
    const int layers = static_cast<int>(model_->spec().layers.size());
    return {.plan = EvenPlan({.term = term, .number = number}, 0, layers, names_).value(),
            .stage = stage,
            .block_size = options_.kv.block_size,
            .num_blocks = options_.kv.num_blocks,
            .kv_type = options_.kv.type};
  }
  void Prepare(uint64_t number, uint64_t term = 7) {
    for (int i = 0; i < options_.stages; ++i) control(static_cast<size_t>(i)).Prepare(Request(number, i, term));
  }
  void Commit(uint64_t number, uint64_t term = 7) {
    for (auto& w : workers_) w->control().Commit({.term = term, .number = number});
  }
  // Prepares and commits on every worker. Any fault fails it.
  Status Adopt(uint64_t number, uint64_t term = 7) {
    Prepare(number, term);
    GYRE_RETURN_IF_ERROR(WaitAll<StageReady>());
    Commit(number, term);
    return WaitAll<StageCommitted>();
  }

  // The next event that is no progress.
  StageEvent NextEvent() {
    while (std::optional<StageEvent> event = events_->Pop(Soon())) {
      if (!std::holds_alternative<StageProgress>(event->what)) return *event;
    }
    return {.worker = "nobody", .epoch = {}, .what = StageFault{DeadlineExceeded("no event came")}};
  }
  // kInternal: an event of another kind came. A fault is its own status.
  template <typename Want>
  Status Expect() {
    const StageEvent event = NextEvent();
    if (const auto* fault = std::get_if<StageFault>(&event.what)) return fault->status;
    return std::holds_alternative<Want>(event.what) ? absl::OkStatus() : Internal("event {}", event.what.index());
  }
  template <typename Want>
  Status WaitAll() {
    for (int i = 0; i < options_.stages; ++i) GYRE_RETURN_IF_ERROR(Expect<Want>());
    return absl::OkStatus();
  }

  static FrameHeader Header(FrameKind kind, uint64_t number, uint64_t step, uint64_t term = 7) {
    FrameHeader h;
    h.kind = kind;
    h.dtype = kind == FrameKind::kTokens   ? WireType::kI32
              : kind == FrameKind::kHidden ? WireType::kF32
                                           : WireType::kNone;
    h.epoch = {.term = term, .number = number};
    h.step = StepId{step};
    return h;
  }
  Status SendBytes(const FrameHeader& header, std::span<const std::byte> payload) {
    const ByteSpan parts[] = {payload};
    return to_first().Send(header, parts, Soon());
  }
  Status SendStep(uint64_t number, uint64_t step, const StepBatch& batch, const std::vector<TokenId>& ids,
                  uint64_t term = 7) {
    return SendBytes(Header(FrameKind::kTokens, number, step, term), Payload(batch, ids));
  }
  // One sequence's rows with their logits.
  Status SendRows(uint64_t number, uint64_t step, uint32_t first, const std::vector<TokenId>& ids, uint64_t term = 7) {
    StepBatch batch;
    batch.seqs.push_back(MakeRows(1, first, static_cast<uint32_t>(ids.size()), MakeTable(options_.kv, 200),
                                  static_cast<size_t>(model_->spec().kv_groups)));
    return SendStep(number, step, batch, ids, term);
  }
  static std::vector<std::byte> Payload(const StepBatch& batch, const std::vector<TokenId>& ids) {
    Encoder out;
    EncodeStepPrefix(batch, &out);
    out.PutBytes(ids.data(), ids.size() * sizeof(TokenId));
    return {out.bytes().begin(), out.bytes().end()};
  }
  // The next frame that comes round; of kind kHello if none does.
  Frame Recv() {
    StatusOr<Frame> frame = from_last().Recv(Soon());
    return frame.ok() ? *std::move(frame) : Frame{.header = Header(FrameKind::kHello, 0, 0), .payload = {}};
  }
  static LogitRows Logits(const Frame& frame) {
    LogitRows out;
    StatusOr<StepAnswer> answer = DecodeStepAnswer(frame.payload);
    if (frame.header.kind != FrameKind::kAnswer || !answer.ok()) return out;
    for (RowAnswer& row : answer->rows) out.push_back(std::move(row.values));
    return out;
  }

 private:
  const std::shared_ptr<const Model> model_;
  const RigOptions options_;
  const std::shared_ptr<Inbox<StageEvent>> events_ = std::make_shared<Inbox<StageEvent>>();
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<LocalWorker>> workers_;
};

}  // namespace gyre::testing
