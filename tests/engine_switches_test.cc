// Every switch of the scheduler and the KV cache leaves greedy text alone.
#include <gtest/gtest.h>

#include <functional>

#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

// Short and long prompts, some with one beginning; of several tenants and priorities.
std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    Request r;
    const int length = i == 4 ? 150 : 5 + 9 * i;
    for (int t = 0; t < length; ++t) r.prompt.push_back((i % 3 == 0 || t > 20 ? i * 31 + t * 7 : t * 11 + 3) % 290);
    r.max_new_tokens = 24;
    r.sampling.temperature = 0;
    r.ignore_end = true;
    r.tenant = static_cast<uint64_t>(i % 3);
    r.priority = i % 4 == 3 ? 1 : 0;
    r.cache_salt = i >= 6 ? 5 : 0;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Variant {
  const char* name;
  std::function<void(RuntimeOptions&)> change;
};

TEST(EngineSwitches, GreedyTextIsTheSameOnAndOff) {
  const testing::TinyModelFile model(testing::TinyOptions{.layers = 3, .vocab = 300});
  const std::vector<Request> requests = Requests();
  std::vector<std::vector<TokenId>> alone;
  {
    auto ring = OpenRing(testing::TinyRing(model.path(), 1, 256));
    ASSERT_NE(ring, nullptr);
    for (const Request& r : requests) alone.push_back(RunOne(ring->engine(), r).tokens);
  }
  const std::vector<Variant> variants = {
      {"plain", [](RuntimeOptions&) {}},
      {"prefill first", [](RuntimeOptions& o) { o.policy = "prefill_first"; }},
      {"decode round robin", [](RuntimeOptions& o) { o.policy = "decode_round_robin"; }},
      {"a small budget", [](RuntimeOptions& o) { o.step_tokens = 3; }},
      {"a small budget, prefill first", [](RuntimeOptions& o) { o.step_tokens = 5, o.policy = "prefill_first"; }},
      {"small steps, round robin", [](RuntimeOptions& o) { o.max_rows = 4, o.policy = "decode_round_robin"; }},
      {"three at once", [](RuntimeOptions& o) { o.max_sequences = 3; }},
      {"reserved", [](RuntimeOptions& o) { o.kv_reserve = true; }},
      {"reserved, no sharing", [](RuntimeOptions& o) { o.kv_reserve = o.no_prefix_cache = true; }},
      {"few blocks", [](RuntimeOptions& o) { o.kv_tokens = 300, o.ctx = 0; }},
      {"static batches of whole prompts",
       [](RuntimeOptions& o) { o.no_continuous_batching = o.no_chunked_prefill = true; }},
      {"static batches, reserved", [](RuntimeOptions& o) { o.no_continuous_batching = o.kv_reserve = true; }},
  };
  for (const int stages : {1, 3}) {
    for (const Variant& v : variants) {
      SCOPED_TRACE(std::string(v.name) + " on " + std::to_string(stages));
      RuntimeOptions o = testing::TinyRing(model.path(), stages, 256);
      v.change(o);
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      Runner runner(ring->engine());
      for (const Request& r : requests) runner.Add(r);
      const std::vector<Outcome> outcomes = runner.Wait();
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_TRUE(outcomes[i].finished) << outcomes[i].status;
        EXPECT_EQ(outcomes[i].tokens, alone[i]) << "request " << i;
      }
      EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
      if (o.kv_reserve) EXPECT_EQ(ring->engine().stats().scheduler.preemptions, 0u);
    }
  }
}

TEST(EngineSwitches, AnUnknownPolicyIsRefused) {
  const testing::TinyModelFile model(testing::TinyOptions{.layers = 1, .vocab = 300});
  RuntimeOptions o = testing::TinyRing(model.path(), 1, 64);
  o.policy = "lifo";
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Open(o).status()));
}

}  // namespace
}  // namespace gyre
