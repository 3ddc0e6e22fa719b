// Replicas of another member's pages: what is asked for, what is kept, up to which step it is whole, and what is given
// back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/testing/test_device.h"
#include "transport/inproc_link.h"
#include "transport/ring_port.h"
#include "worker/migration.h"
#include "worker/replica.h"
#include "worker/stage_loader.h"

namespace gyre::replica_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Epoch kPlan{.term = 7, .number = 3};
constexpr auto kTimeout = seconds(30);

ReplicaOrder OrderFor(std::vector<uint32_t> layers, Epoch epoch = kPlan, const std::string& source = "w1") {
  ReplicaOrder order{.epoch = epoch, .source = source, .layers = {}};
  for (const uint32_t layer : layers) order.layers[layer] = {.pages = 8, .page_bytes = 4};
  return order;
}

// A frame of pages of 4 bytes, each filled with `fill`.
struct FrameOf {
  FrameOf(uint32_t layer, std::vector<BlockId> ids, char fill, uint64_t step, uint64_t ring_step, uint64_t pool = 1)
      : data(4 * ids.size(), static_cast<std::byte>(fill)) {
    pages = {
        .layer = layer, .step = step, .page_bytes = 4, .ids = std::move(ids), .ring_step = ring_step, .pool = pool};
    pages.written.assign(pages.ids.size(), step);
    pages.data = data;
  }
  std::vector<std::byte> data;
  Pages pages;
};

// The pages of a layer that the store exports, as "3:a 5:b".
std::string Given(const ReplicaStore& store, uint32_t layer, uint64_t plan = 3) {
  PageExport e;
  e.request = {.layer = layer, .max_bytes = kPullBytes, .kind = PullKind::kReplicated, .replica = plan};
  if (const Status status = store.Export(e); !status.ok()) return Message(status);
  std::string out;
  for (size_t i = 0; i < e.answers[0].pages.ids.size(); ++i) {
    out += fmt::format("{}{}:{}", out.empty() ? "" : " ", e.answers[0].pages.ids[i],
                       static_cast<char>(e.answers[0].data[4 * i]));
  }
  return out;
}

TEST(ReplicaStoreTest, KeepsTheLastOfEachPageAndGivesThemWhenItIsFinal) {
  ReplicaStore store;
  store.Begin(OrderFor({0, 1}));
  EXPECT_TRUE(store.Take(kPlan, FrameOf(0, {3, 5}, 'a', 10, 90).pages, true).ok());
  EXPECT_TRUE(store.Take(kPlan, FrameOf(1, {3}, 'x', 10, 90).pages, true).ok());
  EXPECT_EQ(store.RequestFor(0, 0).since, 10u) << "of the source's count, as its layer was asked first";
  EXPECT_EQ(store.RequestFor(0, 0).pool, 1u);
  EXPECT_TRUE(store.Take(kPlan, FrameOf(0, {5, 6}, 'b', 20, 95).pages, true).ok());
  EXPECT_EQ(store.state().pages, 4u);
  EXPECT_EQ(store.state().bytes, 16u);
  EXPECT_THAT(Given(store, 0), HasSubstr("is not final")) << "it still changes";
  store.Whole(kPlan, 90);
  EXPECT_EQ(store.Freeze(3), 90u);
  EXPECT_EQ(Given(store, 0), "3:a 5:b 6:b");
  EXPECT_EQ(Given(store, 1), "3:x");
  EXPECT_EQ(Given(store, 2), "");
  EXPECT_EQ(Given(store, 0, 4), "") << "of another plan there is nothing";
  EXPECT_TRUE(absl::IsCancelled(store.Take(kPlan, FrameOf(0, {5}, 'c', 30, 99).pages, true)));
  store.Whole(kPlan, 99);
  EXPECT_EQ(store.state().step, 90u);
}

TEST(ReplicaStoreTest, AnotherPlansReplicaIsOfNoUse) {
  ReplicaStore store;
  store.Begin(OrderFor({0}));
  store.Whole(kPlan, 90);
  EXPECT_EQ(store.Freeze(2), std::nullopt);
  store.Begin(OrderFor({0}, {.term = 7, .number = 4}));
  EXPECT_EQ(store.state().step, std::nullopt) << "it begins anew";
  EXPECT_TRUE(absl::IsCancelled(store.Take(kPlan, FrameOf(0, {1}, 'a', 1, 1).pages, true)));
  store.Whole({.term = 7, .number = 4}, 0);
  EXPECT_EQ(store.Freeze(4), 0u) << "whole, though the plan has had no step";
  store.Drop();
  EXPECT_EQ(store.Freeze(4), std::nullopt);
}

