// Models by name as a user meets them: gyre pull and models, the question on a terminal, processes that share a cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/testing/command.h"
#include "tests/testing/local_hub.h"
#include "tests/testing/terminal.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::BuildTinyHybrid;
using testing::Ended;
using ::testing::HasSubstr;
using testing::LocalHub;
using testing::NoiseBytes;
using ::testing::Not;
using testing::Process;
using testing::Terminal;

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class PullCommandTest : public ::testing::Test {
 protected:
  explicit PullCommandTest(const LocalHub::Options& options = {}) : hub_(options) {
    char folder[] = "/tmp/gyre-cli-pull-XXXXXX";
    home_ = mkdtemp(folder);
    hub_.AddFile("org/demo", "demo-Q4_0.gguf", Content(GYRE_DEMO_MODEL));
  }
  ~PullCommandTest() override { fs::remove_all(home_); }

  std::vector<std::pair<std::string, std::string>> Environment() const {
    return {{"HOME", home_},        {"XDG_CACHE_HOME", ""}, {"HF_HOME", ""},    {"HF_TOKEN", ""},
            {"GYRE_CACHE", Root()}, {"http_proxy", ""},     {"HTTP_PROXY", ""}, {"HF_ENDPOINT", hub_.endpoint()}};
  }
  std::string Root() const { return home_ + "/models"; }
  std::vector<std::string> Command(const std::vector<std::string>& words) const {
    std::vector<std::string> out{"/usr/bin/env"};
    for (const auto& [name, value] : Environment()) out.push_back(name + "=" + value);
    out.emplace_back(GYRE_BINARY);
    out.insert(out.end(), words.begin(), words.end());
    return out;
  }
  Ended Run(const std::vector<std::string>& words) const { return testing::RunToEnd(Command(words)); }
  // stdin is no terminal, whatever the tests' own is.
  Ended InAPipe(const std::string& words) const {
    std::string script;
    for (const auto& [name, value] : Environment()) script += "export " + name + "='" + value + "'; ";
    return testing::Shell(script + "echo | \"$gyre\" " + words);
  }
  std::unique_ptr<Terminal> OnTerminal(std::vector<std::string> words) const {
    words.insert(words.begin(), GYRE_BINARY);
    return std::make_unique<Terminal>(std::move(words), Environment());
  }
  std::string PathOf(const std::string& words) const {
    const Ended e = Run({"pull", words, "-q"});
    EXPECT_EQ(e.code, 0) << e.text;
    return e.text.substr(0, e.text.find('\n'));
  }

  LocalHub hub_;
  std::string home_;
};

TEST_F(PullCommandTest, PullListRunRemove) {
  Ended e = Run({"pull", "org/demo"});
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("org/demo has no Q4_K_M: Q4_0 is all that is there"));
  EXPECT_THAT(e.text, HasSubstr("org/demo:Q4_0 is here now"));
  EXPECT_THAT(Run({"pull", "org/demo"}).text, HasSubstr("is here already"));
  EXPECT_EQ(Content(PathOf("org/demo:q4_0")), Content(GYRE_DEMO_MODEL));
  e = Run({"models"});
  EXPECT_THAT(e.text, HasSubstr("org/demo:Q4_0     3.9 MiB  Q4_0          just now"));
  EXPECT_THAT(Run({"models", "--json"}).text, HasSubstr("\"commit\":\"" + LocalHub::commit() + "\""));
  // The hub is not asked about what is here.
  const int listings = hub_.counts().listings;
  EXPECT_EQ(Run({"run", "org/demo", "-p", "Hi", "-n", "2"}).code, 0);
  EXPECT_EQ(Run({"inspect", "org/demo:Q4_0"}).code, 0);
  EXPECT_EQ(Run({"estimate", "org/demo"}).code, 0);
  EXPECT_EQ(Run({"bench", "org/demo", "-p", "4", "-n", "2", "-r", "1", "--streams", "1", "-q"}).code, 0);
  EXPECT_EQ(hub_.counts().listings, listings);
  EXPECT_THAT(Run({"models", "rm", "org/demo:Q8_0"}).text, HasSubstr("is not in " + Root()));
  EXPECT_EQ(Run({"models", "rm", "org/demo"}).code, 0);
  EXPECT_THAT(Run({"models"}).text, HasSubstr("no models in"));
  EXPECT_TRUE(fs::is_empty(Root() + "/blobs"));
}

