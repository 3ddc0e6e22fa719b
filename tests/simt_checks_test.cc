// The emulator of a GPU sees the mistakes that were planted in small kernels, and nothing in the right ones.
#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/testing/gpu_memory.h"
#include "tests/testing/simt/planted.h"

namespace gyre::simt {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::GpuVector;
using ::testing::HasSubstr;

std::vector<float> Rising(size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 1.0f);
  return v;
}
std::vector<uint32_t> RisingWords(size_t n) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

// The sentence of the fault, or "".
std::string FaultOf(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

class SimtChecks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kChecked) GTEST_SKIP() << "a sanitizer of the compiler has the place of the emulator's checks";
  }
  void TearDown() override { SetOrder(Order::kRising); }
};
// The vocabulary's functions that need no checks of accesses.
class SimtMeetings : public ::testing::Test {
 protected:
  void TearDown() override { SetOrder(Order::kRising); }
};

TEST_F(SimtMeetings, RightKernelsComputeInAnyOrder) {
  for (const auto& [order, seed] : {std::pair{Order::kRising, 0},
                                    {Order::kFalling, 0},
                                    {Order::kRandom, 1},
                                    {Order::kRandom, 2},
                                    {Order::kRandom, 3}}) {
    SetOrder(order, static_cast<uint64_t>(seed));
    const GpuVector<float> x(Rising(256));
    GpuVector<float> sum(1), doubled(100), parts(32), joined(1), weights(32), places(128), met(64), after(64);
    SumBlock(Mistake::kNone, x.data(), sum.data());
    EXPECT_EQ(sum.host()[0], 256 * 257 / 2);
    Double(Mistake::kNone, x.data(), doubled.data(), 100);
    EXPECT_EQ(doubled.host()[99], 200);
    JoinParts(Mistake::kNone, parts.data(), 20, joined.data());
    EXPECT_EQ(joined.host()[0], 190);
    SumWeights(Mistake::kNone, x.data(), weights.data());
    EXPECT_THAT(weights.host(), Each(::testing::FloatNear(1, 1e-6f)));
    TwoBlocks(Mistake::kNone, places.data());
    EXPECT_EQ(places.host()[127], 1);
    MeetInBranch(Mistake::kNone, met.data());
    EXPECT_EQ(met.host()[32], 1);
    BarrierInBranch(Mistake::kNone, after.data());
    EXPECT_THAT(after.host(), Each(1));

    const GpuVector<uint32_t> words(RisingWords(256));
    GpuVector<uint32_t> exchanged(64), copied(64), zeros(64), constants(32), counts(std::vector<uint32_t>(8));
    Exchange64(Mistake::kNone, words.data(), exchanged.data());
    EXPECT_EQ(exchanged.host()[5], 4u);
    CopyPieces(Mistake::kNone, words.data(), copied.data());
    EXPECT_EQ(copied.host()[1], 33u * 4);
    CopyZeros(words.data(), zeros.data());
    EXPECT_EQ(zeros.host()[31], 31u * 4);
    EXPECT_EQ(zeros.host()[32], 0u);
    ReadConstant(constants.data());
    EXPECT_EQ(constants.host()[30], 5u);
    Histogram(Mistake::kNone, words.data(), counts.data(), 200);
    EXPECT_THAT(counts.host(), Each(25u));
  }
}

TEST_F(SimtMeetings, TheOrderOfThreadsIsTheChosenOne) {
  const auto tickets = [](Order order, uint64_t seed) {
    SetOrder(order, seed);
    GpuVector<uint32_t> counter(std::vector<uint32_t>(1)), out(64);
    Tickets(counter.data(), out.data());
    return out.host();
  };
  auto rising = RisingWords(64);
  EXPECT_EQ(tickets(Order::kRising, 0), rising);
  std::reverse(rising.begin(), rising.end());
  EXPECT_EQ(tickets(Order::kFalling, 0), rising);
  const auto random = tickets(Order::kRandom, 1);
  EXPECT_NE(random, rising);
  EXPECT_EQ(random, tickets(Order::kRandom, 1));
  EXPECT_NE(random, tickets(Order::kRandom, 2));
}

TEST_F(SimtMeetings, LanesMeetInABranch) {
  GpuVector<float> out(64);
  EXPECT_THAT(FaultOf([&] { MeetInBranch(Mistake::kInBranch, out.data()); }),
              AllOf(HasSubstr("of block 0 waits for its warp at planted.cu:"), HasSubstr("but thread"),
                    HasSubstr("waits at planted.cu:")));
  EXPECT_THAT(FaultOf([&] { MeetInBranch(Mistake::kReturned, out.data()); }),
              AllOf(HasSubstr("thread 0 of block 0 waits for its warp at planted.cu:"),
                    HasSubstr("but thread 16 has returned")));
}

