#include "cli/settings.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>

#include "cli/command_words.h"
#include "cli/exit_code.h"
#include "cli/foreign.h"
#include "cli/nearest.h"

namespace gyre {
namespace {

constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

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
        for (std::string& word : CommandFlags::Words(s.option, value)) words_.push_back(std::move(word));
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
    CommandFlags flags(other);
    CLI::Option* o = flags.Find(flag);
    if (o != nullptr && flags.Refusal(o, value).empty()) return true;
  }
  return false;
}

// GYRE_<COMMAND>_<FLAG> where own, else GYRE_<FLAG>.
StatusOr<std::vector<Setting>> ReadEnvironment(const Command& command, CommandFlags* flags, const Merger& merger,
                                               bool own) {
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
Status ReadSection(const toml::table& table, const std::string& path, CommandFlags* flags, const Merger* merger,
                   std::vector<Setting>* out) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = fmt::format("{}:{}: {}", path, key.source().begin.line, name);
    CLI::Option* option = flags->Find(name);
    if (option == nullptr) {
      const std::string ours = OurFlag(*flags, "--" + name);
      return UsageError("{}: there is no such flag{}", where, DidYouMean(ours.empty() ? name : ours, flags->Names()));
    }
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

StatusOr<std::vector<Setting>> ReadFileSettings(const std::string& path, const Command& command, CommandFlags* flags,
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
    CommandFlags others(*named);
    GYRE_RETURN_IF_ERROR(ReadSection(*section, path, chosen ? flags : &others, chosen ? &merger : nullptr, &out));
  }
  return out;
}

}  // namespace

StatusOr<std::vector<std::string>> SettingsWords(const Command& command, const CommandLine& line) {
  CommandFlags flags(command);
  Merger merger(flags.Given(line.words));
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
