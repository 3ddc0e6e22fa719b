// The route POST /v1/responses.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/unix_time.h"
#include "boost/json/parse.hpp"
#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/sampling_fields.h"
#include "coordinator/state/response_store.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class ResponsesAnswer : public OpenAiAnswer {
 public:
  ResponsesAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_(AnswerId(request)), tenant_(request.caller.tenant) {}

  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;
  void AppendError(const ApiError& error, std::string* out) override;

 private:
  // A part of the answer: reasoning, a message, or a call of a tool, whose text is its arguments.
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id, text, name, call_id;
    std::string space;    // the namespace of the tool that is called
    bool custom = false;  // a call of a tool that takes a text
    std::vector<TokenScore> scores;
  };
  void ReadFields(JsonFields& fields, Question* question) override;
  std::optional<ApiError> Prepare(Question question) override;
  json::array ReadPrevious(JsonFields& fields);
  json::value KeptItem(const std::string& id) const;
  // The object at its end, which is kept if it is to be.
  json::object End(const UsageSum& usage);
  // The object while it is written (no usage) or at its end.
  json::object Response(const UsageSum* usage) const;
  json::object ItemObject(const Item& item, bool done) const;
  json::object Part(const Item& item, bool done) const;
  json::array Scores(const std::vector<TokenScore>& scores) const;
  void AddItem(Kind kind, std::string_view name = {});
  void AppendEvent(std::string_view type, json::object fields, std::string* out);
  // Like AppendEvent, with the place of the last item's text in it.
  void AppendPartEvent(std::string_view type, json::object fields, std::string* out);
  void OpenItem(Kind kind, std::string_view name, std::string* out);
  void CloseItem(std::string* out);
  void AppendText(Kind kind, const std::string& text, const std::vector<TokenScore>& scores, std::string* out);
  void AppendArguments(const std::string& text, std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  json::object settings_;  // fields of the response that say what was asked for
  json::object format_{{"type", "text"}};
  bool store_ = false, seal_ = false;
  std::string previous_;  // the id of the response that this one goes on from
  json::array input_;     // its own items
  std::vector<Item> items_;
  FinishReason finish_ = FinishReason::kStop;
  uint64_t sequence_ = 0;  // of events
  size_t calls_ = 0;
};

// JSON that this server has written, which may be deeper than what is read of a client.
json::value ParseKept(const std::string& text) {
  json::parse_options options;
  options.max_depth = 256;
  return json::parse(text, {}, options);
}

// Thoughts as a text for clients that hand on nothing else, for an answer later. Nothing in it is secret: the client
// has the thoughts themselves.
constexpr std::string_view kSealed = "gyre-thoughts-";
std::string Seal(std::string_view thought) {
  return std::string(kSealed) + absl::WebSafeBase64Escape(absl::string_view(thought.data(), thought.size()));
}
// "": it is another server's.
std::string Unseal(std::string_view sealed) {
  std::string thought;
  if (!sealed.starts_with(kSealed)) return thought;
  sealed.remove_prefix(kSealed.size());
  const bool read = absl::WebSafeBase64Unescape(absl::string_view(sealed.data(), sealed.size()), &thought);
  return read ? ValidUtf8(thought) : "";
}

// The message that goes on an answer: its thoughts, text and calls are items that follow each other.
json::object& AnswerMessage(json::array* messages) {
  const bool goes_on = !messages->empty() && messages->back().at("role") == "assistant";
  if (!goes_on) messages->push_back(TextMessage("assistant", ""));
  return messages->back().as_object();
}

void AddThought(JsonFields& fields, json::array* messages) {
  for (const char* field : {"id", "status", "summary"}) fields.Ignore(field);
  std::string thought = ReadContent(fields, "content", {"reasoning_text", "text"}).value_or("");
  const std::string sealed = fields.String("encrypted_content").value_or("");
  if (thought.empty()) thought = Unseal(sealed);
  if (thought.empty()) return;
  json::value& all = AnswerMessage(messages)["reasoning_content"];
  all = all.is_string() ? std::string(View(all.get_string())) + "\n" + thought : thought;
}

// The model's words behind its thoughts, or an answer of its own.
void AddAnswer(std::string_view text, json::array* messages) {
  json::object* last = messages->empty() ? nullptr : messages->back().if_object();
  const bool thought = last != nullptr && last->contains("reasoning_content") && !last->contains("tool_calls") &&
                       last->at("content") == "";
  if (thought) {
    last->at("content") = JsonView(text);
  } else {
    messages->push_back(TextMessage("assistant", text));
  }
}

