// A worker's answer to each command in each of its states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/step_codec.h"
#include "tests/testing/wire_rows.h"
#include "tests/testing/worker_fixture.h"
#include "worker/layer.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

using testing::WorkerStates;

// joined
TEST_F(WorkerStates, WithoutLayers) {
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_THAT(Next(1), HasSubstr("not prepared"));
  control().Apply({.verb = ChangeVerb::kMove, .epoch = E(1), .prepare = {}, .units = {}});
  control().Apply({ChangeVerb::kRelease, E(1)});
  EXPECT_TRUE(Silent());
  control().Apply({ChangeVerb::kAbort, E(1)});
  EXPECT_EQ(Next(1), "aborted");
  control().Apply({ChangeVerb::kAbort, E(1)});
  EXPECT_EQ(Next(1), "aborted") << "idempotent";
  Prepare(2);
  EXPECT_EQ(Next(2), "ready");
}

// joined -> prepared -> running -> joined
TEST_F(WorkerStates, ThroughALife) {
  Prepare(1);
  EXPECT_EQ(Next(1), "ready");
  control().Apply({.verb = ChangeVerb::kMove, .epoch = E(1), .prepare = {}, .units = {0, 3, 7}});
  EXPECT_EQ(Next(1), "moved");
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_EQ(Next(1), "committed");
  EXPECT_GT(worker_->weight_bytes(), 0u);
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_THAT(Next(1), HasSubstr("not prepared"));
  Prepare(2, -1);
  EXPECT_EQ(Next(2), "ready");
  EXPECT_GT(worker_->weight_bytes(), 0u) << "it runs until the commit";
  control().Apply({ChangeVerb::kCommit, E(2)});
  EXPECT_EQ(Next(2), "committed");
  EXPECT_EQ(worker_->weight_bytes(), 0u);
  control().Apply({ChangeVerb::kRelease, E(2)});
  EXPECT_TRUE(Silent());
}

// prepared
TEST_F(WorkerStates, APreparedStageIsDroppedOrReplaced) {
  Prepare(1);
  EXPECT_EQ(Next(1), "ready");
  control().Apply({ChangeVerb::kAbort, E(1)});
  EXPECT_EQ(Next(1), "aborted");
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_THAT(Next(1), HasSubstr("not prepared"));
  Prepare(2);
  EXPECT_EQ(Next(2), "ready");
  Prepare(3);
  EXPECT_EQ(Next(3), "ready");
  control().Apply({ChangeVerb::kCommit, E(2)});
  EXPECT_THAT(Next(2), HasSubstr("not prepared"));
  control().Apply({ChangeVerb::kCommit, E(3)});
  EXPECT_EQ(Next(3), "committed");
}

// preparing: an abort ends what waits for a neighbour that never comes.
TEST_F(WorkerStates, AnAbortEndsAPrepareThatWaits) {
  Prepare(1, 0, false);
  std::this_thread::sleep_for(milliseconds(50));
  control().Apply({ChangeVerb::kAbort, E(1)});
  EXPECT_EQ(Next(1), "aborted");
  Prepare(2);
  EXPECT_EQ(Next(2), "ready");
}

// preparing: a plan that another one replaces is not waited for.
TEST_F(WorkerStates, APrepareThatWaitsIsReplaced) {
  Prepare(1, 0, false);
  std::this_thread::sleep_for(milliseconds(50));
  Prepare(2);
  EXPECT_EQ(Next(2), "ready");
}

