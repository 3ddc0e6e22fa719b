// gyre: one program with many commands.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/active_waiting.h"
#include "cli/command_line.h"
#include "cli/command_words.h"
#include "cli/describe.h"
#include "cli/exit_code.h"
#include "cli/foreign.h"
#include "cli/last_words.h"
#include "cli/nearest.h"
#include "cli/settings.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// A parse error of CLI11 in the words of the flags.
Status Explain(const CLI::ParseError& error, const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* o : app.get_options()) {
    for (const std::string& name : o->get_lnames()) flags.push_back("--" + name);
  }
  // A flag that there is not explains the other mistakes, as its value was taken for something else.
  const std::vector<std::string> left = app.remaining();
  for (const std::string& word : left) {
    const std::string name = word.substr(0, word.find('='));
    if (word.size() >= 2 && word[0] == '-') return UsageError("there is no flag {}{}", name, DidYouMean(name, flags));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !left.empty()) {
    return UsageError("'{}' is one word too many", left.front());
  }
  std::string text = error.what();
  if (error.get_name() == "ExcludesError") {
    const size_t at = text.find(" excludes ");
    text = text.substr(0, at) + " can't go with " + text.substr(at + sizeof " excludes " - 1);
    if (text.find("--url") != std::string::npos) {
      text += ": the server decides how the model runs";
    } else if (text.find("--cluster") != std::string::npos) {
      text += ": the coordinator decides how the model runs";
    }
  }
  // "--cluster: 1 required HOST:PORT missing"
  const size_t needs = text.find(": 1 required ");
  if (const std::string_view missing = " missing"; needs != std::string::npos && text.ends_with(missing)) {
    const size_t kind = needs + std::string_view(": 1 required ").size();
    text = fmt::format("{}: a value is missing; expected {}", text.substr(0, needs),
                       text.substr(kind, text.size() - missing.size() - kind));
  }
  return UsageError("{}", text);
}

Status PrintHelp(const std::string& command) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, HelpText(command));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

// The same usage error, and where to read on.
Status SeeHelp(const Status& status, const CommandLine& line) {
  const std::string same = line.said.empty() ? "" : fmt::format("`gyre {}` is `gyre {}`; ", line.said, line.command);
  return UsageError("{}\n{}`gyre help {}` explains the command.", Message(status), same, line.command);
}

Status RunCommandLine(CommandLine line) {
  const Command* command = FindCommand(line.command);
  if (command == nullptr) return UnknownCommand(line.command);
  CLI::App app;
  const auto action = AddCommand(*command, &app);
  DescribeCommand(*command, &app);
  const auto translated = Translate(*command, line.words);
  if (!translated.ok()) return SeeHelp(translated.status(), line);
  line.words = translated->words;
  GYRE_ASSIGN_OR_RETURN(std::vector<std::string> words, SettingsWords(*command, line));
  words.insert(words.end(), line.words.begin(), line.words.end());
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return PrintHelp(command->name);
  } catch (const CLI::ParseError& e) {
    return SeeHelp(Explain(e, app), line);
  }
  const CLI::Option* quiet = app.get_option_no_throw("--quiet");
  for (const std::string& note : translated->notes) {
    if (quiet == nullptr || quiet->count() == 0) std::fprintf(stderr, "gyre: %s\n", note.c_str());
  }
  return action();
}

Status RunProgram(const std::vector<std::string>& arguments) {
  GYRE_ASSIGN_OR_RETURN(CommandLine line, CutCommandLine(arguments));
  for (const std::string& word : line.before) {
    if (word == "--version") {
      std::printf("%s\n", VersionText().c_str());
      return absl::OkStatus();
    }
    if (word == "-h" || word == "--help") {
      return PrintHelp(line.command);
    }
    return UsageError("there is no flag {} before the command\n`gyre --help` lists the commands.", word);
  }
  if (line.command.empty()) return UsageError("a COMMAND is needed\n`gyre --help` lists the commands.");
  return RunCommandLine(std::move(line));
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  Status status = RunProgram(arguments);
  if (std::fflush(stdout) != 0 && status.ok()) status = Unavailable("stdout: {}", std::strerror(errno));
  if (status.ok() && std::ferror(stdout) != 0) status = Unavailable("stdout can't be written");
  if (!status.ok()) std::fprintf(stderr, "gyre: %s\n", Message(status).c_str());
  return ExitCode(status);
}

}  // namespace
}  // namespace gyre

// Before the initializers of the libraries, whose exceptions nobody catches.
__attribute__((section(".preinit_array"), used)) void (*const install_last_words)() = gyre::InstallLastWords;

int main(int argc, char** argv) {
  // A file that grows beyond `ulimit -f` is an error of the write, with a sentence, and no end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  // This comes before anything is read, as it may start the program anew, and a --config may be a pipe.
  const auto computes = [](std::string_view word) {
    return word == "run" || word == "chat" || word == "logits" || word == "bench" || word == "serve" ||
           word == "worker" || word == "perplexity" || word == "eval" || word == "diff" || word == "certify";
  };
  if (std::any_of(argv + std::min(argc, 1), argv + argc, computes)) gyre::LimitActiveWaiting(argv);
  try {
    return gyre::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("gyre: stopped, as no memory is left for it\n", stderr);
    return gyre::kExitFailed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gyre: stopped by an unexpected error: %s\n", e.what());
    return gyre::kExitFailed;
  }
}
