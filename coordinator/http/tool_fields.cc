#include "coordinator/http/tool_fields.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "boost/json/parse.hpp"
#include "boost/json/serialize.hpp"
#include "coordinator/http/json_text.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr size_t kLongestName = 128;
constexpr char kInput[] = "input";  // the argument of a tool that takes a text

void Finish(JsonFields& inner, JsonFields& fields) {
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

bool IsName(std::string_view name) {
  if (name.empty() || name.size() > kLongestName) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && std::string_view("_-.:/").find(c) == std::string_view::npos) return false;
  }
  return true;
}

// Reads the name of another tool, of a namespace or of none (""). "": an error.
std::string ReadToolName(JsonFields& fields, const std::string& space, ToolRequest* request) {
  fields.Require("name");
  const std::string own = fields.String("name").value_or("");
  if (fields.failed()) return {};
  std::string name = space.empty() ? own : NamespacedName(space, own);
  const std::string path = fields.Path("name");
  if (!IsName(name)) {
    fields.Fail(BadRequest(
        fmt::format("{} is \"{}\"; a name has 1 to {} letters, digits and _-.:/", path, name, kLongestName), path));
    return {};
  }
  for (const json::value& tool : request->tools) {
    if (tool.at("function").at("name") != json::string_view(name)) continue;
    fields.Fail(BadRequest(fmt::format("{}: there are two tools {}", path, name), path));
    return {};
  }
  if (!space.empty()) request->namespaced[name] = {space, own};
  return name;
}

// Reads name, description, strict and the schema, which is in the field `schema`.
void ReadFunction(JsonFields& fields, const char* schema, const std::string& space, ToolRequest* out) {
  const std::string name = ReadToolName(fields, space, out);
  if (name.empty()) return;
  json::object function{{"name", name}};
  if (const std::optional<std::string> description = fields.String("description"))
    function["description"] = *description;
  const json::object* parameters = fields.Object(schema);
  function["parameters"] =
      parameters != nullptr ? *parameters : json::object{{"type", "object"}, {"properties", json::object()}};
  if (fields.Bool("strict").value_or(false)) out->strict.insert(name);
  out->tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
}

// Reads the form of a custom tool's text into the schema of its argument, or, where we have no such grammars, into what
// the model is told.
void ReadCustomFormat(JsonFields& fields, bool flat, json::object* input, std::string* description, bool* strict) {
  const json::object* format = fields.Object("format");
  if (format == nullptr) return;
  JsonFields inner(*format, fields.Path("format."));
  const std::string type = inner.String("type").value_or("text");
  const json::object* nested = flat || type != "grammar" ? nullptr : inner.Object("grammar");
  const json::object none;
  JsonFields deeper(nested == nullptr ? none : *nested, inner.Path("grammar."));
  JsonFields& grammar = flat ? inner : deeper;
  if (type == "grammar") {
    grammar.Require("syntax");
    grammar.Require("definition");
    const std::string syntax = grammar.String("syntax").value_or("");
    const std::string definition = grammar.String("definition").value_or("");
    if (syntax == "regex") {
      (*input)["pattern"] = "^(?:" + definition + ")$";
      *strict = true;
    } else {
      *description +=
          fmt::format("{}The input obeys this grammar ({}):\n{}", description->empty() ? "" : "\n", syntax, definition);
    }
  } else if (type != "text") {
    const std::string path = inner.Path("type");
    inner.Fail(BadRequest(fmt::format("{} is \"{}\"; it may be text or grammar", path, type), path));
  }
  if (!flat) Finish(deeper, inner);
  Finish(inner, fields);
}

void ReadCustom(JsonFields& fields, bool flat, const std::string& space, ToolRequest* out) {
  const std::string name = ReadToolName(fields, space, out);
  if (name.empty()) return;
  std::string description = fields.String("description").value_or("");
  json::object input{{"type", "string"}};
  bool strict = false;
  ReadCustomFormat(fields, flat, &input, &description, &strict);
  if (strict) out->strict.insert(name);
  out->custom.insert(name);
  json::object function{{"name", name}};
  if (!description.empty()) function["description"] = description;
  function["parameters"] = json::object{{"type", "object"},
                                        {"properties", json::object{{kInput, std::move(input)}}},
                                        {"required", json::array{kInput}},
                                        {"additionalProperties", false}};
  out->tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
}

bool IsFunction(JsonFields& fields, std::string_view otherwise) {
  const std::string type = fields.String("type").value_or(std::string(otherwise));
  if (type == "function" || (type == "custom" && otherwise == "custom")) return true;
  const std::string path = fields.Path("type");
  if (!fields.failed()) {
    fields.Fail(
        Unprocessable(fmt::format("{} is \"{}\": tools that the client runs are all that is there", path, type), path));
  }
  return false;
}