// Its own time does not end a wait for links: a neighbor may load for hours, as long as it says so to the coordinator.
TEST_F(WorkerStates, NeighborsMayLoadForLong) {
  struct Port : RingPort {
    explicit Port(std::unique_ptr<RingPort> p) : port(std::move(p)) {}
    const std::string& address() const override { return port->address(); }
    StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) override {
      if (hello.from == "w") limited = limited || deadline != kNoDeadline;
      return port->Dial(address, hello, deadline);
    }
    StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) override {
      if (expected.to == "w") limited = limited || deadline != kNoDeadline;
      return port->Accept(expected, deadline);
    }
    void SetBulkHandler(const std::string& name, BulkHandler handler) override { port->SetBulkHandler(name, handler); }
    void SetKey(Epoch epoch, const RingKey& key) override { port->SetKey(epoch, key); }
    void Cancel(Epoch epoch) override { port->Cancel(epoch); }
    RingPortStats stats() const override { return port->stats(); }
    const std::unique_ptr<RingPort> port;
    std::atomic<bool> limited{false};
  };
  auto port = std::make_unique<Port>(std::move(port_));
  const std::atomic<bool>& limited = port->limited;
  port_ = std::move(port);
  Make({});
  Prepare(1);
  EXPECT_EQ(Next(1), "ready");
  EXPECT_FALSE(limited);
}

TEST_F(WorkerStates, NonsenseIsRefused) {
  auto refused = [&](auto change) {
    PrepareRequest r{.plan = PlanOf(1),
                     .stage = 0,
                     .block_size = 4,
                     .memory = {.units = {8}},
                     .kv_type = KvType::kF32,
                     .sources = {}};
    change(r);
    control().Apply(PrepareChange(r));
    return Next(1);
  };
  EXPECT_THAT(refused([](auto& r) {
                r.plan.stages[0].layers.end = 4;
                r.plan.stages[0].last = true;
              }),
              HasSubstr("nobody has layer 4"));
  EXPECT_THAT(refused([](auto& r) {
                r.plan.num_layers = 6;
                r.plan.stages[0].layers.end = 6;
              }),
              HasSubstr("the model has 5"));
  EXPECT_THAT(refused([](auto& r) { r.plan.model_hash ^= 1; }), HasSubstr("another model"));
  EXPECT_THAT(refused([](auto& r) { r.stage = 3; }), HasSubstr("stage 3"));
  EXPECT_THAT(refused([](auto& r) { r.memory[kPageGroup] = 0; }), HasSubstr("0 KV blocks"));
  EXPECT_THAT(refused([](auto& r) {
                r.memory[kPageGroup] = 0xFFFFFFFF;
                r.block_size = 1 << 30;
              }),
              HasSubstr("blocks"));
  EXPECT_THAT(refused([](auto& r) { r.plan.wire = WireType::kI32; }),
              HasSubstr("activations of int32, expected f32, f16 or q8"));
  EXPECT_THAT(refused([](auto& r) { r.plan.wire = static_cast<WireType>(9); }), HasSubstr("activations of type 9"));
  Prepare(9);
  EXPECT_EQ(Next(9), "ready") << "nothing of it stayed";
}

