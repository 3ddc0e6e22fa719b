// Traces: what is recorded, and the JSON that it becomes. The log as JSON lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include <fstream>

#include "base/log_output.h"
#include "boost/json.hpp"
#include "coordinator/http/json_text.h"
#include "coordinator/trace_json.h"

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