// A choice of one tool may name a custom one.
bool NamesTool(JsonFields& choice) {
  return choice.String("type").value_or("") == "custom" || IsFunction(choice, "function");
}

// The name in a choice of one tool; "": an error.
std::string ChosenName(JsonFields& choice, bool flat) {
  if (flat) {
    choice.Require("name");
    const std::string name = choice.String("name").value_or(""), space = choice.String("namespace").value_or("");
    return space.empty() ? name : NamespacedName(space, name);
  }
  const std::string type = choice.String("type").value_or("") == "custom" ? "custom" : "function";
  choice.Require(type);
  const json::object* function = choice.Object(type);
  if (function == nullptr) return "";
  JsonFields inner(*function, choice.Path(type + "."));
  inner.Require("name");
  const std::string name = inner.String("name").value_or("");
  Finish(inner, choice);
  return name;
}

void CheckDeclared(JsonFields& fields, const std::string& name, const ToolRequest& request) {
  if (fields.failed() || request.declared.contains(name)) return;
  fields.Fail(BadRequest(fmt::format("tool_choice: there is no tool \"{}\"", name), "tool_choice"));
}

void Forbid(ToolRequest* out) {
  out->tools.clear();
  out->declared.clear();
}

// A call of this tool must come.
void RequireOne(const std::string& name, ToolRequest* out) {
  std::erase_if(out->declared, [&name](const auto& tool) { return tool.first != name; });
  out->required = true;
}

// "auto", "none" or "required".
void ReadMode(JsonFields& fields, const std::string& mode, ToolRequest* out) {
  if (mode == "none") return Forbid(out);
  if (mode == "required") {
    if (!out->any()) return fields.Fail(BadRequest("tool_choice is required, but there are no tools", "tool_choice"));
    out->required = true;
    return;
  }
  if (mode != "auto") {
    fields.Fail(BadRequest(fmt::format("tool_choice is \"{}\"; it may be auto, none, required, or an object", mode),
                           "tool_choice"));
  }
}

// All tools of a namespace.
void AllowNamespace(JsonFields& fields, const ToolRequest& request, DeclaredTools* kept) {
  fields.Require("name");
  const std::string space = fields.String("name").value_or("");
  const size_t before = kept->size();
  for (const auto& [name, parts] : request.namespaced) {
    const auto tool = request.declared.find(name);
    if (parts.first == space && tool != request.declared.end()) kept->insert(*tool);
  }
  if (fields.failed() || kept->size() > before) return;
  fields.Fail(BadRequest(fmt::format("tool_choice: there is no namespace \"{}\"", space), "tool_choice"));
}

void ReadAllowed(JsonFields& choice, bool flat, ToolRequest* out) {
  const json::object* allowed = flat ? nullptr : choice.Object("allowed_tools");
  if (!flat) choice.Require("allowed_tools");
  if (!flat && allowed == nullptr) return;
  const json::object none;
  JsonFields nested(flat ? none : *allowed, choice.Path("allowed_tools."));
  JsonFields& inner = flat ? choice : nested;
  inner.Require("tools");
  const std::string mode = inner.String("mode").value_or("auto");
  const json::array* tools = inner.Array("tools");
  if (tools != nullptr) {
    DeclaredTools kept;
    inner.EachObject("tools", *tools, [&](JsonFields& tool) {
      if (flat && tool.String("type").value_or("") == "namespace") return AllowNamespace(tool, *out, &kept);
      if (!NamesTool(tool)) return;
      const std::string name = ChosenName(tool, flat);
      CheckDeclared(tool, name, *out);
      if (!tool.failed()) kept[name] = out->declared[name];
    });
    if (!inner.failed()) out->declared = std::move(kept);
  }
  if (!flat) Finish(nested, choice);
  if (!choice.failed()) ReadMode(choice, mode, out);
}