// Layers that stay at the same process in the next plan are not copied again. Those of another pool are.
TEST(ReplicaStoreTest, GoesOnInTheNextPlanWhereThePoolIsTheSame) {
  constexpr Epoch next{.term = 7, .number = 4};
  ReplicaStore store;
  store.Begin(OrderFor({0, 1}));
  EXPECT_TRUE(store.Take(kPlan, FrameOf(0, {1, 2}, 'a', 10, 90).pages, true).ok());
  EXPECT_TRUE(store.Take(kPlan, FrameOf(1, {1, 2}, 'a', 10, 90, 2).pages, true).ok());
  store.Begin(OrderFor({1, 2}, next));
  EXPECT_EQ(store.state().pages, 2u);
  EXPECT_EQ(store.RequestFor(1, 0).since, 10u);
  EXPECT_EQ(store.RequestFor(2, 0).since, 0u);
  EXPECT_TRUE(store.Take(next, FrameOf(1, {2}, 'b', 12, 91, 2).pages, true).ok());
  EXPECT_TRUE(store.Take(next, FrameOf(2, {7}, 'c', 12, 91, 5).pages, true).ok());
  store.Begin(OrderFor({1}, next, "w9"));
  EXPECT_EQ(store.state().pages, 0u) << "from another process nothing stays";
}

TEST(ReplicaStoreTest, ForgetsALayerWhosePoolIsAnother) {
  ReplicaStore store;
  store.Begin(OrderFor({0}));
  EXPECT_TRUE(store.Take(kPlan, FrameOf(0, {1, 2}, 'a', 10, 90).pages, true).ok());
  EXPECT_TRUE(store.Take(kPlan, FrameOf(0, {4}, 'b', 3, 90, 2).pages, true).ok());
  EXPECT_TRUE(absl::IsDataLoss(store.Take(kPlan, FrameOf(0, {5}, 'b', 3, 90, 3).pages, false)));
  store.Freeze(3);
  EXPECT_EQ(Given(store, 0), "4:b");
}

TEST(ReplicaStoreTest, TakesNoMoreThanThePlanHas) {
  ReplicaStore store;
  store.Begin(OrderFor({0}));
  EXPECT_THAT(Message(store.Take(kPlan, FrameOf(0, {8}, 'a', 1, 1).pages, true)), HasSubstr("page 8 of layer 0"));
  EXPECT_THAT(Message(store.Take(kPlan, FrameOf(1, {0}, 'a', 1, 1).pages, true)), HasSubstr("nobody asked for it"));
  FrameOf large(0, {0}, 'a', 1, 1);
  large.pages.page_bytes = 8;
  EXPECT_THAT(Message(store.Take(kPlan, large.pages, true)), HasSubstr("have 8 bytes, expected 4"));
}

std::shared_ptr<Layer> PagesOnly() {
  auto layer = std::make_shared<Layer>();
  layer->spec.mixer = AttentionSpec{.heads = 2, .kv_heads = 2, .head_dim = 8};
  layer->pages = *PagePool::Make(layer->spec, 8, 4, KvType::kF32, *testing::SharedDevice());
  return layer;
}

TEST(ReplicatedPagesTest, OnlyFullOnesAreGivenToAReplica) {
  const auto layer = PagesOnly();
  for (const BlockId b : {1u, 2u, 3u}) layer->pages->Stamp(b, 10 + b);
  layer->pages->StampFull(2, 12);
  layer->pages->StampFull(3, 13);
  const auto given = [&](uint64_t since, uint64_t pool) {
    std::vector<std::byte> data;
    const auto pages =
        ExportPages(*layer, {.since = since, .max_bytes = kPullBytes, .kind = PullKind::kFull, .pool = pool}, 20, &data,
                    testing::SharedQueue());
    testing::SharedQueue().Finish();
    return pages.ok() ? pages->ids : std::vector<BlockId>{99};
  };
  EXPECT_THAT(given(0, 0), ElementsAre(2, 3));
  EXPECT_THAT(given(12, layer->pages->number()), ElementsAre(3));
  EXPECT_THAT(given(13, layer->pages->number()), IsEmpty());
  EXPECT_THAT(given(13, layer->pages->number() + 1), ElementsAre(2, 3)) << "a stamp of another pool";
  EXPECT_NE(PagesOnly()->pages->number(), layer->pages->number());
}

