#include "cli/describe.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/described.h"
#include "cli/exit_code.h"
#include "cli/foreign.h"
#include "cli/nearest.h"
#include "kernels/isa.h"
#include "runtime/devices.h"

namespace gyre {
namespace {

constexpr char kPurpose[] = "Gyre runs large language models on the machines you have.";
constexpr char kSettings[] =
    "Every flag can also stand in a settings file (--config FILE; TOML, a section for each command as [run]) or in "
    "the environment, as GYRE_<COMMAND>_<FLAG> or, for every command that has the flag, GYRE_<FLAG>. The command "
    "line is stronger than the environment, and the environment is stronger than the file.";
constexpr char kLog[] = "GYRE_LOG=trace|debug|info|warn|error says how much is logged on stderr.";

std::vector<std::string> ChoicesIn(const std::string& type) {
  std::vector<std::string> out;
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return out;
  for (size_t at = open + 1; at < close;) {
    const size_t end = std::min(type.find(',', at), close);
    out.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string Wrapped(const std::string& text, size_t width) {
  std::string out;
  size_t column = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > 0 && column + 1 + end - at > width) out += '\n', column = 0;
    if (column > 0) out += ' ', ++column;
    out += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return out + '\n';
}

// An entry of a list: a head with its text beside it, or below it if the head is long.
std::string Entry(const std::string& head, const std::string& text) {
  constexpr size_t kHead = 26, kWidth = 70;
  std::string out = "  " + head;
  std::string rest = Wrapped(text, kWidth);
  bool first = head.size() + 2 < kHead;
  if (!first) out += '\n';
  for (size_t at = 0; at < rest.size();) {
    const size_t end = rest.find('\n', at) + 1;
    out += first ? std::string(kHead - head.size() - 2, ' ') : std::string(kHead, ' ');
    out += rest.substr(at, end - at);
    first = false;
    at = end;
  }
  return out;
}

std::string FlagText(const Flag& flag) {
  std::string text = flag.description;
  std::string choices;
  for (const std::string& choice : flag.choices) choices += (choices.empty() ? "" : ", ") + choice;
  if (!choices.empty()) text += ": " + choices;
  if (!flag.standard.empty()) text += " (default " + flag.standard + ")";
  return text;
}

std::string CommandHelp(const Command& command) {
  const Described d = Describe(command);
  std::string out = fmt::format("gyre {}: {}\n\nUsage: {}\nExample: {}\n", d.name, d.summary, d.usage, d.example);
  if (!d.words.empty()) out += '\n';
  for (const Flag& word : d.words) out += Entry(word.long_name, FlagText(word));
  out += "\nFlags:\n";
  for (const Flag& f : d.flags) {
    const std::string head = (f.short_name.empty() ? "    " : "-" + f.short_name + ", ") + "--" + f.long_name;
    out += Entry(head + (f.type.empty() ? "" : " " + f.type), FlagText(f));
  }
  return out + "\n" + Wrapped(kSettings, 96) + kLog + "\n";
}

std::string ProgramHelp() {
  std::string out = fmt::format("{}\n\nUsage: gyre COMMAND [FLAGS]\n\nCommands:\n", kPurpose);
  for (const Command& c : Commands()) out += fmt::format("  {:<14}{}\n", c.name, c.summary);
  out +=
      "\nNames of other programs do the same: list (models), rm (models rm), show (inspect), ps (status),\n"
      "download (pull).\n"
      "\nFlags:\n"
      "  -h,--help     show this\n"
      "  --version     show the version\n"
      "  --config FILE read flags from a settings file\n\n"
      "`gyre help COMMAND` explains a command and its flags.\n\n";
  return out + Wrapped(kSettings, 96) + kLog + "\n";
}

// Text for roff: a dash is a minus, and no line begins with a request.
std::string Roff(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out[0] == '.' || out[0] == '\'' ? "\\&" + out : out;
}

}  // namespace

Described Describe(const Command& command) {
  CLI::App app;
  AddCommand(command, &app);
  DescribeCommand(command, &app);
  Described out{.name = command.name,
                .summary = command.summary,
                .usage = "gyre " + command.name + " [FLAGS]",
                .example = command.example};
  for (const CLI::Option* o : app.get_options()) {
    Flag flag{.description = o->get_description()};
    if (o->get_expected_max() > 0) {
      const std::string type = o->get_type_name();
      flag.choices = ChoicesIn(type);
      flag.type = flag.choices.empty() ? type : "CHOICE";
      if (flag.type == "FLOAT") flag.type = "X";
      if (flag.type.empty()) flag.type = "TEXT";
      const std::string standard = o->get_default_str();
      if (!standard.empty() && standard[0] != '[') flag.standard = standard;
    }
    if (!o->get_lnames().empty()) flag.long_name = o->get_lnames()[0];
    if (!o->get_snames().empty()) flag.short_name = o->get_snames()[0];
    if (o->get_positional()) {
      Flag word = flag;
      word.long_name = o->get_name(true, false);
      out.usage += o->get_required() ? " " + word.long_name : " [" + word.long_name + "]";
      out.words.push_back(word);
    }
    if (!flag.long_name.empty()) out.flags.push_back(flag);
  }
  return out;
}

std::string VersionText() {
  std::string gpus;
  for (const DeviceKind& kind : DeviceKinds()) {
    if (!kind.built.empty()) gpus += ", " + kind.built;
  }
  return fmt::format("gyre {} ({}{})", GYRE_VERSION, IsaName(DetectIsa()), gpus.empty() ? ", no CUDA" : gpus);
}

void DescribeCommand(const Command& command, CLI::App* app) {
  app->name("gyre " + command.name);
  static std::string unused;  // settings.h has read it
  app->add_option("--config", unused, "read flags from a settings file")->type_name("FILE");
  app->get_help_ptr()->description("show this");
}

StatusOr<std::string> HelpText(const std::string& name) {
  if (name.empty()) return ProgramHelp();
  const Command* command = FindCommand(OurCommand(name));
  if (command == nullptr) return UnknownCommand(name);
  return CommandHelp(*command);
}

Status UnknownCommand(const std::string& name) {
  GYRE_RETURN_IF_ERROR(CheckForeignCommand(name));
  std::string longer;
  for (const std::string& command : CommandNames()) {
    if (command.rfind(name + " ", 0) == 0) longer += (longer.empty() ? "`gyre " : ", `gyre ") + command + "`";
  }
  if (!longer.empty()) return UsageError("gyre {}: expected one of {}", name, longer);
  return UsageError("there is no command '{}'{}\n`gyre --help` lists the commands.", name,
                    DidYouMean(name, CommandNames()));
}

std::string ManualPage() {
  std::string out = fmt::format(
      ".TH GYRE 1 \"\" \"gyre {}\" \"User Commands\"\n.SH NAME\ngyre \\- {}\n.SH SYNOPSIS\n.B gyre\n.I COMMAND\n"
      "[FLAGS]\n.SH DESCRIPTION\n{}\n.PP\n{}\n.SH COMMANDS\n",
      GYRE_VERSION, "run large language models on several machines", Roff(kPurpose), Roff(kSettings));
  for (const Command& command : Commands()) {
    const Described d = Describe(command);
    out += fmt::format(".SS {}\n{}.\n.PP\n.B {}\n.PP\nExample: {}\n", Roff(d.name), Roff(d.summary), Roff(d.usage),
                       Roff(d.example));
    for (const Flag& f : d.flags) {
      std::string head = f.short_name.empty() ? "" : "-" + f.short_name + ", ";
      head += "--" + f.long_name;
      out += fmt::format(".TP\n.B {}{}\n{}\n", Roff(head), f.type.empty() ? "" : " " + Roff(f.type), Roff(FlagText(f)));
    }
  }
  out += fmt::format(".SH ENVIRONMENT\n.TP\n.B GYRE_LOG\n{}\n", Roff(kLog));
  return out +
         ".SH EXIT STATUS\n.TP\n.B 0\nThe command did what it was asked; serve, worker and launch also after a signal "
         "ended them.\n.TP\n.B 1\nThe command failed.\n.TP\n.B 2\nThe command line, the environment or the settings "
         "file is wrong.\n.TP\n.B 130\nA signal ended the command.\n";
}

}  // namespace gyre
