#include "coordinator/http/anthropic_request.h"

#include "boost/json/array.hpp"
#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/sampling_fields.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

void AddLine(std::string_view text, std::string* all) {
  if (!all->empty()) *all += '\n';
  *all += text;
}

std::string ReadBlocks(JsonFields& fields, std::string_view name, bool result = false);

// Appends a document of text: its title, what the client says of it, and the text.
void ReadDocument(JsonFields& fields, std::string* all) {
  fields.Require("source");
  fields.Ignore("cache_control");
  for (const char* name : {"title", "context"}) {
    const std::string text = fields.String(name).value_or("");
    if (!text.empty()) AddLine(text, all);
  }
  if (const json::object* citations = fields.Object("citations")) {
    JsonFields inner(*citations, fields.Path("citations."));
    inner.Refuse("enabled", "an answer is text alone");
    if (std::optional<ApiError> error = inner.Finish()) return fields.Fail(*std::move(error));
  }
  const json::object* source = fields.Object("source");
  if (source == nullptr) return;
  JsonFields inner(*source, fields.Path("source."));
  const std::string type = inner.String("type").value_or("");
  if (type == "content") {
    AddLine(ReadBlocks(inner, "content"), all);
  } else if (type == "text") {
    inner.Ignore("media_type");
    inner.Require("data");
    AddLine(inner.String("data").value_or(""), all);
  } else if (!inner.failed()) {
    const std::string path = inner.Path("type");
    inner.Fail(BadRequest(fmt::format("{} is \"{}\"; only documents of text are read", path, type), path));
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

bool IsTextDocument(JsonFields& fields) {
  const json::object* source = fields.Object("source");
  const json::value* type = source == nullptr ? nullptr : source->if_contains("type");
  return type == nullptr || *type == "text" || *type == "content";
}

// Appends the text of one block, in a line of its own. `result`: of a tool.
void ReadBlock(JsonFields& fields, bool result, std::string* all) {
  const std::string type = fields.String("type").value_or("");
  const std::string_view note = result ? OmittedPart(type) : "";
  if (!note.empty() && (type != "document" || !IsTextDocument(fields))) {
    AddLine(note, all);
    return fields.IgnoreAll("");
  }
  if (type == "document") return ReadDocument(fields, all);
  if (type != "text") {
    const std::string path = fields.Path("type");
    return fields.Fail(
        BadRequest(fmt::format("{} is \"{}\": the model reads text alone, and documents of text", path, type), path));
  }
  fields.Require("text");
  fields.Ignore("cache_control");
  fields.Refuse("citations", "the model reads text alone");
  AddLine(fields.String("text").value_or(""), all);
}

// The field: a text, or a list of text blocks, as one text.
std::string ReadBlocks(JsonFields& fields, std::string_view name, bool result) {
  const json::value* content = fields.Any(name);
  if (content == nullptr) return {};
  if (const json::string* text = content->if_string()) return std::string(View(*text));
  std::string all;
  if (const json::array* blocks = content->if_array()) {
    fields.EachObject(name, *blocks, [&](JsonFields& block) { ReadBlock(block, result, &all); });
  } else {
    const std::string path = fields.Path(name);
    fields.Fail(BadRequest(path + " must be a string or an array of text blocks", path));
  }
  return all;
}

// Reads the message's blocks. A tool's result is a message of its own.
void ReadTurn(JsonFields& fields, const std::string& role, const json::array& blocks, json::array* turns) {
  std::string text, thought;
  json::array calls;
  bool results = false;
  const auto say = [&] {
    if (!text.empty()) turns->push_back(TextMessage(role, text));
    text.clear();
  };
  fields.EachObject("content", blocks, [&](JsonFields& block) {
    const std::string type = block.String("type").value_or("");
    if (type == "tool_use" && role == "assistant") {
      block.Require("id");
      block.Require("name");
      block.Ignore("cache_control");
      block.Ignore("caller");
      const std::string id = block.String("id").value_or(""), name = block.String("name").value_or("");
      const json::object* input = block.Object("input");
      calls.push_back(ToolCall(id, name, input == nullptr ? "{}" : WriteJson(*input)));
    } else if (type == "tool_result" && role == "user") {
      block.Require("tool_use_id");
      block.Ignore("cache_control");
      const std::string id = block.String("tool_use_id").value_or("");
      std::string content = ReadBlocks(block, "content", true);
      if (block.Bool("is_error").value_or(false) && content.empty()) content = "error";
      say();
      turns->push_back(ToolResult(id, content));
      results = true;
    } else if (type == "thinking" && role == "assistant") {
      block.Require("thinking");
      block.Ignore("signature");  // it proves nothing: what the client says of the model's answers is believed
      AddLine(block.String("thinking").value_or(""), &thought);
    } else if (type == "redacted_thinking" && role == "assistant") {
      block.Ignore("data");  // another server's thoughts, which nobody can read here
    } else {
      ReadBlock(block, false, &text);
    }
  });
  if (results && text.empty()) return;
  json::object message = TextMessage(role, text);
  if (!thought.empty()) message["reasoning_content"] = thought;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  turns->push_back(std::move(message));
}

// A message of the system within the conversation, which Claude Code sends: templates know none, so its text goes into
// the user's turn or the tool's result before it, or is a turn of its own.
void AddSystemText(const std::string& text, json::array* turns) {
  json::object* last = turns->empty() ? nullptr : &turns->back().as_object();
  if (last == nullptr || last->at("role") == "assistant") {
    turns->push_back(TextMessage(last == nullptr ? "system" : "user", text));
    return;
  }
  std::string all(View(last->at("content").as_string()));
  AddLine(text, &all);
  last->at("content") = all;
}

void ReadMessage(JsonFields& fields, json::array* turns) {
  fields.Require("role");
  fields.Require("content");
  const std::string role = fields.String("role").value_or("");
  if (role == "system") return AddSystemText(ReadBlocks(fields, "content"), turns);
  if (role != "user" && role != "assistant") {
    const std::string path = fields.Path("role");
    fields.Fail(BadRequest(fmt::format("{} is \"{}\"; it may be user, assistant or system", path, role), path));
  }
  const json::value* content = fields.Any("content");
  const json::array* blocks = content == nullptr ? nullptr : content->if_array();
  if (blocks != nullptr) return ReadTurn(fields, role, *blocks, turns);
  turns->push_back(TextMessage(role, ReadBlocks(fields, "content")));
}

// Leaves thoughts only in the answers to the last `keep` texts of the user. Between two of these there is an answer for
// each round of tools.
void ClearThoughts(int64_t keep, json::array* turns) {
  for (size_t i = turns->size(); i-- > 0;) {
    json::object& turn = (*turns)[i].as_object();
    if (keep <= 0) turn.erase("reasoning_content");
    if (turn.at("role") == "user") --keep;
  }
}

// Earlier thoughts may be cleared; nothing else is.
void ReadContextManagement(JsonFields& fields, json::array* turns) {
  const json::object* management = fields.Object("context_management");
  if (management == nullptr) return;
  JsonFields inner(*management, "context_management.");
  if (const json::array* edits = inner.Array("edits")) {
    inner.EachObject("edits", *edits, [turns](JsonFields& edit) {
      if (edit.String("type").value_or("") != "clear_thinking_20251015") {
        edit.RefuseAny("type", "a conversation that is too long is an error");
      }
      const json::value* keep = edit.Any("keep");
      if (keep != nullptr && *keep == "all") return;
      const json::object* last = keep == nullptr ? nullptr : edit.Object("keep");
      if (last == nullptr) return ClearThoughts(1, turns);
      JsonFields kept(*last, edit.Path("keep."));
      kept.Ignore("type");
      kept.Require("value");
      const int64_t value = kept.Integer("value", 1, 1000000).value_or(1);
      if (std::optional<ApiError> error = kept.Finish()) return edit.Fail(*std::move(error));
      ClearThoughts(value, turns);
    });
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

// Reads a conversation: the fields that count_tokens has too.
void ReadConversation(JsonFields* fields, MessagesRequest* out) {
  fields->Require("model");
  fields->Require("messages");
  out->model = fields->String("model").value_or("");
  ChatInput chat;
  json::array& turns = chat.conversation.messages;
  const std::string system = ReadBlocks(*fields, "system");
  if (!system.empty()) turns.push_back(TextMessage("system", system));
  const json::array* messages = fields->Array("messages");
  if (messages == nullptr) return;
  if (messages->empty()) fields->Fail(BadRequest("messages must have at least one message", "messages"));
  fields->EachObject("messages", *messages, [&turns](JsonFields& message) { ReadMessage(message, &turns); });
  if (!fields->failed()) NameToolResults(&turns);
  // The model continues an answer that the conversation ends with.
  chat.conversation.continue_final = !turns.empty() && turns.back().at("role") == "assistant";
  if (const json::object* thinking = fields->Object("thinking")) {
    JsonFields in(*thinking, "thinking.");
    in.Require("type");
    const std::string type = in.String("type").value_or("");
    if (!in.failed() && type != "enabled" && type != "disabled" && type != "adaptive") {
      in.Fail(BadRequest("thinking.type may be enabled, disabled or adaptive", "thinking.type"));
    }
    in.Ignore("budget_tokens");
    in.Ignore("display");
    if (type != "adaptive") chat.conversation.extra["enable_thinking"] = type == "enabled";
    if (std::optional<ApiError> error = in.Finish()) return fields->Fail(*std::move(error));
  }
  if (const json::object* extra = fields->Object("chat_template_kwargs")) {
    for (const auto& [key, value] : *extra) chat.conversation.extra[key] = value;
  }
  ReadMessageTools(*fields, &out->tools);
  out->tools.Offer(&chat.conversation);
  constexpr const char* kTools = "tools that the client runs are all that is there";
  fields->Refuse("mcp_servers", kTools);
  fields->Refuse("container", kTools);
  ReadContextManagement(*fields, &turns);
  if (const json::object* config = fields->Object("output_config")) {
    JsonFields inner(*config, "output_config.");
    ReadTextFormat(inner, "format", &out->question);
    inner.Ignore("effort");
    if (std::optional<ApiError> error = inner.Finish()) return fields->Fail(*std::move(error));
  }
  ReadTextFormat(*fields, "output_format", &out->question);
  fields->Ignore("metadata");
  fields->Ignore("cache_control");
  out->question.input = std::move(chat);
}

}  // namespace

std::optional<ApiError> ReadMessages(const json::object& body, const Model& model, const Caller& caller,
                                     MessagesRequest* out) {
  JsonFields fields(body);
  ReadConversation(&fields, out);
  Question& q = out->question;
  out->tools.Ask(&q);
  fields.Require("max_tokens");
  ReadMostTokens(fields, "max_tokens", 0, &q);
  ReadSamplersAndSeed(fields, model, &q.sampling);
  q.tenant = caller.tenant;
  ReadStops(fields, "stop_sequences", &q);
  out->stream = fields.Bool("stream").value_or(false);
  fields.Ignore("service_tier");
  fields.Ignore("inference_geo");
  return fields.Finish();
}

std::optional<ApiError> ReadCountTokens(const json::object& body, MessagesRequest* out) {
  JsonFields fields(body);
  ReadConversation(&fields, out);
  return fields.Finish();
}

}  // namespace gyre::http