// The second of two stages, and the frames that the first sends it.
TEST_F(WorkerStates, RowsOfAnotherTypeOrLengthBecomeAStepError) {
  const auto dim = static_cast<size_t>(model_->spec().dim);
  uint64_t number = 0;
  for (WireType type : {WireType::kF32, WireType::kF16, WireType::kQ8}) {
    SCOPED_TRACE(WireTypeName(type));
    Plan plan{.epoch = E(++number),
              .model_hash = model_->content_hash(),
              .num_layers = 5,
              .wire = type,
              .stages = MakeStages({{"before", "elsewhere:1", {0, 2}}, {"w", "", {2, 5}}})};
    control().Apply(PrepareChange(
        {.plan = plan, .stage = 1, .block_size = 4, .memory = {.units = {8}}, .kv_type = KvType::kF32, .sources = {}}));
    const Hello hello{.epoch = plan.epoch, .hop = 1, .model_hash = plan.model_hash, .wire = type};
    auto to = port_->Dial("", hello, After(seconds(5)));
    Hello last = hello;
    last.hop = 2;
    auto from = port_->Accept(last, After(seconds(5)));
    ASSERT_TRUE(to.ok() && from.ok()) << to.status() << from.status();
    ASSERT_EQ(Next(number), "ready");
    control().Apply({ChangeVerb::kCommit, plan.epoch});
    ASSERT_EQ(Next(number), "committed");

    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{1}, .row_count = 3, .blocks = {{0}}, .requests = {{.first = 2}}});
    Encoder prefix;
    EncodeStepPrefix(batch, &prefix);
    std::vector<float> hidden(3 * dim, 0.5f);
    std::vector<std::byte> rows;
    testing::EncodeRows(type, hidden, dim, &rows);
    // The answer: the sentence of a step error, or "" for an answer.
    auto send = [&](WireType dtype, ByteSpan bytes) -> std::string {
      const ByteSpan parts[] = {prefix.bytes(), bytes};
      const FrameHeader header{
          .kind = FrameKind::kHidden, .dtype = dtype, .epoch = plan.epoch, .step = StepId{7}, .rows = 3};
      if (!(*to)->Send(header, parts, After(seconds(5))).ok()) return "the link took nothing";
      const auto frame = (*from)->Recv(After(seconds(5)));
      if (!frame.ok()) return "no frame: " + Message(frame.status());
      EXPECT_EQ(frame->header.step, StepId{7});
      return frame->header.kind == FrameKind::kAnswer ? "" : DecodeStepError(frame->payload)->message;
    };
    EXPECT_EQ(send(type, rows), "");
    for (WireType other : {WireType::kNone, WireType::kI32, WireType::kF32, WireType::kF16, WireType::kQ8}) {
      if (other == type) continue;
      EXPECT_EQ(send(other, rows),
                fmt::format("rows of {} came, this plan's are {}", WireTypeName(other), WireTypeName(type)));
    }
    const std::string expected = fmt::format("expected 3 rows of {}", WireRowBytes(type, dim));
    EXPECT_THAT(send(type, ByteSpan(rows).first(rows.size() - 1)), HasSubstr(expected));
    EXPECT_THAT(send(type, ByteSpan(rows).first(rows.size() / 3 * 2)), HasSubstr(expected));
    EXPECT_THAT(send(type, {}), HasSubstr(expected));
    std::vector<std::byte> longer = rows;
    longer.resize(longer.size() + WireRowBytes(type, dim));
    EXPECT_THAT(send(type, longer), HasSubstr(expected));
    for (WireType other : {WireType::kF32, WireType::kF16, WireType::kQ8}) {  // right header, another type's bytes
      testing::EncodeRows(other, hidden, dim, &longer);
      if (other != type) EXPECT_THAT(send(type, longer), HasSubstr(expected));
    }
    EXPECT_EQ(send(type, rows), "") << "the stage goes on";
    EXPECT_EQ(worker_->stats().rows_sent, 0u) << "the last stage sends answers";
    links_.push_back(*std::move(to));
    links_.push_back(*std::move(from));
  }
}

// Steps are recorded from the first question on, and each is told once.
TEST_F(WorkerStates, ATraceTellsWhatWasComputedSinceTheLastOne) {
  Run(1);
  const auto step = [&](uint64_t number) {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{1}, .row_count = 3, .blocks = {{0}}, .requests = {{.first = 2}}});
    SendStep(1, number, batch);
    ASSERT_TRUE(from_stage().Recv(After(seconds(20))).ok());
    // The answer is sent before the step is recorded.
    std::atomic<bool> done{false};
    worker_->OnStageThread([&done] { done = true; });
    while (!done) std::this_thread::sleep_for(milliseconds(1));
  };
  const auto traced = [&] {
    const Deadline before = Clock::now();
    control().Trace(Deadline(seconds(5)));
    const auto event = events_.Pop(After(seconds(20)));
    const StageTrace trace = event ? std::get<StageTrace>(event->what) : StageTrace{};
    EXPECT_EQ(trace.asked, Deadline(seconds(5)));
    EXPECT_GE(trace.answered, before);
    EXPECT_EQ(trace.clock_error, Duration{});
    return trace.spans;
  };
  step(1);
  EXPECT_TRUE(traced().empty()) << "nobody had asked";
  const Deadline began = Clock::now();
  step(2);
  step(3);
  const std::vector<StageSpan> spans = traced();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].step, 2u);
  EXPECT_EQ(spans[1].step, 3u);
  EXPECT_EQ(spans[0].rows, 3u);
  EXPECT_EQ(spans[0].stage, 0u);
  EXPECT_TRUE(spans[0].last);
  EXPECT_GE(spans[0].began, began);
  EXPECT_GT(spans[0].computed, Duration{});
  EXPECT_GE(spans[0].sent, spans[0].computed);
  EXPECT_GE(spans[1].began, spans[0].began + spans[0].sent);
  EXPECT_TRUE(traced().empty());
  const MemberLoad load = worker_->TakeLoad();
  EXPECT_EQ(load.step_times.count, 3u);
  EXPECT_EQ(load.answers_sent, 3u);
  EXPECT_GT(load.answer_bytes_sent, 3u * 20);
}

