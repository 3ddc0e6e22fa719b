#include "cli/tool_file.h"

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_replace.h"
#include "cli/nearest.h"
#include "cli/session.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/tool_fields.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr size_t kLargestFile = size_t{1} << 20, kMostTools = 128;
constexpr int64_t kSeconds = 30, kMostSeconds = 3600;
constexpr int64_t kOutputBytes = 16 << 10, kMostOutputBytes = 1 << 20;

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameByte(char c) { return IsNameStart(c) || (c >= '0' && c <= '9') || c == '-'; }

// The name between a brace at `at` and the next one; "": there is none, so the brace is one.
std::string_view NameAt(std::string_view word, size_t at) {
  size_t end = at + 1;
  if (end >= word.size() || !IsNameStart(word[end])) return {};
  while (end < word.size() && IsNameByte(word[end])) ++end;
  return end < word.size() && word[end] == '}' ? word.substr(at + 1, end - at - 1) : std::string_view();
}

// Calls `text` and `name` for the parts of a word, in order.
template <typename Text, typename Name>
void EachPart(std::string_view word, const Text& text, const Name& name) {
  for (size_t at = 0; at < word.size();) {
    const size_t brace = std::min(word.find('{', at), word.size());
    text(word.substr(at, brace - at));
    at = brace;
    if (at == word.size()) return;
    const std::string_view quoted = word.substr(at).starts_with("{{") ? NameAt(word, at + 1) : std::string_view();
    const std::string_view plain = NameAt(word, at);
    if (!quoted.empty() && word.substr(at + 2 + quoted.size()).starts_with("}}")) {
      text(word.substr(at + 1, quoted.size() + 2));
      at += quoted.size() + 4;
    } else if (!plain.empty()) {
      name(std::string(plain));
      at += plain.size() + 2;
    } else {
      text(word.substr(at, 1));
      ++at;
    }
  }
}

std::string WordOf(const json::value& value) {
  return value.is_string() ? std::string(value.get_string()) : json::serialize(value);
}

void Fail(http::JsonFields& fields, std::string sentence) { fields.Fail(http::BadRequest(std::move(sentence))); }

// The names in a schema's list or object; other shapes have none.
std::vector<std::string> NamesIn(const json::object& schema, const char* field) {
  std::vector<std::string> out;
  const json::value* found = schema.if_contains(field);
  if (found != nullptr && found->is_object()) {
    for (const auto& member : found->get_object()) out.emplace_back(member.key());
  }
  if (found != nullptr && found->is_array()) {
    for (const json::value& name : found->get_array()) {
      if (name.is_string()) out.emplace_back(name.get_string());
    }
  }
  return out;
}

void ReadCommand(http::JsonFields& fields, const std::vector<std::string>& parameters, ChatTool* tool) {
  fields.Require("command");
  const json::array* words = fields.Array("command");
  if (words == nullptr) return;
  const std::string path = fields.Path("command");
  for (const json::value& word : *words) {
    if (!word.is_string() || word.get_string().find('\0') != json::string::npos) {
      return Fail(fields, fmt::format("{}[{}]: expected a text without zero bytes", path, tool->command.size()));
    }
    tool->command.emplace_back(word.get_string());
  }
  if (tool->command.empty() || tool->command[0].empty()) {
    return Fail(fields, fmt::format("{} is empty; expected a program and its words, as [\"date\", \"-u\"]", path));
  }
  for (size_t i = 0; i < tool->command.size(); ++i) {
    EachPart(
        tool->command[i], [](std::string_view) {},
        [&](const std::string& name) {
          if (i == 0) return Fail(fields, fmt::format("{}[0]: an argument can't name the program", path));
          if (std::find(parameters.begin(), parameters.end(), name) != parameters.end()) return;
          Fail(fields, fmt::format("{}[{}]: the parameters have no \"{}\"{}; {{{{{}}}}} stands for the text {{{}}}",
                                   path, i, name, DidYouMean(name, parameters), name, name));
        });
  }
}

