// gyre bench, and the requests that benchmarks send.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>

#include "cli/commands.h"
#include "runtime/measure.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

TEST(MeasureTest, PromptsAreIdsOfTheVocabularyAndDiffer) {
  for (const int salt : {0, 8192, 32768, 100005, 1 << 24}) {
    const Request r = bench::Continue(40000, 8, 128256, salt);
    ASSERT_EQ(r.prompt.size(), 40000u);
    for (const TokenId id : r.prompt) ASSERT_TRUE(id >= 0 && id < 128256) << salt;
  }
  EXPECT_NE(bench::Continue(8, 1, 512, 1).prompt, bench::Continue(8, 1, 512, 2).prompt);
}

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() {
    options_.models = {model_.path()};
    options_.prompt = 24;
    options_.tokens = 12;
    options_.streams = {1, 3};
    options_.depths = {0, 16};
    options_.runs = 1;
    options_.ring.threads = 1;
    options_.ring.quiet = true;
  }
  // The output of a run.
  StatusOr<std::string> Run() {
    ::testing::internal::CaptureStdout();
    const Status status = BenchCommand(options_);
    const std::string out = ::testing::internal::GetCapturedStdout();
    if (!status.ok()) return status;
    return out;
  }
  testing::TinyModelFile model_;
  BenchOptions options_;
};

TEST_F(BenchTest, MeasuresEveryPointAndComparesWithItsOwnJson) {
  options_.json = true;
  const auto first = Run();
  ASSERT_TRUE(first.ok()) << first.status();
  const auto results = boost::json::parse(*first).at("results").as_array();
  ASSERT_EQ(results.size(), 5u);  // a prompt; two depths of one and three streams
  for (const auto& r : results) {
    EXPECT_GT(r.at("tokens_per_s").to_number<double>(), 0) << *first;
    EXPECT_GE(r.at("best_tokens_per_s").to_number<double>(), r.at("tokens_per_s").to_number<double>());
    EXPECT_FALSE(r.as_object().contains("ratio"));
  }
  char path[] = "/tmp/gyre-bench-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << *first;
  options_.compare = path;
  const auto second = Run();
  ASSERT_TRUE(second.ok()) << second.status();
  const auto compared = boost::json::parse(*second).at("results").as_array();
  ASSERT_EQ(compared.size(), 5u);
  for (const auto& r : compared) EXPECT_GT(r.at("ratio").to_number<double>(), 0);
  options_.json = false;
  EXPECT_THAT(*Run(), HasSubstr("ratio"));
  std::ofstream(path) << "[1, 2]";
  EXPECT_THAT(Message(Run().status()), HasSubstr("expected what `gyre bench --json` prints"));
  unlink(path);
}

TEST_F(BenchTest, StreamsThatNeverRunTogetherAreNoRate) {
  // Room for one sequence at a time.
  options_.prompt = 0;
  options_.depths = {64};
  options_.streams = {3};
  options_.tokens = 2;
  options_.ring.ctx = 80;
  options_.ring.kv_tokens = 80;
  options_.ring.no_prefix_cache = true;
  EXPECT_THAT(Message(Run().status()), HasSubstr("never decode all at once"));
}

}  // namespace
}  // namespace gyre
