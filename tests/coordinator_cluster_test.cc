// The cluster's thread: what it must not wait for, how it ends, and that everybody who asked is told.
#include "coordinator/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

#include "base/mutex.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Links at once, unless it is told otherwise.
class FakePort : public RingPort {
 public:
  const std::string& address() const override { return address_; }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string&, const Hello&, Deadline deadline) override {
    limited = limited || deadline != kNoDeadline;
    MutexLock lock(&mutex_);
    return NewLink();
  }
  StatusOr<std::unique_ptr<Link>> Accept(const Hello& hello, Deadline deadline) override {
    limited = limited || deadline != kNoDeadline;
    if (throws) throw std::runtime_error("too many open files");
    MutexLock lock(&mutex_);
    while (hangs && !let_go_) changed_.WaitUntil(&mutex_, After(milliseconds(5)));
    if (hello.epoch.number <= cancelled_) return absl::CancelledError("the plan was given up");
    return NewLink();
  }
  void SetBulkHandler(const std::string&, BulkHandler) override {}
  void SetKey(Epoch, const RingKey&) override {}
  void Cancel(Epoch epoch) override {
    MutexLock lock(&mutex_);
    cancelled_ = std::max(cancelled_, epoch.number);
    // As a connect that can't be cancelled.
    if (epoch.number == UINT64_MAX) let_go_ = true;
  }
  RingPortStats stats() const override { return {}; }

  std::atomic<bool> hangs{false}, throws{false};
  std::atomic<bool> limited{false};  // a wait for a link had a time limit

 private:
  std::unique_ptr<Link> NewLink() GYRE_REQUIRES(mutex_) {
    auto [here, there] = MakeInprocLinkPair({});
    others_.push_back(std::move(there));
    return std::move(here);
  }
  const std::string address_ = "here:1";
  Mutex mutex_;
  CondVar changed_;
  uint64_t cancelled_ GYRE_GUARDED_BY(mutex_) = 0;
  bool let_go_ GYRE_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Link>> others_ GYRE_GUARDED_BY(mutex_);  // the far ends
};

// Answers at once, on the caller's thread.
class FakeStage : public StageControl {
 public:
  const std::string& name() const override { return name_; }
  void SetEventSink(EventSink sink) override {
    MutexLock lock(&mutex_);
    sink_ = std::move(sink);
  }
  void Apply(const Change& change) override {
    if (change.verb == ChangeVerb::kRelease) return;
    if (change.verb == ChangeVerb::kAbort) ++aborted;
    if (change.verb == ChangeVerb::kPrepare) {
      ++prepared;
      Say(change.epoch, StageProgress{1, 2});
      if (silent) return;
    }
    Say(change.epoch, StageDone{.verb = change.verb});
  }
  bool has_sink() {
    MutexLock lock(&mutex_);
    return sink_ != nullptr;
  }
  std::atomic<int> prepared{0}, aborted{0};
  std::atomic<bool> silent{false};

 private:
  void Say(Epoch epoch, decltype(StageEvent::what) what) {
    EventSink sink;
    {
      MutexLock lock(&mutex_);
      sink = sink_;
    }
    if (sink) sink({.worker = name_, .epoch = epoch, .what = std::move(what)});
  }
  const std::string name_ = "whoever";
  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
};

