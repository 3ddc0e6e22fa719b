// A leader that is cut off, on hosts that share only a switch: nobody is told, packets are lost. Needs etcd and network
// namespaces, and takes half a minute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "fmt/core.h"
#include "tests/testing/certificates.h"
#include "tests/testing/etcd.h"
#include "tests/testing/switched_network.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Etcd;
using ::testing::HasSubstr;
using testing::Process;

// The numbers of the hosts.
constexpr int kEtcd = 1, kFirst = 2, kSecond = 3, kOthers = 4;
constexpr const char* kBoth = "10.77.0.2:7700,10.77.0.3:7700";

class PartitionTest : public ::testing::Test {
 protected:
  PartitionTest() { setenv("GYRE_LOG", "info", 1); }
  ~PartitionTest() override { unsetenv("GYRE_LOG"); }
  void SetUp() override {
    if (std::getenv("GYRE_SLOW_TESTS") == nullptr) GTEST_SKIP() << "it takes half a minute (GYRE_SLOW_TESTS)";
    if (!Etcd::Installed()) GTEST_SKIP() << "etcd is not installed (scripts/setup --deploy)";
    if (!net_.why_not().empty()) GTEST_SKIP() << "no network namespaces can be made here: " << net_.why_not();
    etcd_ = std::make_unique<Etcd>(testing::EtcdSettings{.host = "10.77.0.1:2379", .before = net_.On(kEtcd, {})});
    first_ = Coordinator(kFirst);
    ASSERT_TRUE(first_->WaitFor("listening 10")) << first_->output() << etcd_->output();
    second_ = Coordinator(kSecond);
    ASSERT_TRUE(second_->WaitFor("standing by, the leader is 10.77.0.2:7700")) << second_->output();
    for (const char* name : {"w1", "w2"}) {
      workers_.push_back(
          std::make_unique<Process>(On(kOthers, {"worker", "--join", kBoth, "--insecure", "--name", name, "-t", "1"})));
      ASSERT_TRUE(workers_.back()->WaitFor("joined 10.77.0.2:7700")) << workers_.back()->output();
    }
    std::ofstream(folder_ / "ids") << "3 4 5 6 7 8";
    ASSERT_TRUE(first_->WaitFor("plan 1 serves: 0-2,3-5")) << first_->output();
    Process alone(Run(model_.path() + " --kv-type f32 --ctx 32768"));
    ASSERT_EQ(alone.Wait(seconds(120)), 0) << alone.output();
    alone_ = alone.output();
    ASSERT_GT(alone_.size(), 6000u) << alone_;
  }
  std::vector<std::string> On(int host, std::vector<std::string> words) const {
    words.insert(words.begin(), GYRE_BINARY);
    return net_.On(host, words);
  }
  std::unique_ptr<Process> Coordinator(int host) const {
    return std::make_unique<Process>(
        On(host, {"serve", model_.path(), "--cluster", net_.Address(host) + ":7700", "--insecure", "--standby",
                  etcd_->url(), "--no-local", "--min-workers", "2", "--kv-type", "f32", "--block-size", "4", "--ctx",
                  "32768", "--kv-tokens", "32768"}));
  }
  // The text of a model, without what the terminal would be told beside it.
  std::vector<std::string> Run(const std::string& of) const {
    return net_.On(kOthers, {"/bin/sh", "-c",
                             fmt::format("exec {} run {} --ids {} -n {} --temp 0 --ignore-eos -q 2>{}", GYRE_BINARY, of,
                                         folder_ / "ids", kTokens, folder_ / "said")});
  }
  // A text that is under way.
  std::unique_ptr<Process> Text() {
    auto text = std::make_unique<Process>(Run(fmt::format("--cluster {}", kBoth)));
    for (int i = 0; i < 1000 && text->output().size() < 300; ++i) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_GE(text->output().size(), 300u) << "no text";
    return text;
  }
  // Describes the first place where a text differs; "" = none does.
  std::string Difference(const std::string& text) const {
    if (text == alone_) return "";
    const size_t at =
        static_cast<size_t>(std::mismatch(text.begin(), text.end(), alone_.begin(), alone_.end()).first - text.begin());
    const size_t from = at < 60 ? 0 : at - 60;
    return fmt::format("{} bytes in place of {}, the first other one is {}: '{}' in place of '{}'", text.size(),
                       alone_.size(), at, text.substr(from, 120), alone_.substr(from, 120));
  }
  // Seconds until the second one leads.
  double TakesOver(Deadline since) {
    EXPECT_TRUE(second_->WaitFor("this coordinator leads", seconds(20))) << second_->output();
    return std::chrono::duration<double>(Clock::now() - since).count();
  }
  static constexpr const char* kTokens = "9000";

  testing::SwitchedNetwork net_{4};
  testing::TinyModelFile model_{testing::TinyOptions{.layers = 6}};
  testing::Folder folder_;
  std::unique_ptr<Etcd> etcd_;
  std::unique_ptr<Process> first_, second_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::string alone_;
};

// Workers and clients still reach it, and it could go on for them.
TEST_F(PartitionTest, ALeaderThatDoesNotReachEtcdGivesWay) {
  const auto text = Text();
  const Deadline cut = Clock::now();
  ASSERT_TRUE(net_.Isolate(kEtcd) && net_.Isolate(kFirst)) << net_.why_not();
  ASSERT_FALSE(text->Wait(milliseconds(0))) << "the text had ended before";
  const double took = TakesOver(cut);
  EXPECT_THAT(first_->output(), HasSubstr("the lease was lost")) << "two led at once";
  EXPECT_LE(took, 5.0);
  ASSERT_EQ(text->Wait(seconds(60)), 0) << text->output().substr(0, 2000) << second_->output();
  EXPECT_EQ(Difference(text->output()), "");
  EXPECT_THAT(workers_[0]->output(), HasSubstr("joined 10.77.0.3:7700"));
  // With the way back it learns who leads.
  ASSERT_TRUE(net_.Isolate(kFirst, false)) << net_.why_not();
  EXPECT_TRUE(first_->WaitFor("standing by, the leader is 10.77.0.3:7700", seconds(10))) << first_->output();
  RecordProperty("takeover_ms", static_cast<int>(took * 1000));
}

// Connections to it end for nobody: workers and the client find out by pings.
TEST_F(PartitionTest, ALeaderWhoseCableIsPulledIsMissedByAll) {
  const auto text = Text();
  const Deadline cut = Clock::now();
  ASSERT_TRUE(net_.Cable(kFirst, false)) << net_.why_not();
  ASSERT_FALSE(text->Wait(milliseconds(0))) << "the text had ended before";
  const size_t had = text->output().size();
  const double took = TakesOver(cut);
  EXPECT_LE(took, 5.0);
  while (text->output().size() <= had + 100 && Clock::now() < cut + seconds(60)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const double stood = std::chrono::duration<double>(Clock::now() - cut).count();
  EXPECT_LE(stood, 10.0) << "the text stood still";
  ASSERT_EQ(text->Wait(seconds(60)), 0) << text->output().substr(0, 2000) << second_->output();
  EXPECT_EQ(Difference(text->output()), "");
  ASSERT_TRUE(net_.Cable(kFirst, true)) << net_.why_not();
  EXPECT_TRUE(first_->WaitFor("standing by, the leader is 10.77.0.3:7700", seconds(10))) << first_->output();
  RecordProperty("takeover_ms", static_cast<int>(took * 1000));
  RecordProperty("text_stood_ms", static_cast<int>(stood * 1000));
}

}  // namespace
}  // namespace gyre
