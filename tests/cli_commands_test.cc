// Commands as a shell runs them: what they print, and what they return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/certificates.h"
#include "tests/testing/command.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Process;
using testing::Shell;
using ::testing::StartsWith;
using testing::TextFile;

const std::string kModel = GYRE_DEMO_MODEL;

// A listening socket on loopback, and its port.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~Listener() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

std::string FreeAddress() { return Listener().address(); }

// The model's answer to one question, with flags.
std::string Answer(const std::string& flags, const std::string& where = "\"$model\"") {
  const Ended e = Shell("\"$gyre\" run " + where + " --chat -p 'What is Gyre?' -q " + flags);
  EXPECT_EQ(e.code, 0) << e.text;
  return e.text;
}

TEST(RunTest, ThePromptComesFromAFlagAFileOrStdin) {
  const std::string flags = " -n 8 --temp 0 -q --echo";
  const Ended by_flag = Shell("\"$gyre\" run \"$model\" -p 'What is Gyre?'" + flags);
  EXPECT_EQ(by_flag.code, 0);
  EXPECT_THAT(by_flag.text, StartsWith("What is Gyre?"));
  EXPECT_EQ(Shell("echo 'What is Gyre?' | \"$gyre\" run \"$model\"" + flags).text, by_flag.text);
  EXPECT_EQ(Shell("echo 'What is Gyre?' | \"$gyre\" run \"$model\" -p -" + flags).text, by_flag.text);
  EXPECT_EQ(Shell("printf 'What is Gyre?' | \"$gyre\" run -m \"$model\" -f /dev/stdin" + flags).text, by_flag.text);
  const Ended none = Shell("\"$gyre\" run \"$model\" </dev/null");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.text, HasSubstr("a prompt is needed"));
}

TEST(RunTest, OneTokenIsOneToken) {
  const Ended e = Gyre({"run", kModel, "-p", "x", "-n", "1", "-t", "1", "-c", "16", "--kv-tokens", "16"});
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("prompt 1 token"));
  EXPECT_THAT(e.text, HasSubstr("generated 1 token"));
  EXPECT_THAT(e.text, ::testing::Not(::testing::ContainsRegex("(prompt|generated) 1 tokens")));
}

TEST(RunTest, ChatAppliesTheModelsTemplate) {
  const std::string answer = Answer("--temp 0");
  EXPECT_THAT(answer, HasSubstr("Gyre runs one large language model"));
  EXPECT_EQ(Shell("echo 'What is Gyre?' | \"$gyre\" chat \"$model\" --temp 0 -q").text, answer);
}

TEST(RunTest, AFullDiskIsNoSuccess) {
  const Ended full = Shell("\"$gyre\" run \"$model\" -p x -n 20 -q >/dev/full");
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.text, HasSubstr("No space left on device"));
  EXPECT_EQ(Shell("\"$gyre\" inspect \"$model\" >/dev/full").code, 1);
  EXPECT_EQ(Shell("\"$gyre\" help >/dev/full").code, 1);
}

// Where a folder or a file can't be written, a start ends with a sentence that names it.
TEST(FolderTest, WhatCannotBeWrittenIsNamed) {
  const TextFile file("x");
  for (const std::string& folder :
       {file.path(), file.path() + "/sub", std::string("/dev/null"), std::string("/proc/no")}) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"serve", kModel, "--http", "127.0.0.1:0", "--state", folder},
             {"pull", "org/repo:Q8_0", "--endpoint", "http://127.0.0.1:1", "--cache", folder},
             {"quantize", kModel, folder + "/out.gguf", "Q8_0"},
             {"convert", "/nowhere", folder + "/out.gguf"},
             {"ca", "init", folder + "/ca"}}) {
      const Ended e = Gyre(words);
      EXPECT_EQ(e.code, 1) << words[0] << " " << folder << ": " << e.text;
      if (words[0] == "serve" || words[0] == "quantize") EXPECT_THAT(e.text, HasSubstr(folder)) << words[0];
    }
    EXPECT_EQ(Gyre({"run", kModel, "-p", "x", "-n", "1", "--cache", folder}).code, 0) << "it goes on without a cache";
    EXPECT_EQ(Gyre({"models", "--cache", folder}).code, 0);
  }
}