// Calls that follow each other are those of one message. `custom`: of a tool that takes a text.
void AddCall(JsonFields& fields, bool custom, json::array* messages) {
  fields.Require("call_id");
  fields.Require("name");
  const std::string id = fields.String("call_id").value_or("");
  const std::string own = fields.String("name").value_or("");
  const std::string space = fields.String("namespace").value_or("");
  const std::string name = space.empty() ? own : NamespacedName(space, own);
  const std::string arguments =
      custom ? CustomArguments(fields.String("input").value_or("")) : fields.String("arguments").value_or("");
  for (const char* field : {"id", "status"}) fields.Ignore(field);
  json::value& calls = AnswerMessage(messages)["tool_calls"];
  if (!calls.is_array()) calls = json::array();
  calls.get_array().push_back(ToolCall(id, name, arguments.empty() ? "{}" : arguments));
}

void AddResult(JsonFields& fields, json::array* messages) {
  fields.Require("call_id");
  fields.Require("output");
  const std::string id = fields.String("call_id").value_or("");
  const auto output = ReadContent(fields, "output", {"input_text", "output_text", "text"}, true);
  for (const char* field : {"id", "status"}) fields.Ignore(field);
  messages->push_back(ToolResult(id, output.value_or("")));
}

// What other servers did for their answers, of which nothing is to be read here.
constexpr std::string_view kOfOtherServers[] = {"code_interpreter_call", "file_search_call", "image_generation_call",
                                                "mcp_list_tools",        "tool_search_call", "tool_search_output",
                                                "web_search_call"};

// Reads a message of the conversation; items without an effect here add none.
void ReadItem(JsonFields& fields, json::array* messages) {
  const std::string type = fields.String("type").value_or("message");
  if (std::find(std::begin(kOfOtherServers), std::end(kOfOtherServers), type) != std::end(kOfOtherServers)) {
    return fields.IgnoreAll("");
  }
  if (type == "reasoning") return AddThought(fields, messages);
  if (type == "function_call" || type == "custom_tool_call")
    return AddCall(fields, type == "custom_tool_call", messages);
  if (type == "function_call_output" || type == "custom_tool_call_output") return AddResult(fields, messages);
  if (type != "message") {
    const std::string path = fields.Path("type");
    return fields.Fail(BadRequest(
        fmt::format("{} {} is not supported: messages and calls of the client's tools are", path, type), path));
  }
  fields.Require("role");
  fields.Require("content");
  const std::string role = ReadRole(fields);
  const auto content = ReadContent(fields, "content", {"input_text", "output_text", "text"});
  for (const char* name : {"id", "status", "phase"}) fields.Ignore(name);
  if (role == "assistant") return AddAnswer(content.value_or(""), messages);
  messages->push_back(TextMessage(role, content.value_or("")));
}

// The instructions and what the developer says before the first message are one message of the system: many templates
// take no second one.
void JoinSystem(json::array* messages) {
  const auto is_system = [](const json::value& message) { return message.at("role") == "system"; };
  const auto end = std::find_if_not(messages->begin(), messages->end(), is_system);
  if (end - messages->begin() < 2) return;
  std::string all;
  for (auto message = messages->begin(); message != end; ++message) {
    if (!all.empty()) all += "\n\n";
    all += View(message->at("content").as_string());
  }
  messages->erase(messages->begin() + 1, end);
  messages->front() = TextMessage("system", all);
}

// Finds an item of a response that is kept, by its id; null: there is none.
using FindItem = std::function<json::value(const std::string& id)>;

// Puts the items into the places where the input names them.
void ReplaceReferences(JsonFields& fields, const FindItem& find, json::array* items) {
  for (json::value& item : *items) {
    const json::object* object = item.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || *type != "item_reference") continue;
    const json::value* id = object->if_contains("id");
    const std::string name(id != nullptr && id->is_string() ? View(id->get_string()) : "");
    item = find(name);
    if (item.is_null()) return fields.Fail(BadRequest(fmt::format("Item with id '{}' not found.", name), "input"));
  }
}

