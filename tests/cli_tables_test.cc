// A cluster's state as text for people.
#include "cli/tables.h"

#include <gmock/gmock.h>

#include "fmt/core.h"

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

// Every line of a table has its columns where the head has them.
TEST(TablesTest, LongNamesDoNotBreakTheColumns) {
  const std::string name = "longhostname-rack-7-unit-23.example";
  v1::StatusReply status;
  for (const std::string& n : {std::string("w1"), name}) {
    v1::MemberStatus* const m = status.add_members();
    m->set_name(n);
    m->set_host("where-it-is");
  }
  const std::string table = FormatLayers(status);
  const size_t column = table.find("where\n");
  ASSERT_NE(column, std::string::npos);
  size_t line = table.find('\n') + 1;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table.find("where-it-is", line) - line, column) << table;
    line = table.find('\n', line) + 1;
  }
  v1::ChangeReply change;
  change.set_named_ranges("x");
  v1::LayerMove* const move = change.add_moves();
  move->set_from(name);
  move->set_to(name + "-2");
  move->mutable_layers()->set_end(1);
  v1::MemberShare* const share = change.add_members();
  share->set_name(name);
  const std::string preview = FormatPreview(change);
  EXPECT_THAT(preview, ::testing::HasSubstr(name + "  " + name + "-2 "));
}

TEST(TablesTest, OneOfAThingIsOne) {
  v1::StatusReply status;
  status.set_num_layers(1);
  status.set_tokens_generated(1);
  EXPECT_THAT(FormatStatus(status), ::testing::HasSubstr("(1 layer, context 0)"));
  EXPECT_THAT(FormatStatus(status), ::testing::HasSubstr("0 cancelled; 1 token generated"));
  status.set_tokens_generated(2);
  EXPECT_THAT(FormatStatus(status), ::testing::HasSubstr("0 cancelled; 2 tokens generated"));
}

TEST(TablesTest, TheStatusHasEachKindOfMemory) {
  v1::StatusReply status;
  for (const char* kind : {"blocks", "slots", "window_blocks", "draft_blocks"}) {
    v1::MemoryStatus* const memory = status.add_memory();
    memory->set_kind(kind);
    memory->set_available(3);
    memory->set_units(4);
  }
  EXPECT_THAT(FormatStatus(status), ::testing::HasSubstr("\nKV blocks: 3 of 4 free; 3 of 4 slots of recurrent state; "
                                                         "3 of 4 in layers with a window; 3 of 4 draft_blocks\n"));
}

TEST(TablesTest, TheStatusEndsWithTheLastEventsTheNewestFirst) {
  v1::StatusReply status;
  for (int i = 1; i <= 7; ++i) {
    v1::ClusterEvent* const event = status.add_events();
    event->set_at(1'790'000'000 + i);
    event->set_text(fmt::format("event {}", i));
  }
  EXPECT_THAT(FormatStatus(status), ::testing::EndsWith("last events:\n"
                                                        "2026-09-21 14:13:27Z  event 7\n"
                                                        "2026-09-21 14:13:26Z  event 6\n"
                                                        "2026-09-21 14:13:25Z  event 5\n"
                                                        "2026-09-21 14:13:24Z  event 4\n"
                                                        "2026-09-21 14:13:23Z  event 3\n"));
}

}  // namespace
}  // namespace gyre
