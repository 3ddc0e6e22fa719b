// The route POST /v1/chat/completions.
#include <algorithm>

#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/openai_routes.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class ChatAnswer : public OpenAiAnswer {
 public:
  ChatAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_("chatcmpl-" + AnswerId(request)), tenant_(request.caller.tenant) {}

  std::optional<ApiError> Read(std::string_view body) override;
  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;

 private:
  void ReadFields(JsonFields& fields, Question* question);
  // Begins one event: all that comes before `"delta":`.
  void OpenChunk(size_t choice, std::string* out);
  void CloseChunk(const Delta& delta, const char* finish, std::string* out);
  // Appends the field logprobs, with a comma before it.
  void AppendLogprobs(const std::vector<TokenScore>& scores, std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  std::string model_;
  bool with_ids_ = false;
  std::vector<TokenId> prompt_ids_;      // with_ids_
  std::string chunk_begin_, chunk_end_;  // of each event of a stream
};

// Refuses fields that ask for something other than text.
void ReadFormats(JsonFields& fields) {
  if (const json::object* format = fields.Object("response_format")) {
    JsonFields inner(*format, "response_format.");
    if (inner.String("type") != "text") inner.Refuse("type", "text is all that is generated");
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
  if (const json::array* modalities = fields.Array("modalities")) {
    const bool text = std::all_of(modalities->begin(), modalities->end(), [](const auto& m) { return m == "text"; });
    if (!text) fields.Refuse("modalities", "text is all that is generated");
  }
  fields.Refuse("audio", "text is all that is generated");
  fields.Refuse("verbosity", "say in a message how long the answer may be");
  fields.Refuse("web_search_options", "this server searches nothing");
}

std::optional<uint32_t> ReadMaxTokens(JsonFields& fields) {
  const std::optional<int64_t> older = fields.Integer("max_tokens", 1, UINT32_MAX);
  const std::optional<int64_t> newer = fields.Integer("max_completion_tokens", 1, UINT32_MAX);
  if (older && newer && *older != *newer) {
    fields.Fail(Unprocessable("max_tokens and max_completion_tokens differ", "max_tokens"));
  }
  if (!older && !newer) return std::nullopt;
  return static_cast<uint32_t>(newer ? *newer : *older);
}

void ReadLogprobs(JsonFields& fields, Question* question) {
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, 20);
  if (fields.Bool("logprobs").value_or(false)) {
    question->logprobs = static_cast<uint32_t>(top.value_or(0));
  } else if (top) {
    fields.Fail(Unprocessable("top_logprobs needs logprobs: true", "top_logprobs"));
  }
}

void ChatAnswer::ReadFields(JsonFields& fields, Question* question) {
  model_ = ReadModel(fields, context_);
  ChatInput chat;
  chat.conversation.messages = ReadMessages(fields);
  if (const json::object* extra = fields.Object("chat_template_kwargs")) chat.conversation.extra = *extra;
  if (const auto effort = fields.String("reasoning_effort")) chat.conversation.extra["reasoning_effort"] = *effort;
  question->input = std::move(chat);
  question->tenant = tenant_;
  ReadSampling(fields, context_, question);
  question->stops = ReadStop(fields);
  question->max_new_tokens = ReadMaxTokens(fields);
  n_ = fields.Integer("n", 1, kMaxChoices).value_or(1);
  streaming_ = ReadStreaming(fields);
  with_ids_ = fields.Bool("return_token_ids").value_or(false);
  ReadLogprobs(fields, question);
  with_logprobs_ = question->logprobs.has_value();
  ReadTools(fields);
  ReadFormats(fields);
  IgnoreAccounting(fields);
}

std::optional<ApiError> ChatAnswer::Read(std::string_view body) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(body, &object)) return error;
  JsonFields fields(object);
  Question question;
  ReadFields(fields, &question);
  if (std::optional<ApiError> error = fields.Finish()) return error;
  std::optional<ApiError> error = AddRequests(context_.service, std::move(question), n_, "messages", &requests_);
  if (error) return error;
  PartRequests(context_);
  if (with_ids_) prompt_ids_ = requests_.front().prompt;
  chunk_begin_ = "data: " + ObjectBeginning(context_, id_, "chat.completion.chunk", model_);
  chunk_end_ = streaming_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
  return std::nullopt;
}