TEST(FolderTest, AFileThatMayNotGrowIsAnErrorAndNoSignal) {
  char folder[] = "/tmp/gyre-limit-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string in = folder;
  for (const std::string& command : {"serve \"$model\" --http 127.0.0.1:0 --state " + in + "/state",
                                     "quantize \"$model\" " + in + "/out.gguf Q8_0"}) {
    const Ended e = Shell("ulimit -f 8; \"$gyre\" " + command);
    EXPECT_EQ(e.code, 1) << command << ": " << e.text;
    EXPECT_THAT(e.text, HasSubstr(in)) << command;
  }
  std::filesystem::remove_all(folder);
}

// A run that goes on until it is told to end.
TEST(RunTest, AnInterruptedRunReturns130) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process run({GYRE_BINARY, "run", kModel, "-p", "x", "--ignore-eos", "-c", "1000000", "--seed", "1"});
    ASSERT_TRUE(run.WaitFor("seed ").has_value()) << run.output();
    std::this_thread::sleep_for(milliseconds(50));
    run.Kill(signal);
    EXPECT_EQ(run.Wait(seconds(60)), 130) << run.output();
  }
}

// It waits for something that never comes: an answer of a coordinator, or a prompt from a pipe that nobody writes.
TEST(RunTest, AnInterruptBeforeTheFirstAnswerEndsTheProgram) {
  Listener silent;
  TextFile pipe("");
  unlink(pipe.path().c_str());
  ASSERT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  for (const auto& words : std::vector<std::vector<std::string>>{{"run", kModel, "-f", pipe.path()},
                                                                 {"run", "--cluster", silent.address(), "-p", "x"},
                                                                 {"chat", "--cluster", silent.address()}}) {
    std::vector<std::string> command{GYRE_BINARY};
    command.insert(command.end(), words.begin(), words.end());
    Process p(command);
    std::this_thread::sleep_for(milliseconds(300));
    p.Kill(SIGINT);
    EXPECT_EQ(p.Wait(seconds(4)), 130) << words[0] << ": " << p.output();
  }
}

// Flags of one request change its text, and change it alike through a coordinator.
TEST(RunTest, StopSeedAndBiasCountHereAndOverACluster) {
  Process serve({GYRE_BINARY, "serve", kModel, "--cluster", "127.0.0.1:0", "-t", "1"});
  const auto address = serve.WaitFor("listening ");
  ASSERT_TRUE(address.has_value()) << serve.output();
  const std::string plain = Answer("--temp 0");
  const std::string wild = "--temp 5 --top-k 0 --top-p 1 --min-p 0 -n 20 ";
  const std::vector<std::string> kFlags{"--temp 0 --stop workers", "--temp 0 --stop zzz --stop large",
                                        wild + "--seed 3", wild + "--seed 4", "--temp 0 --logit-bias 200=100 -n 5"};
  std::vector<std::string> texts{plain};
  for (const std::string& flags : kFlags) {
    texts.push_back(Answer(flags));
    EXPECT_EQ(Answer(flags), texts.back()) << flags;
    EXPECT_EQ(Answer(flags, "--cluster " + *address), texts.back()) << flags;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(texts[i], texts[j]) << i << " and " << j;
    }
  }
  EXPECT_THAT(texts[1], Not(HasSubstr("workers")));
  EXPECT_THAT(plain, HasSubstr("workers"));
  for (const std::string& where : {std::string("\"$model\""), "--cluster " + *address}) {
    const Ended e = Shell("\"$gyre\" run " + where + " --chat -p 'What is Gyre?' --temp 0 --ignore-eos -n 80");
    EXPECT_THAT(e.text, HasSubstr("generated 80 tokens"));
  }
  serve.Kill(SIGTERM);
  EXPECT_EQ(serve.Wait(seconds(30)), 0) << serve.output();
}

