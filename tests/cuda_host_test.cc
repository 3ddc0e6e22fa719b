// The host's side of a GPU without one: the arena, what errors mean, the log of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/arena.h"
#include "kernels/cuda/errors.h"
#include "kernels/cuda/step_log.h"

namespace gyre::cuda {
namespace {

using ::testing::HasSubstr;

TEST(ArenaTest, PiecesNeverOverlapAndAllMemoryComesBack) {
  constexpr size_t kBytes = 1 << 16;
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    Arena arena(kBytes + 100);
    std::map<size_t, size_t> pieces;  // end by offset
    size_t used = 0;
    for (int i = 0; i < 400; ++i) {
      if (!pieces.empty() && random() % 3 == 0) {
        const auto piece = std::next(pieces.begin(), static_cast<std::ptrdiff_t>(random() % pieces.size()));
        arena.GiveBack(piece->first);
        used -= (piece->second - piece->first + Arena::kPlace - 1) / Arena::kPlace * Arena::kPlace;
        pieces.erase(piece);
        continue;
      }
      const size_t bytes = 1 + random() % 5000;
      const auto offset = arena.Take(bytes);
      if (!offset) {
        EXPECT_LT(arena.largest(), bytes);
        continue;
      }
      EXPECT_EQ(*offset % Arena::kPlace, 0u);
      EXPECT_LE(*offset + bytes, kBytes);
      const auto next = pieces.lower_bound(*offset);
      EXPECT_TRUE(next == pieces.end() || next->first >= *offset + bytes);
      EXPECT_TRUE(next == pieces.begin() || std::prev(next)->second <= *offset);
      pieces[*offset] = *offset + bytes;
      used += (bytes + Arena::kPlace - 1) / Arena::kPlace * Arena::kPlace;
      EXPECT_EQ(arena.free(), kBytes - used);
    }
    for (const auto& [offset, end] : pieces) arena.GiveBack(offset);
    EXPECT_EQ(arena.largest(), kBytes) << "places that were given back have joined";
  }
}

TEST(ArenaTest, TheSmallestPlaceThatIsLargeEnoughIsTaken) {
  Arena arena(10 * Arena::kPlace);
  std::vector<size_t> at;
  for (const size_t places : {3, 1, 2, 1, 3}) at.push_back(*arena.Take(places * Arena::kPlace));
  arena.GiveBack(at[0]);
  arena.GiveBack(at[2]);
  EXPECT_EQ(*arena.Take(2 * Arena::kPlace), at[2]);
  EXPECT_EQ(*arena.Take(Arena::kPlace), at[0]);
  EXPECT_FALSE(arena.Take(3 * Arena::kPlace).has_value());
}

TEST(CudaErrorsTest, EachErrorHasAnEndThatItBelongsTo) {
  EXPECT_EQ(SeverityOf(0), Severity::kNone);
  EXPECT_EQ(SeverityOf(2), Severity::kMemory);
  for (const int launch : {1, 9, 98, 209, 701}) EXPECT_EQ(SeverityOf(launch), Severity::kOp) << launch;
  // Illegal address, launch failure, ECC, misaligned address, and one that is not known.
  for (const int sticky : {700, 719, 214, 716, 12345}) EXPECT_EQ(SeverityOf(sticky), Severity::kDevice) << sticky;
}

TEST(CudaErrorsTest, AMissingGpuHasAReason) {
  EXPECT_THAT(WhyNoGpu(35, 0, 13000, 0), HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(WhyNoGpu(35, 12040, 13000, 0), HasSubstr("CUDA 12.4 and is older than this build's CUDA 13.0"));
  EXPECT_THAT(WhyNoGpu(100, 13010, 13000, 0), HasSubstr("no NVIDIA GPU"));
  EXPECT_THAT(WhyNoGpu(999, 13010, 13000, 0), HasSubstr("error 999"));
}

TEST(StepLogTest, CallsRunInTheirOrderAsOftenAsAsked) {
  int anything = 0;  // a stream is only an address here
  const auto stream = reinterpret_cast<Stream>(&anything);
  StepLog log;
  EXPECT_EQ(StepLog::Of(stream), nullptr);
  std::vector<int> done;
  const std::string long_text(1000, 'x');  // no trivial destructor
  log.Begin(stream, [] {});
  ASSERT_EQ(StepLog::Of(stream), &log);
  EXPECT_EQ(StepLog::Of(nullptr), nullptr) << "another stream";
  for (int i = 0; i < 1000; ++i) {
    log.Tell(i);
    log.Add([&done, i, long_text] { done.push_back(i + static_cast<int>(long_text.size()) - 1000); });
  }
  log.End();
  EXPECT_EQ(StepLog::Of(stream), nullptr);
  EXPECT_TRUE(done.empty());
  log.Run();
  log.Run();
  ASSERT_EQ(done.size(), 2000u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i % 1000);
  const std::vector<std::byte> key(log.key().begin(), log.key().end());
  log.Begin(stream, [] {});
  for (int i = 0; i < 1000; ++i) log.Tell(i);
  log.End();
  EXPECT_TRUE(std::equal(key.begin(), key.end(), log.key().begin(), log.key().end()));
}

}  // namespace
}  // namespace gyre::cuda
