// Sets of bytes, heads of answers that bring a part of a file, and the note beside a partial one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "hub/byte_ranges.h"
#include "hub/partial_file.h"
#include "hub/range_answer.h"

namespace gyre {
namespace {

using std::chrono::seconds;

TEST(ByteRangesTest, TouchingRangesAreOne) {
  ByteRanges ranges;
  EXPECT_EQ(ranges.Add({10, 20}), 10u);
  EXPECT_EQ(ranges.Add({30, 40}), 10u);
  EXPECT_EQ(ranges.prefix(), 0u);
  EXPECT_EQ(ranges.FirstGap(0, 100), (ByteRange{0, 10}));
  EXPECT_EQ(ranges.FirstGap(15, 100), (ByteRange{20, 30}));
  EXPECT_EQ(ranges.FirstGap(35, 38), (ByteRange{38, 38}));
  EXPECT_EQ(ranges.Add({15, 35}), 10u);
  EXPECT_EQ(ranges.ranges(), (std::map<uint64_t, uint64_t>{{10, 40}}));
  EXPECT_EQ(ranges.Add({0, 10}), 10u);
  EXPECT_EQ(ranges.prefix(), 40u);
  EXPECT_EQ(ranges.Add({5, 5}), 0u);
  EXPECT_EQ(ranges.total(), 40u);
}

TEST(ByteRangesTest, AsASetOfBytes) {
  std::mt19937 random(1);
  ByteRanges ranges;
  std::vector<bool> bytes(200);
  for (int round = 0; round < 300; ++round) {
    const uint64_t begin = random() % 200, end = std::min<uint64_t>(200, begin + random() % 12);
    uint64_t fresh = 0;
    for (uint64_t i = begin; i < end; ++i) fresh += !bytes[i], bytes[i] = true;
    ASSERT_EQ(ranges.Add({begin, end}), fresh);
    uint64_t gap = 50;
    while (gap < 200 && bytes[gap]) ++gap;
    ASSERT_EQ(ranges.FirstGap(50, 200).begin, gap);
    ASSERT_EQ(ranges.total(), static_cast<uint64_t>(std::count(bytes.begin(), bytes.end(), true)));
  }
}

TEST(RangeAnswerTest, HeadsOfParts) {
  EXPECT_EQ(ParseContentRange("bytes 5-9/100").range, (ByteRange{5, 10}));
  EXPECT_EQ(ParseContentRange("bytes 5-9/100").total, 100u);
  EXPECT_EQ(ParseContentRange("bytes 5-9/*").total, std::nullopt);
  EXPECT_EQ(ParseContentRange("bytes */7").total, 7u);
  for (const char* bad : {"", "bytes", "bytes 5-9", "items 5-9/10", "bytes 9-5/10", "bytes -5/10", "bytes 5-/10",
                          "bytes 5-18446744073709551615/1", "bytes 5-99999999999999999999/1", "bytes a-b/10"}) {
    EXPECT_EQ(ParseContentRange(bad).range, std::nullopt) << bad;
  }
  EXPECT_EQ(RetryAfter({.retry_after = "7"}), seconds(7));
  EXPECT_EQ(RetryAfter({.headers = {{"RateLimit", "\"api\";r=0;t=55"}}}), seconds(55));
  EXPECT_EQ(RetryAfter({.headers = {{"RateLimit", "\"api\";r=0;t=55;x=1"}}}), seconds(55));
  for (const char* bad : {"", "-1", "99999999999", "Fri, 31 Dec 1999 23:59:59 GMT"}) {
    EXPECT_EQ(RetryAfter({.retry_after = bad}), std::nullopt) << bad;
  }
  EXPECT_EQ(StrongEtag({{"ETag", "\"x\""}}), "\"x\"");
  EXPECT_EQ(StrongEtag({{"ETag", "W/\"x\""}}), "") << "bytes may differ where a weak one does not";
}

TEST(PartialStateTest, ComesBackAsItWasWritten) {
  PartialState state{.size = 1000, .identity = "etag \"with blanks\""};
  state.done.Add({0, 10});
  state.done.Add({500, 1000});
  const std::string note = EncodePartialState(state);
  const std::optional<PartialState> back = DecodePartialState(note);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->size, 1000u);
  EXPECT_EQ(back->identity, state.identity);
  EXPECT_EQ(back->done, state.done);
  // Neither a part of it nor a note with a byte that changed is one.
  for (size_t i = 0; i < note.size(); ++i) {
    EXPECT_FALSE(DecodePartialState(note.substr(0, i)).has_value()) << i;
    std::string other = note;
    other[i] ^= 1;
    EXPECT_FALSE(DecodePartialState(other).has_value()) << i;
  }
}

}  // namespace
}  // namespace gyre