// The name of a file says nothing; its keys do.
TEST_F(PullCommandTest, AFileOfAUrlHasTheTypeThatItSays) {
  hub_.AddFile("org/plain", "model.gguf", Content(GYRE_DEMO_MODEL));
  const std::string url = hub_.FileUrl("org/plain", "model.gguf");
  EXPECT_EQ(Run({"pull", url, "-q"}).code, 0);
  EXPECT_THAT(Run({"models"}).text, ::testing::ContainsRegex("3.9 MiB +F16 +just now"));
  EXPECT_THAT(Run({"models", "--json"}).text, HasSubstr("\"type\":\"F16\""));
}

TEST_F(PullCommandTest, InAPipeNothingIsPulled) {
  for (const char* command : {"run org/demo -p Hi", "chat org/demo", "serve org/demo --http 127.0.0.1:0",
                              "inspect org/demo", "bench org/demo", "tokenize org/demo"}) {
    const Ended e = InAPipe(command);
    EXPECT_EQ(e.code, 2) << command << ": " << e.text;
    EXPECT_THAT(e.text, HasSubstr("type: gyre pull org/demo\n"));
  }
  EXPECT_EQ(hub_.counts().listings, 0);
  EXPECT_FALSE(fs::exists(Root()));
  const Ended e = InAPipe("run org/demo -p Hi -n 2 --yes");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_EQ(InAPipe("tokenize org/demo").code, 0);
}

TEST_F(PullCommandTest, OnATerminalTheSizeIsSaidAndTheUserAsked) {
  const std::vector<std::string> run{"run", "org/demo", "-p", "Hi", "-n", "2"};
  auto no = OnTerminal(run);
  ASSERT_TRUE(no->WaitFor("Pull 3.9 MiB into " + Root() + "? [Y/n] ")) << no->output();
  no->Type("n\r");
  EXPECT_EQ(no->Wait(seconds(30)), 1);
  EXPECT_THAT(no->output(), HasSubstr("nothing was pulled"));
  auto interrupted = OnTerminal(run);
  ASSERT_TRUE(interrupted->WaitFor("[Y/n] "));
  interrupted->Type("\x03");
  EXPECT_EQ(interrupted->Wait(seconds(30)), 130) << interrupted->output();
  EXPECT_EQ(hub_.counts().resolves, 0);
  auto yes = OnTerminal(run);
  ASSERT_TRUE(yes->WaitFor("[Y/n] "));
  yes->Type("\r");
  EXPECT_EQ(yes->Wait(seconds(60)), 0) << yes->output();
  EXPECT_THAT(yes->output(), HasSubstr("generated 2 tokens"));
  auto again = OnTerminal(run);
  EXPECT_EQ(again->Wait(seconds(60)), 0);
  EXPECT_THAT(again->output(), Not(HasSubstr("[Y/n]")));
}

TEST_F(PullCommandTest, ABarWithRateAndTimeLeftAndCtrlC) {
  hub_.AddFile("org/big", "big-Q4_0.gguf", NoiseBytes(32 << 20));
  hub_.Fault([](auto& f) { f.bytes_per_second = 500000; });
  auto pull = OnTerminal({"pull", "org/big"});
  ASSERT_TRUE(pull->WaitFor(" MiB/s, ")) << pull->output();
  EXPECT_TRUE(pull->WaitFor(" left")) << pull->output();
  pull->Type("\x03");
  EXPECT_EQ(pull->Wait(seconds(30)), 130) << pull->output();
  EXPECT_THAT(Run({"models"}).text, HasSubstr("unfinished; `gyre pull` goes on with it"));
  EXPECT_EQ(Run({"models", "rm", "org/big"}).code, 0);
  EXPECT_TRUE(fs::is_empty(Root() + "/blobs"));
}

