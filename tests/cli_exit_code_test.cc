// What every command returns to the shell where a flag is wrong, and where its work fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/testing/command.h"

namespace gyre {
namespace {

using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::TextFile;
using Words = std::vector<std::string>;

const std::string kDemo = GYRE_DEMO_MODEL;

// The shortest words with which each command would begin its work.
const std::map<std::string, Words>& Beginnings() {
  static const auto* ids = new TextFile("1 2 3");
  static const auto* text = new TextFile("The ring passes texts on.");
  static const auto* questions = new TextFile("{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"answer\":0}\n");
  static const auto* all = new std::map<std::string, Words>{
      {"run", {kDemo, "-p", "x", "-n", "1"}},
      {"chat", {kDemo}},
      {"serve", {kDemo, "--http", "off", "--cluster", "127.0.0.1:0"}},
      {"worker", {"--join", "127.0.0.1:1", "--insecure"}},
      {"launch", {"/nowhere/ring.toml"}},
      {"status", {"--cluster", "127.0.0.1:1"}},
      {"layers", {"--cluster", "127.0.0.1:1"}},
      {"resize", {"--cluster", "127.0.0.1:1", "4"}},
      {"drain", {"--cluster", "127.0.0.1:1", "w"}},
      {"undrain", {"--cluster", "127.0.0.1:1", "w"}},
      {"remove", {"--cluster", "127.0.0.1:1", "w"}},
      {"ca init", {"/proc/nowhere/ca"}},
      {"ca issue", {"/nowhere/ca", "--role", "worker", "--name", "w", "-o", "/proc/nowhere/w"}},
      {"ca revoke", {"/nowhere/ca", "w"}},
      {"ca token", {"/nowhere/ca"}},
      {"devices", {}},
      {"pull", {"org/repo:Q8_0", "--endpoint", "http://127.0.0.1:1"}},
      {"models", {"--cache", "/nowhere"}},
      {"models rm", {"org/repo", "--cache", "/nowhere"}},
      {"estimate", {kDemo}},
      {"inspect", {kDemo}},
      {"bench", {kDemo, "-p", "4", "-n", "2", "-r", "1"}},
      {"bench serve", {"http://127.0.0.1:1"}},
      {"quantize", {"/nowhere/in.gguf", "/proc/nowhere/out.gguf", "Q8_0"}},
      {"imatrix", {"/nowhere/in.gguf", "/nowhere/text.txt", "-o", "/proc/nowhere/out.gguf"}},
      {"convert", {"/nowhere/in", "/proc/nowhere/out.gguf"}},
      {"tokenize", {kDemo}},
      {"grammar check", {"--regex", "a"}},
      {"template", {kDemo}},
      {"parse-answer", {}},
      {"logits", {kDemo, "--ids", ids->path(), "--out", "/dev/null"}},
      {"perplexity", {kDemo, text->path(), "--window", "8"}},
      {"eval", {kDemo, questions->path()}},
      {"batch", {"/nowhere/requests.jsonl", "-o", "/proc/nowhere/out", "--url", "http://127.0.0.1:1"}},
      {"diff", {kDemo, "--b-exact", "--text", "a"}},
      {"certify", {kDemo, "--reference", "/nowhere/reference"}},
      {"export", {kDemo, "--out", "/proc/nowhere/out"}},
      {"completion", {"bash"}},
      {"help", {}},
      {"version", {}},
  };
  return *all;
}

// The names of all commands, by the headings of the manual.
Words Commands() {
  Words out;
  const std::string manual = Gyre({"help", "--man"}).text;
  for (size_t at = manual.find("\n.SS "); at != std::string::npos; at = manual.find("\n.SS ", at + 1)) {
    out.push_back(absl::StrReplaceAll(manual.substr(at + 5, manual.find('\n', at + 1) - at - 5), {{"\\-", "-"}}));
  }
  return out;
}

Ended With(const std::string& command, const std::string& flags) {
  Words words = absl::StrSplit(command, ' ');
  for (const std::string& word : Beginnings().at(command)) words.push_back(word);
  for (const absl::string_view word : absl::StrSplit(flags, ' ', absl::SkipEmpty())) words.emplace_back(word);
  return Gyre(words);
}

TEST(ExitCodeTest, AnUnknownFlagOrOneWordTooManyIsAUsageErrorOfEveryCommand) {
  ASSERT_GT(Commands().size(), 20u);
  for (const std::string& command : Commands()) {
    ASSERT_EQ(Beginnings().count(command), 1u) << command << " is missing in this test";
    const Ended unknown = With(command, "--no-such-flag");
    EXPECT_EQ(unknown.code, 2) << command << ": " << unknown.text;
    EXPECT_THAT(unknown.text, HasSubstr("there is no flag --no-such-flag"));
  }
}

// Values that the parser of the command line can't judge, or that only the model or the machine shows to be wrong.
TEST(ExitCodeTest, AValueThatIsWrongIsAUsageErrorOfEveryCommandThatHasTheFlag) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> kFlags{
      {"run chat serve bench logits worker", {"--device foo", "--cpus 99999", "--rope-base -1"}},
      {"run worker", {"--device cuda", "--cpus foo", "--isa foo", "--threads 0", "--norm-eps nan", "--cache-limit 5x"}},
      {"run chat serve bench logits", {"--kv-tokens 999999999999999", "--quantization Q5_0"}},
      {"run estimate", {"--ctx 4294967295", "--max-rows 4294967295"}},
      {"run", {"--chunk 4294967295", "--kv-tokens -1", "--kv-type f8", "--block-size 257", "--wire f8"}},
      {"run chat bench logits", {"--stages 100", "--stages 0"}},
      {"run chat",
       {"--temp nan", "--top-p 2", "--logit-bias 99999=1", "--logit-bias x", "--seed 99999999999999999999",
        "--n-predict -2", "--context-keep 5"}},
      {"serve worker", {"--memory 8", "--memory -1G", "--layers 5-2", "--weights-rate x", "--insecure=foo"}},
      {"serve",
       {"--layers 0-99", "--ring foo", "--http 127.0.0.1:99999", "--advertise=", "--max-body 8", "--parallel 0",
        "--standby foo", "--policy foo", "--rebalance foo", "--alias="}},
      {"worker",
       {"--listen foo", "--join foo", "--token foo", "--name=", "--name a/b", "--name local", "--transport foo"}},
      {"status layers drain undrain remove resize", {"--cluster foo"}},
      {"resize", {"--proposed", "--kv-tokens 0"}},
      {"ca init", {"--days 0", "--name a/b", "--key-type rsa"}},
      {"ca issue", {"--days 99999", "--name a/b", "--role king"}},
      {"ca revoke", {"--role king"}},
      {"ca token", {"--ttl 5", "--ttl x", "--name a/b"}},
      {"pull run serve inspect estimate tokenize", {"--endpoint foo", "--cache-limit 8"}},
      {"estimate", {"--nodes 100", "--nodes x", "--kv-type f8", "--parallel 0"}},
      {"inspect", {"--tensor no-such-tensor"}},
      {"bench", {"--streams x", "--streams 0", "--depth -1", "--runs 0"}},
      {"bench serve",
       {"--workload x", "--rate -1", "--scale nan", "--requests 0", "--pid -5", "--timeout 0", "--vocab -1"}},
      {"quantize", {"--threads 0"}},
      {"help", {"no-such-command"}},
  };
  for (const auto& [commands, flags] : kFlags) {
    // The name of a command of two words stands alone in its list.
    const bool one = Beginnings().count(commands) > 0;
    for (const std::string& command : one ? Words{commands} : Words(absl::StrSplit(commands, ' '))) {
      for (const char* flag : flags) {
        const Ended e = With(command, flag);
        EXPECT_EQ(e.code, 2) << command << " " << flag << ": " << e.text;
      }
    }
  }
  std::string stops;
  for (int i = 0; i < 65; ++i) stops += " --stop s" + std::to_string(i);
  EXPECT_EQ(With("run", stops.substr(1)).code, 2);
  EXPECT_EQ(Gyre({"quantize", kDemo, "/proc/nowhere/out.gguf", "Q9"}).code, 2);
  EXPECT_EQ(Gyre({"completion", "ksh"}).code, 2);
  EXPECT_EQ(Gyre({"run", "--url", "foo", "-p", "x"}).code, 2);
  EXPECT_EQ(Gyre({"bench", "serve", "foo"}).code, 2);
}

TEST(ExitCodeTest, AFailureAtWorkIsOne) {
  for (const char* command :
       {"status", "layers", "resize", "drain", "undrain", "remove", "ca init", "ca issue", "ca revoke", "ca token",
        "pull", "models rm", "bench serve", "quantize", "imatrix", "convert", "batch", "certify", "export"}) {
    const Ended e = With(command, "");
    EXPECT_EQ(e.code, 1) << command << ": " << e.text;
  }
  for (const Words& words : std::vector<Words>{{"run", "/nowhere/m.gguf", "-p", "x"},
                                               {"inspect", "/dev/null"},
                                               {"serve", "/nowhere/m.gguf", "--http", "127.0.0.1:0"},
                                               {"estimate", kDemo, "--nodes", "1M"},
                                               {"tokenize", "/nowhere/m.gguf"}}) {
    EXPECT_EQ(Gyre(words).code, 1) << words[0];
  }
}

}  // namespace
}  // namespace gyre
