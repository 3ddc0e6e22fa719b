#include "cli/settings.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>

#include "cli/exit_code.h"
#include "cli/nearest.h"

namespace gyre {
namespace {

constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// The flags of one command, as its app declares them.
class Flags {
 public:
  explicit Flags(const Command& command) : command_(command) { command.add(&app_); }

  // Finds a flag by its long name without dashes; nullptr = unknown, or not allowed in settings.
  CLI::Option* Find(const std::string& name) {
    return name == "help" || name.empty() ? nullptr : app_.get_option_no_throw("--" + name);
  }
  CLI::Option* FindWord(const std::string& word) { return app_.get_option_no_throw(word); }
  std::vector<CLI::Option*> All() { return app_.get_options(); }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (CLI::Option* o : All()) {
      if (!o->get_lnames().empty() && Find(o->get_lnames()[0]) != nullptr) names.push_back(o->get_lnames()[0]);
    }
    return names;
  }
  // The reason why the flag can't have the value; "" = it can.
  std::string Refusal(CLI::Option* option, const std::string& value) const {
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
  static std::vector<std::string> Words(CLI::Option* option, const std::string& value) {
    const std::string flag = "--" + option->get_lnames()[0];
    if (option->get_expected_max() == 0) return {flag + "=" + value};
    return {flag, value};
  }

 private:
  const Command& command_;
  CLI::App app_;
};

// The flags in one word, as --temp=1 or -qn; unknown ones are left out. next: the following word is the value of the
// last flag.
std::vector<CLI::Option*> FlagsIn(Flags* flags, const std::string& word, bool* next) {
  std::vector<CLI::Option*> out;
  *next = false;
  if (word.rfind("--", 0) == 0) {
    CLI::Option* o = flags->FindWord(word.substr(0, word.find('=')));
    if (o == nullptr) return out;
    *next = o->get_expected_max() > 0 && word.find('=') == std::string::npos;
    return {o};
  }
  for (size_t at = 1; word[0] == '-' && at < word.size(); ++at) {
    CLI::Option* o = flags->FindWord(std::string("-") + word[at]);
    if (o == nullptr) break;
    out.push_back(o);
    if (o->get_expected_max() == 0) continue;
    *next = at + 1 == word.size();
    break;
  }
  return out;
}

// The flags that words give; a word without a dash gives the flag that it stands for.
std::set<CLI::Option*> Given(Flags* flags, const std::vector<std::string>& words) {
  std::set<CLI::Option*> given;
  bool bare = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      bare |= i + 1 < words.size();
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      bare = true;
      continue;
    }
    bool next = false;
    const std::vector<CLI::Option*> in = FlagsIn(flags, word, &next);
    given.insert(in.begin(), in.end());
    if (next) ++i;
  }
  if (bare) {
    for (CLI::Option* o : flags->All()) {
      if (o->get_positional()) given.insert(o);
    }
  }
  return given;
}

std::string EnvironmentName(const std::string& name) {
  std::string out;
  for (char c : name)
    out += c == '-' || c == ' ' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// A flag's value in one level of settings.
struct Setting {
  CLI::Option* option;
  std::vector<std::string> values;
};

// Takes settings in, unless a stronger level gave the flag or one that excludes it.
class Merger {
 public:
  explicit Merger(std::set<CLI::Option*> given) : given_(std::move(given)) {}

  bool Open(CLI::Option* option) const {
    if (given_.count(option) > 0) return false;
    for (CLI::Option* other : option->get_excludes()) {
      if (given_.count(other) > 0) return false;
    }
    return true;
  }
  void AddLevel(const std::vector<Setting>& level) {
    std::vector<CLI::Option*> added;
    for (const Setting& s : level) {
      if (!Open(s.option)) continue;
      for (const std::string& value : s.values) {
        for (std::string& word : Flags::Words(s.option, value)) words_.push_back(std::move(word));
      }
      added.push_back(s.option);
    }
    given_.insert(added.begin(), added.end());
  }
  bool given(CLI::Option* option) const { return given_.count(option) > 0; }
  std::vector<std::string> TakeWords() { return std::move(words_); }

 private:
  std::set<CLI::Option*> given_;
  std::vector<std::string> words_;
};

bool AnotherCommandTakes(const Command& command, const std::string& flag, const std::string& value) {
  for (const Command& other : Commands()) {
    if (other.name == command.name) continue;
    Flags flags(other);
    CLI::Option* o = flags.Find(flag);
    if (o != nullptr && flags.Refusal(o, value).empty()) return true;
  }
  return false;
}

// GYRE_<COMMAND>_<FLAG> where own, else GYRE_<FLAG>.
StatusOr<std::vector<Setting>> ReadEnvironment(const Command& command, Flags* flags, const Merger& merger, bool own) {
  std::vector<Setting> out;
  for (const std::string& name : flags->Names()) {
    CLI::Option* option = flags->Find(name);
    const std::string variable = "GYRE_" + (own ? EnvironmentName(command.name) + "_" : "") + EnvironmentName(name);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0' || !merger.Open(option)) continue;
    if (const std::string why = flags->Refusal(option, value); !why.empty()) {
      if (!own && AnotherCommandTakes(command, name, value)) continue;
      return UsageError("{}: {}", variable, why);
    }
    out.push_back({option, {value}});
  }
  return out;
}

StatusOr<std::string> ReadSettings(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxSettingsBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.gcount() == 0 && !in.eof()) return UsageError("--config {}: the file can't be read", path);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxSettingsBytes) return UsageError("--config {}: more than 1 MiB, expected settings", path);
  return text;
}

