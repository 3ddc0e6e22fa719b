// Network namespaces as separate hosts: a coordinator and two workers that share nothing but a switch between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "fmt/core.h"
#include "identity/join_token.h"
#include "tests/testing/identities.h"
#include "tests/testing/switched_network.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Process;

constexpr const char* kCoordinator = "10.77.0.1:7070";

class NamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!net_.why_not().empty()) GTEST_SKIP() << "no network namespaces can be made here: " << net_.why_not();
    serve_ = std::make_unique<Process>(
        On(1, {"serve", model_.path(), "--cluster", kCoordinator, "--insecure", "--no-local", "--min-workers", "2",
               "--block-size", "4", "--kv-type", "f32", "--ctx", "16384", "--kv-tokens", "16384"}));
    ASSERT_TRUE(serve_->WaitFor("listening ")) << serve_->output();
    for (int host : {2, 3}) {
      workers_.push_back(std::make_unique<Process>(On(
          host, {"worker", "--join", kCoordinator, "--insecure", "--name", fmt::format("host{}", host), "-t", "1"})));
    }
    ASSERT_TRUE(Serves());
    char path[] = "/tmp/gyre-ids-XXXXXX";
    close(mkstemp(path));
    ids_ = path;
    std::ofstream(ids_) << "3 4 5 6 7 8";
  }
  void TearDown() override { unlink(ids_.c_str()); }
  bool Serves() {
    for (int i = 0; i < 300; ++i) {
      if (Ask({"status", "--cluster", kCoordinator, "--json"}).find("\"state\":\"serving\"") != std::string::npos)
        return true;
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  }
  std::string Ask(const std::vector<std::string>& words) {
    Process p(On(1, words));
    p.Wait(seconds(60));
    return p.output();
  }
  // Waits until a text is being written, however fast the processor is.
  static bool Begins(Process& run) {
    for (int i = 0; i < 10000 && !run.Wait(milliseconds(0)); ++i) {
      if (run.output().size() > 20) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  std::vector<std::string> Run(int n) const {
    return {"run",    "--cluster", kCoordinator,   "--ids", ids_, "-n", std::to_string(n),
            "--temp", "0",         "--ignore-eos", "-q"};
  }

  // The program as it runs on a host.
  std::vector<std::string> On(int host, std::vector<std::string> words) const {
    words.insert(words.begin(), GYRE_BINARY);
    return net_.On(host, words);
  }

  testing::SwitchedNetwork net_{3};
  testing::TinyModelFile model_{testing::TinyOptions{.layers = 6}};
  std::unique_ptr<Process> serve_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::string ids_;
};

TEST_F(NamespacesTest, HostsThatShareOnlyASwitchAreOneRing) {
  const std::string alone = Ask({"run", model_.path(), "--ids", ids_, "-n", "3000", "--temp", "0", "--ignore-eos", "-q",
                                 "--kv-type", "f32", "--ctx", "16384"});
  ASSERT_GT(alone.size(), 6000u);
  const std::string layers = Ask({"layers", "--cluster", kCoordinator});
  EXPECT_THAT(layers, HasSubstr("10.77.0.3"));
  EXPECT_THAT(layers, HasSubstr("link from the coordinator: tcp (--transport auto)")) << "they share no namespace";
  Process run(On(2, Run(3000)));
  int resizes = 0;
  for (const char* ranges : {"host3=0-3,host2=4-5", "host2=0-0,host3=1-5", "host3=0-5", "host2=0-2,host3=3-5"}) {
    const std::string said = Ask({"resize", "--cluster", kCoordinator, ranges});
    EXPECT_THAT(said, HasSubstr("pages")) << serve_->output();
    resizes += !run.Wait(milliseconds(0));
  }
  EXPECT_GT(resizes, 0) << "the text had ended before the first resize";
  ASSERT_EQ(run.Wait(seconds(60)), 0) << run.output();
  EXPECT_TRUE(run.output() == alone) << "the text changed";
}

TEST_F(NamespacesTest, HostsThatAreToShareMemoryAreToldWhyTheyCannot) {
  workers_.clear();
  serve_->Kill(SIGKILL);
  serve_->Wait(seconds(5));
  serve_ = std::make_unique<Process>(On(1, {"serve", model_.path(), "--cluster", kCoordinator, "--insecure",
                                            "--no-local", "--transport", "shm", "--kv-type", "f32"}));
  ASSERT_TRUE(serve_->WaitFor("listening ")) << serve_->output();
  workers_.push_back(
      std::make_unique<Process>(On(2, {"worker", "--join", kCoordinator, "--insecure", "--name", "far", "-t", "1"})));
  const std::string why = "shared memory (--transport shm)";
  std::string status;
  for (int i = 0; i < 300 && status.find(why) == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    status = Ask({"status", "--cluster", kCoordinator, "--json"});
  }
  EXPECT_THAT(status, HasSubstr(why)) << serve_->output() << workers_[0]->output();
}

// Workers that are told no address: by a token, by an identity, and on the word of whoever answers.
TEST_F(NamespacesTest, WorkersFindTheirCoordinator) {
  workers_.clear();
  serve_->Kill(SIGKILL);
  serve_->Wait(seconds(5));
  testing::TestAuthority authority, other;
  testing::Folder folder;
  serve_ = std::make_unique<Process>(
      On(1, {"serve", model_.path(), "--cluster", "0.0.0.0:7070", "--no-local", "--min-workers", "2", "--kv-type",
             "f32", "--identity", authority.Issue(Role::kCoordinator, "head"), "--cluster-ca", authority.path()}));
  ASSERT_TRUE(serve_->WaitFor("listening ")) << serve_->output();
  const std::string token = FormatToken(*CreateToken(authority.Open(), seconds(600), ""));
  const auto add = [&](int host, std::vector<std::string> flags) -> Process& {
    flags.insert(flags.begin(), {"worker", "-t", "1"});
    return *workers_.emplace_back(std::make_unique<Process>(On(host, flags)));
  };
  Process& by_token = add(2, {"--token", token, "--name", "w2", "--identity", folder / "w2"});
  Process& by_identity = add(3, {"--identity", authority.Issue(Role::kWorker, "w3")});
  EXPECT_EQ(by_token.WaitFor("found a coordinator at "), "10.77.0.1:7070") << by_token.output();
  EXPECT_TRUE(by_token.WaitFor("joined 10.77.0.1:7070 as w2")) << by_token.output();
  EXPECT_TRUE(by_identity.WaitFor("joined 10.77.0.1:7070 as w3")) << by_identity.output();
  const std::string admin = authority.Issue(Role::kAdmin, "alice");
  std::string status;
  for (int i = 0; i < 300 && status.find("\"state\":\"serving\"") == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    status = Ask({"status", "--cluster", kCoordinator, "--json", "--identity", admin});
  }
  EXPECT_THAT(status, HasSubstr("\"state\":\"serving\""));
  // Another CA's worker finds nobody, and one without anything does not look.
  Process& unauthenticated = add(3, {"--identity", other.Issue(Role::kWorker, "w4")});
  EXPECT_FALSE(unauthenticated.WaitFor("found a coordinator", milliseconds(2500)));
  Process& trusting = add(3, {});
  EXPECT_EQ(trusting.Wait(seconds(5)), 2);
  EXPECT_THAT(trusting.output(), HasSubstr("--join HOST:PORT is needed"));
  Process& insecure = add(3, {"--insecure"});
  EXPECT_FALSE(insecure.WaitFor("found a coordinator", milliseconds(1500))) << "there is TLS";
  // Without TLS on both sides.
  workers_.clear();
  serve_->Kill(SIGKILL);
  serve_->Wait(seconds(5));
  serve_ = std::make_unique<Process>(
      On(1, {"serve", model_.path(), "--cluster", kCoordinator, "--insecure", "--no-local", "--kv-type", "f32"}));
  ASSERT_TRUE(serve_->WaitFor("listening ")) << serve_->output();
  Process& open = add(2, {"--insecure", "--name", "open"});
  EXPECT_TRUE(open.WaitFor("joined 10.77.0.1:7070 as open")) << open.output();
}

// Both workers live and reach the coordinator, which sees that a step doesn't arrive.
TEST_F(NamespacesTest, ATextGoesOnWhereTwoWorkersDontReachEachOtherAnyMore) {
  const std::string alone = Ask({"run", model_.path(), "--ids", ids_, "-n", "3000", "--temp", "0", "--ignore-eos", "-q",
                                 "--kv-type", "f32", "--ctx", "16384"});
  Process run(On(1, Run(3000)));
  ASSERT_TRUE(Begins(run)) << serve_->output();
  ASSERT_TRUE(net_.Part(2, 3)) << net_.why_not();
  ASSERT_EQ(run.Wait(seconds(60)), 0) << run.output() << serve_->output();
  EXPECT_TRUE(run.output() == alone) << "the text changed";
  EXPECT_THAT(serve_->output(), ::testing::ContainsRegex("the link from host[23] to host[23] is silent"));
  const std::string layers = Ask({"layers", "--cluster", kCoordinator});
  EXPECT_THAT(layers, HasSubstr("0-5")) << "one has them all";
}

// Packets between two hosts are lost for five seconds, then they are not.
TEST_F(NamespacesTest, TextsOutlastALinkThatIsCutForFiveSeconds) {
  constexpr int kTokens = 2000, kTexts = 8;
  const testing::Folder folder;
  const auto words = [&](int text) {
    const std::string ids = folder / fmt::format("{}", text);
    std::ofstream(ids) << fmt::format("{} 4 5 6 7", 3 + text);
    std::vector<std::string> run = Run(kTokens);
    *std::find(run.begin(), run.end(), ids_) = ids;
    return run;
  };
  std::vector<std::string> alone;
  for (int i = 0; i < kTexts; ++i) {
    std::vector<std::string> run = words(i);
    run[1] = model_.path();
    run.erase(run.begin() + 2);
    run.insert(run.end(), {"--kv-type", "f32", "--ctx", "16384"});
    alone.push_back(Ask(run));
    ASSERT_GT(alone.back().size(), 4000u) << alone.back();
  }
  for (const auto& [one, other] : {std::pair(2, 3), std::pair(1, 2), std::pair(1, 3)}) {
    SCOPED_TRACE(fmt::format("hosts {} and {}", one, other));
    std::vector<std::unique_ptr<Process>> texts;
    for (int i = 0; i < kTexts; ++i) texts.push_back(std::make_unique<Process>(On(1, words(i))));
    for (const auto& text : texts) ASSERT_TRUE(Begins(*text)) << serve_->output();
    ASSERT_TRUE(net_.Part(one, other)) << net_.why_not();
    for (const auto& text : texts) EXPECT_FALSE(text->Wait(milliseconds(0))) << "it had ended before the cut";
    std::this_thread::sleep_for(seconds(5));
    ASSERT_TRUE(net_.Part(one, other, false)) << net_.why_not();
    for (int i = 0; i < kTexts; ++i) {
      EXPECT_EQ(texts[i]->Wait(seconds(60)), 0) << texts[i]->output().substr(0, 2000) << serve_->output();
      EXPECT_TRUE(texts[i]->output() == alone[i]) << "text " << i << " changed";
    }
    // The next cut finds both workers in the ring.
    for (int i = 0;
         i < 300 && Ask({"layers", "--cluster", kCoordinator}).find(fmt::format("host{}", other)) == std::string::npos;
         ++i)
      std::this_thread::sleep_for(milliseconds(50));
    std::string said;
    for (int i = 0; i < 100 && said.find("0-2") == std::string::npos; ++i) {
      Ask({"resize", "--cluster", kCoordinator, "host2=0-2,host3=3-5"});
      said = Ask({"layers", "--cluster", kCoordinator});
      if (said.find("0-2") == std::string::npos) std::this_thread::sleep_for(milliseconds(100));
    }
    ASSERT_THAT(said, HasSubstr("3-5")) << serve_->output();
  }
}

TEST_F(NamespacesTest, ATextGoesOnWithoutAHostWhoseCableIsPulledAndTheHostComesBack) {
  const std::string alone = Ask({"run", model_.path(), "--ids", ids_, "-n", "6000", "--temp", "0", "--ignore-eos", "-q",
                                 "--kv-type", "f32", "--ctx", "16384"});
  Process run(On(1, Run(6000)));
  ASSERT_TRUE(Begins(run)) << serve_->output();
  ASSERT_TRUE(net_.Cable(3, false));
  const auto pulled = std::chrono::steady_clock::now();
  while (serve_->output().find("host3 with layers") == std::string::npos &&
         std::chrono::steady_clock::now() - pulled < seconds(10)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - pulled, milliseconds(2300));
  ASSERT_EQ(run.Wait(seconds(120)), 0) << run.output();
  EXPECT_TRUE(run.output() == alone) << "the text changed";
  ASSERT_TRUE(net_.Cable(3, true));
  std::string layers;
  for (int i = 0; i < 600 && layers.find("host3") == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    layers = Ask({"layers", "--cluster", kCoordinator});
  }
  EXPECT_THAT(layers, HasSubstr("host3")) << serve_->output() << workers_[1]->output();
}

}  // namespace
}  // namespace gyre
