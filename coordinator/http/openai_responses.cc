// The route POST /v1/responses, which does not remember earlier responses.
#include <algorithm>
#include <chrono>

#include "boost/json/parse.hpp"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/openai_routes.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class ResponsesAnswer : public OpenAiAnswer {
 public:
  ResponsesAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_(AnswerId(request)), tenant_(request.caller.tenant) {}

  std::optional<ApiError> Read(std::string_view body) override;
  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;
  void AppendError(const ApiError& error, std::string* out) override;

 private:
  // A part of the answer: the reasoning, if there is any, or the message.
  struct Item {
    bool reasoning = false;
    std::string id, text;
    std::vector<TokenScore> scores;
  };
  void ReadFields(JsonFields& fields, Question* question);
  // The object while it is written (no usage) or at its end.
  json::object Response(const UsageSum* usage) const;
  json::object ItemObject(const Item& item, bool done) const;
  json::object Part(const Item& item, bool done) const;
  json::array Scores(const std::vector<TokenScore>& scores) const;
  void AddItem(bool reasoning);
  void AppendEvent(std::string_view type, json::object fields, std::string* out);
  // Like AppendEvent, with the place of the last item's text in it.
  void AppendPartEvent(std::string_view type, json::object fields, std::string* out);
  void OpenItem(bool reasoning, std::string* out);
  void CloseItem(std::string* out);
  void AppendText(bool reasoning, const std::string& text, const std::vector<TokenScore>& scores, std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  json::object settings_;  // fields of the response that say what was asked for
  std::vector<Item> items_;
  FinishReason finish_ = FinishReason::kStop;
  uint64_t sequence_ = 0;  // of events
};

// Reads a message of the conversation; items without an effect here add none.
void ReadItem(const json::value& value, const std::string& path, JsonFields& outer, json::array* messages) {
  if (!value.is_object()) return outer.Fail(Malformed(fmt::format("{} must be an object", path), path));
  JsonFields fields(value.get_object(), path + ".");
  const std::string type = fields.String("type").value_or("message");
  if (type == "reasoning") return;  // of an earlier answer: templates take none of it either
  if (type != "message") {
    return outer.Fail(
        Unprocessable(fmt::format("{}.type {} is not supported: messages are", path, type), path + ".type"));
  }
  fields.Require("role");
  fields.Require("content");
  json::object message;
  message["role"] = ReadRole(fields);
  message["content"] = ReadContent(fields, "content", {"input_text", "output_text", "text"}).value_or("");
  for (const char* name : {"id", "status", "phase"}) fields.Ignore(name);
  if (std::optional<ApiError> error = fields.Finish()) return outer.Fail(*std::move(error));
  messages->push_back(std::move(message));
}

json::object MessageOf(const char* role, const std::string& content) {
  json::object message;
  message["role"] = role;
  message["content"] = content;
  return message;
}

json::array ReadInput(JsonFields& fields) {
  json::array messages;
  if (const auto instructions = fields.String("instructions")) messages.push_back(MessageOf("system", *instructions));
  fields.Require("input");
  const json::value* input = fields.Any("input");
  if (input == nullptr) return messages;
  if (input->is_string()) {
    messages.push_back(MessageOf("user", std::string(input->get_string())));
  } else if (input->is_array()) {
    const json::array& items = input->get_array();
    if (items.empty()) fields.Fail(Unprocessable("input is empty", "input"));
    for (size_t i = 0; i < items.size() && !fields.failed(); ++i) {
      ReadItem(items[i], fmt::format("input[{}]", i), fields, &messages);
    }
  } else {
    fields.Fail(Malformed("input must be a string or an array of items", "input"));
  }
  return messages;
}

// Refuses fields that need memory or tools, which this server does not have.
void RefuseState(JsonFields& fields) {
  constexpr char kMemory[] = "this server remembers no answers; send the whole conversation";
  fields.Refuse("previous_response_id", kMemory);
  fields.Refuse("conversation", kMemory);
  fields.Refuse("prompt", "this server stores no prompts");
  if (fields.Bool("background").value_or(false)) fields.Refuse("background", kMemory);
  if (fields.String("truncation").value_or("disabled") != "disabled") {
    fields.Refuse("truncation", "a conversation that is too long is an error");
  }
  fields.Ignore("max_tool_calls");
}