TEST_F(PullCommandTest, TwoProcessesShareAPullAndKillIsNoLoss) {
  const std::string content = NoiseBytes(16 << 20);
  hub_.AddFile("org/big", "big-Q4_0.gguf", content);
  hub_.Fault([](auto& f) { f.bytes_per_second = 400000; });
  {
    Process first(Command({"pull", "org/big"})), second(Command({"pull", "org/big"}));
    // One of them waits for the other; whichever it is, the first is killed.
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    const auto waits = [](const Process& p) { return p.output().find("another process") != std::string::npos; };
    while (!waits(first) && !waits(second) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    while (hub_.counts().bytes < (2 << 20) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    first.Kill(SIGKILL);
    first.Wait(seconds(10));
    hub_.Fault([](auto& f) { f.bytes_per_second = 0; });
    EXPECT_EQ(second.Wait(seconds(120)), 0) << second.output();
  }
  EXPECT_EQ(Content(PathOf("org/big")), content);
}

TEST_F(PullCommandTest, KilledAtAnyMomentItGoesOn) {
  const std::string content = NoiseBytes(12 << 20);
  hub_.AddFile("org/big", "config.json", "{}", false);
  hub_.AddFile("org/big", "tokenizer.json", "{\"a\":1}", false);
  hub_.AddFile("org/big", "model.safetensors", content);
  hub_.Fault([](auto& f) { f.bytes_per_second = 3 << 20; });
  for (int i = 0; i < 12; ++i) {
    Process pull(Command({"pull", "org/big"}));
    if (pull.Wait(std::chrono::milliseconds(15 * i))) break;
    pull.Kill(SIGKILL);
    pull.Wait(seconds(10));
  }
  hub_.Fault([](auto& f) { f.bytes_per_second = 0; });
  const std::string folder = PathOf("org/big");
  EXPECT_EQ(Content(folder + "/model.safetensors"), content);
  EXPECT_EQ(Content(folder + "/config.json"), "{}");
  EXPECT_EQ(Content(folder + "/tokenizer.json"), "{\"a\":1}");
  size_t blobs = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(Root() + "/blobs")) ++blobs;
  EXPECT_EQ(blobs, 3u);
}

TEST_F(PullCommandTest, EstimateReadsTheHeaderAlone) {
  const Ended here = Run({"estimate", GYRE_DEMO_MODEL});
  ASSERT_EQ(here.code, 0) << here.text;
  Ended e = InAPipe("estimate org/demo");
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("a pull takes 3.9 MiB"));
  const std::string first = here.text.substr(0, here.text.find('\n'));
  EXPECT_THAT(e.text, HasSubstr(first));
  EXPECT_LT(hub_.counts().bytes, 2u << 20);
  e = InAPipe("estimate org/demo --nodes 1M");
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("does not fit"));
  EXPECT_THAT(Run({"models"}).text, HasSubstr("no models in"));
}