TEST(ReplicatedPagesTest, TheirSizeIsKnownWithoutAPool) {
  const auto layer = PagesOnly();
  const PoolSizes size({.block_size = 4, .memory = {.units = {8}}, .kv_type = KvType::kF32});
  EXPECT_EQ(PagePool::PageBytesOf(layer->spec, 16, size), layer->pages->page_bytes());
}

// The new owner of a lost layer, and the test as the replica's holder.
class RestoreTest : public ::testing::Test {
 protected:
  RestoreTest() {
    auto [here, there] = MakeInprocLinkPair({});
    holder_ = std::move(there);
    puller_ = std::make_unique<PagePuller>(std::move(here), "w2", testing::SharedQueue(), std::vector{layer_},
                                           MemoryCounts{.units = {8}}, 3);
  }
  // Answers requests by the store until the link ends.
  void Answers(const ReplicaStore& store) {
    for (;;) {
      const auto frame = holder_->Recv(After(kTimeout));
      if (!frame.ok()) return;
      PageExport e;
      e.request = *DecodePullPages(frame->payload);
      EXPECT_EQ(e.request.kind, PullKind::kReplicated);
      EXPECT_EQ(e.request.replica, 3u);
      EXPECT_TRUE(e.request.only);
      ASSERT_TRUE(store.Export(e).ok());
      for (auto& answer : e.answers) {
        given_ += answer.pages.ids.size();
        Encoder head;
        EncodePagesHead(answer.pages, &head);
        const ByteSpan parts[] = {head.bytes(), answer.data};
        ASSERT_TRUE(holder_->Send({.kind = FrameKind::kPages, .epoch = kPlan}, parts, After(kTimeout)).ok());
      }
    }
  }
  StatusOr<std::vector<BlockId>> Restore(const ReplicaStore& store, const std::vector<BlockId>& units) {
    std::thread answers([&] { Answers(store); });
    auto lacks = puller_->Restore(kPlan, units, kTimeout, [] { return false; });
    puller_ = nullptr;
    answers.join();
    return lacks;
  }
  // A replica with these pages.
  void Fill(ReplicaStore* store, std::vector<BlockId> ids, uint64_t step) {
    ReplicaOrder order = OrderFor({0});
    order.layers[0].page_bytes = static_cast<uint32_t>(layer_->pages->page_bytes());
    store->Begin(order);
    std::vector<std::byte> data(ids.size() * layer_->pages->page_bytes(), std::byte{0x40});
    Pages pages{.layer = 0, .step = step, .page_bytes = order.layers[0].page_bytes, .ids = std::move(ids), .pool = 1};
    pages.written.assign(pages.ids.size(), step);
    pages.data = data;
    ASSERT_TRUE(store->Take(kPlan, pages, true).ok());
    store->Freeze(3);
  }
  std::shared_ptr<Layer> layer_ = PagesOnly();
  std::unique_ptr<Link> holder_;
  std::unique_ptr<PagePuller> puller_;
  size_t given_ = 0;
};

TEST_F(RestoreTest, BringsThePagesOfTheListAndNoOthers) {
  ReplicaStore store;
  Fill(&store, {1, 2, 4, 6}, 40);
  const auto lacks = Restore(store, {6, 2});
  ASSERT_TRUE(lacks.ok()) << lacks.status();
  EXPECT_THAT(*lacks, IsEmpty());
  EXPECT_EQ(given_, 2u) << "the rest would only take time";
  std::vector<std::byte> page(layer_->pages->page_bytes());
  layer_->pages->Read(6, page.data(), testing::SharedQueue());
  testing::SharedQueue().Finish();
  EXPECT_EQ(page[5], std::byte{0x40});
  EXPECT_GT(layer_->pages->full(6), 0u) << "the next replicates must have it too";
  EXPECT_EQ(layer_->pages->written(6), 40u) << "no earlier than the step that wrote it";
  EXPECT_EQ(layer_->pages->written(4), 0u);
}

// The scheduler is told of a page that is not there: no text may go on with it.
TEST_F(RestoreTest, APageThatTheReplicaLacksIsSaidToBeMissing) {
  ReplicaStore store;
  Fill(&store, {1}, 40);
  const auto lacks = Restore(store, {1, 2, 5});
  ASSERT_TRUE(lacks.ok()) << lacks.status();
  EXPECT_THAT(*lacks, ElementsAre(2, 5));
}

