// Resizes that are given up in the drain again and again, over stages that answer full logits and a KV cache that is
// too small for what runs: the requests end with the texts of a quiet run.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "coordinator/cluster/plan_change.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

Request Hot(uint32_t seed) {
  std::mt19937 random(seed);
  Request r;
  const size_t length = 3 + random() % 30;
  for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % 90));
  r.max_new_tokens = 25;
  r.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
  r.ignore_end = true;
  return r;
}

TEST(EngineSoak, GivenUpDrainsPreemptionsAndFullLogitsTogether) {
  const testing::TinyModelFile model(testing::TinyOptions{.layers = 4, .vocab = 300});
  const size_t clients = 12;
  const int give_ups = testing::kSanitized ? 3 : 10;

  RuntimeOptions o = testing::TinyRing(model.path(), 2, 128);
  o.kv_tokens = 256;
  o.chunk = 8;
  ChangeTimeouts timeouts;
  timeouts.drain = milliseconds(3);
  o.timeouts = &timeouts;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  // A drain often meets a step that takes longer than it may.
  ring->workers()[1]->SetFaultHook([count = std::make_shared<std::atomic<int>>(0)]() -> Status {
    if (++*count % 30 == 0) std::this_thread::sleep_for(milliseconds(10));
    return absl::OkStatus();
  });

  Runner runner(ring->engine());
  std::atomic<size_t> ended{0};
  std::vector<Request> requests;
  const auto add = [&] {
    requests.push_back(Hot(static_cast<uint32_t>(requests.size())));
    runner.Add(requests.back(), [&](SeqId, size_t n) { ended += n == 25 ? 1 : 0; });
  };
  int given_up = 0, done = 0;
  const Deadline late = After(std::chrono::minutes(testing::kSanitized ? 10 : 4));
  for (int i = 0; given_up < give_ups || i < 40; ++i) {
    while (requests.size() - ended < clients) add();
    const StatusOr<ChangeReport> report = ring->cluster().ResizeAndWait(i % 2 == 0 ? "0-0,1-3" : "0-2,3-3");
    done += report.ok() ? 1 : 0;
    given_up += Message(report.status()).find("given up while draining") != std::string::npos ? 1 : 0;
    // A repair may be under way. Everybody gets on before the next one.
    const uint64_t tokens = ring->engine().stats().tokens_generated;
    while (ring->engine().stats().tokens_generated < tokens + 20) {
      ASSERT_LT(Clock::now(), late) << "nothing runs any more; " << ring->cluster().status().state << " after "
                                    << given_up << " resizes that were given up and " << done << " that were not";
      std::this_thread::sleep_for(milliseconds(1));
      while (requests.size() - ended < clients) add();
    }
  }
  const auto outcomes = runner.Wait();
  const EngineStats stats = ring->engine().stats();
  EXPECT_GT(stats.scheduler.preemptions, 0u);
  EXPECT_GT(stats.full_logits_requests, 0u);
  EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();

  auto alone = OpenRing(testing::TinyRing(model.path(), 1, 128));
  ASSERT_NE(alone, nullptr);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome expected = RunOne(alone->engine(), requests[i]);
    ASSERT_TRUE(outcomes[i].finished) << outcomes[i].status;
    ASSERT_EQ(outcomes[i].tokens, expected.tokens) << "request " << i;
  }
}

}  // namespace
}  // namespace gyre
