// A worker's use of its device: FarDevice crashes a host that touches memory of the device, and fails as a GPU
// fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/testing/far_device.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::FarDevice;
using ::testing::HasSubstr;

class FarDeviceTest : public ::testing::Test {
 protected:
  FarDeviceTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::vector<float> Downloaded(const float* from, size_t n) {
    const auto values = queue_->Download(from, n);
    queue_->Finish();
    return {values.begin(), values.end()};
  }

  const std::shared_ptr<FarDevice> device_ =
      std::make_shared<FarDevice>(MakeCpuDevice(Isa::kRef, 1), std::chrono::seconds(30));
  const std::unique_ptr<Backend> queue_ = device_->NewBackend();
  DeviceBuffer<float> buffer_;
};

TEST_F(FarDeviceTest, OpsComputeWhatTheyComputeNearby) {
  float* x = buffer_.EnsureCapacity(*device_, 4);
  EXPECT_EQ(Downloaded(x, 4), std::vector<float>(4)) << "fresh memory";
  const std::vector<float> host{1, 2, 3, 4};
  queue_->CopyIn(host.data(), x, 16);
  queue_->Scale(x, 3, 2);
  queue_->AddInPlace(x, queue_->Upload(std::span(host)).data(), 4);
  EXPECT_EQ(Downloaded(x, 4), (std::vector<float>{3, 6, 9, 8}));
}

TEST_F(FarDeviceTest, AHostThatReadsOrWritesCrashes) {
  float* x = buffer_.EnsureCapacity(*device_, 4);
  const auto read = [&] { return *static_cast<volatile float*>(x); };
  EXPECT_DEATH(static_cast<void>(read()), "");
  EXPECT_DEATH(*static_cast<volatile float*>(x) = 1, "");
  const std::vector<float> host(4);
  EXPECT_DEATH(static_cast<void>(*const_cast<const volatile float*>(queue_->Upload(std::span(host)).data())), "");
}

TEST_F(FarDeviceTest, AnOpWithAnAddressOfTheHostEndsTheProcess) {
  float* x = buffer_.EnsureCapacity(*device_, 4);
  std::vector<float> host(4);
  EXPECT_DEATH(queue_->AddInPlace(x, host.data(), 4), "an address that is not the device's");
  EXPECT_DEATH(queue_->AddInPlace(x, x, 5), "a tensor that its memory does not hold");
}

TEST_F(FarDeviceTest, WhatIsNotDoneIsGarbageAndWhatIsUploadedMustStay) {
  float* x = buffer_.EnsureCapacity(*device_, 4);
  std::vector<float> host(4, 7.0f), back(4);
  queue_->CopyOut(x, back.data(), 16);
  EXPECT_NE(back, std::vector<float>(4)) << "it is not done";
  queue_->Finish();
  EXPECT_EQ(back, std::vector<float>(4));
  const auto change = [&] {
    queue_->CopyIn(host.data(), x, 16);
    host[2] = 5;
    queue_->Finish();
  };
  EXPECT_DEATH(change(), "the host changed");
}

TEST_F(FarDeviceTest, MemoryThatRunsOutSaysWhatWasNeeded) {
  buffer_.EnsureCapacity(*device_, 4);
  device_->SetLimit(100);
  DeviceBuffer<float> more;
  try {
    more.EnsureCapacity(*device_, 100);
    FAIL() << "it fits";
  } catch (const std::bad_alloc& e) {
    EXPECT_THAT(e.what(), HasSubstr("84 bytes free, 400 are needed"));
  }
  device_->SetLimit(1000);
  EXPECT_NE(more.EnsureCapacity(*device_, 100), nullptr);
}

// All layers of a tiny model in one stage on this device.
class StageOnFarDevice : public ::testing::Test {
 protected:
  Status Step() {
    StepAnswer answer;
    return stage_.Try({{0, 0, RowClass::kPrompt, {4, 5, 6}, {{.first = 2, .mode = RowMode::kFullLogits}}}}, &answer);
  }
  const std::vector<std::byte> file_ = testing::BuildTinyModel({.layers = 2, .vocab = testing::kVocab});
  const std::shared_ptr<FarDevice> device_ = std::make_shared<FarDevice>(MakeCpuDevice(Isa::kRef, 1));
  testing::OneStage stage_{*OpenModelFromBytes(file_), device_};
};

TEST_F(StageOnFarDevice, GivesTheBitsOfTheCpu) {
  const std::vector<testing::OneStage::Part> step{
      {0, 0, RowClass::kPrompt, {4, 5, 6}, {{.first = 1, .count = 2, .mode = RowMode::kFullLogits}}}};
  testing::OneStage near(*OpenModelFromBytes(file_), MakeCpuDevice(Isa::kRef, 1));
  EXPECT_EQ(stage_.Run(step), near.Run(step));
}

TEST_F(StageOnFarDevice, AnOpThatFailsFailsTheStepAndTheNextOneIsComputed) {
  EXPECT_TRUE(Step().ok());
  device_->FailNextOp();
  EXPECT_THROW(static_cast<void>(Step()), DeviceFailed);
  EXPECT_TRUE(Step().ok());
  device_->Lose();
  EXPECT_THROW(static_cast<void>(Step()), DeviceLost);
}

}  // namespace
}  // namespace gyre