void ReadChoice(JsonFields& fields, bool flat, ToolRequest* out) {
  const json::value* choice = fields.Any("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) return ReadMode(fields, std::string(choice->get_string()), out);
  const json::object* object = fields.Object("tool_choice");
  if (object == nullptr) return;
  JsonFields inner(*object, "tool_choice.");
  inner.Require("type");
  const std::string type = inner.String("type").value_or("");
  if (type == "allowed_tools") {
    ReadAllowed(inner, flat, out);
  } else if (!inner.failed() && NamesTool(inner)) {
    const std::string name = ChosenName(inner, flat);
    CheckDeclared(inner, name, *out);
    if (!inner.failed()) RequireOne(name, out);
  }
  Finish(inner, fields);
}

// Tools of chats: each in a field that its type names. `customs`: some may take a text.
void ReadNestedTool(JsonFields& tool, bool customs, ToolRequest* out) {
  tool.Require("type");
  const bool custom = customs && tool.String("type").value_or("") == "custom";
  if (tool.failed() || (!custom && !IsFunction(tool, "function"))) return;
  const std::string field = custom ? "custom" : "function";
  tool.Require(field);
  const json::object* function = tool.Object(field);
  if (function == nullptr) return;
  JsonFields inner(*function, tool.Path(field + "."));
  custom ? ReadCustom(inner, false, "", out) : ReadFunction(inner, "parameters", "", out);
  Finish(inner, tool);
}

// Tools that OpenAI's servers run, or, for "tool_search", whose finds they take up.
constexpr std::string_view kOfServers[] = {"code_interpreter", "file_search", "image_generation", "mcp",
                                           "tool_search",      "web_search"};
bool IsOfServers(std::string_view type) {
  return std::any_of(std::begin(kOfServers), std::end(kOfServers),
                     [type](std::string_view known) { return type.starts_with(known); });
}

// Tools of responses. `left_out`: gets the places of those of servers.
void ReadFlatTool(JsonFields& tool, const std::string& space, ToolRequest* out, std::vector<std::string>* left_out) {
  tool.Require("type");
  const std::string type = tool.String("type").value_or("");
  if (type == "custom") return ReadCustom(tool, true, space, out);
  if (type == "namespace" && space.empty()) {
    tool.Require("name");
    tool.Ignore("description");
    const std::string name = tool.String("name").value_or("");
    const json::array* tools = tool.Array("tools");
    if (tools == nullptr || name.empty()) return;
    return tool.EachObject("tools", *tools, [&](JsonFields& inner) { ReadFlatTool(inner, name, out, left_out); });
  }
  if (IsOfServers(type) && space.empty()) {
    left_out->push_back(tool.Path("type"));
    return tool.IgnoreAll("");
  }
  if (!tool.failed() && IsFunction(tool, "function")) ReadFunction(tool, "parameters", space, out);
}

// Reads the field tools, as responses have it.
void ReadFlatTools(JsonFields& fields, ToolRequest* out) {
  const json::array* tools = fields.Array("tools");
  if (tools == nullptr) return;
  std::vector<std::string> left_out;
  fields.EachObject("tools", *tools, [&](JsonFields& tool) { ReadFlatTool(tool, "", out, &left_out); });
  // Codex offers some beside its own tools in each request: the model does without.
  if (left_out.empty() || !out->tools.empty()) return;
  fields.Fail(Unprocessable(fmt::format("{}: this server runs no tools", left_out.front()), left_out.front()));
}

// Reads the field tools, as chats have it.
void ReadNestedTools(JsonFields& fields, bool customs, ToolRequest* out) {
  if (const json::array* tools = fields.Array("tools")) {
    fields.EachObject("tools", *tools, [&](JsonFields& tool) { ReadNestedTool(tool, customs, out); });
  }
}

void ReadTools(JsonFields& fields, bool flat, ToolRequest* out) {
  flat ? ReadFlatTools(fields, out) : ReadNestedTools(fields, true, out);
  out->declared = DeclareTools(out->tools);
  out->parallel = fields.Bool("parallel_tool_calls").value_or(true);
  ReadChoice(fields, flat, out);
}

}  // namespace

void ToolRequest::Offer(Conversation* conversation) const {
  if (!tools.empty()) conversation->tools = tools;
}

void ToolRequest::Ask(Question* question) const {
  if (!any()) return;
  const bool obeys =
      std::any_of(declared.begin(), declared.end(), [this](const auto& tool) { return strict.contains(tool.first); });
  const bool json = question->grammar_source && IsJson(*question->grammar_source);
  if (!required && !obeys && !json) {
    if (!parallel) question->one_call = declared;
    return;
  }
  grammar::ToolCalls calls{.tools = {}, .required = required, .parallel = parallel, .answer = {}};
  for (const json::value& tool : tools) {
    const json::object& function = tool.at("function").as_object();
    const std::string name(function.at("name").as_string());
    if (!declared.contains(name)) continue;
    calls.tools.push_back(
        {.name = name, .parameters = json::serialize(function.at("parameters")), .strict = strict.contains(name)});
  }
  question->tool_calls = std::move(calls);
}

void ReadChatTools(JsonFields& fields, ToolRequest* out) {
  fields.Refuse("functions", "use tools");
  const json::value* call = fields.Any("function_call");
  // Without functions "auto" asks for none.
  if (call != nullptr && *call != "none" && *call != "auto") fields.Refuse("function_call", "use tool_choice");
  ReadTools(fields, false, out);
}