// `earlier`: the items that stand before the input. `own`: gets those of the input.
json::array ReadInput(JsonFields& fields, const json::array& earlier, const FindItem& find, json::array* own) {
  json::array messages;
  const std::string instructions = fields.String("instructions").value_or("");
  if (!instructions.empty()) messages.push_back(TextMessage("system", instructions));
  fields.Require("input");
  const json::value* input = fields.Any("input");
  if (input == nullptr) return messages;
  const auto add = [&messages](JsonFields& item) { ReadItem(item, &messages); };
  fields.EachObject("previous_response_id", earlier, add);
  if (input->is_string()) {
    messages.push_back(TextMessage("user", View(input->get_string())));
    own->push_back(json::object{{"type", "message"}, {"role", "user"}, {"content", input->get_string()}});
  } else if (input->is_array()) {
    const json::array& items = input->get_array();
    if (items.empty()) fields.Fail(BadRequest("input is empty", "input"));
    *own = items;
    ReplaceReferences(fields, find, own);
    fields.EachObject("input", *own, add);
  } else {
    fields.Fail(BadRequest("input must be a string or an array of items", "input"));
  }
  if (fields.failed()) return messages;
  JoinSystem(&messages);
  NameToolResults(&messages);
  return messages;
}

// Refuses fields that need more memory than this server has.
void RefuseState(JsonFields& fields) {
  constexpr char kMemory[] = "this server has no conversations; previous_response_id goes on from a response";
  fields.Refuse("conversation", kMemory);
  fields.Refuse("prompt", "this server stores no prompts");
  fields.Refuse("background", "an answer is made while its client waits");
  if (fields.String("truncation").value_or("disabled") != "disabled") {
    fields.Refuse("truncation", "a conversation that is too long is an error");
  }
  fields.Ignore("max_tool_calls");
  fields.Ignore("client_metadata");
}

