// The forward pass against the exact logits of small models of each family and each tensor type.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/testing/shared_data.h"
#include "tests/testing/stage_chain.h"

namespace gyre {
namespace {

using testing::ChainOptions;
using testing::LogitRows;
using testing::SharedData;
using testing::StageChain;

constexpr size_t kRows = 64;

struct Golden {
  const char* name;
  bool half;           // f16 weights: held to absolute bounds
  double peer_l2 = 0;  // relative L2 error of the usual peer, which quantizes activations
};

constexpr Golden kGolden[] = {
    {"tiny-llama-s0-f16", true},
    {"tiny-llama3-s0-f16", true},
    {"tiny-qwen2-s0-f16", true},
    {"tiny-qwen3-s0-f16", true},
    {"tiny-gemma3-s0-f16", true},
    {"tiny-llama-s0-bf16", false, 6.55e-3},
    {"tiny-llama-s0-Q8_0", false, 2.32e-2},
    {"tiny-llama-s0-Q4_0", false, 2.40e-2},
    {"tiny-llama-s0-Q4_1", false, 2.36e-2},
    {"tiny-llama-s0-Q5_0", false, 2.29e-2},
    {"tiny-llama-s0-Q5_1", false, 2.26e-2},
    {"tiny-llama-s0-Q4_K", false, 2.89e-2},
    {"tiny-llama-s0-Q5_K", false, 2.95e-2},
    {"tiny-llama-s0-Q6_K", false, 2.85e-2},
};

std::vector<TokenId> ReadIds(const std::string& path) {
  std::ifstream in(path);
  std::vector<TokenId> ids;
  for (TokenId id = 0; in >> id;) ids.push_back(id);
  return ids;
}

std::vector<float> ReadFloats(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  const std::string s = bytes.str();
  std::vector<float> out(s.size() / sizeof(float));
  std::memcpy(out.data(), s.data(), out.size() * sizeof(float));
  return out;
}

struct Distance {
  double relative_l2 = 0;
  double worst = 0;
};

Distance Compare(const LogitRows& got, const std::vector<float>& truth) {
  double error = 0, norm = 0;
  Distance d;
  size_t at = 0;
  for (const auto& row : got) {
    for (const float v : row) {
      const double t = static_cast<double>(truth[at++]), e = std::abs(static_cast<double>(v) - t);
      error += e * e;
      norm += t * t;
      if (!(e <= d.worst)) d.worst = e;
    }
  }
  d.relative_l2 = std::sqrt(error / norm);
  return d;
}

struct Param {
  Golden golden;
  Isa isa;
};

class GoldenTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no golden files under " << testing::SharedRoot();
    const std::string base = SharedData(std::string("golden/") + GetParam().golden.name);
    auto model = OpenModel(base + ".gguf");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    ids_ = ReadIds(SharedData("golden/ids.txt"));
    truth_ = ReadFloats(base + ".logits.f32");
    greedy_ = ReadIds(base + ".greedy.txt");
    ASSERT_EQ(ids_.size(), kRows);
    ASSERT_EQ(truth_.size(), kRows * static_cast<size_t>(model_->spec().vocab));
    ASSERT_EQ(greedy_.size(), 48u);
  }
  ChainOptions Options(KvType kv, bool exact) const {
    return {.kv = {.type = kv, .block_size = 16, .num_blocks = 8}, .isa = GetParam().isa, .exact = exact};
  }
  Distance Measure(KvType kv, bool exact) const {
    StageChain chain(model_, Options(kv, exact));
    return Compare(testing::ChainLogits(chain, ids_, 23, testing::MakeTable(chain.options().kv, kRows)), truth_);
  }

  std::shared_ptr<const Model> model_;
  std::vector<TokenId> ids_, greedy_;
  std::vector<float> truth_;
};

TEST_P(GoldenTest, LogitsAreWithinTheBounds) {
  const Golden& golden = GetParam().golden;
  EXPECT_LE(Measure(KvType::kF32, true).worst, 1e-4) << "nothing is rounded";
  if (golden.half) {
    EXPECT_LE(Measure(KvType::kF32, false).worst, 1e-4);
    EXPECT_LE(Measure(KvType::kF16, false).relative_l2, 1.5e-3);
  } else {
    EXPECT_LE(Measure(KvType::kF16, false).relative_l2, 1.10 * golden.peer_l2);
  }
}

class GreedyTest : public GoldenTest {};

TEST_P(GreedyTest, IdsAreTheSame) {
  StageChain chain(model_, Options(KvType::kF32, true));
  const auto table = testing::MakeTable(chain.options().kv, kRows + greedy_.size());
  const auto groups = static_cast<size_t>(model_->spec().kv_groups);
  std::vector<TokenId> input = ids_, got;
  for (uint32_t position = 0; got.size() < greedy_.size();) {
    StepBatch batch;
    const auto n = static_cast<uint32_t>(input.size());
    batch.seqs.push_back(testing::MakeRows(1, position, n, table, groups, RowMode::kArgmax));
    batch.seqs[0].requests[0].first = n - 1;
    batch.seqs[0].requests[0].count = 1;
    const StepAnswer answer = chain.Run(batch, input).value();
    got.push_back(answer.rows.at(0).top.at(0).id);
    position += n;
    input = {got.back()};
  }
  EXPECT_EQ(got, greedy_);
}

std::vector<Param> AllParams(bool slow_too) {
  std::vector<Param> out;
  for (const Golden& g : kGolden) {
    for (const Isa isa : testing::AvailableIsas()) {
      if (slow_too || g.half || isa != Isa::kRef) out.push_back({g, isa});
    }
  }
  return out;
}

std::string ParamName(const ::testing::TestParamInfo<Param>& info) {
  std::string name = std::string(info.param.golden.name) + "_" + IsaName(info.param.isa);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTest, ::testing::ValuesIn(AllParams(true)), ParamName);
INSTANTIATE_TEST_SUITE_P(Files, GreedyTest, ::testing::ValuesIn(AllParams(false)), ParamName);

}  // namespace
}  // namespace gyre