std::string ChatAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  std::string out = ObjectBeginning(context_, id_, "chat.completion", model_);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":{{"role":"assistant","content":)", i);
    AppendQuoted(choices[i].text, &out);
    if (!choices[i].reasoning.empty()) {
      out += ",\"reasoning_content\":";
      AppendQuoted(choices[i].reasoning, &out);
    }
    out += ",\"refusal\":null}";
    AppendLogprobs(choices[i].scores, &out);
    if (with_ids_) {
      out += ",\"token_ids\":";
      AppendIds(choices[i].ids, &out);
    }
    out += fmt::format(",\"finish_reason\":{}}}", QuotedFinish(choices[i].finish));
  }
  out += ']';
  if (with_ids_) {
    out += ",\"prompt_token_ids\":";
    AppendIds(prompt_ids_, &out);
  }
  return out + ",\"usage\":" + UsageJson(usage) + "}";
}

void ChatAnswer::OpenChunk(size_t choice, std::string* out) {
  *out += chunk_begin_;
  fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"delta\":", choice);
}

void ChatAnswer::AppendLogprobs(const std::vector<TokenScore>& scores, std::string* out) {
  *out += ",\"logprobs\":";
  if (with_logprobs_) {
    AppendChatLogprobs(context_.service, scores, out);
  } else {
    *out += "null";
  }
}

void ChatAnswer::CloseChunk(const Delta& delta, const char* finish, std::string* out) {
  if (delta.scores.empty()) {
    *out += ",\"logprobs\":null";
  } else {
    AppendLogprobs(delta.scores, out);
  }
  if (with_ids_) {
    *out += ",\"token_ids\":";
    AppendIds(delta.ids(), out);
  }
  *out += ",\"finish_reason\":";
  *out += finish;
  *out += '}';
  *out += chunk_end_;
}

void ChatAnswer::AppendBegin(std::string* out) {
  for (size_t i = 0; i < static_cast<size_t>(n_); ++i) {
    OpenChunk(i, out);
    *out += R"({"role":"assistant","content":"","refusal":null})";
    CloseChunk({}, "null", out);
    if (i > 0 || !with_ids_) continue;
    // The ids go into the first event, after its choices.
    std::string ids = "],\"prompt_token_ids\":";
    AppendIds(prompt_ids_, &ids);
    out->replace(out->size() - chunk_end_.size(), 1, ids);
  }
}

void ChatAnswer::AppendDelta(const Delta& delta, std::string* out) {
  const bool scored = with_logprobs_ && !delta.scores.empty();
  if (!delta.text.empty() || !delta.reasoning.empty() || scored || (with_ids_ && delta.id)) {
    OpenChunk(delta.choice, out);
    *out += '{';
    if (!delta.reasoning.empty()) {
      *out += "\"reasoning_content\":";
      AppendQuoted(delta.reasoning, out);
    }
    if (!delta.text.empty() || delta.reasoning.empty()) {
      *out += delta.reasoning.empty() ? "\"content\":" : ",\"content\":";
      AppendQuoted(delta.text, out);
    }
    *out += '}';
    CloseChunk(delta, "null", out);
  }
  if (!delta.finish) return;
  OpenChunk(delta.choice, out);
  *out += "{}";
  CloseChunk({}, QuotedFinish(*delta.finish), out);
}

void ChatAnswer::AppendEnd(const UsageSum& usage, std::string* out) {
  if (streaming_.include_usage) *out += chunk_begin_ + "],\"usage\":" + UsageJson(usage) + "}\n\n";
  *out += "data: [DONE]\n\n";
}

}  // namespace

Awaitable<void> ChatCompletions(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<ChatAnswer>(context, exchange.request());
  return RunAnswer(context, exchange, std::move(answer));
}

}  // namespace gyre::http