// Reads text.format and reasoning.effort.
void ReadTextAndReasoning(JsonFields& fields, json::object* extra, Question* question) {
  if (const json::object* text = fields.Object("text")) {
    JsonFields inner(*text, "text.");
    ReadTextFormat(inner, "format", question);
    inner.Ignore("verbosity");
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
  if (const json::object* reasoning = fields.Object("reasoning")) {
    JsonFields inner(*reasoning, "reasoning.");
    const std::string effort = inner.String("effort").value_or("");
    if (!effort.empty()) (*extra)["reasoning_effort"] = effort;
    for (const char* name : {"summary", "generate_summary"}) inner.Ignore(name);  // the reasoning itself is given
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
}

// These would be results of tools on the server, of which there are none.
constexpr std::string_view kOfServerTools[] = {"code_interpreter_call.outputs", "computer_call_output.output.image_url",
                                               "file_search_call.results", "message.input_image.image_url",
                                               "web_search_call.action.sources"};

// Log-probabilities may be included, and thoughts as a text. `seal`: gets whether these are.
void ReadInclude(JsonFields& fields, Question* question, bool* seal) {
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, 20);
  if (const json::array* include = fields.Array("include")) {
    for (const json::value& what : *include) {
      if (what == "message.output_text.logprobs") {
        question->logprobs = static_cast<uint32_t>(top.value_or(0));
      } else if (what == "reasoning.encrypted_content") {
        *seal = true;
      } else if (std::none_of(std::begin(kOfServerTools), std::end(kOfServerTools),
                              [&what](std::string_view name) { return what == JsonView(name); })) {
        fields.Fail(BadRequest(fmt::format("include: {} is not supported", WriteJson(what)), "include"));
      }
    }
  }
  if (top.value_or(0) > 0 && !question->logprobs) {
    fields.Fail(BadRequest("top_logprobs needs message.output_text.logprobs in include", "top_logprobs"));
  }
}

void ResponsesAnswer::ReadFields(JsonFields& fields, Question* question) {
  const std::string model = ReadModel(fields, context_);
  settings_["model"] = model;
  ChatInput chat;
  const json::array earlier = ReadPrevious(fields);
  chat.conversation.messages = ReadInput(
      fields, earlier, [this](const std::string& id) { return KeptItem(id); }, &input_);
  if (const json::object* extra = fields.Object("chat_template_kwargs")) chat.conversation.extra = *extra;
  ReadTextAndReasoning(fields, &chat.conversation.extra, question);
  if (const json::object* text = fields.Object("text"); text != nullptr && text->contains("format")) {
    if (const json::object* format = text->at("format").if_object()) format_ = *format;
  }
  ReadResponseTools(fields, &tools_);
  tools_.Offer(&chat.conversation);
  const json::value* choice = fields.Any("tool_choice");
  const json::value* tools = fields.Any("tools");
  settings_["parallel_tool_calls"] = tools_.any() && tools_.parallel;
  settings_["tool_choice"] = !tools_.any() ? json::value("none") : choice != nullptr ? *choice : json::value("auto");
  settings_["tools"] = tools_.any() && tools != nullptr ? *tools : json::value(json::array());
  question->input = std::move(chat);
  question->tenant = tenant_;
  ReadSampling(fields, context_, model, question);
  ReadMostTokens(fields, "max_output_tokens", -1, question);
  tools_.Ask(question);
  ReadInclude(fields, question, &seal_);
  with_logprobs_ = question->logprobs.has_value();
  streaming_ = ReadStreaming(fields);
  RefuseState(fields);
  const json::object* metadata = fields.Object("metadata");
  settings_["metadata"] = metadata != nullptr ? *metadata : json::object();
  const bool keeps = context_.responses != nullptr;
  store_ = keeps && fields.Bool("store").value_or(true);
  IgnoreAccounting(fields, keeps);
  const auto instructions = fields.String("instructions");
  settings_["instructions"] = instructions ? json::value(*instructions) : json::value();
  const std::optional<uint32_t>& most = question->max_new_tokens;
  settings_["max_output_tokens"] = most ? json::value(*most) : json::value();
  settings_["temperature"] = DecimalOf(question->sampling.temperature);
  settings_["top_p"] = DecimalOf(question->sampling.top_p);
}

// The conversation that the request goes on from, as items.
json::array ResponsesAnswer::ReadPrevious(JsonFields& fields) {
  constexpr char kName[] = "previous_response_id";
  previous_ = fields.String(kName).value_or("");
  if (previous_.empty()) return {};
  json::array items;
  StatusOr<std::vector<KeptResponse>> kept = NotFound("none are kept");
  if (context_.responses != nullptr) kept = context_.responses->Conversation(previous_, tenant_);
  if (!kept.ok()) {
    fields.Fail({.status = 400,
                 .message = fmt::format("Previous response with id '{}' not found.", ValidUtf8(previous_)),
                 .param = kName,
                 .code = "previous_response_not_found"});
    return items;
  }
  const auto add = [&items](const json::array& more) { items.insert(items.end(), more.begin(), more.end()); };
  for (const KeptResponse& response : *kept) {
    add(ParseKept(response.input).as_array());
    add(ParseKept(response.response).at("output").as_array());
  }
  return items;
}

// An item of a response's output; its id has the response's in it (AddItem).
json::value ResponsesAnswer::KeptItem(const std::string& id) const {
  const std::string response = id.substr(std::min(id.find('_') + 1, id.size()));
  if (context_.responses == nullptr) return nullptr;
  for (size_t end = response.size(); end > 0 && end != std::string::npos; end = response.rfind('_', end - 1)) {
    const StatusOr<KeptResponse> kept = context_.responses->Find("resp_" + response.substr(0, end), tenant_);
    if (!kept.ok()) continue;
    const json::value whole = ParseKept(kept->response);
    for (const json::value& item : whole.at("output").as_array()) {
      if (item.at("id") == JsonView(id)) return item;
    }
  }
  return nullptr;
}

std::optional<ApiError> ResponsesAnswer::Prepare(Question question) {
  settings_["created_at"] = UnixSeconds();
  if (auto error = AddRequests(context_.service, std::move(question), 1, "input", &requests_)) return error;
  PartRequests(context_);
  return std::nullopt;
}

json::array ResponsesAnswer::Scores(const std::vector<TokenScore>& scores) const {
  if (!with_logprobs_) return {};
  std::string text;
  AppendChatLogprobs(context_.service, scores, &text);
  return json::parse(text).at("content").as_array();
}

json::object ResponsesAnswer::Part(const Item& item, bool done) const {
  json::object part;
  part["type"] = item.kind == Kind::kReasoning ? "reasoning_text" : "output_text";
  part["text"] = done ? item.text : "";
  if (item.kind == Kind::kReasoning) return part;
  part["annotations"] = json::array();
  part["logprobs"] = done ? Scores(item.scores) : json::array();
  return part;
}

json::object ResponsesAnswer::ItemObject(const Item& item, bool done) const {
  json::object object;
  object["id"] = item.id;
  object["type"] = item.kind == Kind::kReasoning ? "reasoning" : item.kind == Kind::kCall ? "function_call" : "message";
  const bool cut = finish_ == FinishReason::kLength && &item == &items_.back();
  object["status"] = !done ? "in_progress" : cut ? "incomplete" : "completed";
  if (!item.space.empty()) object["namespace"] = item.space;
  if (item.kind == Kind::kCall) {
    if (item.custom) object["type"] = "custom_tool_call";
    object["call_id"] = item.call_id;
    object["name"] = item.name;
    if (item.custom) {
      object["input"] = done ? CustomInput(item.text) : "";
    } else {
      object["arguments"] = done ? item.text : "";
    }
    return object;
  }
  if (item.kind == Kind::kReasoning) {
    object["summary"] = json::array();
    if (seal_ && done) object["encrypted_content"] = Seal(item.text);
  } else {
    object["role"] = "assistant";
  }
  json::array content;
  if (done) content.push_back(Part(item, true));
  object["content"] = std::move(content);
  return object;
}

json::object ResponsesAnswer::Response(const UsageSum* usage) const {
  json::object object;
  object["id"] = "resp_" + ValidUtf8(id_);
  object["object"] = "response";
  object["created_at"] = settings_.at("created_at");
  const bool cut = finish_ == FinishReason::kLength;
  object["status"] = usage == nullptr ? "in_progress" : cut ? "incomplete" : "completed";
  object["background"] = false;
  object["error"] = nullptr;
  object["incomplete_details"] = nullptr;
  if (usage != nullptr && cut) object["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
  json::array output;
  if (usage != nullptr) {
    for (const Item& item : items_) output.push_back(ItemObject(item, true));
  }
  object["output"] = std::move(output);
  for (const auto& [name, value] : settings_) object[name] = value;
  object["previous_response_id"] = previous_.empty() ? json::value() : json::value(previous_);
  object["store"] = store_;
  object["text"] = json::object{{"format", format_}};
  object["truncation"] = "disabled";
  object["usage"] = nullptr;
  if (usage != nullptr) {
    object["usage"] = json::object{{"input_tokens", usage->prompt},
                                   {"input_tokens_details", json::object{{"cached_tokens", usage->cached}}},
                                   {"output_tokens", usage->completion},
                                   {"output_tokens_details", json::object{{"reasoning_tokens", usage->reasoning}}},
                                   {"total_tokens", usage->prompt + usage->completion}};
  }
  return object;
}

json::object ResponsesAnswer::End(const UsageSum& usage) {
  json::object object = Response(&usage);
  if (!store_) return object;
  context_.responses->Keep({.id = std::string(View(object.at("id").as_string())),
                            .tenant = tenant_,
                            .previous = previous_,
                            .input = WriteJson(input_),
                            .response = WriteJson(object),
                            .created = object.at("created_at").to_number<int64_t>()});
  return object;
}

void ResponsesAnswer::AddItem(Kind kind, std::string_view name) {
  Item item{.kind = kind};
  item.custom = kind == Kind::kCall && tools_.custom.contains(name);
  const char* const prefix = kind == Kind::kReasoning ? "rs_" : kind == Kind::kMessage ? "msg_" : "fc_";
  item.id = (item.custom ? "ctc_" : prefix) + ValidUtf8(id_);
  const bool again =
      std::any_of(items_.begin(), items_.end(), [kind](const Item& other) { return other.kind == kind; });
  if (again) item.id += fmt::format("_{}", items_.size());
  item.name = ValidUtf8(name);
  if (const auto spaced = tools_.namespaced.find(name); spaced != tools_.namespaced.end()) {
    std::tie(item.space, item.name) = spaced->second;
  }
  if (kind == Kind::kCall) item.call_id = CallId("call_", id_, 0, calls_++);
  items_.push_back(std::move(item));
}

std::string ResponsesAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  const Choice& choice = choices.front();
  finish_ = choice.finish;
  for (const AnswerDelta& part : choice.parts) {
    if (part.kind == AnswerDelta::Kind::kCall) AddItem(Kind::kCall, part.text);
    if (part.kind == AnswerDelta::Kind::kReasoning) AddItem(Kind::kReasoning);
    if (part.kind == AnswerDelta::Kind::kContent) AddItem(Kind::kMessage);
    if (part.kind == AnswerDelta::Kind::kArguments) {
      items_.back().text = ValidUtf8(part.text);
    } else if (items_.back().kind != Kind::kCall) {
      items_.back().text = part.text;
    }
  }
  if (choice.parts.empty() && !choice.reasoning.empty()) {
    AddItem(Kind::kReasoning);
    items_.back().text = choice.reasoning;
  }
  if (choice.parts.empty() && (choice.reasoning.empty() || !choice.text.empty())) {
    AddItem(Kind::kMessage);
    items_.back().text = choice.text;
  }
  for (Item& item : items_) {
    if (item.kind != Kind::kMessage) continue;
    item.scores = choice.scores;
    break;
  }
  return WriteJson(End(usage));
}

void ResponsesAnswer::AppendEvent(std::string_view type, json::object fields, std::string* out) {
  fields["type"] = type;
  fields["sequence_number"] = sequence_++;
  *out += SseEvent(WriteJson(fields), type);
}

void ResponsesAnswer::AppendPartEvent(std::string_view type, json::object fields, std::string* out) {
  fields["item_id"] = items_.back().id;
  fields["output_index"] = items_.size() - 1;
  fields["content_index"] = 0;
  AppendEvent(type, std::move(fields), out);
}

void ResponsesAnswer::OpenItem(Kind kind, std::string_view name, std::string* out) {
  if (!items_.empty()) CloseItem(out);
  AddItem(kind, name);
  const Item& item = items_.back();
  AppendEvent("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", ItemObject(item, false)}},
              out);
  if (kind != Kind::kCall) AppendPartEvent("response.content_part.added", {{"part", Part(item, false)}}, out);
}