TEST(RunTest, AFullContextMayBeShiftedHereAndOverACluster) {
  const std::string ask = " -p Once -n 60 --temp 0 --ignore-eos ";
  const auto run = [&ask](const std::string& flags) {
    const Ended e = Shell("\"$gyre\" run" + ask + flags);
    EXPECT_EQ(e.code, 0) << e.text;
    return e.text;
  };
  const std::string here = "-c 32 \"$model\" ", shift = here + "--context-shift --context-keep 2 ";
  const std::string text = run(shift + "-q");
  EXPECT_GT(text.size(), run(here + "-q").size());
  EXPECT_THAT(run(here), Not(HasSubstr("lost its older tokens")));
  EXPECT_THAT(run(shift), HasSubstr("generated 60 tokens"));
  EXPECT_THAT(run(shift), HasSubstr("times and lost its older tokens"));
  Process serve({GYRE_BINARY, "serve", kModel, "--cluster", "127.0.0.1:0", "-t", "1", "-c", "32", "--context-shift",
                 "--context-keep", "2"});
  const auto address = serve.WaitFor("listening ");
  ASSERT_TRUE(address.has_value()) << serve.output();
  EXPECT_EQ(run("-q --cluster " + *address), text);
  EXPECT_THAT(run("--cluster " + *address), HasSubstr("times and lost its older tokens"));
  EXPECT_EQ(Gyre({"run", kModel, "-p", "x", "--context-keep", "2"}).code, 2);  // alone it means nothing
}

TEST(ServeTest, APortInUseIsFoundBeforeTheModelIsLoaded) {
  Listener taken;
  const Ended e = Gyre({"serve", "/nowhere/model.gguf", "--cluster", taken.address()});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("--cluster: cannot listen at " + taken.address() + ": another program has the port"));
  EXPECT_LT(e.text.size(), 200u) << e.text;
  const Ended ring = Gyre({"serve", kModel, "--cluster", "127.0.0.1:0", "--ring", taken.address()});
  EXPECT_EQ(ring.code, 1);
  EXPECT_THAT(ring.text, HasSubstr("--ring: cannot listen at " + taken.address()));
}

TEST(ServeTest, BothAddressesBeyondLoopbackNeedInsecure) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--cluster", "0.0.0.0:0"},
                                                                 {"--cluster", "127.0.0.1:0", "--ring", "0.0.0.0:0"}}) {
    std::vector<std::string> command{"serve", kModel};
    command.insert(command.end(), words.begin(), words.end());
    const Ended e = Gyre(command);
    EXPECT_EQ(e.code, 2) << e.text;
    EXPECT_THAT(e.text, HasSubstr("--insecure"));
  }
  EXPECT_EQ(Gyre({"serve", kModel, "--cluster", "nowhere"}).code, 2);
}

TEST(ServeTest, ACoordinatorWithoutMemoryForTheModelWaitsForWorkers) {
  Process serve(
      {GYRE_BINARY, "serve", kModel, "--cluster", "127.0.0.1:0", "--min-workers", "2", "--memory", "1M", "-t", "1"});
  const auto address = serve.WaitFor("listening ");
  ASSERT_TRUE(address.has_value()) << serve.output();
  EXPECT_THAT(serve.output(), HasSubstr("requests wait for workers"));
  const Ended early = Gyre({"run", "--cluster", *address, "-p", "x", "-n", "1"});
  EXPECT_EQ(early.code, 1);
  EXPECT_THAT(early.text, ::testing::AnyOf(HasSubstr("0 of 2 workers"), HasSubstr("no plan yet")));
  std::vector<std::unique_ptr<Process>> workers;
  for (const char* name : {"w1", "w2"}) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{GYRE_BINARY, "worker", "--join", *address, "--name", name, "-t", "1"}));
  }
  ASSERT_TRUE(Shell("for i in {1..600}; do \"$gyre\" status --cluster " + *address +
                    " | grep -q serving && exit 0; sleep 0.05; done; exit 1")
                  .code == 0)
      << serve.output();
  EXPECT_THAT(Answer("--temp 0", "--cluster " + *address), HasSubstr("Gyre runs"));

  // Commands that ask it.
  const Ended status = Gyre({"status", "--cluster", *address, "--json"});
  EXPECT_EQ(status.code, 0);
  const boost::json::object o = boost::json::parse(status.text).as_object();
  for (const char* field : {"num_layers", "context", "tokens_generated", "finished", "block_size", "plans"}) {
    ASSERT_TRUE(o.contains(field)) << field << status.text;
    EXPECT_TRUE(o.at(field).is_number()) << field;
  }
  EXPECT_TRUE(o.at("members").as_array()[0].as_object().at("weight_bytes").is_number());
  EXPECT_TRUE(o.at("epoch").as_object().at("term").is_number());
  const Ended drained = Gyre({"drain", "w1", "--cluster", *address});
  EXPECT_EQ(drained.code, 0) << drained.text;
  EXPECT_THAT(drained.text, HasSubstr("0-7"));
  EXPECT_EQ(Gyre({"drain", "nobody", "--cluster", *address}).code, 1);
  EXPECT_THAT(Gyre({"layers", "--cluster", *address}).text, HasSubstr("drained"));
  EXPECT_EQ(Gyre({"resize", "w1=0-7", "--cluster", *address}).code, 1) << "it is drained";
  EXPECT_THAT(Gyre({"undrain", "w1", "--cluster", *address}).text, HasSubstr("w1 may have layers again"));
  const Ended preview = Gyre({"resize", "w1=0-3,w2=4-7", "--dry-run", "--cluster", *address});
  EXPECT_EQ(preview.code, 0) << preview.text;
  EXPECT_THAT(preview.text, HasSubstr("w1=0-3,w2=4-7\n"));
  EXPECT_THAT(preview.text, HasSubstr("      0-3  w2               w1"));
  EXPECT_THAT(preview.text, HasSubstr("meanwhile"));
  EXPECT_EQ(Gyre({"resize", "w1=0-3,w2=4-8", "--dry-run", "--cluster", *address}).code, 2);
  for (auto& w : workers) w->Kill(SIGTERM);
  for (auto& w : workers) EXPECT_EQ(w->Wait(seconds(30)), 0) << w->output();
  serve.Kill(SIGINT);
  EXPECT_EQ(serve.Wait(seconds(30)), 0) << serve.output();
}