StatusOr<std::string> Text(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  return UsageError("{}: expected a text, a number, true, false, or a list of texts or numbers", where);
}

// The values of one [command] section. Names are checked in all sections, values in the chosen command's.
Status ReadSection(const toml::table& table, const std::string& path, Flags* flags, const Merger* merger,
                   std::vector<Setting>* out) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = fmt::format("{}:{}: {}", path, key.source().begin.line, name);
    CLI::Option* option = flags->Find(name);
    if (option == nullptr) return UsageError("{}: there is no such flag{}", where, DidYouMean(name, flags->Names()));
    if (merger == nullptr) continue;
    Setting setting{option, {}};
    if (const toml::array* list = node.as_array()) {
      if (option->get_expected_max() <= 1) return UsageError("{}: expected one value, not a list", where);
      for (const toml::node& element : *list) {
        GYRE_ASSIGN_OR_RETURN(setting.values.emplace_back(), Text(element, where));
      }
    } else {
      GYRE_ASSIGN_OR_RETURN(setting.values.emplace_back(), Text(node, where));
    }
    for (const std::string& value : setting.values) {
      if (const std::string why = flags->Refusal(option, value); !why.empty()) return UsageError("{}: {}", where, why);
    }
    out->push_back(std::move(setting));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Setting>> ReadFileSettings(const std::string& path, const Command& command, Flags* flags,
                                                const Merger& merger) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadSettings(path));
  toml::table file;
  try {
    file = toml::parse(text, path);
  } catch (const toml::parse_error& e) {
    return UsageError("{}:{}: {}", path, e.source().begin.line, std::string(e.description()));
  }
  std::vector<Setting> out;
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    const std::string where = fmt::format("{}:{}", path, key.source().begin.line);
    const toml::table* section = node.as_table();
    const Command* named = FindCommand(name);
    if (section == nullptr) {
      return UsageError("{}: '{}' stands in no section; flags stand in their command's, as [run]", where, name);
    }
    if (named == nullptr) {
      return UsageError("{}: there is no command '{}'{}", where, name, DidYouMean(name, CommandNames()));
    }
    const bool chosen = named->name == command.name;
    Flags others(*named);
    GYRE_RETURN_IF_ERROR(ReadSection(*section, path, chosen ? flags : &others, chosen ? &merger : nullptr, &out));
  }
  return out;
}

}  // namespace

StatusOr<CommandLine> CutCommandLine(const std::vector<std::string>& words) {
  CommandLine out;
  std::unique_ptr<Flags> flags;
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
        out.command = word;
        if (const Command* command = FindCommand(word)) flags = std::make_unique<Flags>(*command);
      } else {
        out.before.push_back(word);
      }
      continue;
    }
    // "bench serve" is a command of two words.
    if (const Command* longer = out.words.empty() ? FindCommand(out.command + " " + word) : nullptr) {
      out.command = longer->name;
      flags = std::make_unique<Flags>(*longer);
      continue;
    }
    out.words.push_back(word);
    if (word == "--") {
      out.words.insert(out.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    bool next = false;  // the value of a flag may look like a flag
    if (flags != nullptr && word.size() > 1) FlagsIn(flags.get(), word, &next);
    if (next && i + 1 < words.size()) out.words.push_back(words[++i]);
  }
  return out;
}

StatusOr<std::vector<std::string>> SettingsWords(const Command& command, const CommandLine& line) {
  Flags flags(command);
  Merger merger(Given(&flags, line.words));
  if (CLI::Option* help = flags.FindWord("--help"); help != nullptr && merger.given(help)) return merger.TakeWords();
  for (const bool own : {true, false}) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Setting> level, ReadEnvironment(command, &flags, merger, own));
    merger.AddLevel(level);
  }
  if (!line.config.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Setting> level, ReadFileSettings(line.config, command, &flags, merger));
    merger.AddLevel(level);
  }
  return merger.TakeWords();
}

}  // namespace gyre