// A coordinator that is lost at any step of a change takes stages and pages with it, not the weights; what it began is
// no more.
TEST_F(WorkerStates, ALostCoordinatorLeavesNoPagesAtAnyStep) {
  using Step = std::function<void()>;
  const Step prepare = [&] {
    Prepare(1);
    EXPECT_EQ(Next(1), "ready");
  };
  const Step move = [&] {
    control().Apply({.verb = ChangeVerb::kMove, .epoch = E(1), .prepare = {}, .units = {0, 1}});
    EXPECT_EQ(Next(1), "moved");
  };
  const Step commit = [&] {
    control().Apply({ChangeVerb::kCommit, E(1)});
    EXPECT_EQ(Next(1), "committed");
  };
  const Step release = [&] { control().Apply({ChangeVerb::kRelease, E(1)}); };
  const Step prepare2 = [&] {
    Prepare(2);
    EXPECT_EQ(Next(2), "ready");
  };
  const Step move2 = [&] {
    control().Apply({.verb = ChangeVerb::kMove, .epoch = E(2), .prepare = {}, .units = {0}});
    EXPECT_EQ(Next(2), "moved");
  };
  const Step commit2 = [&] {
    control().Apply({ChangeVerb::kCommit, E(2)});
    EXPECT_EQ(Next(2), "committed");
  };
  const Step waits = [&] {
    Prepare(2, 0, false);
    std::this_thread::sleep_for(milliseconds(20));
  };
  const std::vector<std::vector<Step>> deaths = {{prepare},
                                                 {prepare, move},
                                                 {prepare, move, commit},
                                                 {prepare, move, commit, release},
                                                 {prepare, move, commit, release, waits},
                                                 {prepare, move, commit, release, prepare2},
                                                 {prepare, move, commit, release, prepare2, move2},
                                                 {prepare, move, commit, release, prepare2, move2, commit2}};
  for (size_t i = 0; i < deaths.size(); ++i) {
    SCOPED_TRACE(i);
    for (const Step& step : deaths[i]) step();
    EXPECT_GT(PagePool::Live(), 0u);
    worker_->Reset();
    links_.clear();
    for (int t = 0; t < 2000 && (worker_->weight_bytes() > 0 || PagePool::Live() > 0); ++t)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(worker_->weight_bytes(), 0u);
    EXPECT_EQ(PagePool::Live(), 0u) << "pages of a term that is over";
    while (events_.Pop(Clock::now())) {
    }
    for (uint64_t number : {1, 2}) {
      control().Apply({ChangeVerb::kCommit, E(number)});
      EXPECT_THAT(Next(number), HasSubstr("not prepared"));
    }
    // The next coordinator finds the weights.
    ++term_;
    Prepare(3);
    auto event = events_.Pop(After(kTimeout));
    ASSERT_TRUE(event.has_value());
    const auto* progress = std::get_if<StageProgress>(&event->what);
    ASSERT_TRUE(progress != nullptr);
    EXPECT_EQ(progress->done, progress->total) << "it was loaded again";
    EXPECT_EQ(Next(3), "ready");
    control().Apply({ChangeVerb::kAbort, E(3)});
    EXPECT_EQ(Next(3), "aborted");
    links_.clear();
    ++term_;
  }
}

