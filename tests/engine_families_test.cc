// Every family computes the same bits wherever the boundaries are: over one to three stages, in chunks of any size, and
// alone or beside other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/cluster/planner.h"
#include "model/arch.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

struct Family {
  std::string arch;
  bool side = false;
  std::string golden = {};  // a file of ../shared, in place of a tiny model
};

std::vector<Family> Families() {
  std::vector<Family> out;
  for (const std::string& arch : KnownArchitectures()) {
    if (testing::IsTiny(arch)) out.push_back({arch});
  }
  out.push_back({"gemma4", true});
  // Families with parts of their own: narrow values, chunks, a table of positions, parallel blocks, recurrent state.
  for (const char* arch : {"mimo2", "llama4", "gpt2", "cohere2moe"})
    out.push_back({arch, false, fmt::format("golden-wave2/attention/tiny-{}-s0-f16.gguf", arch)});
  for (const char* arch : {"kimi-linear", "jamba", "mamba", "falcon-h1"})
    out.push_back({arch, false, fmt::format("golden-wave2/state/tiny-{}-s0-f16.gguf", arch)});
  // Several streams, and layers that read others' keys and values.
  out.push_back({"gemma3n", false, "golden-wave2/attention/tiny-gemma3n-kv-s0-Q8_0.gguf"});
  return out;
}

class FamiliesTest : public ::testing::TestWithParam<Family> {
 protected:
  FamiliesTest() : file_(Options()), path_(file_.path()) {
    std::mt19937 random(1);
    for (int i = 0; i < 50; ++i) ids_.push_back(static_cast<TokenId>(random() % 96));
  }
  void SetUp() override {
    if (GetParam().golden.empty()) return;
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the family's file is not there";
    path_ = testing::SharedData(GetParam().golden);
    const auto model = OpenModel(path_);
    ASSERT_TRUE(model.ok()) << model.status();
    last_ = (*model)->spec().layers.size() - 1;
    least_ = static_cast<size_t>((*model)->spec().layers_per_block);
    attends_ = (*model)->spec().UnitBytes(KvType::kF16, 16)[kPageGroup] > 0;
  }
  static testing::TinyOptions Options() {
    testing::TinyOptions o;
    if (GetParam().golden.empty()) o.arch = GetParam().arch;
    o.layers = 6;
    o.dim = 64;
    o.side = GetParam().side;
    return o;
  }
  std::unique_ptr<Runtime> Open(int stages, uint32_t chunk) const {
    RuntimeOptions o;
    o.model = path_;
    o.stages = stages;
    o.threads = 2;
    o.ctx = 128;
    o.chunk = chunk;
    o.quiet = true;
    auto ring = Runtime::Open(o);
    EXPECT_TRUE(ring.ok()) << ring.status();
    return ring.ok() ? *std::move(ring) : nullptr;
  }
  // Two plans for three members.
  std::vector<std::string> Plans() const {
    const auto range = [](size_t begin, size_t end) {
      return begin + 1 == end ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
    };
    return {fmt::format("local-1={},local-2={},local-3={}", range(0, least_), range(least_, 2 * least_),
                        range(2 * least_, last_ + 1)),
            fmt::format("local-3={},local-1={}", range(0, least_), range(least_, last_ + 1))};
  }
  const testing::TinyModelFile file_;
  std::string path_;
  size_t last_ = 5;      // layer
  size_t least_ = 1;     // layers of a range
  bool attends_ = true;  // some layer has pages
  std::vector<TokenId> ids_;
};

TEST_P(FamiliesTest, SameBitsOverStagesAndChunks) {
  if (!GetParam().golden.empty()) GTEST_SKIP() << "worker_golden_state_test has it";
  testing::Outcome rows, greedy;
  for (const auto& [stages, chunk] :
       {std::pair<int, uint32_t>{1, 64}, {1, 1}, {1, 17}, {2, 3}, {2, 64}, {3, 1}, {3, 17}}) {
    SCOPED_TRACE(fmt::format("{} stages, chunks of {}", stages, chunk));
    const auto ring = Open(stages, chunk);
    ASSERT_NE(ring, nullptr);
    Request all;
    all.prompt = ids_;
    all.prompt_logits = true;
    const testing::Outcome got = testing::RunOne(ring->engine(), all);
    ASSERT_TRUE(got.status.ok()) << got.status;
    ASSERT_EQ(got.logits.size(), ids_.size());
    Request more;
    more.prompt = ids_;
    more.max_new_tokens = 20;
    more.sampling.temperature = 0;
    const testing::Outcome text = testing::RunOne(ring->engine(), more);
    ASSERT_TRUE(text.status.ok()) << text.status;
    if (rows.logits.empty()) {
      rows = got, greedy = text;
      EXPECT_NE(rows.logits[0], rows.logits[1]);
      continue;
    }
    EXPECT_EQ(got.logits, rows.logits);
    EXPECT_EQ(text.tokens, greedy.tokens);
  }
}