TEST(ServeTest, ParallelMeansWhatItSays) {
  auto blocks = [](const std::vector<std::string>& flags) {
    std::vector<std::string> command{GYRE_BINARY, "serve", kModel, "--cluster", "127.0.0.1:0", "-t", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    Process serve(command);
    const auto address = serve.WaitFor("listening ");
    EXPECT_TRUE(address.has_value()) << serve.output();
    const Ended status = Gyre({"status", "--cluster", address.value_or(""), "--json"});
    return boost::json::parse(status.text).as_object().at("memory").at(0).at("units").to_number<int>();
  };
  EXPECT_EQ(blocks({"--parallel", "1"}), 1024 / 16);
  EXPECT_EQ(blocks({}), 8 * 1024 / 16);
}

TEST(LaunchTest, TheExampleRunsFromACheckout) {
  const std::string address = FreeAddress();
  std::ifstream in(std::string(GYRE_SOURCE_DIR) + "/deploy/ring.example.toml");
  std::ostringstream text;
  text << in.rdbuf();
  std::string ring = text.str();
  const size_t at = ring.find("127.0.0.1:7070\"  ");
  ASSERT_NE(at, std::string::npos);
  ring.replace(at, sizeof "127.0.0.1:7070" - 1, address);
  const TextFile file(ring);
  // A token once got w1 an identity, which is for a ring with TLS.
  const testing::Folder config;
  const std::string home = "XDG_CONFIG_HOME=" + (config / "");
  ASSERT_EQ(Shell("cd " + (config / "") +
                  " && \"$gyre\" ca init ca && \"$gyre\" ca issue ca --role worker --name w1 --out gyre/w1")
                .code,
            0);
  Process launch({"/usr/bin/env", "-C", GYRE_SOURCE_DIR, home, GYRE_BINARY, "launch", file.path()});
  ASSERT_EQ(Shell("for i in {1..600}; do s=$(\"$gyre\" status --cluster " + address +
                  " 2>/dev/null); [[ $s == *w1* && $s == *w3* ]] && exit 0; sleep 0.05; done; exit 1")
                .code,
            0)
      << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("serve | listening"));
  EXPECT_THAT(launch.output(), ::testing::ContainsRegex("serve \\| .*open http://127.0.0.1:80[0-9][0-9] in a browser"));
  const size_t until_then = launch.output().size();
  launch.Kill(SIGINT);
  EXPECT_EQ(launch.Wait(seconds(60)), 0) << launch.output();
  // A stop that was asked for is no fault.
  const std::string since = launch.output().substr(until_then);
  for (const char* fault : {"| warn", "| error", "a link"}) EXPECT_THAT(since, Not(HasSubstr(fault)));
}

