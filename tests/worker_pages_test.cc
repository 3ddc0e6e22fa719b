// Pages on their way to a layer's next owner: what a source gives, what a receiver believes, and how long either waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "tests/testing/one_stage.h"
#include "tests/testing/tcp_pair.h"
#include "tests/testing/worker_fixture.h"
#include "transport/inproc_link.h"
#include "worker/migration.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kTimeout = seconds(30);

std::vector<std::byte> PageOf(const Layer& layer, BlockId page) {
  std::vector<std::byte> out(layer.pages->page_bytes());
  layer.pages->Read(page, out.data(), testing::SharedQueue());
  testing::SharedQueue().Finish();
  return out;
}
StatusOr<Pages> Exported(const Layer& layer, const PullPages& request, uint64_t step, std::vector<std::byte>* data) {
  StatusOr<Pages> pages = ExportPages(layer, request, step, data, testing::SharedQueue());
  testing::SharedQueue().Finish();
  return pages;
}

// A layer with eight pages of `page_bytes`, each filled with its number.
std::shared_ptr<Layer> PagesOnly(int index = 3, uint32_t positions = 4) {
  auto layer = std::make_shared<Layer>();
  layer->index = index;
  layer->spec.mixer = AttentionSpec{.heads = 2, .kv_heads = 2, .head_dim = 8};
  layer->pages = *PagePool::Make(layer->spec, 8, static_cast<int>(positions), KvType::kF32, *testing::SharedDevice());
  for (BlockId b = 0; b < 8; ++b) {
    const std::vector<std::byte> bytes(layer->pages->page_bytes(), static_cast<std::byte>(b + 1));
    layer->pages->Write(b, bytes.data(), testing::SharedQueue());
    testing::SharedQueue().Finish();
  }
  return layer;
}

TEST(ExportPagesTest, GivesWhatWasWrittenSinceInFramesOfABoundedSize) {
  const auto layer = PagesOnly();
  const size_t page = layer->pages->page_bytes();
  for (BlockId b : {1u, 2u, 6u}) layer->pages->Stamp(b, 10 + b);
  std::vector<std::byte> data;
  auto all = *Exported(*layer, {.layer = 3, .max_bytes = kPullBytes, .check = {6, 0}}, 77, &data);
  EXPECT_THAT(all.ids, ElementsAre(1, 2, 6));
  EXPECT_THAT(all.written, ElementsAre(11, 12, 16));
  EXPECT_THAT(all.checked, ElementsAre(16, 0));
  EXPECT_EQ(all.step, 77u);
  EXPECT_EQ(all.next, kNoBlock);
  ASSERT_EQ(data.size(), 3 * page);
  EXPECT_EQ(data[page], std::byte{3});
  data.clear();
  const auto since = *Exported(*layer, {.layer = 3, .since = 11, .max_bytes = kPullBytes}, 77, &data);
  EXPECT_THAT(since.ids, ElementsAre(2, 6)) << "after step 11, not of it";
  data.clear();
  const auto two = *Exported(*layer, {.layer = 3, .max_bytes = static_cast<uint32_t>(2 * page)}, 77, &data);
  EXPECT_THAT(two.ids, ElementsAre(1, 2));
  EXPECT_EQ(two.next, 6u);
  data.clear();
  const auto rest = *Exported(*layer, {.layer = 3, .from = two.next, .max_bytes = 1}, 77, &data);
  EXPECT_THAT(rest.ids, ElementsAre(6)) << "a page travels, however small the credit";
}

TEST(ExportPagesTest, RefusesStampsOfPagesThatThereAreNot) {
  const auto layer = PagesOnly();
  std::vector<std::byte> data;
  EXPECT_THAT(Message(Exported(*layer, {.layer = 3, .check = {7, 8}}, 1, &data).status()),
              HasSubstr("page 8 of layer 3, there are 8"));
  EXPECT_THAT(Message(Exported(*layer, {.layer = 3, .check = std::vector<BlockId>(9, 0)}, 1, &data).status()),
              HasSubstr("stamps of 9 pages of layer 3 are asked for, there are 8"));
  EXPECT_TRUE(Exported(*layer, {.layer = 3, .check = std::vector<BlockId>(8, 0)}, 1, &data).ok());
}