void ResponsesAnswer::CloseItem(std::string* out) {
  const Item& item = items_.back();
  if (item.custom) {
    const json::object place{{"item_id", item.id}, {"output_index", items_.size() - 1}};
    const std::string input = CustomInput(item.text);
    for (const auto& [type, field] : {std::pair{"delta", "delta"}, std::pair{"done", "input"}}) {
      json::object event = place;
      event[field] = input;
      AppendEvent(std::string("response.custom_tool_call_input.") + type, std::move(event), out);
    }
  } else if (item.kind == Kind::kCall) {
    AppendEvent(
        "response.function_call_arguments.done",
        {{"item_id", item.id}, {"output_index", items_.size() - 1}, {"name", item.name}, {"arguments", item.text}},
        out);
  } else if (item.kind == Kind::kReasoning) {
    AppendPartEvent("response.reasoning_text.done", {{"text", item.text}}, out);
  } else {
    AppendPartEvent("response.output_text.done", {{"text", item.text}, {"logprobs", Scores(item.scores)}}, out);
  }
  if (item.kind != Kind::kCall) {
    AppendPartEvent("response.content_part.done", {{"part", Part(item, true)}}, out);
  }
  AppendEvent("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", ItemObject(item, true)}},
              out);
}

void ResponsesAnswer::AppendText(Kind kind, const std::string& text, const std::vector<TokenScore>& scores,
                                 std::string* out) {
  if (items_.empty() || items_.back().kind != kind) OpenItem(kind, {}, out);
  const bool reasoning = kind == Kind::kReasoning;
  Item& item = items_.back();
  item.text += text;
  const std::string_view type = reasoning ? "response.reasoning_text.delta" : "response.output_text.delta";
  fmt::format_to(std::back_inserter(*out), "event: {0}\ndata: {{\"type\":\"{0}\",\"item_id\":", type);
  AppendQuoted(item.id, out);
  fmt::format_to(std::back_inserter(*out), ",\"output_index\":{},\"content_index\":0,\"delta\":", items_.size() - 1);
  AppendQuoted(text, out);
  if (!reasoning) *out += ",\"logprobs\":" + (with_logprobs_ ? WriteJson(Scores(scores)) : "[]");
  fmt::format_to(std::back_inserter(*out), ",\"sequence_number\":{}}}\n\n", sequence_++);
  item.scores.insert(item.scores.end(), scores.begin(), scores.end());
}