// Reads text.format and reasoning.effort.
void ReadTextAndReasoning(JsonFields& fields, json::object* extra) {
  if (const json::object* text = fields.Object("text")) {
    JsonFields inner(*text, "text.");
    if (const json::object* format = inner.Object("format")) {
      JsonFields kind(*format, "text.format.");
      if (kind.String("type") != "text") kind.Refuse("type", "text is all that is generated");
      if (std::optional<ApiError> error = kind.Finish()) inner.Fail(*std::move(error));
    }
    inner.Refuse("verbosity", "say in a message how long the answer may be");
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
  if (const json::object* reasoning = fields.Object("reasoning")) {
    JsonFields inner(*reasoning, "reasoning.");
    if (const auto effort = inner.String("effort")) (*extra)["reasoning_effort"] = *effort;
    for (const char* name : {"summary", "generate_summary"}) inner.Refuse(name, "the reasoning itself is given");
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
}

// Only log-probabilities may be included.
void ReadInclude(JsonFields& fields, Question* question) {
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, 20);
  if (const json::array* include = fields.Array("include")) {
    for (const json::value& what : *include) {
      if (what == "message.output_text.logprobs") {
        question->logprobs = static_cast<uint32_t>(top.value_or(0));
      } else if (what != "reasoning.encrypted_content") {  // the reasoning is given as it is
        fields.Fail(Unprocessable(fmt::format("include: {} is not supported", WriteJson(what)), "include"));
      }
    }
  }
  if (top.value_or(0) > 0 && !question->logprobs) {
    fields.Fail(Unprocessable("top_logprobs needs message.output_text.logprobs in include", "top_logprobs"));
  }
}

void ResponsesAnswer::ReadFields(JsonFields& fields, Question* question) {
  settings_["model"] = ReadModel(fields, context_);
  ChatInput chat;
  chat.conversation.messages = ReadInput(fields);
  if (const json::object* extra = fields.Object("chat_template_kwargs")) chat.conversation.extra = *extra;
  ReadTextAndReasoning(fields, &chat.conversation.extra);
  question->input = std::move(chat);
  question->tenant = tenant_;
  ReadSampling(fields, context_, question);
  const std::optional<int64_t> most = fields.Integer("max_output_tokens", 1, UINT32_MAX);
  if (most) question->max_new_tokens = static_cast<uint32_t>(*most);
  ReadInclude(fields, question);
  with_logprobs_ = question->logprobs.has_value();
  streaming_ = ReadStreaming(fields);
  RefuseState(fields);
  ReadTools(fields);
  const json::object* metadata = fields.Object("metadata");
  settings_["metadata"] = metadata != nullptr ? *metadata : json::object();
  IgnoreAccounting(fields);
  const auto instructions = fields.String("instructions");
  settings_["instructions"] = instructions ? json::value(*instructions) : json::value();
  settings_["max_output_tokens"] = most ? json::value(*most) : json::value();
  settings_["temperature"] = fields.Number("temperature", 0, 100).value_or(1);
  settings_["top_p"] = fields.Number("top_p", 0, 1).value_or(1);
}

std::optional<ApiError> ResponsesAnswer::Read(std::string_view body) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(body, &object)) return error;
  JsonFields fields(object);
  Question question;
  ReadFields(fields, &question);
  if (std::optional<ApiError> error = fields.Finish()) return error;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  settings_["created_at"] = std::chrono::duration_cast<std::chrono::seconds>(now).count();
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
  part["type"] = item.reasoning ? "reasoning_text" : "output_text";
  part["text"] = done ? item.text : "";
  if (item.reasoning) return part;
  part["annotations"] = json::array();
  part["logprobs"] = done ? Scores(item.scores) : json::array();
  return part;
}

