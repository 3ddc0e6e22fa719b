// Traces: what is recorded, and the JSON that it becomes. The log as JSON lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include <fstream>
#include <map>

#include "base/log_output.h"
#include "boost/json.hpp"
#include "coordinator/grpc/clock_offset.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/trace_json.h"

namespace gyre {
namespace {

namespace json = boost::json;
using std::chrono::microseconds;

TraceEvent Event(TraceKind kind, uint64_t id, int at, uint32_t rows = 0) {
  return {.kind = kind, .rows = rows, .id = id, .at = Deadline(std::chrono::hours(1)) + microseconds(at)};
}

TEST(Trace, NothingIsRecordedWithoutASession) {
  Tracer tracer(4);
  EXPECT_FALSE(tracer.on());
  tracer.Add(Event(TraceKind::kRequestCame, 1, 0));
  const Tracer::Session session(tracer);
  EXPECT_TRUE(tracer.on());
  EXPECT_TRUE(session.Events().empty());
}

TEST(Trace, SessionsSeeTheLastEventsSinceTheirBeginning) {
  Tracer tracer(4);
  {
    const Tracer::Session first(tracer);
    tracer.Add(Event(TraceKind::kRequestCame, 1, 0));
    const Tracer::Session second(tracer);
    for (uint64_t id = 2; id <= 4; ++id) tracer.Add(Event(TraceKind::kRequestCame, id, 0));
    EXPECT_EQ(first.Events().size(), 4u);
    EXPECT_EQ(second.Events().size(), 3u);
    tracer.Add(Event(TraceKind::kRequestCame, 5, 0));
    ASSERT_EQ(first.Events().size(), 4u) << "the oldest is gone";
    EXPECT_EQ(first.Events().front().id, 2u);
    EXPECT_EQ(first.Events().back().id, 5u);
  }
  EXPECT_FALSE(tracer.on());
}

TEST(Trace, StepsThatOverlapHaveLanesAndRequestsAreAsyncSpans) {
  using K = TraceKind;
  const std::vector<TraceEvent> events = {
      Event(K::kRequestCame, 7, 0),   Event(K::kStepLanded, 1, 1),  // launched before
      Event(K::kRequestBegan, 7, 10), Event(K::kStepLaunched, 2, 10, 5), Event(K::kStepLaunched, 3, 20, 6),
      Event(K::kStepLanded, 2, 30),   Event(K::kRequestAnswered, 7, 30), Event(K::kStepLaunched, 4, 40, 1),
      Event(K::kStepFailed, 3, 50),   Event(K::kRequestEnded, 7, 60),    Event(K::kRequestCame, 8, 70),
  };
  const json::value trace = json::parse(TraceJson(events));
  std::vector<std::string> found;
  for (const json::value& e : trace.at("traceEvents").as_array()) {
    const std::string phase(e.at("ph").as_string());
    const std::string name(e.at("name").as_string());
    if (phase == "X") {
      found.push_back(name + " " + json::serialize(e.at_pointer("/args")) + " lane " + json::serialize(e.at("tid")) +
                      " " + std::to_string(e.at("ts").to_number<int>()) + "+" +
                      std::to_string(e.at("dur").to_number<int>()));
    } else if (phase != "M") {
      found.push_back(phase + " " + name + " " + json::serialize(e.at("id")) + " " +
                      std::to_string(e.at("ts").to_number<int>()));
    }
  }
  EXPECT_THAT(found, ::testing::ElementsAre("b request 7 0", "b wait 7 0", "e wait 7 10",
                                            R"(step {"step":2,"rows":5} lane 1 10+20)", "n first token 7 30",
                                            R"(failed step {"step":3,"rows":6} lane 2 20+30)", "e request 7 60",
                                            "b request 8 70", "b wait 8 70", R"(step {"step":4,"rows":1} lane 1 40+30)",
                                            "e wait 8 70", "e request 8 70"));
  EXPECT_TRUE(json::parse(TraceJson({})).is_object());
}

// A step's way: coordinator, stage 0 on "b", stage 1 on "a", coordinator.
TEST(Trace, EveryStageAndLinkHasItsLine) {
  Tracer tracer(64);
  const Tracer::Session session(tracer);
  const auto at = [](int us) { return Deadline(std::chrono::hours(1)) + microseconds(us); };
  const auto span = [&](uint64_t step, uint32_t stage, int began, int computed, int sent) {
    return StageSpan{.step = step,
                     .stage = stage,
                     .rows = 3,
                     .last = stage == 1,
                     .began = at(began),
                     .computed = microseconds(computed),
                     .sent = microseconds(sent)};
  };
  tracer.Add(Event(TraceKind::kStepLaunched, 1, 0, 3));
  tracer.Add(Event(TraceKind::kStepLaunched, 2, 5, 3));
  tracer.Add(Event(TraceKind::kStepLanded, 1, 60));
  tracer.AddSpans("b", {span(1, 0, 10, 10, 12), span(2, 0, 22, 10, 11)}, {});
  // Its clock is a little off: step 2 seems to begin before it was sent.
  tracer.AddSpans("a", {span(1, 1, 40, 8, 10), span(2, 1, 31, 8, 10)}, microseconds(9));
  const json::value trace = json::parse(TraceJson(session.Events(), session.Members()));
  std::map<std::pair<int, int>, std::string> lines;
  std::map<int, std::string> processes;
  for (const json::value& e : trace.at("traceEvents").as_array()) {
    const int pid = e.at("pid").to_number<int>(), tid = e.at("tid").to_number<int>();
    if (e.at("name") == "process_name") processes[pid] = e.at_pointer("/args/name").as_string();
    if (e.at("name") == "thread_name") lines[{pid, tid}] = e.at_pointer("/args/name").as_string();
  }
  std::vector<std::string> found;
  for (const json::value& e : trace.at("traceEvents").as_array()) {
    if (e.at("ph") != "X") continue;
    const int pid = e.at("pid").to_number<int>(), tid = e.at("tid").to_number<int>();
    found.push_back(processes[pid] + "/" + lines[{pid, tid}] + ": " + std::string(e.at("name").as_string()) + " " +
                    std::to_string(e.at_pointer("/args/step").to_number<int>()) + " " +
                    std::to_string(e.at("ts").to_number<int>()) + "+" + std::to_string(e.at("dur").to_number<int>()));
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(
                         "coordinator/steps 1: step 1 0+60", "coordinator/steps 2: step 2 5+55",
                         "b/stage: step 1 10+10", "b/stage: send 1 20+2", "b/stage: step 2 22+10",
                         "b/stage: send 2 32+1", "a (clock known to 9 us)/stage: step 1 40+8",
                         "a (clock known to 9 us)/stage: send 1 48+2", "a (clock known to 9 us)/stage: step 2 31+8",
                         "a (clock known to 9 us)/stage: send 2 39+2", "coordinator/link to b 1: way 1 0+10",
                         "coordinator/link to b 2: way 2 5+17", "b/link to a 1: way 1 20+20",
                         "b/link to a 2: way 2 32+0", "a (clock known to 9 us)/link to coordinator 1: way 1 48+12"));
}

TEST(Trace, TheShortestRoundTripTellsTheOffsetOfAClock) {
  const auto at = [](int us) { return Deadline(std::chrono::hours(1)) + microseconds(us); };
  constexpr auto kAhead = std::chrono::minutes(7);
  ClockOffset clock;
  clock.Add(at(0), at(900) + kAhead, at(1000));  // the way back was short
  EXPECT_EQ(clock.error(), microseconds(500));
  EXPECT_EQ(clock.offset() - kAhead, microseconds(400));
  clock.Add(at(2000), at(2060) + kAhead, at(2100));
  EXPECT_EQ(clock.offset() - kAhead, microseconds(10));
  EXPECT_EQ(clock.error(), microseconds(50));
  clock.Add(at(3000), at(3600) + kAhead, at(4000));  // worse: not taken
  EXPECT_EQ(clock.error(), microseconds(50));
  clock.Add(at(9000), at(9000) + kAhead, at(8000));  // no answer to a question of ours
  EXPECT_EQ(clock.error(), microseconds(50));
  clock.Add(at(3000000), at(3000300) + kAhead, at(3000600));  // the good one is old
  EXPECT_EQ(clock.error(), microseconds(300));
  EXPECT_EQ(clock.offset(), Duration(kAhead));
}

std::string Quote(std::string_view text) {
  std::string out;
  http::AppendQuoted(http::ValidUtf8(text), &out);
  return out;
}

std::vector<json::value> Lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<json::value> out;
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}

TEST(LogOutput, JsonLinesWithFieldsInAFileThatIsOpenedAnew) {
  const std::string path = ::testing::TempDir() + "gyre_log_" + std::to_string(getpid());
  ASSERT_TRUE(SetLogOutput(path, &Quote).ok());
  Log(LogLevel::kError, "a \"quoted\"\nline {}", "\xff");
  std::filesystem::rename(path, path + ".1");
  ASSERT_TRUE(ReopenLog().ok());
  LogWith(LogLevel::kWarn, "with fields", {{"request", "r\"1"}, {"status", "200", true}});
  const auto before = Lines(path + ".1"), after = Lines(path);
  ASSERT_EQ(before.size(), 1u);
  EXPECT_EQ(before[0].at("level").as_string(), "error");
  EXPECT_EQ(before[0].at("message").as_string(), "a \"quoted\"\nline \xEF\xBF\xBD");
  EXPECT_THAT(std::string(before[0].at("time").as_string()),
              ::testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9:]+\\.[0-9][0-9][0-9]Z"));
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].at("level").as_string(), "warning");
  EXPECT_EQ(after[0].at("request").as_string(), "r\"1");
  EXPECT_EQ(after[0].at("status").as_int64(), 200);
  EXPECT_FALSE(SetLogOutput("/dev/null/nowhere", nullptr).ok());
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".1");
}

}  // namespace
}  // namespace gyre
