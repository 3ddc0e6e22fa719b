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
}

}  // namespace
}  // namespace gyre
