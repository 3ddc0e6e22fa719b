// The speed of a link, measured over real ports.
#include "transport/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/coding.h"
#include "tests/testing/ring_ports.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr RingKey kKey{1, 2, 3};

class ProbeTest : public ::testing::Test {
 protected:
  ProbeTest() { Serve(kKey, milliseconds(0)); }
  ~ProbeTest() override {
    there_->SetWeightsHandler({}, {});
    for (auto& t : threads_) t.join();
  }
  // Answers after so long, for each byte that is asked for so much longer.
  void Serve(const RingKey& key, Duration delay, Duration per_kib = {}) {
    there_->SetWeightsHandler(key, [this, delay, per_kib](std::unique_ptr<Link> link) {
      threads_.emplace_back([link = std::shared_ptr<Link>(std::move(link)), delay, per_kib] {
        for (;;) {
          const StatusOr<Frame> frame = link->Recv(After(seconds(10)));
          if (!frame.ok()) return;
          Decoder in(frame->payload);
          std::this_thread::sleep_for(delay + per_kib * (in.Get<uint32_t>() / 1024));
          if (!AnswerProbe(*link, *frame, After(seconds(10))).ok()) return;
        }
      });
    });
  }
  LinkSpeed Probe(const ProbeLimits& limits = {}) {
    Hello hello{.role = LinkRole::kWeights, .epoch = {0, 1}, .key = kKey, .from = "a", .to = "b"};
    return ProbeLink(*here_, there_->address(), hello, limits);
  }

  std::vector<std::thread> threads_;
  std::unique_ptr<RingPort> here_ = testing::OpenPort(), there_ = testing::OpenPort();
};

TEST_F(ProbeTest, AFastLink) {
  const LinkSpeed speed = Probe();
  EXPECT_EQ(speed.failure, "");
  EXPECT_EQ(speed.to, "b");
  EXPECT_GT(speed.round_trip_us, 0u);
  EXPECT_GT(speed.bytes_per_second, 1e6);
}

TEST_F(ProbeTest, ASlowLinkIsMeasuredWithFewBytes) {
  Serve(kKey, milliseconds(10), milliseconds(1));
  const auto began = Clock::now();
  const LinkSpeed speed = Probe({.time = milliseconds(100)});
  EXPECT_EQ(speed.failure, "");
  EXPECT_GE(speed.round_trip_us, 10000u);
  EXPECT_LT(speed.bytes_per_second, 1.3e6);
  EXPECT_GT(speed.bytes_per_second, 1e5);
  EXPECT_LT(Clock::now() - began, seconds(2));
}

TEST_F(ProbeTest, WhoDoesNotAnswerOrGivesNoWeightsIsNotReached) {
  Serve(kKey, milliseconds(300));
  EXPECT_THAT(Probe({.timeout = milliseconds(50)}).failure, ::testing::Ne(""));
  Serve({9}, milliseconds(0));
  EXPECT_THAT(Probe().failure, HasSubstr("gives no weights to links with this key"));
  const uint64_t unauthenticated = there_->stats().refused;
  EXPECT_EQ(unauthenticated, 1u);
  // A process without a key has not joined yet: whoever comes too early is not unauthenticated.
  there_->SetWeightsHandler({}, {});
  EXPECT_THAT(Probe({.timeout = milliseconds(200)}).failure, ::testing::Ne(""));
  EXPECT_EQ(there_->stats().refused, unauthenticated);
}

TEST(AnswerProbeTest, NoMoreIsSentThanFits) {
  auto [here, there] = MakeInprocLinkPair({});
  for (const uint32_t bytes : {0u, 5u, kMaxProbeBytes}) {
    Encoder request;
    request.Put(bytes);
    ASSERT_TRUE(AnswerProbe(*there, {.header = {}, .payload = {request.bytes().begin(), request.bytes().end()}},
                            After(seconds(1)))
                    .ok());
    EXPECT_EQ(here->Recv(After(seconds(1)))->payload.size(), bytes);
  }
  Encoder more;
  more.Put(kMaxProbeBytes + 1);
  const Frame frame{.header = {}, .payload = {more.bytes().begin(), more.bytes().end()}};
  EXPECT_THAT(Message(AnswerProbe(*there, frame, After(seconds(1)))), HasSubstr("at most 1048576"));
  EXPECT_FALSE(AnswerProbe(*there, {}, After(seconds(1))).ok());
}

}  // namespace
}  // namespace gyre
