// A cluster's state as text for people.
#include "cli/tables.h"

#include <gmock/gmock.h>

namespace gyre {
namespace {

TEST(TablesTest, ReasonsNameTheMeasuredSpeedsWithTheirUnits) {
  v1::StatusReply status;
  v1::MemberStatus* const member = status.add_members();
  member->set_name("w1");
  member->set_why("it is fast");
  member->set_memory_bytes_per_second(21.5e9);
  member->set_operations_per_second(2126.4e9);
  EXPECT_EQ(FormatReasons(status), "\nw1: it is fast\n  memory 21.5 GB/s, arithmetic 2126.4 GOP/s, disk unknown\n");
  status.mutable_members(0)->set_weights_room(3 << 20);
  EXPECT_THAT(FormatReasons(status),
              ::testing::EndsWith("disk unknown\n  it fetches its weights, and its disk has room for 3.0M\n"));
}

}  // namespace
}  // namespace gyre