void ResponsesAnswer::AppendArguments(const std::string& text, std::string* out) {
  const std::string valid = ValidUtf8(text);
  items_.back().text += valid;
  if (items_.back().custom) return;  // its text is known when the arguments are whole
  AppendEvent("response.function_call_arguments.delta",
              {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}, {"delta", valid}}, out);
}

void ResponsesAnswer::AppendBegin(std::string* out) {
  AppendEvent("response.created", {{"response", Response(nullptr)}}, out);
  AppendEvent("response.in_progress", {{"response", Response(nullptr)}}, out);
}

void ResponsesAnswer::AppendDelta(const Delta& delta, std::string* out) {
  std::vector<TokenScore> scores = delta.scores;
  for (const AnswerDelta& part : delta.parts) {
    if (part.kind == AnswerDelta::Kind::kReasoning) AppendText(Kind::kReasoning, part.text, {}, out);
    if (part.kind == AnswerDelta::Kind::kContent) {
      AppendText(Kind::kMessage, part.text, std::exchange(scores, {}), out);
    }
    if (part.kind == AnswerDelta::Kind::kCall) OpenItem(Kind::kCall, part.text, out);
    if (part.kind == AnswerDelta::Kind::kArguments) AppendArguments(part.text, out);
  }
  if (delta.parts.empty()) {
    if (!delta.reasoning.empty()) AppendText(Kind::kReasoning, delta.reasoning, {}, out);
    if (!delta.text.empty() || (with_logprobs_ && !scores.empty())) AppendText(Kind::kMessage, delta.text, scores, out);
  }
  if (delta.finish) finish_ = *delta.finish;
}

