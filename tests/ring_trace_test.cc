// A trace of real processes, by the coordinator's clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "tests/testing/process_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Clients;
using ::testing::HasSubstr;
using testing::Ring;

using RingTrace = testing::ProcessesTest;

TEST_F(RingTrace, HasEveryStageAndLink) {
  const std::string path = ::testing::TempDir() + "gyre_trace_" + std::to_string(getpid());
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--trace", path});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  {
    Clients clients(ring.address(), 96, 100);
    const auto began = std::chrono::steady_clock::now();
    while (clients.ended() < 8 || std::chrono::steady_clock::now() - began < milliseconds(500)) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  ring.serve().Kill(SIGTERM);
  EXPECT_EQ(ring.serve().Wait(seconds(30)), 0) << ring.serve().output();
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::filesystem::remove(path);
  for (const char* name :
       {"w1 (clock known to", "w2 (clock known to", "link to w1 1", "link to w2 1", "link to coordinator 1"}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
  // Each step of w2 lies within its step of the coordinator, as far as the clocks are known: here they are the same.
  const boost::json::value trace = boost::json::parse(text);
  std::map<int64_t, std::pair<double, double>> steps;
  std::map<int64_t, std::string> processes;
  for (const auto& e : trace.at("traceEvents").as_array()) {
    const auto pid = e.at("pid").to_number<int64_t>();
    if (e.at("name") == "process_name") processes[pid] = e.at_pointer("/args/name").as_string();
    if (e.at("ph") != "X" || e.at("cat") != "step") continue;
    const double from = e.at("ts").to_number<double>();
    steps[e.at_pointer("/args/step").to_number<int64_t>()] = {from, from + e.at("dur").to_number<double>()};
  }
  size_t within = 0, all = 0;
  for (const auto& e : trace.at("traceEvents").as_array()) {
    if (e.at("ph") != "X" || e.at("cat") != "stage" || e.at("name") != "step") continue;
    const std::string& process = processes[e.at("pid").to_number<int64_t>()];
    const auto step = steps.find(e.at_pointer("/args/step").to_number<int64_t>());
    if (process.rfind("w2", 0) != 0 || step == steps.end()) continue;
    const double error = std::stod(process.substr(process.find("known to ") + 9)) + 1000;
    const double from = e.at("ts").to_number<double>(), to = from + e.at("dur").to_number<double>();
    ++all;
    within += from >= step->second.first - error && to <= step->second.second + error;
  }
  EXPECT_GT(all, 50u);
  EXPECT_GE(within, all * 9 / 10);
}

}  // namespace
}  // namespace gyre