TEST(ServeTest, AStateThatCantBeWrittenIsNamed) {
  const testing::Folder folder;
  // As on a full disk, each write fails.
  const Ended e =
      Shell("ulimit -f 2; \"$gyre\" serve \"$model\" --http off --cluster 127.0.0.1:0 --state " + (folder / "s"));
  EXPECT_EQ(e.code, 1) << e.text;
  EXPECT_THAT(e.text, HasSubstr("gyre: --state: " + (folder / "s") + "/state.db: "));
  EXPECT_THAT(e.text, HasSubstr("disk may be full"));
}

// Nobody answers a token of a CA that no coordinator has.
TEST(WorkerTest, ASearchForACoordinatorGivesAHintAndEndsWithCtrlC) {
  const testing::Folder folder;
  const Ended token = Shell("cd " + (folder / "") + " && \"$gyre\" ca init ca -q && \"$gyre\" ca token ca");
  ASSERT_EQ(token.code, 0) << token.text;
  const std::string word = token.text.substr(
      token.text.find("gyre1-"), token.text.find('\n', token.text.find("gyre1-")) - token.text.find("gyre1-"));
  Process worker({"/usr/bin/env", "XDG_CONFIG_HOME=" + (folder / "config"), GYRE_BINARY, "worker", "--token", word,
                  "--name", "w"});
  EXPECT_TRUE(worker.WaitFor("looking for a coordinator on the local network").has_value()) << worker.output();
  EXPECT_TRUE(worker.WaitFor("--join HOST:PORT names it").has_value()) << worker.output();
  worker.Kill(SIGINT);
  EXPECT_EQ(worker.Wait(seconds(20)), 0) << worker.output();
  EXPECT_THAT(worker.output(), Not(HasSubstr("gyre: ")));
}

// The coordinator's identity is in the environment, not in the file: the worker uses its own then.
TEST(LaunchTest, ACoordinatorMayHaveTlsBySettings) {
  const testing::Folder config;
  ASSERT_EQ(Shell("cd " + (config / "") +
                  " && \"$gyre\" ca init ca && \"$gyre\" ca issue ca --role worker --name w1 --out gyre/w1 && "
                  "\"$gyre\" ca issue ca --role coordinator --name head --out head")
                .code,
            0);
  const TextFile file("model = '" + kModel + "'\ncluster = '" + FreeAddress() +
                      "'\n[serve]\nargs = ['--http', 'off']\n[[worker]]\nname = 'w1'\nargs = ['-t', '1']\n");
  Process launch({"/usr/bin/env", "XDG_CONFIG_HOME=" + (config / ""), "GYRE_SERVE_IDENTITY=" + (config / "head"),
                  GYRE_BINARY, "launch", file.path()});
  EXPECT_TRUE(launch.WaitFor("w1 joined from", seconds(60)).has_value()) << launch.output();
  launch.Kill(SIGINT);
  EXPECT_EQ(launch.Wait(seconds(60)), 0) << launch.output();
}

TEST(LaunchTest, MistakesInTheFileAreNamedWithTheirLine) {
  const std::string head = "model = '" + kModel + "'\ncluster = '127.0.0.1:0'\n";
  const struct {
    std::string text;
    const char* says;
  } kCases[] = {
      {head + "[worker]\nname = 'w1'\n", ":3: each worker needs two brackets: [[worker]]"},
      {head + "[[workers]]\nname = 'w1'\n", ":3: there is no 'workers' here; did you mean 'worker'?"},
      {head + "[[worker]]\nnaem = 'w1'\n", ":4: there is no 'naem' here; did you mean 'name'?"},
      {head + "[[worker]]\nname = 7\n", ":4: name must be a text"},
      {head + "[[worker]]\nargs = '-q'\n", ":4: args must be a list of texts"},
      {head + "[[serve]]\nargs = []\n", ":3: serve must be a section"},
      {"model = \n", ":1: "},
      {"model = 'x'\n", ": model and cluster are needed"},
  };
  for (const auto& c : kCases) {
    const TextFile file(c.text);
    const Ended e = Gyre({"launch", file.path()});
    EXPECT_EQ(e.code, 2) << c.text;
    EXPECT_THAT(e.text, HasSubstr(file.path() + c.says));
  }
  EXPECT_EQ(Gyre({"launch", "/nowhere/ring.toml"}).code, 1);
  const TextFile lost("model = '/nowhere/model.gguf'\ncluster = '127.0.0.1:0'\n");
  const Ended e = Gyre({"launch", lost.path()});
  EXPECT_EQ(e.code, 1) << "its coordinator ends";
  EXPECT_THAT(e.text, HasSubstr("/nowhere/model.gguf"));
}

