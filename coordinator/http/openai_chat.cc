// The route POST /v1/chat/completions.
#include <algorithm>

#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_messages.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/sampling_fields.h"
#include "fmt/format.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class ChatAnswer : public OpenAiAnswer {
 public:
  ChatAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_("chatcmpl-" + AnswerId(request)), tenant_(request.caller.tenant) {}

  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendProgress(size_t choice, const PromptProgress& progress, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;

 private:
  void ReadFields(JsonFields& fields, Question* question) override;
  std::optional<ApiError> Prepare(Question question) override;
  // Begins one event: all that comes before `"delta":`.
  void OpenChunk(size_t choice, std::string* out);
  void CloseChunk(const Delta& delta, const char* finish, std::string* out);
  // Appends the events of calls, one for each part.
  void AppendCalls(const Delta& delta, std::string* out);
  // Appends the field tool_calls, with a comma before it, if there are calls.
  void AppendWholeCalls(size_t index, const Choice& choice, std::string* out) const;
  // Appends the field logprobs, with a comma before it.
  void AppendLogprobs(const std::vector<TokenScore>& scores, std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  std::string model_;
  bool with_ids_ = false;
  bool in_content_ = false;    // reasoning stays there
  std::vector<size_t> calls_;  // of each choice of a stream, so far
  // For each choice, the arguments of the call that is under way, if its tool takes a text.
  std::vector<std::optional<std::string>> custom_;
  std::vector<TokenId> prompt_ids_;      // with_ids_
  std::string chunk_begin_, chunk_end_;  // of each event of a stream
};

// "id":...,"type":"function","function":{"name":...,"arguments":
void AppendCallBeginning(const std::string& id, const std::string& name, bool custom, std::string* out) {
  *out += "\"id\":";
  AppendQuoted(id, out);
  *out += custom ? R"(,"type":"custom","custom":{"name":)" : R"(,"type":"function","function":{"name":)";
  AppendQuoted(ValidUtf8(name), out);
  *out += custom ? ",\"input\":" : ",\"arguments\":";
}

// Refuses fields that ask for something other than text.
void ReadFormats(JsonFields& fields, Question* question) {
  ReadTextFormat(fields, "response_format", question);
  if (const json::array* modalities = fields.Array("modalities")) {
    const bool text = std::all_of(modalities->begin(), modalities->end(), [](const auto& m) { return m == "text"; });
    if (!text) fields.Refuse("modalities", "text is all that is generated");
  }
  fields.Refuse("audio", "text is all that is generated");
  fields.Refuse("documents", "say in a message what they are");
  fields.Refuse("mm_processor_kwargs", "the model reads text alone");
  fields.Refuse("chat_template", "the model's own template is taken");
  fields.Refuse("echo", "a chat's answer does not repeat the conversation");
  fields.Refuse("add_special_tokens", "the chat template says where they stand");
  fields.Refuse("reasoning_in_content", "reasoning_format none leaves it there");
  fields.RefuseAny("web_search_options", "this server searches nothing");
  fields.Ignore("verbosity");
  fields.Ignore("timings_per_token");
}

void ReadLogprobs(JsonFields& fields, Question* question) {
  const int64_t top = fields.Integer("top_logprobs", 0, 20).value_or(0);
  if (fields.Bool("logprobs").value_or(false)) {
    question->logprobs = static_cast<uint32_t>(top);
  } else if (top > 0) {
    fields.Fail(BadRequest("top_logprobs needs logprobs: true", "top_logprobs"));
  }
}

void ChatAnswer::ReadFields(JsonFields& fields, Question* question) {
  model_ = ReadModel(fields, context_);
  ChatInput chat;
  tools_ = ReadChat(fields, &chat.conversation);
  question->input = std::move(chat);
  question->tenant = tenant_;
  ReadSampling(fields, context_, model_, question);
  ReadMostTokens(fields, "max_completion_tokens", -1, question);
  ReadMostTokens(fields, "max_tokens", -1, question);
  n_ = fields.Integer("n", 1, kMaxChoices).value_or(1);
  streaming_ = ReadStreaming(fields);
  question->progress = streaming_.progress;
  with_ids_ = fields.Bool("return_token_ids").value_or(false);
  ReadLogprobs(fields, question);
  with_logprobs_ = question->logprobs.has_value();
  ReadFormats(fields, question);
  tools_.Ask(question);
  in_content_ = fields.String("reasoning_format") == "none";
  IgnoreAccounting(fields);
}

std::optional<ApiError> ChatAnswer::Prepare(Question question) {
  std::optional<ApiError> error = AddRequests(context_.service, std::move(question), n_, "messages", &requests_);
  if (error) return error;
  PartRequests(context_, !in_content_);
  calls_.resize(static_cast<size_t>(n_));
  custom_.resize(static_cast<size_t>(n_));
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
    if (choices[i].text.empty() && choices[i].called) {
      out += "null";
    } else {
      AppendQuoted(choices[i].text, &out);
    }
    AppendWholeCalls(i, choices[i], &out);
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
    out += fmt::format(",\"finish_reason\":{}}}", QuotedFinish(choices[i].finish, choices[i].called));
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
  AppendCalls(delta, out);
  if (!delta.finish) return;
  OpenChunk(delta.choice, out);
  *out += "{}";
  CloseChunk({}, QuotedFinish(*delta.finish, delta.called), out);
}

void ChatAnswer::AppendProgress(size_t choice, const PromptProgress& progress, std::string* out) {
  *out += chunk_begin_;
  fmt::format_to(std::back_inserter(*out), R"({{"index":{},"delta":{{}},"logprobs":null,"finish_reason":null}})",
                 choice);
  AppendPromptProgress(progress, chunk_end_, out);
}

void ChatAnswer::AppendCalls(const Delta& delta, std::string* out) {
  using Kind = AnswerDelta::Kind;
  size_t& calls = calls_[delta.choice];
  std::optional<std::string>& custom = custom_[delta.choice];
  const auto open = [&] {
    OpenChunk(delta.choice, out);
    fmt::format_to(std::back_inserter(*out), R"({{"tool_calls":[{{"index":{},)", calls - 1);
  };
  const auto close = [&](const std::string& text) {
    AppendQuoted(ValidUtf8(text), out);
    *out += "}}]}";
    CloseChunk({}, "null", out);
  };
  // The text of a custom tool is known when the arguments are whole.
  const auto end_custom = [&] {
    if (!custom) return;
    open();
    *out += "\"custom\":{\"input\":";
    close(CustomInput(*custom));
    custom.reset();
  };
  for (const AnswerDelta& part : delta.parts) {
    if (part.kind == Kind::kCall) {
      ++calls;
      if (tools_.custom.contains(part.text)) custom.emplace();
      open();
      AppendCallBeginning(CallId("call_", id_, delta.choice, calls - 1), part.text, custom.has_value(), out);
      close("");
    } else if (part.kind == Kind::kArguments && custom) {
      *custom += part.text;
    } else if (part.kind == Kind::kArguments) {
      open();
      *out += "\"function\":{\"arguments\":";
      close(part.text);
    } else if (part.kind == Kind::kCallEnd) {
      end_custom();
    }
  }
  if (delta.finish) end_custom();
}

void ChatAnswer::AppendWholeCalls(size_t index, const Choice& choice, std::string* out) const {
  size_t calls = 0;
  bool arguments = true, custom = false;
  for (const AnswerDelta& part : choice.parts) {
    if (part.kind == AnswerDelta::Kind::kArguments) {
      AppendQuoted(custom ? CustomInput(part.text) : ValidUtf8(part.text), out);
      *out += "}}";
      arguments = true;
    }
    if (part.kind != AnswerDelta::Kind::kCall) continue;
    if (!arguments) *out += "\"\"}}";
    *out += calls == 0 ? ",\"tool_calls\":[{" : ",{";
    custom = tools_.custom.contains(part.text);
    AppendCallBeginning(CallId("call_", id_, index, calls++), part.text, custom, out);
    arguments = false;
  }
  if (!arguments) *out += "\"\"}}";
  if (calls > 0) *out += ']';
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
