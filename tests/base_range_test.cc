// Numbers and ranges as users type them.
#include "base/range.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

TEST(RangeTest, NumbersAreDigits) {
  EXPECT_EQ(ParseNumber("0"), 0);
  EXPECT_EQ(ParseNumber("2147483647"), 2147483647);
  for (const char* bad : {"", "-", "-0", "+1", "1x", " 1", "2147483648"})
    EXPECT_EQ(ParseNumber(bad), std::nullopt) << bad;
}

TEST(RangeTest, BothEndsOrOne) {
  EXPECT_EQ(ParseRange("3"), (ClosedRange{3, 3}));
  EXPECT_EQ(ParseRange("3-5"), (ClosedRange{3, 5}));
  EXPECT_EQ(ParseRange("0-0"), (ClosedRange{0, 0}));
  EXPECT_EQ(ParseRange("007-12"), (ClosedRange{7, 12}));
  EXPECT_EQ(ParseRange("0-2147483647"), (ClosedRange{0, 2147483647}));
}

TEST(RangeTest, OneThatEndsBeforeItBeginsIsTheCallers) { EXPECT_EQ(ParseRange("5-3"), (ClosedRange{5, 3})); }

TEST(RangeTest, NothingElseIsOne) {
  for (const char* bad : {"", "-", "3-", "-3", "-0", "3--5", "3-5-7", "+3", "3-+5", " 3", "3 ", "3 -5", "3,5", "a",
                          "3-b", "3.5", "2147483648", "0-2147483648", "99999999999999999999"}) {
    EXPECT_EQ(ParseRange(bad), std::nullopt) << "'" << bad << "'";
  }
}

}  // namespace
}  // namespace gyre
