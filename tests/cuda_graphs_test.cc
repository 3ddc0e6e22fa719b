// Steps as graphs, on the emulated GPU, whose graphs repeat the arguments of their capture: the same bits with and
// without them, for every kind of layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/testing/cuda_emulated.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using testing::OneStage;

struct Generated {
  std::vector<std::vector<float>> logits;
  cuda::StepGraphs::Counts counts;
};

// Two prompts, and rows that are generated side by side behind them.
Generated Generate(const std::vector<std::byte>& file, bool graphs, RowMode mode = RowMode::kFullLogits) {
  OneStage stage(*OpenModelFromBytes(file), testing::MakeEmulatedCudaDevice(nullptr, graphs));
  const RowRequest last{.first = 0, .mode = mode, .k = 5, .temperature = 0.7f};
  RowRequest end = last;
  Generated run;
  const auto take = [&](const std::vector<OneStage::Part>& step) {
    for (RowAnswer& row : stage.Answers(step)) {
      std::vector<float> values = std::move(row.values);
      for (const TokenLogit& c : row.top) values.push_back(c.logit), values.push_back(static_cast<float>(c.id));
      run.logits.push_back(std::move(values));
    }
  };
  end.first = 4;
  take({{0, 0, RowClass::kPrompt, {4, 5, 6, 90, 7}, {end}}});
  end.first = 2;
  take({{1, 0, RowClass::kPrompt, {3, 2, 1}, {end}}});
  for (uint32_t i = 0; i < 9; ++i) {
    const TokenId a = static_cast<TokenId>(10 + i * 3), b = static_cast<TokenId>(80 - i * 2);
    take({{0, 5 + i, RowClass::kGenerated, {a}, {last}}, {1, 3 + i, RowClass::kGenerated, {b}, {last}}});
  }
  run.counts = static_cast<cuda::CudaBackend&>(stage.queue()).graph_counts();
  return run;
}

TEST(CudaGraphsTest, GeneratedRowsHaveTheSameBitsWithGraphsAndWithout) {
  std::vector<std::pair<std::string, std::vector<std::byte>>> models;
  models.emplace_back("llama", testing::BuildTinyModel({.layers = 2, .vocab = testing::kVocab}));
  models.emplace_back("gpt-oss", testing::BuildTinyModel({.arch = "gpt-oss", .layers = 2, .vocab = testing::kVocab}));
  for (const char* arch : {"qwen3next", "deepseek2"}) models.emplace_back(arch, testing::BuildTinyHybrid(arch));
  for (const auto& [name, file] : models) {
    const Generated with = Generate(file, true), without = Generate(file, false);
    ASSERT_EQ(with.logits.size(), without.logits.size());
    for (size_t r = 0; r < with.logits.size(); ++r)
      EXPECT_EQ(with.logits[r], without.logits[r]) << name << ", answer " << r;
    EXPECT_EQ(without.counts.captured + without.counts.replayed, 0u) << name;
    EXPECT_GE(with.counts.replayed, 6u) << name << ": of 9 equal steps, the first two are needed to know it";
    EXPECT_LE(with.counts.captured, 3u) << name;
  }
}

TEST(CudaGraphsTest, StepsThatAnswerWithCandidatesAreGraphsToo) {
  const auto file = testing::BuildTinyModel({.layers = 2, .vocab = testing::kVocab});
  const Generated with = Generate(file, true, RowMode::kTopK), without = Generate(file, false, RowMode::kTopK);
  EXPECT_EQ(with.logits, without.logits);
  EXPECT_GE(with.counts.replayed, 6u);
}

class CudaStepTest : public ::testing::Test {
 protected:
  template <typename T>
  T* Room(size_t n) {
    return reinterpret_cast<T*>(memory_.emplace_back(device_->Allocate(n * sizeof(T))).data());
  }
  const std::shared_ptr<testing::EmulatedFaults> faults_ = std::make_shared<testing::EmulatedFaults>();
  const std::shared_ptr<Device> device_ = testing::MakeEmulatedCudaDevice(faults_);
  const std::unique_ptr<Backend> gpu_ = device_->NewBackend();
  std::vector<DeviceMemory> memory_;
};

// Uploads change, addresses do not: a replay reads the new ones.
TEST_F(CudaStepTest, AReplayReadsWhatTheStepUploads) {
  float* x = Room<float>(4);
  for (int step = 0; step < 8; ++step) {
    gpu_->Recycle();
    const float value = static_cast<float>(step);
    const std::vector<float> host(4, value);
    gpu_->Zero(x, 16);
    gpu_->AddInPlace(x, gpu_->Upload(std::span(host)).data(), 4);
    std::vector<float> copied(4, -1);
    gpu_->CopyOut(x, copied.data(), 16);
    const auto down = gpu_->Download<float>(x, 4);
    gpu_->Finish();
    EXPECT_EQ(copied, host) << step;
    EXPECT_EQ(std::vector<float>(down.begin(), down.end()), host) << step;
  }
  EXPECT_EQ(faults_->graphs, 6u);
}

// An address that is another one is another step.
TEST_F(CudaStepTest, AStepWithOtherAddressesIsNoReplay) {
  float *x = Room<float>(4), *y = Room<float>(4);
  const std::vector<float> host{1, 2, 3, 4};
  for (int step = 0; step < 8; ++step) {
    gpu_->Recycle();
    float* to = step % 2 == 0 ? x : y;
    gpu_->AddInPlace(to, gpu_->Upload(std::span(host)).data(), 4);
    const auto down = gpu_->Download<float>(to, 4);
    gpu_->Finish();
    EXPECT_EQ(down[3], static_cast<float>(4 * (step / 2 + 1)));
  }
}

// A buffer that grows in the middle of a step: what was put off still uses the old one.
TEST_F(CudaStepTest, MemoryThatIsFreedWithinAStepWasUsedBefore) {
  float* x = Room<float>(4);
  for (size_t step = 0; step < 4; ++step) {
    gpu_->Recycle();
    DeviceBuffer<float> buffer;
    const std::vector<float> host{1, 1, 1, 1};
    float* small = buffer.EnsureCapacity(*device_, 4);
    gpu_->Copy(gpu_->Upload(std::span(host)).data(), small, 16);
    gpu_->AddInPlace(x, small, 4);
    float* large = buffer.EnsureCapacity(*device_, 400);
    gpu_->AddInPlace(x, large, 4);  // zeros
    const auto down = gpu_->Download<float>(x, 4);
    gpu_->Finish();
    EXPECT_EQ(down[0], static_cast<float>(step + 1));
  }
}

TEST_F(CudaStepTest, ARefusedGraphIsAnErrorOfTheStepAndTheNextStepIsDone) {
  float* x = Room<float>(4);
  const std::vector<float> host{1, 1, 1, 1};
  const auto step = [&] {
    gpu_->Recycle();
    gpu_->AddInPlace(x, gpu_->Upload(std::span(host)).data(), 4);
    const auto down = gpu_->Download<float>(x, 4);
    gpu_->Finish();
    return down[0];
  };
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(step(), static_cast<float>(i));
  faults_->refuses = true;
  EXPECT_THROW(step(), DeviceFailed);
  EXPECT_EQ(step(), 6.0f);
  faults_->fails = true;
  EXPECT_THROW(step(), DeviceFailed);
  faults_->lost = true;
  EXPECT_THROW(step(), DeviceLost);
}

}  // namespace
}  // namespace gyre
