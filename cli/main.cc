// gyre: one program with many commands.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cli/active_waiting.h"
#include "cli/command_line.h"
#include "cli/describe.h"
#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "cli/settings.h"

namespace gyre {
namespace {

// A parse error of CLI11 in the words of the flags.
Status Explain(const CLI::ParseError& error, const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* o : app.get_options()) {
    for (const std::string& name : o->get_lnames()) flags.push_back("--" + name);
  }
  const std::vector<std::string> left = app.remaining();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !left.empty()) {
    const std::string& word = left.front();
    const std::string name = word.substr(0, word.find('='));
    if (word.size() < 2 || word[0] != '-') return UsageError("'{}' is one word too many", word);
    return UsageError("there is no flag {}{}", name, DidYouMean(name, flags));
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
  return UsageError("{}", text);
}

Status PrintHelp(const std::string& command) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, HelpText(command));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

Status RunCommandLine(const CommandLine& line) {
  const Command* command = FindCommand(line.command);
  if (command == nullptr) return UnknownCommand(line.command);
  CLI::App app;
  const auto action = AddCommand(*command, &app);
  DescribeCommand(*command, &app);
  GYRE_ASSIGN_OR_RETURN(std::vector<std::string> words, SettingsWords(*command, line));
  words.insert(words.end(), line.words.begin(), line.words.end());
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return PrintHelp(command->name);
  } catch (const CLI::ParseError& e) {
    return UsageError("{}\n`gyre help {}` explains the command.", Message(Explain(e, app)), command->name);
  }
  return action();
}

Status RunProgram(const std::vector<std::string>& arguments) {
  GYRE_ASSIGN_OR_RETURN(const CommandLine line, CutCommandLine(arguments));
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
  return RunCommandLine(line);
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

int main(int argc, char** argv) {
  // This comes before anything is read, as it may start the program anew, and a --config may be a pipe.
  const auto computes = [](std::string_view word) {
    return word == "run" || word == "chat" || word == "logits" || word == "bench" || word == "serve" ||
           word == "worker";
  };
  if (std::any_of(argv + std::min(argc, 1), argv + argc, computes)) gyre::LimitActiveWaiting(argv);
  try {
    return gyre::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gyre: stopped by an unexpected error: %s\n", e.what());
    return gyre::kExitFailed;
  }
}