// Layers of the plan before do not stay beside those of the next: the coordinator counts on their memory.
TEST_F(WorkerStates, KeptWeightsThatThePlanDoesNotNeedGo) {
  Run(1);
  worker_->Reset();
  ++term_;
  // Two members: here are layers 0 and 1.
  const Plan two{.epoch = E(2),
                 .model_hash = model_->content_hash(),
                 .num_layers = 5,
                 .stages = MakeStages({{"w", "", {0, 2}}, {"x", "", {2, 5}}})};
  control().Apply(
      PrepareChange({.plan = two, .stage = 0, .block_size = 4, .memory = {.units = {8}}, .kv_type = KvType::kF32}));
  WireEnds(2);
  ASSERT_EQ(Next(2), "ready");
  control().Apply({ChangeVerb::kAbort, E(2)});
  ASSERT_EQ(Next(2), "aborted");
  links_.clear();
  Prepare(3);
  uint64_t loaded = 0;
  for (;;) {
    const auto event = events_.Pop(After(kTimeout));
    ASSERT_TRUE(event.has_value());
    const auto* progress = std::get_if<StageProgress>(&event->what);
    if (progress == nullptr) break;
    if (progress->done < progress->total) loaded = progress->done;
  }
  uint64_t gone = 0;
  for (int layer = 2; layer < 5; ++layer) gone += *LayerBytes(*model_, layer);
  EXPECT_GE(loaded, gone) << "they were still there";
}

// A Commit that waits behind a step when the coordinator is lost: its stage and pages do not stay.
TEST_F(WorkerStates, ACommitOfALostCoordinatorIsVoid) {
  Prepare(1);
  ASSERT_EQ(Next(1), "ready");
  // The loader is busy, too, so it drops the prepared stage later.
  std::atomic<bool> in_sink{false}, go_on{false};
  control().SetEventSink([&](const StageEvent&) {
    in_sink = true;
    while (!go_on) std::this_thread::sleep_for(milliseconds(1));
  });
  control().Apply({.verb = ChangeVerb::kMove, .epoch = E(1), .prepare = {}, .units = {}});
  while (!in_sink) std::this_thread::sleep_for(milliseconds(1));
  HoldStageThread();
  control().Apply({ChangeVerb::kCommit, E(1)});
  worker_->Reset();
  ReleaseStageThread();
  std::this_thread::sleep_for(milliseconds(50));  // for the Commit's turn
  go_on = true;
  for (int t = 0; t < 5000 && PagePool::Live() > 0; ++t) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(PagePool::Live(), 0u) << "pages of a term that is over";
  EXPECT_EQ(worker_->weight_bytes(), 0u);
}

// The pool's size may change with a plan: pages are made anew where another number is asked for.
TEST_F(WorkerStates, ASmallerCacheHasPagesOfItsOwn) {
  Prepare(1);
  ASSERT_EQ(Next(1), "ready");
  control().Apply({ChangeVerb::kCommit, E(1)});
  ASSERT_EQ(Next(1), "committed");
  const size_t layers = 5;
  EXPECT_EQ(PagePool::Live(), layers);
  for (const auto& [blocks, size, type] :
       {std::tuple{8u, 4, KvType::kF32}, {6u, 4, KvType::kF32}, {8u, 2, KvType::kF32}, {8u, 4, KvType::kF16}}) {
    const bool same = blocks == 8 && size == 4 && type == KvType::kF32;
    const uint64_t number = ++last_number_ + 1;
    control().Apply(PrepareChange(
        {.plan = PlanOf(number), .stage = 0, .block_size = size, .memory = {.units = {blocks}}, .kv_type = type}));
    WireEnds(number);
    ASSERT_EQ(Next(number), "ready");
    EXPECT_EQ(PagePool::Live(), same ? layers : 2 * layers) << blocks << " " << size;
    control().Apply({ChangeVerb::kAbort, E(number)});
    ASSERT_EQ(Next(number), "aborted");
    links_.resize(2);
  }
}

TEST_F(WorkerStates, AfterStopItSaysSo) {
  worker_->Stop();
  Prepare(1, 0, false);
  EXPECT_THAT(Next(1), HasSubstr("stopped"));
}

}  // namespace
}  // namespace gyre
