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
      {{"serve", model, "--cluster"}, "--cluster: a value is missing; expected HOST:PORT"},
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

// What people type from habit: flags of llama.cpp, ollama, vLLM and others do the same here, or say what does.
TEST(ForeignTest, FlagsThatMeanTheSameDoTheSame) {
  const std::string model = GYRE_DEMO_MODEL;
  const std::string plain = Gyre({"run", model, "-p", "Once", "-n", "4", "--temp", "0", "-q"}).text;
  ASSERT_FALSE(plain.empty());
  for (const auto& flags : std::vector<std::vector<std::string>>{
           {"--predict", "4", "--temperature", "0"},
           {"--n_predict", "4", "--temperature=0"},
           {"--max-tokens", "4", "--temp", "0", "--ctx-size", "64", "--n-threads", "1", "-b", "64", "-ub", "32"},
           {"-n", "4", "--temp", "0", "-ngl", "99", "-fa", "on", "-fa", "--mlock", "--jinja", "-no-cnv", "-v"},
           {"-n", "4", "--temp", "0", "--draft-max", "4"},
           {"-n", "4", "--temp", "0", "-ctk", "f16", "-ctv", "f16", "--max-model-len", "64", "--dtype", "auto"}}) {
    std::vector<std::string> words{"run", "-m", model, "-p", "Once", "-q"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ended e = Gyre(words);
    EXPECT_EQ(e.code, 0) << e.text;
    EXPECT_EQ(e.text, plain) << flags[0];
  }
  const Ended told = Gyre({"run", model, "-p", "x", "-n", "1", "--n-gpu-layers", "99"});
  EXPECT_EQ(told.code, 0);
  EXPECT_THAT(told.text, HasSubstr("--n-gpu-layers has no effect: --device says what a process computes on"));
  // A value may look like a flag.
  EXPECT_THAT(Gyre({"run", model, "-p", "-ngl", "-n", "0", "--echo", "-q"}).text, HasSubstr("-ngl"));
}

TEST(ForeignTest, FlagsThatMeanSomethingElseSayWhat) {
  const std::string model = GYRE_DEMO_MODEL;
  const struct {
    std::vector<std::string> words;
    const char* says;
  } kCases[] = {
      {{"serve", model, "--host", "0.0.0.0"},
       "--http 0.0.0.0:8080: this address is not loopback, so it needs --tls-cert"},
      {{"serve", model, "--host=::", "--port=9"}, "--http [::]:9: this address is not loopback"},
      {{"serve", model, "--port", "x"}, "--port: 'x', expected a whole number from 0 to 65535"},
      {{"serve", model, "--port", "1", "--http", "127.0.0.1:1"}, "--port can't go with --http"},
      {{"serve", model, "--api-key", "secret"}, "expected --api-keys FILE"},
      {{"serve", model, "--temperature", "1"}, "--temperature: each request to the server says this for itself"},
      {{"serve", model, "--tensor-parallel-size", "2"}, "Gyre shares a model by its layers"},
      {{"serve", model, "-tp", "1", "--port", "y"}, "--port: 'y'"},
      {{"serve", model, "--no-http"}, "expected --http off"},
      {{"serve", model, "--role", "master"}, "`gyre serve --cluster` is the master"},
      {{"worker", "--port", "1"}, "--listen HOST:PORT"},
      {{"chat", model, "--host", "x"}, "--url http://HOST:PORT asks a server"},
      {{"run", model, "-p", "x", "-cnv"}, "`gyre chat MODEL` is a conversation"},
      {{"run", model, "-p", "x", "--mirostat", "2"}, "expected one of their flags"},
      {{"run", model, "-p", "x", "--speculative-config", "{}"}, "--draft-model FILE names a model for it"},
      {{"run", model, "-p", "x", "-ctk", "q5_1"}, "--kv-type: "},
      {{"run", model, "-p", "x", "-ngl"}, "-ngl: a value is needed"},
      {{"run", "--cluster", "127.0.0.1:1", model}, "--model can't go with --cluster"},
      {{"stop", model}, "Ctrl-C or SIGTERM ends `gyre serve`"},
      {{"create", "x", "-f", "Modelfile"}, "there is no Modelfile"},
      {{"push", "x"}, "Gyre uploads nothing"},
      {{"generate", model}, "`gyre run MODEL -p TEXT` continues a text"},
      {{"ps"}, "`gyre ps` is `gyre status`; `gyre help status` explains the command"},
      {{"model", "rm"}, "`gyre model rm` is `gyre models rm`; `gyre help models rm` explains the command"},
  };
  for (const auto& c : kCases) {
    const Ended e = Gyre(c.words);
    EXPECT_EQ(e.code, 2) << e.text;
    EXPECT_THAT(e.text, HasSubstr(c.says));
    EXPECT_THAT(e.text, Not(HasSubstr("secret")));
    EXPECT_LT(e.text.size(), 500u) << e.text;
  }
  const TextFile file("[run]\ntemperature = 0\n");
  EXPECT_THAT(RunOne({"--config", file.path()}).text,
              HasSubstr("temperature: there is no such flag; did you mean 'temp'?"));
}

TEST(ForeignTest, CommandsOfOtherProgramsAreOurs) {
  EXPECT_EQ(Gyre({"list"}).text, Gyre({"models"}).text);
  EXPECT_EQ(Gyre({"models", "ls"}).text, Gyre({"models"}).text);
  EXPECT_EQ(Gyre({"show", GYRE_DEMO_MODEL}).text, Gyre({"inspect", GYRE_DEMO_MODEL}).text);
  EXPECT_EQ(Gyre({"rm", "nobody/nothing"}).text, Gyre({"models", "rm", "nobody/nothing"}).text);
  EXPECT_EQ(Gyre({"help", "rm"}).text, Gyre({"help", "models", "rm"}).text);
}

TEST(ForeignTest, AWordBehindTheModelIsAQuestion) {
  const std::string model = GYRE_DEMO_MODEL;
  const Ended asked = Gyre({"run", model, "--chat", "-p", "What is Gyre?", "--temp", "0", "-q"});
  EXPECT_EQ(asked.code, 0);
  EXPECT_EQ(Gyre({"run", model, "What is Gyre?", "--temp", "0", "-q"}).text, asked.text);
  EXPECT_EQ(Gyre({"run", model, "What", "is", "Gyre?", "--temp", "0", "-q"}).text, asked.text);
  EXPECT_EQ(Gyre({"run", "--temp", "0", "-q", "-m", model, "What is Gyre?"}).text, asked.text);
  const Ended refused = Gyre({"run", "--cluster", "127.0.0.1:1", "What is Gyre?"});
  EXPECT_EQ(refused.code, 1) << "it is no MODEL: " << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("no coordinator answers at 127.0.0.1:1"));
  EXPECT_EQ(Gyre({"run", model, "x", "-p", "x"}).code, 2);
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
  for (const char* longest : {"grammar check", "parse-answer"}) {
    EXPECT_THAT(all.text, HasSubstr(std::string("\n  ") + longest + " ")) << "the name and its text are two words";
  }
  for (const char* command :
       {"run",     "chat",       "serve",    "worker",   "launch",     "status",  "layers",   "resize",
        "drain",   "undrain",    "remove",   "estimate", "inspect",    "bench",   "quantize", "convert",
        "imatrix", "tokenize",   "template", "logits",   "completion", "help",    "version",  "pull",
        "models",  "perplexity", "eval",     "batch",    "diff",       "certify", "export"}) {
    EXPECT_THAT(all.text, HasSubstr(std::string("\n  ") + command + " "));
    const Ended own = Gyre({command, "--help"}), by_help = Gyre({"help", command});
    EXPECT_EQ(own.code, 0) << command;
    EXPECT_EQ(own.text, by_help.text);
    EXPECT_THAT(own.text, HasSubstr(std::string("Usage: gyre ") + command));
    EXPECT_THAT(own.text, ::testing::ContainsRegex(std::string("\nExample: .*gyre ") + command));
    // What happens without the flag is said wherever a flag takes a number.
    for (size_t at = own.text.find("\n  "); at != std::string::npos; at = own.text.find("\n  ", at + 1)) {
      const std::string line = own.text.substr(at + 1, own.text.find('\n', at + 1) - at - 1);
      const size_t type = line.find("--") == std::string::npos ? line.npos : line.find(' ', line.find("--"));
      if (type == line.npos || std::string("NXSPK").find(line[type + 1]) == std::string::npos) continue;
      if (type + 2 < line.size() && line[type + 2] != ' ' && line.compare(type + 1, 4, "SIZE") != 0) continue;
      const size_t next = std::min(own.text.find("\n      --", at + 1), own.text.find("\n  -", at + 1));
      EXPECT_THAT(own.text.substr(at, next - at), HasSubstr("(default")) << command;
    }
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
  EXPECT_EQ(complete("gyre --config x run --kv-type q", 5), "q8_0 q4_0_plain q4_0\n");
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
  EXPECT_EQ(complete("gyre run --kv-type q"), "q4_0\nq4_0_plain\nq8_0\n");
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