TEST(PagesCodecTest, StampsAndBytesMustFitTheirPages) {
  auto decode = [](size_t ids, size_t stamps, size_t bytes, uint32_t page_bytes = 4) {
    Pages pages{.layer = 1, .page_bytes = page_bytes};
    pages.ids.resize(ids);
    pages.written.resize(stamps);
    Encoder out;
    EncodePagesHead(pages, &out);
    out.PutBytes(std::string(bytes, 'x').data(), bytes);
    return DecodePages(out.bytes()).status();
  };
  EXPECT_TRUE(decode(2, 2, 8).ok());
  EXPECT_TRUE(absl::IsDataLoss(decode(2, 1, 8)));
  EXPECT_TRUE(absl::IsDataLoss(decode(1, 2, 4)));
  EXPECT_TRUE(absl::IsDataLoss(decode(2, 2, 7)));
  EXPECT_TRUE(absl::IsDataLoss(decode(2, 2, 12)));
  EXPECT_TRUE(absl::IsDataLoss(decode(2, 2, 0, 0x80000000))) << "their product has 33 bits";
}

// The receiver of one layer, and the test as its source.
class PagePullerTest : public ::testing::Test {
 protected:
  PagePullerTest() {
    auto [here, there] = MakeInprocLinkPair({});
    source_ = std::move(there);
    puller_ = std::make_unique<PagePuller>(std::move(here), "w2", testing::SharedQueue(), std::vector{layer_},
                                           MemoryCounts{.units = {layer_->pages->num_blocks()}});
  }
  Pages Some(std::vector<BlockId> ids, uint64_t stamp) const {
    Pages p{.layer = 3, .step = 20, .page_bytes = static_cast<uint32_t>(layer_->pages->page_bytes()), .ids = ids};
    p.written.assign(p.ids.size(), stamp);
    return p;
  }
  void Say(const Pages& pages) {
    Encoder head;
    EncodePagesHead(pages, &head);
    const std::vector<std::byte> data(pages.ids.size() * pages.page_bytes, std::byte{0x55});
    const ByteSpan parts[] = {head.bytes(), data};
    ASSERT_TRUE(source_->Send({.kind = FrameKind::kPages}, parts, After(kTimeout)).ok());
  }
  // A round whose first answers are these.
  StatusOr<uint64_t> Round(const std::vector<Pages>& answers, const std::vector<BlockId>* blocks = nullptr) {
    for (const Pages& p : answers) Say(p);
    return puller_->Round({}, blocks, milliseconds(200), [] { return false; });
  }
  PullPages Asked() {
    auto frame = source_->Recv(After(kTimeout));
    EXPECT_TRUE(frame.ok()) << frame.status();
    return frame.ok() ? *DecodePullPages(frame->payload) : PullPages{};
  }

  std::shared_ptr<Layer> layer_ = PagesOnly();
  std::unique_ptr<Link> source_;
  std::unique_ptr<PagePuller> puller_;
};

TEST_F(PagePullerTest, AnAnswerMayHaveSeveralFramesAndGoOnWithAnotherRequest) {
  Pages first = Some({0, 1}, 5), second = Some({2}, 6), last = Some({5}, 7);
  first.next = kMoreFollows;
  second.next = 4;
  const auto count = Round({first, second, last});
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 4u);
  EXPECT_EQ(Asked().from, 0u);
  EXPECT_EQ(Asked().from, 4u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(source_->Recv(Clock::now()).status())) << "one request for the first two frames";
  EXPECT_EQ(PageOf(*layer_, 5)[0], std::byte{0x55});
  EXPECT_EQ(PageOf(*layer_, 4)[0], std::byte{5}) << "it did not come";
  ASSERT_TRUE(Round({Some({}, 0)}).ok());
  EXPECT_EQ(Asked().since, 20u) << "the next round begins where this one began";
}

TEST_F(PagePullerTest, WhatDoesNotFitIsNotBelieved) {
  auto said = [&](auto change) {
    PagePullerTest::SetUp();
    Pages pages = Some({1}, 5);
    change(pages);
    return Message(Round({pages}).status());
  };
  EXPECT_THAT(said([](Pages& p) { p.layer = 4; }), HasSubstr("w2: pages of layer 4 came, nobody asked for it"));
  EXPECT_THAT(said([](Pages& p) { p.page_bytes -= 4; }), HasSubstr("bytes, expected"));
  EXPECT_THAT(said([](Pages& p) { p.page_bytes += 4; }), HasSubstr("bytes, expected"));
  EXPECT_EQ(said([](Pages& p) { p.ids[0] = 8; }), "") << "a page of a larger cache is forgotten";
  const ByteSpan none[] = {{}};
  ASSERT_TRUE(source_->Send({.kind = FrameKind::kHidden}, none, After(kTimeout)).ok());
  EXPECT_THAT(Message(Round({}).status()), HasSubstr("copying pages from w2: a frame of kind 3 came"));
  const std::string why = "the disk is on fire";
  const ByteSpan text[] = {std::as_bytes(std::span(why))};
  ASSERT_TRUE(source_->Send({.kind = FrameKind::kPullError}, text, After(kTimeout)).ok());
  EXPECT_THAT(Message(Round({}).status()), HasSubstr("copying pages from w2: the disk is on fire"));
}

