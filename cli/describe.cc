#include "cli/describe.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "kernels/isa.h"

namespace gyre {
namespace {

constexpr char kPurpose[] = "Gyre runs large language models on the machines you have.";
constexpr char kSettings[] =
    "Every flag can also stand in a settings file (--config FILE; TOML, a section for each command as [run]) or in "
    "the environment, as GYRE_<COMMAND>_<FLAG> or, for every command that has the flag, GYRE_<FLAG>. The command "
    "line is stronger than the environment, and the environment is stronger than the file.";
constexpr char kLog[] = "GYRE_LOG=trace|debug|info|warn|error says how much is logged on stderr.";

// A flag as completions and the manual need it.
struct Flag {
  std::string long_name, short_name;  // without dashes; "" = none
  std::string description, type;      // type "" = takes no value
  std::string standard;               // the value where none is given; "" = the description tells
  std::vector<std::string> choices;   // all values, where they are few
  bool file() const { return type == "FILE" || type == "FOLDER"; }
};

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

struct Described {
  std::string name, summary, usage;
  std::vector<Flag> flags, words;  // words: those without a flag
};

Described Describe(const Command& command) {
  CLI::App app;
  AddCommand(command, &app);
  DescribeCommand(command, &app);
  Described out{.name = command.name, .summary = command.summary, .usage = "gyre " + command.name + " [FLAGS]"};
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
  std::string out = fmt::format("gyre {}: {}\n\nUsage: {}\n", d.name, d.summary, d.usage);
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
  for (const Command& c : Commands()) out += fmt::format("  {:<12}{}\n", c.name, c.summary);
  out +=
      "\nFlags:\n"
      "  -h,--help   show this\n"
      "  --version   show the version\n"
      "  --config FILE\n"
      "              read flags from a settings file\n\n"
      "`gyre help COMMAND` explains a command and its flags.\n\n";
  return out + Wrapped(kSettings, 96) + kLog + "\n";
}

// A text in single quotes for a shell.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

std::vector<std::string> Dashed(const Flag& flag) {
  std::vector<std::string> out{"--" + flag.long_name};
  if (!flag.short_name.empty()) out.push_back("-" + flag.short_name);
  return out;
}

// A command's name as one word.
std::string Dashes(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

// The words that follow a command's name to make another command, as `serve` follows `bench`.
std::string SecondWords(const std::vector<Described>& all, const std::string& name) {
  std::vector<std::string> out;
  for (const Described& d : all) {
    if (d.name.rfind(name + " ", 0) == 0) out.push_back(d.name.substr(name.size() + 1));
  }
  return Join(out);
}

std::string BashScript(const std::vector<Described>& all) {
  std::string out =
      "# bash completion of gyre: source <(gyre completion bash)\n"
      "_gyre() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= flags= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      --config) ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) command=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  ((i + 1 < COMP_CWORD)) && [[ \" $(_gyre_longer) \" == *\" $command-${COMP_WORDS[i+1]} \"* ]] &&\n"
      "    command+=-${COMP_WORDS[i+1]}\n"
      "  COMPREPLY=()\n"
      "  case $command in\n";
  std::vector<std::string> names, longer;  // longer: of two words
  for (const Described& d : all) {
    (d.name.find(' ') == std::string::npos ? names : longer).push_back(Dashes(d.name));
    std::vector<std::string> flags;
    std::string values;
    for (const Flag& f : d.flags) {
      for (const std::string& name : Dashed(f)) flags.push_back(name);
      if (f.type.empty()) continue;
      const std::vector<std::string> dashed = Dashed(f);
      const std::string pattern = dashed.size() == 1 ? dashed[0] : dashed[0] + "|" + dashed[1];
      if (!f.choices.empty()) {
        values += fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n", pattern,
                              Join(f.choices));
      } else if (!f.file()) {
        values += fmt::format("        {}) return ;;\n", pattern);
      } else {
        values += fmt::format("        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", pattern);
      }
    }
    out += fmt::format("    {})\n      flags='{}'\n      case $before in\n{}      esac\n", Dashes(d.name), Join(flags),
                       values);
    if (const std::string next = SecondWords(all, d.name); !next.empty()) {
      out += "      [[ $word != -* && $before == " + d.name + " ]] && COMPREPLY=($(compgen -f -W '" + next +
             "' -- \"$word\")) && return\n";
    }
    if (!d.words.empty() && !d.words[0].choices.empty()) {
      out += fmt::format("      [[ $word != -* ]] && COMPREPLY=($(compgen -W '{}' -- \"$word\")) && return\n",
                         Join(d.words[0].choices));
    }
    if (d.name == "help") {
      out += "      [[ $word != -* ]] && COMPREPLY=($(compgen -W \"$(_gyre_commands)\" -- \"$word\")) && return\n";
    }
    out += "      ;;\n";
  }
  out +=
      "    '') COMPREPLY=($(compgen -W \"$(_gyre_commands) --help --version --config\" -- \"$word\")); return ;;\n"
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "  fi\n"
      "}\n";
  out += fmt::format("_gyre_commands() {{ echo '{}'; }}\n", Join(names));
  out += fmt::format("_gyre_longer() {{ echo '{}'; }}\n", Join(longer));
  return out + "complete -o filenames -F _gyre gyre\n";
}

// The characters [ ] : have a meaning for _arguments.
std::string ZshText(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string ZshScript(const std::vector<Described>& all) {
  std::string out =
      "#compdef gyre\n"
      "# zsh completion of gyre: source <(gyre completion zsh), behind compinit; or gyre completion zsh >_gyre, in a "
      "folder "
      "of $fpath\n"
      "_gyre() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const Described& d : all) {
    if (d.name.find(' ') == std::string::npos) out += "    " + Quoted(d.name + ":" + ZshText(d.summary)) + "\n";
  }
  out +=
      "  )\n"
      "  if ((CURRENT > 3)) && [[ $words[2] == --config ]]; then\n"
      "    words=($words[1] ${words[4,-1]})\n"
      "    ((CURRENT -= 2))\n"
      "  fi\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  local command=$words[1]\n";
  for (const Described& d : all) {
    const std::string next = SecondWords(all, d.name);
    if (next.empty()) continue;
    out += "  if [[ $command == " + d.name + " ]] && ((CURRENT > 2)) && [[ \" " + next +
           " \" == *\" $words[2] \"* ]]; then\n";
    out += "    command+=-$words[2]\n    shift words\n    ((CURRENT--))\n  fi\n";
  }
  out += "  case $command in\n";
  for (const Described& d : all) {
    out += "    " + Dashes(d.name) + ")\n";
    if (const std::string next = SecondWords(all, d.name); !next.empty()) out += "      compadd " + next + "\n";
    out += "      _arguments";
    for (const Flag& f : d.flags) {
      const std::string value = f.type.empty()       ? ""
                                : !f.choices.empty() ? ":value:(" + Join(f.choices) + ")"
                                : f.file()           ? ":file:_files"
                                                     : ":" + ZshText(f.type) + ": ";
      for (const std::string& name : Dashed(f)) {
        out += " \\\n        " + Quoted("*" + name + "[" + ZshText(f.description) + "]" + value);
      }
    }
    if (d.name == "help") out += " '*:command:{_describe command commands}'";
    for (const Flag& w : d.words) {
      if (d.name == "help") break;
      const std::string value = !w.choices.empty() ? "(" + Join(w.choices) + ")" : w.file() ? "_files" : " ";
      out += " \\\n        " + Quoted("*:" + w.long_name + ":" + value);
      break;
    }
    out += "\n      ;;\n";
  }
  // A file of $fpath becomes the function itself; a script that is sourced declares it.
  out +=
      "  esac\n}\n"
      "if [[ $funcstack[1] == _gyre ]]; then\n"
      "  _gyre \"$@\"\n"
      "else\n"
      "  compdef _gyre gyre\n"
      "fi\n";
  return out;
}

std::string FishScript(const std::vector<Described>& all) {
  std::string out =
      "# fish completion of gyre: gyre completion fish >~/.config/fish/completions/gyre.fish\n"
      "complete -c gyre -n '__gyre_is' -l help -d 'show the commands'\n"
      "complete -c gyre -n '__gyre_is' -l version -d 'show the version'\n"
      "complete -c gyre -n '__gyre_is' -l config -r -d 'read flags from a settings file'\n";
  std::string pairs;  // commands of two words
  for (const Described& d : all) {
    if (d.name.find(' ') != std::string::npos) pairs += " '" + d.name + "'";
  }
  out += fmt::format(
      "function __gyre_is\n"
      "  set -l words (commandline -opc)\n"
      "  test \"$words[2]\" = --config; and set words $words[1] $words[4..-1]\n"
      "  set -l name \"$words[2]\"\n"
      "  contains -- \"$words[2] $words[3]\"{}; and set name \"$words[2] $words[3]\"\n"
      "  test \"$name\" = \"$argv\"\n"
      "end\n",
      pairs);
  auto quoted = [](const std::string& text) {
    std::string inside;
    for (char c : text) inside += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return "'" + inside + "'";
  };
  for (const Described& d : all) {
    const size_t space = d.name.find(' ');
    const std::string when = "__gyre_is " + d.name;
    if (space == std::string::npos) {
      out += fmt::format(
          "complete -c gyre -f -n __gyre_is -a {0} -d {1}\ncomplete -c gyre -f -n '__gyre_is help' -a {0} -d {1}\n",
          d.name, quoted(d.summary));
    } else {
      out += fmt::format("complete -c gyre -n '__gyre_is {}' -a {} -d {}\n", d.name.substr(0, space),
                         d.name.substr(space + 1), quoted(d.summary));
    }
    for (const Flag& f : d.flags) {
      out += fmt::format("complete -c gyre -n '{}' -l {}", when, f.long_name);
      if (!f.short_name.empty()) out += " -s " + f.short_name;
      if (!f.choices.empty()) out += " -x -a " + quoted(Join(f.choices));
      if (f.choices.empty() && !f.type.empty()) out += f.file() ? " -r" : " -x";
      out += " -d " + quoted(f.description) + "\n";
    }
    if (!d.words.empty() && !d.words[0].choices.empty()) {
      out += fmt::format("complete -c gyre -f -n '{}' -a {}\n", when, quoted(Join(d.words[0].choices)));
    }
  }
  return out;
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

std::string VersionText() { return fmt::format("gyre {} ({})", GYRE_VERSION, IsaName(DetectIsa())); }

void DescribeCommand(const Command& command, CLI::App* app) {
  app->name("gyre " + command.name);
  static std::string unused;  // settings.h has read it
  app->add_option("--config", unused, "read flags from a settings file")->type_name("FILE");
  app->get_help_ptr()->description("show this");
}

StatusOr<std::string> HelpText(const std::string& name) {
  if (name.empty()) return ProgramHelp();
  const Command* command = FindCommand(name);
  if (command == nullptr) return UnknownCommand(name);
  return CommandHelp(*command);
}

Status UnknownCommand(const std::string& name) {
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
    out += fmt::format(".SS {}\n{}.\n.PP\n.B {}\n", Roff(d.name), Roff(d.summary), Roff(d.usage));
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

std::string CompletionScript(const std::string& shell) {
  std::vector<Described> all;
  for (const Command& command : Commands()) all.push_back(Describe(command));
  return shell == "bash" ? BashScript(all) : shell == "zsh" ? ZshScript(all) : FishScript(all);
}

}  // namespace gyre