// Tensors that are split when they are read are split without their numbers, too, and the lengths of heads are those of
// the older keys.
TEST_F(PullCommandTest, EstimateReadsTheHeaderOfOlderTensors) {
  for (const std::string arch : {"deepseek2", "qwen3next"}) {
    const std::vector<std::byte> bytes = BuildTinyHybrid(arch, {}, 1, true);
    const std::string content(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
        file = home_ + "/" + arch + ".gguf";
    std::ofstream(file, std::ios::binary) << content;
    hub_.AddFile("org/" + arch, arch + "-F32.gguf", content);
    const Ended here = Run({"estimate", file, "--json"}),
                there = InAPipe("estimate org/" + arch + " --json 2>/dev/null");
    ASSERT_EQ(here.code, 0) << here.text;
    EXPECT_EQ(there.code, 0) << InAPipe("estimate org/" + arch).text;
    const auto weights = [](const std::string& text) { return text.substr(0, text.find("\"to_pull\"")); };
    EXPECT_EQ(weights(there.text), weights(here.text));
  }
}

TEST_F(PullCommandTest, TheSettingsOfACoordinatorMayPull) {
  const testing::TextFile settings("[serve]\nmodel = \"org/demo:Q4_0\"\npull = true\nhttp = \"127.0.0.1:0\"\n");
  Process serve(Command({"--config", settings.path(), "serve"}));
  EXPECT_TRUE(serve.WaitFor("listening http", seconds(60)).has_value()) << serve.output();
  // A model that runs is in use.
  const Ended e = Run({"models", "rm", "org/demo"});
  EXPECT_EQ(e.code, 1) << e.text;
  EXPECT_THAT(e.text, HasSubstr("is in use by another process"));
  serve.Kill(SIGTERM);
  EXPECT_EQ(serve.Wait(seconds(60)), 0) << serve.output();
  EXPECT_EQ(Run({"models", "rm", "org/demo"}).code, 0);
}

TEST_F(PullCommandTest, AWorkerFindsTheSameHashInItsOwnCache) {
  ASSERT_EQ(Run({"pull", "org/demo", "-q"}).code, 0);
  // The coordinator has it under a path that the worker has not: one that is gone once it is open.
  const std::string gone = home_ + "/gone.gguf";
  fs::copy_file(GYRE_DEMO_MODEL, gone);
  Process serve(Command({"serve", gone, "--cluster", "127.0.0.1:0", "--layers", "0-3"}));
  const auto address = serve.WaitFor("listening ", seconds(60));
  ASSERT_TRUE(address.has_value()) << serve.output();
  fs::remove(gone);
  Process worker(Command({"worker", "--join", *address, "--name", "w1"}));
  EXPECT_TRUE(worker.WaitFor("joined", seconds(60)).has_value()) << worker.output();
  worker.Kill(SIGTERM);
  EXPECT_EQ(worker.Wait(seconds(60)), 0) << worker.output();
  Process without(
      Command({"worker", "--join", *address, "--name", "w2", "--cache", home_ + "/none", "--weights", "file"}));
  EXPECT_EQ(without.Wait(seconds(60)), 1);
  EXPECT_THAT(without.output(), HasSubstr("name this machine's with --model"));
}

TEST_F(PullCommandTest, ErrorsSayWhatToDo) {
  Ended e = Run({"pull", "org/none"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("org/none"));
  e = Run({"pull", "no-name"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.text, HasSubstr("'no-name' is no name of a model; expected ORG/REPO"));
  e = Run({"pull", "org/demo:"});
  EXPECT_EQ(e.code, 2) << e.text;
  e = Run({"pull", "org/demo", "--cache-limit", "1M"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("--cache-limit: 3.9 MiB are needed"));
  EXPECT_EQ(Run({"pull", "org/demo", "--cache-limit", "12"}).code, 2);
  // A path that is not there is no name.
  e = Run({"run", "/no/such.gguf", "-p", "Hi"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("/no/such.gguf"));
}

class TlsPullCommandTest : public PullCommandTest {
 protected:
  TlsPullCommandTest() : PullCommandTest({.tls = true, .token = "hf_secret"}) {}
};

TEST_F(TlsPullCommandTest, AnAuthorityAndATokenByFlags) {
  Ended e = Run({"pull", "org/demo"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("certificate"));
  e = Run({"pull", "org/demo", "--ca", hub_.ca_file()});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("HF_TOKEN")) << e.text;
  e = InAPipe("run org/demo -p Hi -n 2 --yes --token hf_secret --ca " + hub_.ca_file());
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_EQ(hub_.counts().tokens_at_bytes_host, 0);
}

}  // namespace
}  // namespace gyre