TEST_F(PagePullerTest, TheLastRoundFindsAPageThatDiffers) {
  const std::vector<BlockId> blocks{1, 2}, beyond{8};
  Pages pages = Some({1, 2}, 5);
  pages.checked = {5, 5};
  EXPECT_TRUE(Round({pages}, &blocks).ok());
  EXPECT_THAT(Asked().check, ElementsAre(1, 2));
  pages = Some({}, 0);
  pages.checked = {5, 6};
  EXPECT_THAT(Message(Round({pages}, &blocks).status()), HasSubstr("page 2 was written in step 6 and copied as of 5"));
  pages.checked = {5};
  EXPECT_THAT(Message(Round({pages}, &blocks).status()), HasSubstr("1 stamps came for 2 pages"));
  EXPECT_THAT(Message(Round({}, &beyond).status()), HasSubstr("unit 8, there are 8 of all kinds"));
}

// The time between two answers is bounded, the round's is not.
TEST_F(PagePullerTest, SlowPagesAreNoSilence) {
  auto round =
      std::async(std::launch::async, [this] { return puller_->Round({}, nullptr, seconds(3), [] { return false; }); });
  constexpr int kAnswers = 8;
  for (int i = 0; i < kAnswers; ++i) {
    Pages pages = Some({static_cast<BlockId>(i)}, 5);
    if (i + 1 < kAnswers) pages.next = i % 2 ? kMoreFollows : static_cast<BlockId>(i + 1);
    std::this_thread::sleep_for(milliseconds(500));
    Say(pages);
  }
  const auto count = round.get();
  EXPECT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(count.value_or(0), 8u);
}

TEST_F(PagePullerTest, SilenceEndsARoundWithWhatHappened) {
  Pages first = Some({0, 1}, 5);
  first.next = 2;
  Say(first);
  const Status status = puller_->Round({}, nullptr, seconds(1), [] { return false; }).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(Message(status), "copying pages from w2: nothing came for 1 s, after 2 pages of this round");
}

TEST_F(PagePullerTest, APlanThatIsGivenUpEndsARoundThatStreams) {
  for (int i = 0; i < 8; ++i) {
    Pages pages = Some({static_cast<BlockId>(i)}, 5);
    pages.next = kMoreFollows;
    Say(pages);
  }
  int asked = 0;
  const auto count = puller_->Round({}, nullptr, kTimeout, [&asked] { return ++asked > 3; });
  EXPECT_TRUE(absl::IsCancelled(count.status())) << count.status();
  EXPECT_EQ(puller_->pages(), 3u);
}

// Nobody waits for a source that stops in the middle of a request.
TEST_F(PagePullerTest, APlanThatIsGivenUpEndsARoundWhoseRequestIsHalfSent) {
  auto [here, there] = testing::TcpPair({{}, {.send_buffer = 32768, .receive_buffer = 32768}});
  auto puller = std::make_unique<PagePuller>(std::move(here), "w2", testing::SharedQueue(), std::vector{layer_},
                                             MemoryCounts{.units = {layer_->pages->num_blocks()}});
  const std::vector<BlockId> many(1 << 20, BlockId{1});
  const auto began = Clock::now();
  const auto count = puller->Round({}, &many, kTimeout, [&] { return Clock::now() - began > milliseconds(500); });
  EXPECT_TRUE(absl::IsCancelled(count.status())) << count.status();
  puller.reset();
  EXPECT_LT(Clock::now() - began, seconds(5)) << "it takes 0.6 s";
}