TEST_F(SimtMeetings, ABarrierThatSomeThreadsNeverReach) {
  GpuVector<float> out(64);
  EXPECT_THAT(FaultOf([&] { BarrierInBranch(Mistake::kReturned, out.data()); }),
              HasSubstr("only 32 of the 64 threads of block 0 reach the barrier at planted.cu:"));
}

TEST_F(SimtMeetings, LaunchesThatAGpuRefuses) {
  GpuVector<float> out(64);
  EXPECT_THAT(FaultOf([&] { TooManyThreads(out.data()); }), HasSubstr("refuses a launch of 1 x 1 x 1 blocks of 1056"));
  EXPECT_THAT(FaultOf([&] { TooMuchShared(out.data()); }), HasSubstr("80000 bytes of shared memory at planted.cu:"));
  EXPECT_EQ(FaultOf([&] { Double(Mistake::kNone, GpuVector<float>(Rising(64)).data(), out.data(), 64); }), "")
      << "a launch after a fault";
}

TEST_F(SimtChecks, ABarrierThatIsMissing) {
  const GpuVector<float> x(Rising(256));
  GpuVector<float> out(64);
  for (const Mistake mistake : {Mistake::kNoBarrier, Mistake::kWarpBarrier}) {
    EXPECT_THAT(
        FaultOf([&] { SumBlock(mistake, x.data(), out.data()); }),
        AllOf(HasSubstr("shared memory, which nobody wrote, at planted.cu:"), HasSubstr("of block 0 reads byte")));
  }
  EXPECT_THAT(FaultOf([&] { SumWeights(Mistake::kNoBarrier, x.data(), out.data()); }),
              AllOf(HasSubstr("race on byte"), HasSubstr("of shared memory: thread"),
                    HasSubstr("reads it at planted.cu:"), HasSubstr("of this block wrote it at planted.cu:")));
}

TEST_F(SimtChecks, WhatOrdersTheLanesOfAWarp) {
  const GpuVector<uint32_t> x(RisingWords(64));
  for (const auto& [order, seed] : {std::pair{Order::kRising, 0}, {Order::kFalling, 0}, {Order::kRandom, 1}}) {
    SetOrder(order, static_cast<uint64_t>(seed));
    GpuVector<uint32_t> out(64);
    EXPECT_EQ(FaultOf([&] { Exchange64(Mistake::kNone, x.data(), out.data()); }), "") << "a barrier of the warp does";
    EXPECT_THAT(FaultOf([&] { Exchange64(Mistake::kOnlyAShuffle, x.data(), out.data()); }), HasSubstr("race on byte"))
        << "a shuffle does not";
    EXPECT_NE(FaultOf([&] { Exchange64(Mistake::kNoBarrier, x.data(), out.data()); }), "");
    EXPECT_NE(FaultOf([&] { Exchange64(Mistake::kOtherWarp, x.data(), out.data()); }), "");
  }
}

TEST_F(SimtChecks, AsynchronousCopiesThatNobodyWaitedFor) {
  const GpuVector<uint32_t> x(RisingWords(256));
  GpuVector<uint32_t> out(64);
  EXPECT_THAT(FaultOf([&] { CopyPieces(Mistake::kOneTooFar, x.data(), out.data()); }),
              HasSubstr("which an asynchronous copy has not brought yet, at planted.cu:"));
  EXPECT_THAT(FaultOf([&] { CopyPieces(Mistake::kNoBarrier, x.data(), out.data()); }),
              HasSubstr("shared memory, which nobody wrote"));
  SetOrder(Order::kFalling);
  EXPECT_NE(FaultOf([&] { CopyPieces(Mistake::kNoBarrier, x.data(), out.data()); }), "");
}

TEST_F(SimtChecks, AccessesBeyondWhatThereIs) {
  const GpuVector<float> x(Rising(101));
  GpuVector<float> out(100), parts(32), sum(1);
  EXPECT_THAT(FaultOf([&] { Double(Mistake::kOneTooFar, x.data(), out.data(), 100); }),
              AllOf(HasSubstr("thread 36 of block 0 writes 4 bytes outside of all pieces of global memory"),
                    HasSubstr("at planted.cu:")));
  EXPECT_THAT(FaultOf([&] { JoinParts(Mistake::kOneTooFar, parts.data(), 20, sum.data()); }), HasSubstr("reads byte"))
      << "a part that no split has written";
  float* freed = nullptr;
  {
    GpuVector<float> gone(Rising(100));
    freed = gone.data();
  }
  EXPECT_THAT(FaultOf([&] { Double(Mistake::kNone, freed, out.data(), 100); }), HasSubstr("outside of all pieces"));
}

