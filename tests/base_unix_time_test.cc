// The time of day as text.
#include "base/unix_time.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

TEST(UnixTimeTest, ATimeBecomesTextInUtc) {
  const auto at = [](int64_t micros) {
    return std::chrono::system_clock::time_point(std::chrono::microseconds(micros));
  };
  EXPECT_EQ(UtcText(at(1760742847414671), 6), "2025-10-17T23:14:07.414671Z");
  EXPECT_EQ(UtcText(at(1760742847414671), 3), "2025-10-17T23:14:07.414Z");
  EXPECT_EQ(UtcText(at(1760742847999999), 0), "2025-10-17T23:14:07Z");
  EXPECT_EQ(UtcText(at(951782400000007), 6), "2000-02-29T00:00:00.000007Z");
  EXPECT_EQ(UtcText(at(0), 3), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(UtcText(at(-1), 6), "1969-12-31T23:59:59.999999Z");
}

TEST(UnixTimeTest, SecondsAndMillisecondsAreThoseOfTheSameClock) {
  const int64_t before = UnixMillis(), seconds = UnixSeconds(), after = UnixMillis();
  EXPECT_GE(seconds, before / 1000);
  EXPECT_LE(seconds, after / 1000);
}

}  // namespace
}  // namespace gyre