class WorkerPages : public testing::WorkerStates {
 protected:
  std::unique_ptr<Link> BulkLink() {
    auto link = port_->Dial("", {.role = LinkRole::kBulk, .epoch = E(1), .to = "w"}, After(kTimeout));
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  void SetUp() override {
    WorkerStates::SetUp();
    port_->SetBulkHandler("w", [this](std::unique_ptr<Link> link) { worker_->ServeBulk(std::move(link)); });
  }
  void TearDown() override {
    port_->SetBulkHandler("w", {});
    WorkerStates::TearDown();
  }
  // Writes a row into each of the first `blocks` pages of every layer.
  void WritePages(uint32_t blocks) {
    StepBatch batch;
    for (BlockId b = 0; b < blocks; ++b) batch.seqs.push_back({.seq = SeqId{b + 1}, .row_count = 1, .blocks = {{b}}});
    SendStep(1, 1, batch);
    ASSERT_EQ(from_stage().Recv(After(kTimeout))->header.kind, FrameKind::kAnswer);
  }
};

// With one frame of pages after each step, 32 MiB would take 32 steps.
TEST_F(WorkerPages, ABusyStageGivesSeveralFramesBetweenTwoSteps) {
  Make({.export_slice = seconds(20)});  // as a loaded machine takes its time
  constexpr uint32_t kBlocks = 256, kPositions = 1024;
  Run(1, kBlocks, kPositions);
  WritePages(kBlocks);
  auto layer = std::make_shared<Layer>();
  layer->pages = *PagePool::Make(model_->spec().layers[0], kBlocks, kPositions, KvType::kF32, *testing::SharedDevice());
  const size_t bytes = kBlocks * layer->pages->page_bytes();
  ASSERT_EQ(bytes, size_t{32} << 20);
  // Two steps wait at every time, each of which takes a while.
  worker_->SetFaultHook([] {
    std::this_thread::sleep_for(milliseconds(100));
    return Status();
  });
  StepBatch one;
  one.seqs.push_back({.seq = SeqId{1}, .row_count = 1, .blocks = {{0}}});
  std::atomic<bool> stop{false};
  uint64_t step = 1;
  for (int i = 0; i < 2; ++i) SendStep(1, ++step, one);
  std::thread ring([&] {
    while (!stop) {
      if (from_stage().Recv(After(milliseconds(100))).ok()) SendStep(1, ++step, one);
    }
  });
  PagePuller puller(BulkLink(), "w", testing::SharedQueue(), {layer}, MemoryCounts{.units = {kBlocks}});
  const uint64_t before = worker_->stats().steps;
  const auto count = puller.Round(E(1), nullptr, kTimeout, [] { return false; });
  const uint64_t steps = worker_->stats().steps - before;
  stop = true;
  ring.join();
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, kBlocks);
  EXPECT_EQ(puller.bytes(), bytes);
  EXPECT_LE(steps, 20u) << "four requests of 8 MiB";
}

// Every unauthenticated peer that knows the key, or a neighbour that dials again and again, costs a thread.
TEST_F(WorkerPages, BulkLinksAreLimitedInNumber) {
  Run(1);
  std::vector<std::unique_ptr<Link>> links;
  for (int i = 0; i < 32; ++i) links.push_back(BulkLink());
  auto over = BulkLink();
  EXPECT_TRUE(absl::IsUnavailable(over->Recv(After(kTimeout)).status()));
  auto ask = [](Link& link) {
    Encoder out;
    EncodePullPages({.layer = 0, .max_bytes = kPullBytes}, &out);
    const ByteSpan parts[] = {out.bytes()};
    EXPECT_TRUE(link.Send({.kind = FrameKind::kPullPages}, parts, After(kTimeout)).ok());
    const auto frame = link.Recv(After(kTimeout));
    return frame.ok() && frame->header.kind == FrameKind::kPages;
  };
  EXPECT_TRUE(ask(*links[31]));
  // Links that end make room.
  links.clear();
  for (const Deadline end = After(kTimeout); Clock::now() < end; std::this_thread::sleep_for(milliseconds(5))) {
    auto link = BulkLink();
    if (absl::IsDeadlineExceeded(link->Recv(After(milliseconds(50))).status())) {
      links.push_back(std::move(link));
      break;
    }
  }
  ASSERT_EQ(links.size(), 1u);
  EXPECT_TRUE(ask(*links[0]));
}

TEST_F(WorkerPages, RequestsThatMakeNoSenseAreAnsweredAsErrors) {
  Run(1);
  auto link = BulkLink();
  auto said = [&](FrameKind kind, const PullPages& request, bool cut = false) -> std::string {
    Encoder out;
    EncodePullPages(request, &out);
    const ByteSpan parts[] = {out.bytes().first(out.size() - cut)};
    EXPECT_TRUE(link->Send({.kind = kind, .epoch = E(1)}, parts, After(kTimeout)).ok());
    const auto frame = link->Recv(After(kTimeout));
    if (!frame.ok()) return Message(frame.status());
    if (frame->header.kind != FrameKind::kPullError) return "";
    return {reinterpret_cast<const char*>(frame->payload.data()), frame->payload.size()};
  };
  EXPECT_EQ(said(FrameKind::kPullPages, {.layer = 4}), "");
  EXPECT_THAT(said(FrameKind::kPullPages, {.layer = 5}), HasSubstr("w does not run layer 5"));
  EXPECT_THAT(said(FrameKind::kPullPages, {.layer = 0xFFFFFFFF}), HasSubstr("does not run layer"));
  EXPECT_THAT(said(FrameKind::kPullPages, {.layer = 1, .check = {8}}), HasSubstr("page 8 of layer 1, there are 8"));
  EXPECT_THAT(said(FrameKind::kPullPages, {.layer = 1}, true), HasSubstr("wrong length"));
  EXPECT_THAT(said(FrameKind::kHidden, {.layer = 1}), HasSubstr("expected a request for pages"));
  EXPECT_EQ(said(FrameKind::kPullPages, {.layer = 4}), "") << "the link goes on";
}

}  // namespace
}  // namespace gyre