TEST_F(SimtChecks, WhatNobodyWrote) {
  GpuVector<float> never(64), out(64);
  EXPECT_THAT(FaultOf([&] { Double(Mistake::kNone, never.data(), out.data(), 64); }),
              HasSubstr("global memory, which nobody wrote, at planted.cu:"));
  EXPECT_THAT(FaultOf([&] { never.host(); }), HasSubstr("has bytes that nobody wrote, the first is 0"));
  Double(Mistake::kNone, GpuVector<float>(Rising(64)).data(), out.data(), 40);
  EXPECT_THAT(FaultOf([&] { out.host(); }), HasSubstr("the first is 160"));
}

TEST_F(SimtChecks, CopiesAndZerosCountAsWritten) {
  const GpuVector<float> x(Rising(64));
  GpuVector<float> never(64), part(64), out(64);
  Copy(x.data(), part.data(), 128);
  Copy(never.data(), part.data() + 32, 64);
  EXPECT_EQ(FaultOf([&] { Double(Mistake::kNone, part.data(), out.data(), 32); }), "");
  EXPECT_THAT(FaultOf([&] { Double(Mistake::kNone, part.data(), out.data(), 33); }), HasSubstr("which nobody wrote"))
      << "a copy of what nobody wrote";
  Zero(part.data() + 32, 128);
  Double(Mistake::kNone, part.data(), out.data(), 64);
  EXPECT_EQ(out.host()[31], 64);
  EXPECT_EQ(out.host()[32], 0);
  auto* zeros = static_cast<float*>(AllocateZeros(256));
  EXPECT_EQ(FaultOf([&] { Double(Mistake::kNone, zeros, out.data(), 64); }), "");
  EXPECT_EQ(out.host()[5], 0);
  Free(zeros);
}

TEST_F(SimtChecks, BlocksThatMeetInMemory) {
  GpuVector<float> out(128);
  EXPECT_THAT(
      FaultOf([&] { TwoBlocks(Mistake::kOneTooFar, out.data()); }),
      AllOf(HasSubstr("race on byte"), HasSubstr("of block 1 writes it"), HasSubstr("of another block wrote it")));
  EXPECT_EQ(FaultOf([&] {
              TwoBlocks(Mistake::kNone, out.data());
              TwoBlocks(Mistake::kNone, out.data());
            }),
            "")
      << "launches are ordered";
  const GpuVector<uint32_t> words(RisingWords(256));
  GpuVector<uint32_t> counts(std::vector<uint32_t>(8 + 256));
  EXPECT_THAT(FaultOf([&] { Histogram(Mistake::kReadOtherBlock, words.data(), counts.data(), 256); }),
              AllOf(HasSubstr("of block 1 reads it"), HasSubstr("of another block wrote it at planted.cu:")))
      << "an atomic operation orders nothing";
}

TEST_F(SimtChecks, AddressesOfTheWrongKind) {
  GpuVector<uint32_t> words(32);
  GpuVector<float> floats(32);
  const GpuVector<uint8_t> bytes(std::vector<uint8_t>(4096));
  EXPECT_THAT(
      FaultOf([&] { ReadBytes(bytes.data(), words.data(), 34); }),
      HasSubstr("thread 1 of block 0 reads 4 bytes of global memory at an address that is not a multiple of them"));
  EXPECT_EQ(FaultOf([&] { ReadBytes(bytes.data(), words.data(), 36); }), "");
  const std::vector<float> host = Rising(64);
  EXPECT_THAT(FaultOf([&] { Double(Mistake::kNone, host.data(), floats.data(), 32); }),
              HasSubstr("reads 4 bytes of the host's memory, at planted.cu:"));
  EXPECT_THAT(FaultOf([&] { ReadHostVariable(floats.data()); }), HasSubstr("of the host's memory"));
  EXPECT_THAT(FaultOf([&] { WriteConstant(); }), HasSubstr("writes 4 bytes of the host's memory"));
}

TEST_F(SimtChecks, CopiesStayWithinTheirPiece) {
  GpuVector<float> piece(16);
  const std::vector<float> host = Rising(17);
  EXPECT_THAT(FaultOf([&] { CopyIn(host.data(), piece.data(), 68); }), HasSubstr("leaves global memory's piece"));
  EXPECT_THAT(FaultOf([&] { CopyIn(host.data(), piece.data() + 1, 64); }), HasSubstr("leaves global memory's piece"));
  EXPECT_EQ(FaultOf([&] { CopyIn(host.data(), piece.data(), 64); }), "");
}

TEST(SimtDeathTest, AHostThatTouchesTheMemoryOfTheGpu) {
  GpuVector<float> x(Rising(16));
  EXPECT_DEATH(std::printf("%f\n", static_cast<double>(*static_cast<volatile float*>(x.data()))), "");
}

}  // namespace
}  // namespace gyre::simt