json::object ResponsesAnswer::ItemObject(const Item& item, bool done) const {
  json::object object;
  object["id"] = item.id;
  object["type"] = item.reasoning ? "reasoning" : "message";
  const bool cut = finish_ == FinishReason::kLength && &item == &items_.back();
  object["status"] = !done ? "in_progress" : cut ? "incomplete" : "completed";
  if (item.reasoning) {
    object["summary"] = json::array();
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
  object["parallel_tool_calls"] = false;
  object["previous_response_id"] = nullptr;
  object["store"] = false;
  object["text"] = json::object{{"format", json::object{{"type", "text"}}}};
  object["tool_choice"] = "none";
  object["tools"] = json::array();
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

void ResponsesAnswer::AddItem(bool reasoning) {
  items_.push_back(
      {.reasoning = reasoning, .id = (reasoning ? "rs_" : "msg_") + ValidUtf8(id_), .text = "", .scores = {}});
}

std::string ResponsesAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  const Choice& choice = choices.front();
  finish_ = choice.finish;
  if (!choice.reasoning.empty()) {
    AddItem(true);
    items_.back().text = choice.reasoning;
  }
  if (choice.reasoning.empty() || !choice.text.empty()) {
    AddItem(false);
    items_.back().text = choice.text;
    items_.back().scores = choice.scores;
  }
  return WriteJson(Response(&usage));
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

void ResponsesAnswer::OpenItem(bool reasoning, std::string* out) {
  AddItem(reasoning);
  const Item& item = items_.back();
  AppendEvent("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", ItemObject(item, false)}},
              out);
  AppendPartEvent("response.content_part.added", {{"part", Part(item, false)}}, out);
}

void ResponsesAnswer::CloseItem(std::string* out) {
  const Item& item = items_.back();
  if (item.reasoning) {
    AppendPartEvent("response.reasoning_text.done", {{"text", item.text}}, out);
  } else {
    AppendPartEvent("response.output_text.done", {{"text", item.text}, {"logprobs", Scores(item.scores)}}, out);
  }
  AppendPartEvent("response.content_part.done", {{"part", Part(item, true)}}, out);
  AppendEvent("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", ItemObject(item, true)}},
              out);
}

void ResponsesAnswer::AppendText(bool reasoning, const std::string& text, const std::vector<TokenScore>& scores,
                                 std::string* out) {
  if (items_.empty() || items_.back().reasoning != reasoning) {
    if (!items_.empty()) CloseItem(out);
    OpenItem(reasoning, out);
  }
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

void ResponsesAnswer::AppendBegin(std::string* out) {
  AppendEvent("response.created", {{"response", Response(nullptr)}}, out);
  AppendEvent("response.in_progress", {{"response", Response(nullptr)}}, out);
}

void ResponsesAnswer::AppendDelta(const Delta& delta, std::string* out) {
  if (!delta.reasoning.empty()) AppendText(true, delta.reasoning, {}, out);
  if (!delta.text.empty() || (with_logprobs_ && !delta.scores.empty())) {
    AppendText(false, delta.text, delta.scores, out);
  }
  if (delta.finish) finish_ = *delta.finish;
}

void ResponsesAnswer::AppendEnd(const UsageSum& usage, std::string* out) {
  if (items_.empty()) OpenItem(false, out);
  CloseItem(out);
  const bool cut = finish_ == FinishReason::kLength;
  AppendEvent(cut ? "response.incomplete" : "response.completed", {{"response", Response(&usage)}}, out);
}

void ResponsesAnswer::AppendError(const ApiError& error, std::string* out) {
  AppendEvent("error",
              {{"code", error.code.empty() ? json::value() : json::value(error.code)},
               {"message", ValidUtf8(error.message)},
               {"param", error.param.empty() ? json::value() : json::value(ValidUtf8(error.param))}},
              out);
}

}  // namespace

Awaitable<void> Responses(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<ResponsesAnswer>(context, exchange.request());
  return RunAnswer(context, exchange, std::move(answer));
}

}  // namespace gyre::http