void ReadTool(http::JsonFields& fields, const std::filesystem::path& beside, ToolFile* out) {
  ChatTool tool;
  fields.Require("name");
  tool.name = fields.String("name").value_or("");
  json::object function{{"name", tool.name}};
  if (const auto description = fields.String("description")) function["description"] = *description;
  std::vector<std::string> parameters;
  if (const json::object* schema = fields.Object("parameters")) {
    function["parameters"] = *schema;
    tool.schema = json::serialize(*schema);
    parameters = NamesIn(*schema, "properties");
    tool.required = NamesIn(*schema, "required");
  }
  ReadCommand(fields, parameters, &tool);
  const std::optional<std::string> folder = fields.String("folder");
  tool.folder = (folder ? beside / *folder : beside).lexically_normal().string();
  tool.time = std::chrono::seconds(fields.Integer("timeout_seconds", 1, kMostSeconds).value_or(kSeconds));
  tool.output_bytes =
      static_cast<size_t>(fields.Integer("max_output_bytes", 1, kMostOutputBytes).value_or(kOutputBytes));
  std::error_code error;
  if (!fields.failed() && !std::filesystem::is_directory(tool.folder, error)) {
    Fail(fields, fmt::format("{}: there is no folder {}", fields.Path("folder"), tool.folder));
  }
  out->declared.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  out->tools.push_back(std::move(tool));
}

// The error of a request as one of the file, which has no body and no functions.
Status Wrong(const std::string& path, const std::optional<http::ApiError>& error) {
  if (!error) return absl::OkStatus();
  return InvalidArgument("{}: {}", path,
                         absl::StrReplaceAll(error->message, {{"the body", "the file"}, {"function.", ""}}));
}

}  // namespace

StatusOr<std::vector<std::string>> ChatTool::Words(const json::object& arguments) const {
  for (const std::string& need : required) {
    if (!arguments.contains(need)) return InvalidArgument("the argument \"{}\" is missing", need);
  }
  std::vector<std::string> out;
  for (const std::string& word : command) {
    std::string filled;
    bool whole = true;
    EachPart(
        word, [&](std::string_view text) { filled += text; },
        [&](const std::string& name) {
          const json::value* value = arguments.if_contains(name);
          if (value == nullptr || value->is_null()) {
            whole = false;
          } else {
            filled += WordOf(*value);
          }
        });
    if (filled.find('\0') != std::string::npos) {
      return InvalidArgument("an argument has a zero byte, which no word of a command can have");
    }
    if (whole) out.push_back(std::move(filled));
  }
  return out;
}

StatusOr<ToolFile> ReadToolFile(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargestFile) {
    return InvalidArgument("{}: {} bytes, expected a file of at most {}", path, size, kLargestFile);
  }
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  json::object file;
  GYRE_RETURN_IF_ERROR(Wrong(path, http::ParseBody(text, &file)));
  ToolFile out;
  http::JsonFields fields(file);
  fields.Require("tools");
  const json::array* tools = fields.Array("tools");
  if (tools != nullptr && (tools->empty() || tools->size() > kMostTools)) {
    Fail(fields, fmt::format("tools: {} of them, expected 1 to {}", tools->size(), kMostTools));
  } else if (tools != nullptr) {
    const std::filesystem::path beside = std::filesystem::absolute(path).parent_path();
    fields.EachObject("tools", *tools, [&](http::JsonFields& tool) { ReadTool(tool, beside, &out); });
  }
  GYRE_RETURN_IF_ERROR(Wrong(path, fields.Finish()));
  // Names and schemas as in requests to a server: what a local model is told of, a server's is, too.
  const json::object request{{"tools", out.declared}};
  http::JsonFields again(request);
  http::ToolRequest read;
  http::ReadChatTools(again, &read);
  GYRE_RETURN_IF_ERROR(Wrong(path, again.Finish()));
  out.declared = std::move(read.tools);
  return out;
}

}  // namespace gyre
