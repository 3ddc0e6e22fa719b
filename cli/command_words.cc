#include "cli/command_words.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "cli/exit_code.h"
#include "cli/foreign.h"

namespace gyre {

CLI::Option* CommandFlags::Find(const std::string& name) {
  return name == "help" || name.empty() ? nullptr : app_.get_option_no_throw("--" + name);
}

std::vector<std::string> CommandFlags::Names() {
  std::vector<std::string> names;
  for (CLI::Option* o : All()) {
    if (!o->get_lnames().empty() && Find(o->get_lnames()[0]) != nullptr) names.push_back(o->get_lnames()[0]);
  }
  return names;
}

std::vector<CLI::Option*> CommandFlags::In(const std::string& word, bool* next) {
  std::vector<CLI::Option*> out;
  *next = false;
  if (word.rfind("--", 0) == 0) {
    CLI::Option* o = FindWord(word.substr(0, word.find('=')));
    if (o == nullptr) return out;
    *next = o->get_expected_max() > 0 && word.find('=') == std::string::npos;
    return {o};
  }
  for (size_t at = 1; word[0] == '-' && at < word.size(); ++at) {
    CLI::Option* o = FindWord(std::string("-") + word[at]);
    if (o == nullptr) break;
    out.push_back(o);
    if (o->get_expected_max() == 0) continue;
    *next = at + 1 == word.size();
    break;
  }
  return out;
}

std::set<CLI::Option*> CommandFlags::Given(const std::vector<std::string>& words) {
  std::set<CLI::Option*> given;
  size_t bare = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      bare += words.size() - i - 1;
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      ++bare;
      continue;
    }
    bool next = false;
    const std::vector<CLI::Option*> in = In(word, &next);
    given.insert(in.begin(), in.end());
    if (next) ++i;
  }
  for (CLI::Option* o : All()) {
    if (bare == 0) break;
    if (!o->get_positional() || given.count(o) > 0) continue;
    given.insert(o);
    bare -= std::min(bare, static_cast<size_t>(o->get_expected_max()));
  }
  return given;
}

std::string CommandFlags::Refusal(CLI::Option* option, const std::string& value) const {
  CLI::App alone;
  const std::function<Status()> run = command_.add(&alone);  // owns what the flags are written to
  for (CLI::Option* o : alone.get_options()) {
    o->required(false);
    const std::set<CLI::Option*> needs = o->get_needs();
    for (CLI::Option* n : needs) o->remove_needs(n);
  }
  std::vector<std::string> words = Words(option, value);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    alone.parse(words);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return "";
}

std::vector<std::string> CommandFlags::Words(CLI::Option* option, const std::string& value) {
  const std::string flag = "--" + option->get_lnames()[0];
  if (option->get_expected_max() == 0) return {flag + "=" + value};
  return {flag, value};
}

StatusOr<CommandLine> CutCommandLine(const std::vector<std::string>& words) {
  CommandLine out;
  std::unique_ptr<CommandFlags> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--config" || word.rfind("--config=", 0) == 0) {
      const bool inside = word != "--config";
      if (!inside && i + 1 == words.size()) return UsageError("--config: a FILE is needed");
      out.config = inside ? word.substr(sizeof "--config=" - 1) : words[++i];
      if (out.config.empty()) return UsageError("--config: a FILE is needed");
      continue;
    }
    if (out.command.empty()) {
      if (!word.empty() && word[0] != '-') {
        out.command = OurCommand(word);
        if (out.command != word) out.said = word;
        if (const Command* command = FindCommand(out.command)) flags = std::make_unique<CommandFlags>(*command);
      } else {
        out.before.push_back(word);
      }
      continue;
    }
    // "bench serve" is a command of two words.
    if (const Command* longer = out.words.empty() ? FindCommand(OurCommand(out.command + " " + word)) : nullptr) {
      const std::string said = (out.said.empty() ? out.command : out.said) + " " + word;
      out.said = longer->name == said ? "" : said;
      out.command = longer->name;
      flags = std::make_unique<CommandFlags>(*longer);
      continue;
    }
    out.words.push_back(word);
    if (word == "--") {
      out.words.insert(out.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    bool next = false;  // the value of a flag may look like a flag
    if (flags != nullptr && word.size() > 1) flags->In(word, &next);
    if (next && i + 1 < words.size()) out.words.push_back(words[++i]);
  }
  return out;
}

}  // namespace gyre