// A replica that never began has nothing. Its reader is not at fault.
TEST_F(RestoreTest, AReplicaThatThereIsNotGivesNothing) {
  const ReplicaStore store;
  const auto lacks = Restore(store, {2});
  ASSERT_TRUE(lacks.ok()) << lacks.status();
  EXPECT_THAT(*lacks, ElementsAre(2));
}

TEST(FullPagesTest, AreFoundByTheirStampsWithoutAScan) {
  const auto layer = PagesOnly();
  PagePool& pool = *layer->pages;
  EXPECT_THAT(pool.FullSince(0, 0), IsEmpty());
  for (const auto& [page, step] : std::vector<std::pair<BlockId, uint64_t>>{{5, 1}, {0, 3}, {7, 3}, {5, 4}, {2, 6}}) {
    pool.StampFull(page, step);
  }
  EXPECT_THAT(pool.FullSince(0, 0), ElementsAre(0, 2, 5, 7));
  EXPECT_THAT(pool.FullSince(3, 0), ElementsAre(2, 5));
  EXPECT_THAT(pool.FullSince(0, 5), ElementsAre(5, 7));
  EXPECT_THAT(pool.FullSince(6, 0), IsEmpty());
  pool.StampFull(3, 2);  // one that was copied
  pool.StampFull(2, 2);
  EXPECT_THAT(pool.FullSince(2, 0), ElementsAre(0, 5, 7));
  EXPECT_THAT(pool.FullSince(1, 0), ElementsAre(0, 2, 3, 5, 7));
  pool.StampFull(2, 0);
  EXPECT_THAT(pool.FullSince(0, 0), ElementsAre(0, 3, 5, 7));
}

class FakePort : public RingPort {
 public:
  const std::string& address() const override { return address_; }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string&, const Hello&, Deadline) override {
    return Unavailable("nobody is there");
  }
  StatusOr<std::unique_ptr<Link>> Accept(const Hello&, Deadline) override { return Unavailable("nobody comes"); }
  void SetBulkHandler(const std::string&, BulkHandler) override {}
  void SetKey(Epoch, const RingKey&) override { on_key(); }
  void Cancel(Epoch) override {}
  RingPortStats stats() const override { return {}; }
  std::function<void()> on_key;

 private:
  const std::string address_ = "here:1";
};

// Its loader is not started here, as one that is busy.
TEST(RestoreOrderTest, AReplicaIsFinalBeforeItsPagesCanBeAskedFor) {
  WorkerOptions options{.name = "w2"};
  const WorkerCalls calls{.say = {}, .guard = [](const char*, const std::function<void()>& fn) { fn(); }};
  Replica replica(options, calls);
  Status exported = Internal("no key was set");
  FakePort port;
  port.on_key = [&] {
    PageExport e;
    e.request = {.layer = 0, .kind = PullKind::kReplicated, .replica = 3};
    exported = replica.Export(e);
  };
  options.port = &port;
  replica.Await(OrderFor({0}), [] { return Unavailable("nobody is there"); });
  replica.Serve(kPlan);
  StageLoader loader(options, calls, &replica);
  loader.Prepare(
      {.plan = {.epoch = {.term = 7, .number = 4}, .stages = {}}, .stage = -1, .sources = {}, .restores = 3});
  EXPECT_TRUE(exported.ok()) << exported;
}

// A replica on its thread, and the test as its source.
class ReplicaTest : public ::testing::Test {
 protected:
  ReplicaTest() { replica_.Start(); }
  ~ReplicaTest() override {
    replica_.Close();
    replica_.Join();
  }
  // A dial function that returns these links in turn.
  Replica::Dial Dialer(std::vector<StatusOr<std::unique_ptr<Link>>> links) {
    auto left = std::make_shared<std::vector<StatusOr<std::unique_ptr<Link>>>>(std::move(links));
    return [this, left]() -> StatusOr<std::unique_ptr<Link>> {
      const size_t i = dialed_++;
      if (i >= left->size()) return Unavailable("nobody is there");
      return std::move((*left)[i]);
    };
  }
  PullPages Answer(Link& there, std::vector<BlockId> ids, uint64_t step, uint64_t ring_step) {
    const auto frame = there.Recv(After(kTimeout));
    if (!frame.ok()) return PullPages{.layer = 99};
    const PullPages request = *DecodePullPages(frame->payload);
    FrameOf pages(request.layer, std::move(ids), 'a', step, ring_step, 10 + request.layer);
    Encoder head;
    EncodePagesHead(pages.pages, &head);
    const ByteSpan parts[] = {head.bytes(), pages.data};
    EXPECT_TRUE(there.Send({.kind = FrameKind::kPages, .epoch = kPlan}, parts, After(kTimeout)).ok());
    return request;
  }
  std::optional<uint64_t> WholeUpTo(uint64_t step) {
    for (int i = 0; i < 6000 && replica_.state().step != step; ++i) std::this_thread::sleep_for(milliseconds(5));
    return replica_.state().step;
  }
  const WorkerOptions options_{.name = "w2"};
  std::atomic<size_t> dialed_{0};
  Replica replica_{options_, {.say = {}, .guard = [](const char*, const std::function<void()>& fn) { fn(); }}};
};