// The second time the prompt's blocks come from the prefix cache, whose pages have moved with their layers.
TEST_P(FamiliesTest, LayersMoveWithTheirPages) {
  RuntimeOptions o = testing::TinyRing(path_, 3, 128);
  o.tcp = true;
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  Request request;
  request.prompt = ids_;
  request.max_new_tokens = 20;
  request.sampling.temperature = 0;
  const testing::Outcome before = testing::RunOne(ring->engine(), request);
  ASSERT_TRUE(before.status.ok()) << before.status;
  for (const std::string& text : Plans()) {
    const auto report = ring->cluster().ResizeAndWait(text);
    ASSERT_TRUE(report.ok()) << report.status();
    const testing::Outcome after = testing::RunOne(ring->engine(), request);
    EXPECT_EQ(after.tokens, before.tokens) << text;
    if (attends_ && text == Plans()[1]) {
      EXPECT_GT(report->pages_moved, 0u);
    }
  }
}

// Beside others, on a cache that is too small for all, while layers move: in the middle of texts and of a prompt.
TEST_P(FamiliesTest, CompanionsReplaysAndMovesChangeNoBit) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 7; ++i) {
    Request r;
    std::mt19937 random(i);
    for (uint32_t n = 0; n < (i == 0 ? 60 : 9 * i); ++n) r.prompt.push_back(static_cast<TokenId>(random() % 96));
    r.max_new_tokens = 30;
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = i;
    r.ignore_end = true;
    r.prompt_logits = i == 0;  // they tell when it is in the middle of its prompt
    requests.push_back(std::move(r));
  }
  RuntimeOptions o = testing::TinyRing(path_, 1, 128);
  o.no_prefix_cache = true;
  std::vector<testing::Outcome> alone;
  {
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    for (const Request& r : requests) alone.push_back(testing::RunOne(ring->engine(), r));
  }
  o.stages = o.threads = 3;
  o.chunk = 3;
  o.kv_tokens = 240;
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const std::string& text : Plans()) {
    std::atomic<size_t> standing{0};
    testing::Runner runner(ring->engine());
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i > 2) {
        runner.Add(requests[i]);
        continue;
      }
      runner.Add(requests[i], [&, i, first = true](SeqId seq, size_t n) mutable {
        if (i == 0 ? !std::exchange(first, false) : n != 7) return;
        ring->engine().Hold(seq);
        ++standing;
      });
    }
    while (standing < 3 && !runner.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto report = ring->cluster().ResizeAndWait(text);
    EXPECT_TRUE(report.ok()) << report.status();
    for (size_t i = 0; i < 3; ++i) ring->engine().Unhold(runner.id(i));
    const auto got = runner.Wait();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens, alone[i].tokens) << text << ": " << got[i].status;
    EXPECT_EQ(got[0].logits, alone[0].logits) << text;
  }
  if (attends_) {
    EXPECT_GT(ring->engine().stats().scheduler.preemptions, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Arch, FamiliesTest, ::testing::ValuesIn(Families()), [](const auto& info) {
  std::string name = info.param.arch + (info.param.side ? "_side" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Layers that read an earlier layer's keys and values stay on its stage.
TEST(SharedKvTest, BoundariesKeepSharedLayersTogether) {
  testing::TinyOptions o;
  o.arch = "gemma4";
  o.side = true;
  o.layers = 8;  // layers 6 and 7 read those of 4 and 5
  const auto bytes = testing::BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().layers[6].attention()->kv_layer, 4);
  EXPECT_EQ((*model)->spec().layers[7].attention()->kv_layer, 5);
  const ModelSizes sizes = *SizesOf(**model, {.units = {4, 0, 4}}, 16, KvType::kF16);
  std::vector<PlanMember> members;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) members.push_back({.name = name});
  // Five ranges are the most: four single layers, and the last four together.
  const auto plan = BalanceLayers(sizes, members);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->size(), 5u);
  EXPECT_EQ(plan->back().layers, (LayerRange{4, 8}));
  EXPECT_TRUE(ParseResize("2 4", sizes, members).ok());
  EXPECT_EQ(Message(ParseResize("2 5", sizes, members).status()),
            "no range can begin at layer 5: layers from it on read what earlier ones have made");
  // A preference in their midst does not count.
  members[0].preference = LayerRange{0, 6};
  EXPECT_EQ(BalanceLayers(sizes, members)->back().layers, (LayerRange{4, 8}));
}

}  // namespace
}  // namespace gyre