void ResponsesAnswer::AppendEnd(const UsageSum& usage, std::string* out) {
  if (items_.empty()) OpenItem(Kind::kMessage, {}, out);
  CloseItem(out);
  const bool cut = finish_ == FinishReason::kLength;
  AppendEvent(cut ? "response.incomplete" : "response.completed", {{"response", End(usage)}}, out);
}

void ResponsesAnswer::AppendError(const ApiError& error, std::string* out) {
  AppendEvent("error",
              {{"code", error.code.empty() ? json::value() : json::value(error.code)},
               {"message", ValidUtf8(error.message)},
               {"param", error.param.empty() ? json::value() : json::value(ValidUtf8(error.param))}},
              out);
}

// The id in the path; `rest`: what stands behind it.
std::string IdOf(const HttpRequest& request, std::string* rest) {
  constexpr std::string_view kPath = "/responses/";
  std::string id = request.path.substr(request.path.find(kPath) + kPath.size());
  const size_t slash = id.find('/');
  if (slash != std::string::npos) *rest = id.substr(slash);
  return id.substr(0, slash);
}

ApiError NoResponse(const std::string& id) {
  return {.status = 404, .message = fmt::format("Response with id '{}' not found.", ValidUtf8(id))};
}

// The items of a list that has no further pages.
json::object ListOf(json::array items) {
  json::object list{{"object", "list"}, {"first_id", nullptr}, {"last_id", nullptr}, {"has_more", false}};
  list["data"] = std::move(items);
  return list;
}

}  // namespace

Awaitable<void> Responses(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<ResponsesAnswer>(context, exchange.request());
  return RunAnswer(context, exchange, std::move(answer));
}

Awaitable<void> ShowResponse(const ApiContext& context, Exchange& exchange) {
  const HttpRequest& asked = exchange.request();
  std::string rest;
  const std::string id = IdOf(asked, &rest);
  StatusOr<KeptResponse> kept = NotFound("none are kept");
  if (context.responses != nullptr && (rest.empty() || rest == "/input_items")) {
    kept = context.responses->Find(id, asked.caller.tenant);
  }
  const std::string* const stream = asked.Query("stream");
  std::optional<ApiError> error;
  if (!kept.ok()) {
    error = NoResponse(id);
  } else if (stream != nullptr && *stream == "true") {
    error = BadRequest("stream: a response that is kept is given as a whole", "stream");
  }
  if (error) {
    co_await RespondError(exchange, *std::move(error));
    co_return;
  }
  HttpResponse response;
  response.body = rest.empty() ? kept->response : WriteJson(ListOf(ParseKept(kept->input).as_array()));
  co_await exchange.Respond(std::move(response));
}

Awaitable<void> DeleteResponse(const ApiContext& context, Exchange& exchange) {
  const HttpRequest& asked = exchange.request();
  std::string rest;
  const std::string id = IdOf(asked, &rest);
  const bool gone =
      context.responses != nullptr && rest.empty() && context.responses->Delete(id, asked.caller.tenant).ok();
  if (!gone) {
    ApiError error = NoResponse(id);
    co_await RespondError(exchange, std::move(error));
    co_return;
  }
  json::object object{{"id", ValidUtf8(id)}, {"object", "response"}, {"deleted", true}};
  co_await RespondJson(exchange, std::move(object));
}

}  // namespace gyre::http