// The link fails in the middle of a round, and the first dial of another one too.
TEST_F(ReplicaTest, DialsAgainAndGoesOnWhereItWas) {
  auto [first, first_there] = MakeInprocLinkPair({});
  auto [second, second_there] = MakeInprocLinkPair({});
  std::vector<StatusOr<std::unique_ptr<Link>>> links;
  links.push_back(std::move(first));
  links.push_back(Unavailable("Connection refused"));
  links.push_back(std::move(second));
  replica_.Await(OrderFor({0, 1}), Dialer(std::move(links)));
  EXPECT_EQ(dialed_, 0u) << "a plan that is prepared waits for no replica";
  replica_.Serve(kPlan);
  Answer(*first_there, {1, 2}, 5, 50);
  Answer(*first_there, {1}, 5, 50);
  EXPECT_EQ(WholeUpTo(50), 50u);
  Answer(*first_there, {3}, 7, 60);
  first_there->Close();
  EXPECT_EQ(Answer(*second_there, {}, 9, 70).since, 7u) << "what was copied stays";
  EXPECT_EQ(Answer(*second_there, {4}, 9, 70).since, 5u);
  EXPECT_EQ(WholeUpTo(70), 70u);
  EXPECT_EQ(replica_.state().pages, 5u);
  EXPECT_EQ(dialed_, 3u);
}

TEST_F(ReplicaTest, AnotherPlanDoesNotWaitForTheLastOnesRetry) {
  replica_.Await(OrderFor({0}), Dialer({}));
  replica_.Serve(kPlan);
  for (int i = 0; i < 6000 && dialed_ < 2; ++i) std::this_thread::sleep_for(milliseconds(5));
  constexpr Epoch next{.term = 7, .number = 4};
  auto [here, there] = MakeInprocLinkPair({});
  replica_.Await(OrderFor({0}, next), [&here = here] { return std::move(here); });
  replica_.Serve(next);
  EXPECT_TRUE(there->Recv(After(milliseconds(400))).ok());
}

// A layer with two pages at first, then one more.
TEST_F(ReplicaTest, PullsInRoundsAndIsWholeUpToTheStepOfTheFirstAnswer) {
  auto [here, there] = MakeInprocLinkPair({});
  std::vector<StatusOr<std::unique_ptr<Link>>> links;
  links.push_back(std::move(here));
  replica_.Await(OrderFor({0, 1}), Dialer(std::move(links)));
  replica_.Serve(kPlan);
  EXPECT_EQ(Answer(*there, {1, 2}, 5, 50).layer, 0u);
  EXPECT_EQ(replica_.state().step, std::nullopt);
  EXPECT_EQ(Answer(*there, {1}, 7, 52).layer, 1u);
  EXPECT_EQ(WholeUpTo(50), 50u);
  EXPECT_EQ(replica_.state().pages, 3u);
  // Nothing was computed: the other layer isn't asked.
  const PullPages again = Answer(*there, {}, 5, 50);
  EXPECT_EQ(again.since, 5u);
  EXPECT_EQ(again.pool, 10u);
  EXPECT_EQ(Answer(*there, {}, 8, 60).layer, 0u);
  EXPECT_EQ(Answer(*there, {3}, 8, 60).since, 7u);
  EXPECT_EQ(WholeUpTo(60), 60u);
  EXPECT_EQ(replica_.Freeze(3), 60u);
  EXPECT_FALSE(there->Recv(After(kTimeout)).ok()) << "nothing more is pulled";
}

}  // namespace
}  // namespace gyre::replica_test