void ReadResponseTools(JsonFields& fields, ToolRequest* out) { ReadTools(fields, true, out); }

void ReadOllamaTools(JsonFields& fields, ToolRequest* out) {
  ReadNestedTools(fields, false, out);
  out->declared = DeclareTools(out->tools);
}

void ReadMessageTools(JsonFields& fields, ToolRequest* out) {
  if (const json::array* tools = fields.Array("tools")) {
    fields.EachObject("tools", *tools, [&](JsonFields& tool) {
      if (!IsFunction(tool, "custom")) return;
      ReadFunction(tool, "input_schema", "", out);
      for (const char* name :
           {"cache_control", "input_examples", "defer_loading", "allowed_callers", "eager_input_streaming"}) {
        tool.Ignore(name);
      }
    });
  }
  out->declared = DeclareTools(out->tools);
  const json::object* choice = fields.Object("tool_choice");
  if (choice == nullptr) return;
  JsonFields inner(*choice, "tool_choice.");
  inner.Require("type");
  const std::string type = inner.String("type").value_or("");
  out->parallel = !inner.Bool("disable_parallel_tool_use").value_or(false);
  if (type == "tool") {
    const std::string name = ChosenName(inner, true);
    CheckDeclared(inner, name, *out);
    if (!inner.failed()) RequireOne(name, out);
  } else if (!inner.failed() && type != "any" && type != "auto" && type != "none") {
    inner.Fail(BadRequest(fmt::format("tool_choice.type is \"{}\"; it may be auto, any, tool or none", type),
                          "tool_choice.type"));
  } else if (!inner.failed()) {
    ReadMode(inner, type == "any" ? "required" : type, out);
  }
  Finish(inner, fields);
}

json::object ToolCall(std::string_view id, std::string_view name, std::string_view arguments) {
  return {{"id", JsonView(id)},
          {"type", "function"},
          {"function", json::object{{"name", JsonView(name)}, {"arguments", JsonView(arguments)}}}};
}

json::object ToolResult(std::string_view id, std::string_view content) {
  json::object message{{"role", "tool"}, {"content", JsonView(content)}};
  if (!id.empty()) message["tool_call_id"] = JsonView(id);
  return message;
}

std::string NamespacedName(std::string_view space, std::string_view name) { return fmt::format("{}__{}", space, name); }

std::string CustomArguments(std::string_view input) { return WriteJson(json::object{{kInput, JsonView(input)}}); }

std::string CustomInput(std::string_view arguments) {
  // A call that was cut ends within the text: as much of it as can be read.
  const std::string text = ValidUtf8(arguments);
  for (const std::string_view end : {"", "}", "\"}"}) {
    constexpr size_t kLongestEscape = 12;  // a pair of surrogates
    for (size_t left_out = 0; left_out <= std::min(text.size(), end.size() > 1 ? kLongestEscape : 0); ++left_out) {
      const json::object read = CallInput(text.substr(0, text.size() - left_out) + std::string(end));
      const json::value* input = read.if_contains(kInput);
      if (input != nullptr && input->is_string()) return std::string(View(input->get_string()));
    }
  }
  return text.starts_with('{') ? "" : text;
}

json::object CallInput(std::string_view arguments) {
  boost::system::error_code error;
  const std::string text = ValidUtf8(arguments);
  json::value value = json::parse(text, error);
  if (!error && value.is_object()) return std::move(value.get_object());
  return {{"raw", text}};
}

void NameToolResults(json::array* messages) {
  std::map<std::string, json::value, std::less<>> names;  // by the calls' ids
  for (json::value& value : *messages) {
    json::object& message = value.as_object();
    if (const json::value* calls = message.if_contains("tool_calls")) {
      for (const json::value& call : calls->as_array()) {
        names[std::string(call.at("id").as_string())] = call.at("function").at("name");
      }
    }
    const json::value* id = message.if_contains("tool_call_id");
    if (id == nullptr || message.if_contains("name") != nullptr) continue;
    const auto name = names.find(std::string(id->as_string()));
    if (name != names.end()) message["name"] = name->second;
  }
}

std::string CallId(std::string_view prefix, std::string_view answer, size_t choice, size_t index) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const std::string name = fmt::format("{}.{}.{}", answer, choice, index);
  std::string out(prefix);
  for (uint64_t part = 0; part < 3; ++part) {
    uint64_t bits = XXH3_64bits_withSeed(name.data(), name.size(), part);
    for (int i = 0; i < 8; ++i) {
      out += kLetters[bits % kLetters.size()];
      bits /= kLetters.size();
    }
  }
  return out;
}

}  // namespace gyre::http
