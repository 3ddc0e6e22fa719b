#include "cli/chat_settings.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// Cuts the first word off.
std::string TakeWord(std::string* text) {
  const size_t end = std::min(text->find_first_of(" \t"), text->size());
  std::string word = text->substr(0, end);
  *text = std::string(absl::StripAsciiWhitespace(text->substr(end)));
  return word;
}

StatusOr<bool> Switch(const std::string& name, const std::string& value) {
  if (value == "on" || value == "true") return true;
  if (value == "off" || value == "false") return false;
  return InvalidArgument("/set {}: '{}', expected on or off", name, value);
}

std::string ShowSwitch(const std::string& name, bool on) { return fmt::format("{:<18} {}\n", name, on ? "on" : "off"); }

std::string Unquoted(const std::string& text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

}  // namespace

StatusOr<std::string> ChatSettings::Set(const std::string& words) {
  std::string value = words;
  std::string name = TakeWord(&value);
  if (name == "parameter") name = TakeWord(&value);
  if (name.empty()) return ShowSystem() + ShowParameters();
  constexpr std::pair<const char*, std::pair<const char*, const char*>> kShort[] = {{"wordwrap", {"wrap", "on"}},
                                                                                    {"nowordwrap", {"wrap", "off"}},
                                                                                    {"verbose", {"usage", "on"}},
                                                                                    {"quiet", {"usage", "off"}}};
  for (const auto& [word, setting] : kShort) {
    if (name == word && value.empty()) std::tie(name, value) = setting;
  }
  if (name == "system") {
    system_ = Unquoted(value);
    return ShowSystem();
  }
  if (name == "wrap") {
    GYRE_ASSIGN_OR_RETURN(wrap_, Switch(name, value));
    return ShowSwitch(name, wrap_);
  }
  if (name == "usage") {
    GYRE_ASSIGN_OR_RETURN(usage_, Switch(name, value));
    return ShowSwitch(name, usage_);
  }
  // Ollama writes names with underscores.
  std::replace(name.begin(), name.end(), '_', '-');
  return flags_.set(&generate_, name, value);
}

std::string ChatSettings::ShowSystem() const {
  return fmt::format("{:<18} {}\n", "system", system_.empty() ? "(none)" : system_);
}

std::string ChatSettings::ShowParameters() const {
  return flags_.show(generate_) + ShowSwitch("wrap", wrap_) + ShowSwitch("usage", usage_);
}

StatusOr<std::string> ChatSettings::Show(const std::string& what) const {
  const std::string model = fmt::format("{:<18} {}\n", "model", description_);
  if (what.empty()) return model + ShowSystem() + ShowParameters();
  if (what == "info") return model;
  if (what == "system") return ShowSystem();
  if (what == "parameters") return ShowParameters();
  return InvalidArgument(
      "/show {}: expected info, system, parameters, or nothing for all of them; `gyre inspect` and `gyre template` "
      "show what is in a model's file",
      what);
}

}  // namespace gyre