TEST(EstimateTest, WhatDoesNotFitIsAFailure) {
  Ended e = Gyre({"estimate", kModel});
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("(1 x 1024, f16)"));
  EXPECT_THAT(e.text, HasSubstr("one request with the whole context, as `gyre run` has room for"));
  EXPECT_THAT(Gyre({"estimate", kModel, "-c", "1025"}).text, HasSubstr("--ctx 1025 is more than the 1024"));
  e = Gyre({"estimate", kModel, "--nodes", "2"});
  EXPECT_EQ(e.code, 0) << e.text;
  EXPECT_THAT(e.text, HasSubstr("(8 x 1024, f16)")) << "as gyre serve";
  EXPECT_THAT(e.text, HasSubstr("8 requests with the whole context, as `gyre serve` has room for"));
  const Ended three = Gyre({"estimate", kModel, "--nodes", "2", "--parallel", "3"});
  EXPECT_THAT(three.text, HasSubstr("(3 x 1024, f16)"));
  EXPECT_THAT(three.text, ::testing::Not(HasSubstr("has room for")));
  e = Gyre({"estimate", kModel, "--nodes", "1M,1m"});
  EXPECT_EQ(e.code, 1) << e.text;
  EXPECT_THAT(e.text, HasSubstr("does not fit into 1.0 MiB"));
  EXPECT_THAT(e.text, HasSubstr("gyre quantize"));
  e = Gyre({"estimate", kModel, "--nodes", "2K", "--json"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.text, HasSubstr("\"fits\":false"));
  for (const char* size : {"16G", "16GB", "16GiB", "8.5G", "512m", "a=512mib,b=1t"}) {
    EXPECT_EQ(Gyre({"estimate", kModel, "--nodes", size}).code, 0) << size;
  }
  for (const char* size : {"16X", "G", "1e3", "-1G", "0G", "16 G", "0x10G", "infG", "16GBB", "a=,b=1G"}) {
    EXPECT_EQ(Gyre({"estimate", kModel, "--nodes", size}).code, 2) << size;
  }
}

TEST(BenchTest, AModelInTheCachesIsNotSaidToBeBoundByMemory) {
  const Ended e = Gyre({"bench", kModel, "-q", "-r", "1", "-p", "0", "-n", "4", "--streams", "1", "-t", "1", "--json"});
  EXPECT_EQ(e.code, 0) << e.text;
  const auto result = boost::json::parse(e.text).as_object().at("results").as_array()[0].as_object();
  const double share = result.at("share").to_number<double>();
  if (share > 1) EXPECT_EQ(result.at("limit").as_string(), "caches") << e.text;
}

// The flags of `gyre serve` that say what runs in a step.
TEST(BenchTest, TakesTheSchedulersFlagsAndTellsThem) {
  const std::vector<std::string> words = {"bench", kModel, "-q", "-r", "1", "-p", "0", "-t", "1", "--json"};
  auto with = [&words](std::vector<std::string> flags) {
    flags.insert(flags.begin(), words.begin(), words.end());
    return Gyre(flags);
  };
  const Ended e = with({"--streams", "3", "-n", "8", "--policy", "decode_round_robin", "--step-tokens", "64",
                        "--max-sequences", "5", "--kv-reserve"});
  ASSERT_EQ(e.code, 0) << e.text;
  const auto result = boost::json::parse(e.text).as_object().at("results").as_array()[0].as_object();
  EXPECT_EQ(result.at("policy"), "decode_round_robin");
  EXPECT_EQ(result.at("step_tokens"), 64);
  EXPECT_EQ(result.at("max_sequences"), 5);
  EXPECT_EQ(result.at("kv_reserve"), true);
  const Ended many =
      with({"--streams", "70", "-n", "64", "--step-tokens", "64"});  // without a number all streams run at once
  ASSERT_EQ(many.code, 0) << many.text;
  EXPECT_EQ(boost::json::parse(many.text).at("results").at(0).at("max_sequences"), 70);
  EXPECT_EQ(with({"--policy", "lifo"}).code, 2);
}

