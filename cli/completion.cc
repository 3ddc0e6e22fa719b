// Completion scripts for bash, zsh and fish.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/describe.h"
#include "cli/described.h"
#include "fmt/core.h"

namespace gyre {
namespace {

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

}  // namespace

std::string CompletionScript(const std::string& shell) {
  std::vector<Described> all;
  for (const Command& command : Commands()) all.push_back(Describe(command));
  return shell == "bash" ? BashScript(all) : shell == "zsh" ? ZshScript(all) : FishScript(all);
}

}  // namespace gyre