class ClusterTest : public ::testing::Test {
 protected:
  void Open(std::function<void(ClusterOptions*)> change = {}) {
    ClusterOptions o;
    o.term = 7;
    o.sizes.layers.assign(4, 100);
    o.sizes.memory.assign(4, {kPageGroup, 1});
    o.sizes.counts[kPageGroup] = 10;
    o.repair_grace = milliseconds(1);
    if (change) change(&o);
    EngineOptions e;
    e.scheduler.memory[kPageGroup] = 10;
    e.scheduler.block_size = 4;
    e.vocab = 10;
    e.context = 16;
    engine_ = *Engine::Start(std::move(e));
    cluster_ = std::make_unique<Cluster>(std::move(o));
    EXPECT_TRUE(cluster_->Start(engine_.get(), &port_).ok());
  }
  void TearDown() override {
    if (cluster_ != nullptr) cluster_->Stop();
    engine_.reset();
  }
  std::shared_ptr<FakeStage> Join(const std::string& name, uint64_t instance = 0) {
    auto stage = std::make_shared<FakeStage>();
    const auto member = cluster_->Join({.name = name, .address = name + ":1", .instance = instance}, stage);
    EXPECT_TRUE(member.ok()) << member.status();
    member_ = member.ok() ? *member : Membership{};
    return stage;
  }
  // The answer of a resize, as far as it has come.
  std::future<StatusOr<ChangeReport>> Resize(const std::string& text) {
    auto answer = std::make_shared<std::promise<StatusOr<ChangeReport>>>();
    cluster_->Resize(text, [answer](StatusOr<ChangeReport> r) { answer->set_value(std::move(r)); });
    return answer->get_future();
  }
  template <typename F>
  static bool Comes(F condition) {
    for (const Deadline end = After(seconds(60)); Clock::now() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  std::string RefusalOfTheEngine() {
    const auto id = engine_->Submit({.prompt = {1}, .max_new_tokens = 1}, [](SeqId, const Event&) {});
    return Message(id.status());
  }

  FakePort port_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Cluster> cluster_;
  Membership member_;
};

TEST_F(ClusterTest, APlanIsMadeAndChanged) {
  Open();
  Join("w1");
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  const auto w2 = Join("w2");
  const auto report = cluster_->ResizeAndWait("w1=0-1,w2=2-3");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(cluster_->status().plan->epoch, report->epoch) << "who is told can see it";
  EXPECT_FALSE(cluster_->ResizeAndWait("bob=0-3").ok());
}

// A stage may load for hours before it dials. Who gives up is the plan change, when nothing is heard any more.
TEST_F(ClusterTest, LinksAreWaitedForAsLongAsThePlanLives) {
  Open();
  Join("w1");
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  EXPECT_FALSE(port_.limited);
}

// Connecting to a host that is silent: membership, status and other plans go on.
TEST_F(ClusterTest, AWiringThatHangsHoldsNobodyUp) {
  port_.hangs = true;
  Open([](ClusterOptions* o) { o->retry = milliseconds(1); });
  const auto w1 = Join("w1");
  ASSERT_TRUE(Comes([&] { return w1->prepared == 1; }));
  cluster_->Leave(member_, Unavailable("nothing was heard of it for 2.5 s"));
  const auto w2 = Join("w2");
  ASSERT_TRUE(Comes([&] { return w2->prepared == 1; })) << "the plan before is given up";
  port_.hangs = false;
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  EXPECT_EQ(cluster_->status().plan->stages[0].worker(), "w2");
}

TEST_F(ClusterTest, AWiringThatThrowsIsAPlanThatFails) {
  port_.throws = true;
  Open([](ClusterOptions* o) {
    o->retry = milliseconds(1);
    o->timeouts.blame = milliseconds(1);
  });
  Join("w1");
  ASSERT_TRUE(Comes([&] { return cluster_->status().state.find("too many open files") != std::string::npos; }));
  port_.throws = false;
  ASSERT_TRUE(Comes([&] { return cluster_->status().plan.has_value(); }));
}

TEST_F(ClusterTest, AnExceptionEndsTheServiceWithItsWords) {
  std::promise<Status> last_words;
  Open([&](ClusterOptions* o) {
    o->progress = [](uint64_t, uint64_t) { throw std::runtime_error("the disk is full"); };
    o->on_fatal = [&](const Status& why) { last_words.set_value(why); };
  });
  const auto w1 = Join("w1");
  const auto why = last_words.get_future().get();
  EXPECT_EQ(Message(why), "the cluster's thread ended: the disk is full");
  EXPECT_THAT(RefusalOfTheEngine(), HasSubstr("the disk is full"));
  EXPECT_THAT(cluster_->status().state, HasSubstr("the disk is full"));
  EXPECT_THAT(Message(Resize("0-3").get().status()), HasSubstr("the disk is full"));
  EXPECT_THAT(Message(cluster_->WaitForPlan(After(seconds(60)))), HasSubstr("the disk is full"));
  EXPECT_FALSE(cluster_->Join({.name = "w2"}, std::make_shared<FakeStage>()).ok());
}

TEST_F(ClusterTest, EverybodyWhoAskedIsToldAtTheEnd) {
  Open();
  Join("w1");
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  const auto w2 = Join("w2");
  w2->silent = true;
  auto pending = Resize("w2=0-3");
  ASSERT_TRUE(Comes([&] { return w2->prepared == 1; }));
  std::atomic<int> told{0};
  std::atomic<bool> stop{false};
  int asked = 0;
  // Some of them come between the last event that is taken in and the end.
  std::thread asking([&] {
    while (!stop) {
      ++asked;
      cluster_->Drain("w1", [&](const StatusOr<ChangeReport>&) { ++told; });
    }
  });
  ASSERT_TRUE(Comes([&] { return told > 10; }));
  cluster_->Stop();
  stop = true;
  asking.join();
  EXPECT_EQ(told, asked);
  EXPECT_EQ(Message(pending.get().status()), "the coordinator stops");
}

TEST_F(ClusterTest, WhoAskedIsToldThoughItNeverStarted) {
  auto cluster = std::make_unique<Cluster>(ClusterOptions{});
  int told = 0;
  cluster->Resize("0-3", [&](const StatusOr<ChangeReport>& r) { told += !r.ok(); });
  cluster.reset();
  EXPECT_EQ(told, 1);
}

TEST_F(ClusterTest, AnInstanceThatJoinsAgainKeepsItsName) {
  Open([](ClusterOptions* o) { o->min_workers = 2; });
  const auto first = Join("w", 11);
  const Membership old = member_;
  EXPECT_EQ(member_.name, "w");
  Join("w", 12);
  EXPECT_EQ(member_.name, "w-2");
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  const auto again = Join("w", 11);
  EXPECT_EQ(member_.name, "w");
  EXPECT_NE(member_.id, old.id);
  ASSERT_TRUE(Comes([&] { return !first->has_sink(); })) << "nothing of the old stream counts any more";
  ASSERT_TRUE(Comes([&] {
    const ClusterStatus status = cluster_->status();
    return status.state == "serving" && status.plan->epoch.number == 2;
  }));
  // Its old stream ends now.
  cluster_->Leave(old, Unavailable("its connection ended"));
  EXPECT_FALSE(cluster_->ResizeAndWait("bob=0-3").ok());  // the events before this one have been taken in
  EXPECT_EQ(cluster_->status().members.size(), 2u);
  EXPECT_EQ(cluster_->status().state, "serving");
  cluster_->Leave(member_, Unavailable("its connection ended"));
  ASSERT_TRUE(Comes([&] { return cluster_->status().members.size() == 1; }));
  Join("w", 13);
  EXPECT_EQ(member_.name, "w") << "a name is free when its member has left";
}

TEST_F(ClusterTest, TimeIsTheClocksThatItIsGiven) {
  // The cluster's thread asks until it ends, which is after this test's own variables are gone.
  const auto hours = std::make_shared<std::atomic<int64_t>>(0);
  Open([&](ClusterOptions* o) { o->now = [hours] { return Deadline{} + std::chrono::hours(1 + hours->load()); }; });
  Join("w1");
  ASSERT_TRUE(cluster_->WaitForPlan(After(seconds(60))).ok());
  const auto w2 = Join("w2");
  w2->silent = true;
  auto answer = Resize("w2=0-3");
  EXPECT_EQ(answer.wait_for(milliseconds(50)), std::future_status::timeout);
  *hours = 1;
  EXPECT_THAT(Message(answer.get().status()), HasSubstr("given up while preparing: no answer from w2"));
}

TEST_F(ClusterTest, SubscribersAreToldOfChangesAndNotOfLoads) {
  Open();
  std::atomic<int> told{0};
  auto subscription = cluster_->Subscribe([&] { ++told; });
  Join("w1");
  ASSERT_TRUE(Comes([&] { return cluster_->status().state == "serving"; }));
  ASSERT_TRUE(Resize("w1=0-3").get().ok());
  EXPECT_GE(told, 2);
  const ClusterStatus before = cluster_->status();
  const int count = told;
  for (uint64_t i = 1; i <= 10; ++i) cluster_->Report("w1", {.steps = i});
  ASSERT_TRUE(Comes([&] { return cluster_->status().members[0].load.steps == 10; }));
  EXPECT_EQ(told, count);
  EXPECT_EQ(cluster_->status().revision, before.revision);
  ASSERT_EQ(before.history.size(), 2u);
  EXPECT_EQ(before.history[1].ranges, "w1=0-3");
  EXPECT_EQ(before.history[1].result, "serving");
  const auto age = std::chrono::system_clock::now() - before.history[1].at;
  EXPECT_LT(age, seconds(60));
  EXPECT_GE(age, seconds(0));
  subscription.reset();
  Join("w2");
  ASSERT_TRUE(Comes([&] { return cluster_->status().members.size() == 2; }));
  EXPECT_EQ(told, count);
  EXPECT_GT(cluster_->status().revision, before.revision);
}

// The cluster already has the state that a callback sees. After the subscription's end no callback is called.
TEST_F(ClusterTest, ASubscriptionEndsForGood) {
  Open();
  for (int i = 0; i < 50; ++i) {
    auto alive = std::make_unique<std::atomic<bool>>(true);
    auto subscription = cluster_->Subscribe([this, flag = alive.get()] {
      EXPECT_TRUE(*flag);
      EXPECT_GT(cluster_->status().revision, 0u);
    });
    Join("w");
    subscription.reset();
    *alive = false;
  }
  auto until_the_end = cluster_->Subscribe([] {});
  cluster_->Stop();
}

TEST_F(ClusterTest, OldRecordsGo) {
  Open();
  Join("w1");
  ASSERT_TRUE(Comes([&] { return cluster_->status().state == "serving"; }));
  for (size_t i = 0; i < kPlanHistory + 3; ++i) ASSERT_TRUE(Resize("w1=0-3").get().ok());
  const auto history = cluster_->status().history;
  ASSERT_EQ(history.size(), kPlanHistory);
  EXPECT_EQ(history.back().number, kPlanHistory + 4);
}

}  // namespace
}  // namespace gyre
