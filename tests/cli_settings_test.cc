// Flags from the command line, the environment and a settings file; what is a mistake, and what it is called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/command.h"

namespace gyre {
namespace {

using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Shell;
using testing::TextFile;

// One token of the demo model; it prints its seed.
Ended RunOne(std::vector<std::string> flags, const std::vector<std::string>& environment = {}) {
  flags.insert(flags.begin(), {"run", GYRE_DEMO_MODEL, "-p", "x", "-n", "1"});
  return Gyre(flags, environment);
}

TEST(SettingsTest, TheFlagBeatsTheEnvironmentAndThatTheFile) {
  const TextFile file("[run]\nseed = 3\nstop = [\"a\", \"b\"]\nexact = true\n\n[chat]\nseed = 9\n");
  EXPECT_THAT(RunOne({"--config", file.path()}).text, HasSubstr("seed 3\n"));
  EXPECT_THAT(RunOne({"--config", file.path()}, {"GYRE_SEED=4"}).text, HasSubstr("seed 4\n"));
  EXPECT_THAT(RunOne({"--config", file.path()}, {"GYRE_SEED=4", "GYRE_RUN_SEED=5"}).text, HasSubstr("seed 5\n"));
  EXPECT_THAT(RunOne({"--config", file.path(), "-s", "6"}, {"GYRE_SEED=4", "GYRE_RUN_SEED=5"}).text,
              HasSubstr("seed 6\n"));
  EXPECT_THAT(RunOne({}, {"GYRE_CHAT_SEED=x", "GYRE_SEED="}).text, HasSubstr("seed "));
  const Ended before =
      Gyre({"--config", file.path(), "run", GYRE_DEMO_MODEL, "-p", "x", "-n", "1"});  // before the command too
  EXPECT_EQ(before.code, 0);
  EXPECT_THAT(before.text, HasSubstr("seed 3\n"));
}

TEST(SettingsTest, AStrongerSettingExcludesAWeakerOne) {
  const TextFile file("[run]\nfile = \"/nowhere\"\n");
  EXPECT_EQ(RunOne({"--config", file.path()}).code, 0) << "-p is given";
  EXPECT_EQ(RunOne({}, {"GYRE_CLUSTER=127.0.0.1:1"}).code, 0) << "a MODEL is given";
  const Ended by_name = Gyre({"run", "-p", "x", "-n", "1"}, {std::string("GYRE_MODEL=") + GYRE_DEMO_MODEL});
  EXPECT_EQ(by_name.code, 0) << by_name.text;
}

TEST(SettingsTest, AValueForAnotherCommandIsLeftOut) {
  const std::string prompt = "GYRE_PROMPT=What is Gyre?";
  EXPECT_EQ(Gyre({"version"}, {prompt}).code, 0);
  const Ended bench = Gyre({"bench", GYRE_DEMO_MODEL, "-p", "8", "-n", "0", "-r", "1", "-q"}, {prompt});
  EXPECT_EQ(bench.code, 0) << bench.text;
  const Ended inspect = Gyre({"inspect", GYRE_DEMO_MODEL}, {prompt, "GYRE_JSON=maybe"});
  EXPECT_EQ(inspect.code, 2) << "no command takes that: " << inspect.text;
  EXPECT_THAT(inspect.text, HasSubstr("GYRE_JSON"));
  const Ended echo = Gyre({"run", GYRE_DEMO_MODEL, "-n", "0", "--echo"}, {prompt});
  EXPECT_EQ(echo.code, 0);
  EXPECT_THAT(echo.text, HasSubstr("What is Gyre?"));
}

TEST(SettingsTest, MistakesInTheEnvironmentAreNamed) {
  Ended e = RunOne({}, {"GYRE_TEMP=hot"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.text, HasSubstr("GYRE_TEMP"));
  e = RunOne({}, {"GYRE_RUN_TOP_K=-3"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.text, HasSubstr("GYRE_RUN_TOP_K"));
}

TEST(SettingsTest, MistakesInTheFileAreNamedWithTheirLine) {
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {
      {"[run]\n\ntempp = 0\n", ":3: tempp: there is no such flag; did you mean 'temp'?"},
      {"[chatt]\ntemp = 0\n", ":1: there is no command 'chatt'; did you mean 'chat'?"},
      {"[chat]\nsytem = 'x'\n", ":2: sytem: there is no such flag; did you mean 'system'?"},
      {"[run]\ntemp = \n", ":2: "},
      {"[run\n", ":1: "},
      {"temp = 0\n", ":1: 'temp' stands in no section"},
      {"[run]\ntemp = 'hot'\n", ":2: temp: "},
      {"[run]\ntemp = [1, 2]\n", ":2: temp: expected one value"},
      {"[run]\ntemp = 1979-05-27\n", ":2: temp: "},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const TextFile file(c.text);
    const Ended e = RunOne({"--config", file.path()});
    EXPECT_EQ(e.code, 2);
    EXPECT_THAT(e.text, HasSubstr(file.path() + c.says));
  }
  EXPECT_EQ(RunOne({"--config", GYRE_DEMO_MODEL}).code, 2) << "a model is no settings file";
  EXPECT_EQ(RunOne({"--config", "/nowhere/settings"}).code, 2);
  EXPECT_EQ(RunOne({"--config", "/tmp"}).code, 2);
  EXPECT_EQ(RunOne({"--config"}).code, 2);
}

TEST(CommandLineTest, MistakesAreUsageErrorsWithANearName) {
  const std::string model = GYRE_DEMO_MODEL;
  const struct {
    std::vector<std::string> words;
    const char* says;
  } kCases[] = {
      {{"chta"}, "there is no command 'chta'; did you mean 'chat'?"},
      {{"foo"}, "there is no command 'foo'"},
      {{}, "a COMMAND is needed"},
      {{"--verison"}, "there is no flag --verison"},
      {{"help", "rnu"}, "did you mean 'run'?"},
      {{"run", model, "-p", "x", "--tempp", "1"}, "there is no flag --tempp; did you mean '--temp'?"},
      {{"run", model, "-p", "x", "--threads", "0"}, "--threads: '0', expected a whole number from 1 to 4096"},
      {{"run", model, "-p", "x", "--temp", "-1"}, "--temp: '-1', expected a number from 0 to 100"},
      {{"run", model, "-p", "x", "--temp", "nan"}, "--temp"},
      {{"run", model, "-p", "x", "-n", "-5"}, "--n-predict: '-5', expected a whole number of at least -1"},
      {{"run", model, "-p", "x", "--seed", "-7"}, "--seed"},
      {{"run", model, "-p", "x", "--logit-bias", "3"}, "expected ID=VALUE"},
      {{"run", model, "-p", "x", "--system", "y"}, "--chat"},
      {{"run", "-p", "x"}, "a MODEL, --cluster HOST:PORT or --url URL is needed"},
      {{"inspect"}, "a MODEL is needed"},
      {{"drain", "--cluster", "127.0.0.1:1"}, "WORKER"},
      {{"estimate", model, "--nodes", "3,4"}, "'3' is no size"},
      {{"status", "--cluster", "nonsense"}, "--cluster: 'nonsense': expected HOST:PORT"},
      {{"run", "--cluster", ":7070", "-p", "x"}, "--cluster: ':7070': expected HOST:PORT"},
      {{"worker", "--join", "127.0.0.1:99999"}, "the port is 99999"},
      {{"worker", "--join", "127.0.0.1:1", "--memory", "8"}, "'8' is no size"},
      {{"worker", "--join", "127.0.0.1:1", "--layers", "7-0"}, "--layers"},
      {{"completion", "ksh"}, "SHELL"},
  };
  for (const auto& c : kCases) {
    const Ended e = Gyre(c.words);
    EXPECT_EQ(e.code, 2) << e.text;
    EXPECT_THAT(e.text, HasSubstr(c.says));
    EXPECT_LT(e.text.size(), 500u) << e.text;
  }
}

TEST(CommandLineTest, AClusterRefusesWhatItsCoordinatorDecides) {
  const std::vector<std::vector<std::string>> kFlags{{"-c", "50"},    {"-t", "2"},      {"--stages", "2"},
                                                     {"--exact"},     {"--isa", "ref"}, {"--kv-type", "f32"},
                                                     {"--wire", "q8"}};
  for (const auto& flags : kFlags) {
    std::vector<std::string> words{"run", "--cluster", "127.0.0.1:1", "-p", "x"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ended e = Gyre(words);
    EXPECT_EQ(e.code, 2) << flags[0];
    EXPECT_THAT(e.text, HasSubstr("the coordinator decides how the model runs")) << flags[0];
  }
  const Ended e = Gyre({"run", "--cluster", "127.0.0.1:1", "-p", "x"}, {"GYRE_THREADS=2"});
  EXPECT_EQ(e.code, 1) << "the environment is not meant for this command: " << e.text;
}

TEST(CommandLineTest, HelpExplains) {
  const Ended all = Gyre({"--help"});
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.text, HasSubstr("GYRE_LOG"));
  for (const char* command :
       {"run",      "chat",     "serve",  "worker",     "launch",  "status",  "layers",   "resize",
        "drain",    "undrain",  "remove", "estimate",   "inspect", "bench",   "quantize", "convert",
        "tokenize", "template", "logits", "completion", "help",    "version", "pull",     "models"}) {
    EXPECT_THAT(all.text, HasSubstr(std::string("\n  ") + command + " "));
    const Ended own = Gyre({command, "--help"}), by_help = Gyre({"help", command});
    EXPECT_EQ(own.code, 0) << command;
    EXPECT_EQ(own.text, by_help.text);
    EXPECT_THAT(own.text, HasSubstr(std::string("Usage: gyre ") + command));
  }
  EXPECT_EQ(Gyre({"help"}).text, all.text);
  EXPECT_EQ(Gyre({"--version"}).text, Gyre({"version"}).text);
  const Ended man = Gyre({"help", "--man"});
  EXPECT_EQ(man.code, 0);
  EXPECT_THAT(man.text, HasSubstr(".TH GYRE 1"));
  EXPECT_THAT(man.text, HasSubstr("\\-\\-logit\\-bias"));
}

TEST(CommandLineTest, ACommandOfTwoWords) {
  EXPECT_THAT(Gyre({"help", "bench", "serve"}).text, HasSubstr("Usage: gyre bench serve [FLAGS] URL"));
  EXPECT_THAT(Gyre({"bench", "serve", "--help"}).text, HasSubstr("--workload"));
  EXPECT_THAT(Gyre({"bench", "--help"}).text, Not(HasSubstr("--workload")));
  const TextFile file("[\"bench serve\"]\nurl = \"http://127.0.0.1:1\"\n");
  const Ended refused = Gyre({"--config", file.path(), "bench", "serve"});
  EXPECT_EQ(refused.code, 1) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("http://127.0.0.1:1"));
  const Ended wrong = Gyre({"bench", "serve", "http://127.0.0.1:1"}, {"GYRE_BENCH_SERVE_RATE=fast"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("GYRE_BENCH_SERVE_RATE"));
}

TEST(CommandLineTest, BashCompletes) {
  // Names of files complete too, so the folder is empty.
  auto complete = [](const std::string& words, int at) {
    return Shell("source <(\"$gyre\" completion bash); empty=$(mktemp -d); cd $empty; COMP_WORDS=(" + words +
                 "); COMP_CWORD=" + std::to_string(at) + "; _gyre; echo \"${COMPREPLY[*]}\"; rmdir $empty")
        .text;
  };
  EXPECT_EQ(complete("gyre ch", 1), "chat\n");
  EXPECT_EQ(complete("gyre run --tem", 2), "--temp\n");
  EXPECT_EQ(complete("gyre --config x run --kv-type q", 5), "q8_0 q4_0\n");
  EXPECT_EQ(complete("gyre completion f", 2), "fish\n");
  EXPECT_EQ(complete("gyre bench --stre", 2), "--streams\n");
  EXPECT_EQ(complete("gyre bench serv", 2), "serve\n");
  EXPECT_EQ(complete("gyre bench serve --conc", 3), "--concurrency\n");
  EXPECT_EQ(complete("gyre --config x bench serve --workload p", 6), "prefix\n");
  for (const char* shell : {"zsh", "fish"}) {
    const Ended e = Gyre({"completion", shell});
    EXPECT_EQ(e.code, 0);
    EXPECT_THAT(e.text, HasSubstr("logit-bias"));
  }
}

TEST(CommandLineTest, ZshCompletes) {
  if (Shell("command -v zsh").code != 0) GTEST_SKIP() << "there is no zsh";
  // As a script that is sourced, and as a file of $fpath.
  const std::string by = "autoload -Uz compinit; compinit -u -D; ";
  EXPECT_EQ(Shell("zsh -f -c '" + by + "source <(\"$gyre\" completion zsh); print ${_comps[gyre]}'").text, "_gyre\n");
  EXPECT_EQ(Shell("d=$(mktemp -d); \"$gyre\" completion zsh >$d/_gyre; d=$d zsh -f -c 'fpath=($d $fpath); " + by +
                  "print ${_comps[gyre]}'; rm -r $d")
                .text,
            "_gyre\n");
}

TEST(CommandLineTest, FishCompletes) {
  if (Shell("command -v fish").code != 0) GTEST_SKIP() << "there is no fish";
  auto complete = [](const std::string& line) {
    return Shell("\"$gyre\" completion fish | fish --no-config -c 'source; complete -C \"" + line + "\"' | cut -f 1")
        .text;
  };
  EXPECT_EQ(complete("gyre cha"), "chat\n");
  EXPECT_EQ(complete("gyre run --kv-type q"), "q4_0\nq8_0\n");
  EXPECT_THAT(complete("gyre bench serv"), HasSubstr("serve\n"));
  EXPECT_EQ(complete("gyre bench serve --conc"), "--concurrency\n");
  EXPECT_EQ(complete("gyre bench serve --alia"), "") << "a flag of gyre serve";
  EXPECT_EQ(complete("gyre bench --conc"), "") << "a flag of gyre bench serve";
  EXPECT_EQ(complete("gyre serve --alia"), "--alias\n");
  EXPECT_EQ(complete("gyre --config x serve --alia"), "--alias\n");
  EXPECT_EQ(complete("gyre --config x cha"), "chat\n");
  EXPECT_EQ(complete("gyre help r"), "remove\nresize\nrun\n");
}

}  // namespace
}  // namespace gyre
