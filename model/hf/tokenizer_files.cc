#include "model/hf/tokenizer_files.h"

#include <boost/json.hpp>
#include <map>
#include <utility>

#include "base/log.h"
#include "fmt/ranges.h"
#include "model/hf/added_tokens.h"
#include "model/hf/json.h"
#include "model/hf/json_file.h"
#include "model/hf/tokenizer_keys.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kSettings = "tokenizer_config.json";
constexpr const char* kSpecialTokensMap = "special_tokens_map.json";
constexpr const char* kAddedTokens = "added_tokens.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kTemplateJson = "chat_template.json";
// The template for chats with tools, in a folder of further ones.
constexpr const char* kToolTemplate = "additional_chat_templates/tool_use.jinja";

StatusOr<json::object> ReadIfThere(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return json::object();
  return ReadJsonFile(path);
}

// A chat_template is a text, a list of {"name", "template"}, or an object of texts by name.
StatusOr<std::map<std::string, std::string>> NamedTemplates(const json::value& v) {
  std::map<std::string, std::string> out;
  if (v.is_null()) return out;
  if (v.is_string()) {
    out["default"] = Text(&v);
  } else if (const json::array* list = v.if_array()) {
    for (const json::value& one : *list) {
      const json::object* o = one.if_object();
      const json::value* text = o != nullptr ? o->if_contains("template") : nullptr;
      const json::value* name = o != nullptr ? o->if_contains("name") : nullptr;
      if (text == nullptr || !text->is_string() || name == nullptr || !name->is_string())
        return DataLoss("chat_template: an item of the list has no name or no template");
      out[Text(name)] = Text(text);
    }
  } else if (const json::object* named = v.if_object()) {
    for (const auto& one : *named) {
      if (!one.value().is_string())
        return DataLoss("chat_template: \"{}\" is no text", Printable(std::string(one.key())));
      out[std::string(one.key())] = Text(&one.value());
    }
  } else {
    return DataLoss("chat_template is {}, expected a text, or texts with names", Printable(json::serialize(v)));
  }
  return out;
}

ChatTemplates Choose(const std::map<std::string, std::string>& named) {
  ChatTemplates out;
  const auto text = [&](const char* name) {
    const auto it = named.find(name);
    return it == named.end() ? std::string() : it->second;
  };
  out.text = named.size() == 1 ? named.begin()->second : text("default");
  out.tools = text("tool_use");
  if (!named.empty() && named.size() > 1 && named.count("default") == 0) {
    std::string names;
    for (const auto& [name, source] : named) names += (names.empty() ? "" : ", ") + name;
    out.note = fmt::format("the model has the chat templates {}, and none is the default", Printable(names));
  }
  return out;
}

StatusOr<ChatTemplates> ReadTemplates(const fs::path& dir, const json::object& settings) {
  std::error_code error;
  std::map<std::string, std::string> named;
  if (fs::exists(dir / kTemplate, error)) {
    GYRE_ASSIGN_OR_RETURN(named["default"], ReadTextFile(dir / kTemplate));
    if (fs::exists(dir / kToolTemplate, error)) {
      GYRE_ASSIGN_OR_RETURN(named["tool_use"], ReadTextFile(dir / kToolTemplate));
    }
    return Choose(named);
  }
  const json::value* v = settings.if_contains("chat_template");
  json::object beside;
  if (v == nullptr || v->is_null()) {
    GYRE_ASSIGN_OR_RETURN(beside, ReadIfThere(dir / kTemplateJson));
    v = beside.if_contains("chat_template");
  }
  if (v == nullptr) return ChatTemplates();
  GYRE_ASSIGN_OR_RETURN(named, NamedTemplates(*v));
  return Choose(named);
}

}  // namespace

StatusOr<HfVocabulary> ReadHfVocabulary(const fs::path& dir, const json::object& config, int rows) {
  HfVocabulary out;
  std::error_code error;
  GYRE_ASSIGN_OR_RETURN(json::object settings, ReadIfThere(dir / kSettings));
  if (const std::vector<std::string> unknown = UnknownTokenizerSettings(settings); !unknown.empty()) {
    Log(LogLevel::kWarn, "{}: Gyre does not know {}: {} counts as meaningless", (dir / kSettings).string(),
        fmt::join(unknown, ", "), unknown.size() == 1 ? "it" : "each of them");
  }
  StatusOr<ChatTemplates> templates = ReadTemplates(dir, settings);
  if (!templates.ok()) return Annotate(templates.status(), dir.string());
  out.templates = *std::move(templates);
  if (!fs::exists(dir / kTokenizer, error)) {
    out.tokenizer_note = fmt::format("the folder has no {}", kTokenizer);
    return out;
  }
  GYRE_ASSIGN_OR_RETURN(const json::object tokenizer, ReadJsonFile(dir / kTokenizer));
  GYRE_ASSIGN_OR_RETURN(const json::object special, ReadIfThere(dir / kSpecialTokensMap));
  GYRE_ASSIGN_OR_RETURN(const json::object added, ReadIfThere(dir / kAddedTokens));
  MergeOldFiles(tokenizer, special, added, &settings);
  // generation_config.json may list more end tokens than config.json.
  GYRE_ASSIGN_OR_RETURN(const json::object generation, ReadIfThere(dir / kGeneration));
  for (const json::object* o : {&config, &generation}) {
    if (const json::value* end = o->if_contains("eos_token_id"); end != nullptr && !end->is_null())
      settings["eos_token_id"] = *end;
  }
  StatusOr<HfTokenizer> t = ReadTokenizerJson(tokenizer, settings, rows);
  if (absl::IsUnimplemented(t.status())) {
    out.tokenizer_note = fmt::format("{}: {}", kTokenizer, Message(t.status()));
    return out;
  }
  if (!t.ok()) return Annotate(t.status(), kTokenizer);
  out.tokenizer = *std::move(t);
  return out;
}

std::vector<fs::path> HfVocabularyFiles(const fs::path& dir) {
  std::vector<fs::path> out;
  for (const char* name :
       {kTokenizer, kSettings, kSpecialTokensMap, kAddedTokens, kGeneration, kTemplate, kTemplateJson, kToolTemplate})
    out.push_back(dir / name);
  return out;
}

}  // namespace gyre