TEST(TokenizeTest, TextBecomesIds) {
  const Ended e = Shell("printf 'What is Gyre?' | \"$gyre\" tokenize \"$model\"");
  EXPECT_EQ(e.code, 0);
  EXPECT_THAT(e.text, ::testing::MatchesRegex("[0-9 ]+\n"));
  const Ended lines = Shell("printf '{\"text\": \"What is Gyre?\"}\\n' | \"$gyre\" tokenize \"$model\" --jsonl");
  EXPECT_EQ(lines.code, 0);
  EXPECT_THAT(lines.text, StartsWith("{\"ids\": ["));
  const Ended bad = Shell("echo nonsense | \"$gyre\" tokenize \"$model\" --jsonl");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.text, HasSubstr("line 1"));
  EXPECT_EQ(Shell("\"$gyre\" tokenize </dev/null").code, 2);
  EXPECT_EQ(Shell("\"$gyre\" tokenize /nowhere </dev/null").code, 1);
}

TEST(TemplateTest, ConversationsBecomeText) {
  const Ended own = Gyre({"template", kModel});
  EXPECT_EQ(own.code, 0);
  EXPECT_THAT(own.text, HasSubstr("messages"));
  const Ended text = Shell(
      "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"add_generation_prompt\": true}' | "
      "\"$gyre\" template \"$model\" --jsonl");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.text, HasSubstr("<|im_start|>user\\nhi<|im_end|>"));
  EXPECT_EQ(Gyre({"template"}).code, 2);
  EXPECT_EQ(Gyre({"template", kModel, "--template", "x"}).code, 2);
  EXPECT_EQ(Shell("echo nonsense | \"$gyre\" template \"$model\" --jsonl").code, 1);
}

TEST(InspectTest, AModelOfAnotherQuantizationIsRefused) {
  for (const char* same : {"F16", "f16", "gguf"}) {
    EXPECT_EQ(Gyre({"inspect", kModel, "--quantization", same}).code, 0) << same;
  }
  EXPECT_EQ(Gyre({"run", kModel, "-p", "hi", "-n", "1", "-q", "--quantize", "f16"}).code, 0);
  const std::string is = std::string("the weights of ") + kModel + " are F16; ";
  const struct {
    const char* name;
    std::string says;
  } kCases[] = {
      {"q4_k_m", "--quantization q4_k_m: " + is + "`gyre quantize` makes a file with Q4_K_M of one with F32"},
      {"awq", "--quantization awq: " + is + "`gyre quantize` makes files with F32, F16, BF16, Q8_0"},
      {"fp8", is},
  };
  const TextFile ids("1 2");
  for (const auto& c : kCases) {
    for (const char* command : {"run", "serve", "estimate", "bench", "inspect", "logits"}) {
      std::vector<std::string> words{command, kModel, "--quantization", c.name};
      if (words[0] == "run") words.insert(words.end(), {"-p", "hi"});
      if (words[0] == "serve") words.insert(words.end(), {"--http", "127.0.0.1:0"});
      if (words[0] == "logits") words.insert(words.end(), {"--ids", ids.path(), "--out", "/dev/null"});
      const Ended other = Gyre(words);
      EXPECT_EQ(other.code, 2) << command << ": " << other.text;
      EXPECT_THAT(other.text, HasSubstr(c.says)) << command;
    }
  }
}

TEST(InspectTest, AFileIsShown) {
  const Ended text = Gyre({"inspect", kModel, "--tensors"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.text, HasSubstr("token_embd.weight"));
  const Ended json = Gyre({"inspect", kModel, "--json"});
  EXPECT_EQ(json.code, 0);
  const boost::json::object all = boost::json::parse(json.text).as_object();
  EXPECT_GT(all.at("parameters").to_number<uint64_t>(), 1'000'000u);
  EXPECT_EQ(all.at("file_bytes").to_number<uint64_t>(), std::filesystem::file_size(kModel));
  EXPECT_EQ(all.at("quantization"), "F16");
  EXPECT_THAT(text.text, ::testing::ContainsRegex("parameters    [0-9.]+ million\nquantization  F16\nsize          "));
  EXPECT_EQ(Gyre({"inspect", kModel, "--tensor", "nothing"}).code, 2);
  EXPECT_EQ(Gyre({"inspect", "/nowhere.gguf"}).code, 1);
}

}  // namespace
}  // namespace gyre
