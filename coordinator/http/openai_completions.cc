// POST /v1/completions
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_routes.h"
#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class CompletionAnswer : public OpenAiAnswer {
 public:
  CompletionAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_("cmpl-" + request.id), tenant_(request.caller.tenant) {}

  std::optional<ApiError> Read(std::string_view body) override;
  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;

 private:
  struct Prompt {
    std::string text;          // with echo
    std::vector<TokenId> ids;  // with return_token_ids
  };
  void ReadFields(JsonFields& fields, Question* question);
  std::optional<ApiError> AddPrompt(const PromptInput& input, const Question& question);
  const Prompt& PromptOf(size_t choice) const { return prompts_[choice / static_cast<size_t>(n_)]; }
  // What stands behind the text of a choice.
  void CloseChoice(const std::vector<TokenId>& ids, const char* finish, std::string* out);
  void AppendChunk(size_t choice, std::string_view text, const std::vector<TokenId>& ids, const char* finish,
                   std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  std::string model_;
  std::vector<PromptInput> inputs_;
  std::vector<Prompt> prompts_;
  bool echo_ = false, with_ids_ = false;
  std::string chunk_begin_, chunk_end_;  // of each event of a stream
};

void CompletionAnswer::ReadFields(JsonFields& fields, Question* question) {
  model_ = ReadModel(fields, context_);
  inputs_ = ReadPrompts(fields, "prompt", context_.service.model().spec().vocab, kMaxChoices);
  question->tenant = tenant_;
  ReadSampling(fields, context_, question);
  question->stops = ReadStop(fields);
  const std::optional<int64_t> most = fields.Integer("max_tokens", 0, UINT32_MAX);
  if (most) question->max_new_tokens = static_cast<uint32_t>(*most);
  n_ = fields.Integer("n", 1, kMaxChoices).value_or(1);
  if (fields.Integer("best_of", 1, kMaxChoices).value_or(n_) != n_) {
    fields.Refuse("best_of", "every answer that is generated is given; n says how many");
  }
  if (static_cast<int64_t>(inputs_.size()) * n_ > kMaxChoices) {
    fields.Fail(Unprocessable(
        fmt::format("{} prompts of {} choices each are more than {}", inputs_.size(), n_, kMaxChoices), "n"));
  }
  streaming_ = ReadStreaming(fields);
  echo_ = fields.Bool("echo").value_or(false);
  with_ids_ = fields.Bool("return_token_ids").value_or(false);
  fields.Refuse("suffix", "the model continues a text, it fills no gaps");
  IgnoreAccounting(fields);
}

std::optional<ApiError> CompletionAnswer::AddPrompt(const PromptInput& input, const Question& settings) {
  Question question = settings;
  const auto* ids = std::get_if<std::vector<TokenId>>(&input);
  if (ids != nullptr) {
    question.input = *ids;
  } else {
    question.input = TextInput{.text = std::get<std::string>(input), .parse_special = true};
  }
  const size_t first = requests_.size();
  if (auto error = AddRequests(context_.service, std::move(question), n_, "prompt", &requests_)) return error;
  Prompt prompt;
  if (with_ids_) prompt.ids = requests_[first].prompt;
  if (echo_ && ids == nullptr) prompt.text = std::get<std::string>(input);
  if (echo_ && ids != nullptr) {
    StatusOr<std::string> text = context_.service.Detokenize(*ids, true);
    if (!text.ok()) return FromStatus(text.status(), "prompt");
    prompt.text = ValidUtf8(*text);
  }
  prompts_.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<ApiError> CompletionAnswer::Read(std::string_view body) {
  json::object object;
  if (std::optional<ApiError> error = ParseBody(body, &object)) return error;
  JsonFields fields(object);
  Question question;
  ReadFields(fields, &question);
  if (std::optional<ApiError> error = fields.Finish()) return error;
  for (const PromptInput& input : inputs_) {
    if (std::optional<ApiError> error = AddPrompt(input, question)) return error;
  }
  chunk_begin_ = "data: " + ObjectBeginning(context_, id_, "text_completion", model_);
  chunk_end_ = streaming_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
  return std::nullopt;
}

void CompletionAnswer::CloseChoice(const std::vector<TokenId>& ids, const char* finish, std::string* out) {
  *out += ",\"logprobs\":null";
  if (with_ids_) {
    *out += ",\"token_ids\":";
    AppendIds(ids, out);
  }
  *out += ",\"finish_reason\":";
  *out += finish;
}

std::string CompletionAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  std::string out = ObjectBeginning(context_, id_, "text_completion", model_);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"text\":", i);
    AppendQuoted(PromptOf(i).text + choices[i].text, &out);
    CloseChoice(choices[i].ids, QuotedFinish(choices[i].finish), &out);
    if (with_ids_) {
      out += ",\"prompt_token_ids\":";
      AppendIds(PromptOf(i).ids, &out);
    }
    out += '}';
  }
  return out + "],\"usage\":" + UsageJson(usage) + "}";
}

void CompletionAnswer::AppendChunk(size_t choice, std::string_view text, const std::vector<TokenId>& ids,
                                   const char* finish, std::string* out) {
  *out += chunk_begin_;
  fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"text\":", choice);
  AppendQuoted(text, out);
  CloseChoice(ids, finish, out);
  *out += '}';
  *out += chunk_end_;
}

void CompletionAnswer::AppendBegin(std::string* out) {
  if (!echo_ && !with_ids_) return;
  for (size_t i = 0; i < prompts_.size() * static_cast<size_t>(n_); ++i) {
    AppendChunk(i, PromptOf(i).text, {}, "null", out);
    if (!with_ids_) continue;
    // Into the choice, which ends before the end of the event.
    std::string ids = ",\"prompt_token_ids\":";
    AppendIds(PromptOf(i).ids, &ids);
    out->insert(out->size() - chunk_end_.size() - 1, ids);
  }
}

void CompletionAnswer::AppendDelta(const Delta& delta, std::string* out) {
  if (!delta.text.empty() || (with_ids_ && !delta.ids.empty())) {
    AppendChunk(delta.choice, delta.text, delta.ids, "null", out);
  }
  if (delta.finish) AppendChunk(delta.choice, "", {}, QuotedFinish(*delta.finish), out);
}

void CompletionAnswer::AppendEnd(const UsageSum& usage, std::string* out) {
  if (streaming_.include_usage) *out += chunk_begin_ + "],\"usage\":" + UsageJson(usage) + "}\n\n";
  *out += "data: [DONE]\n\n";
}

}  // namespace

Awaitable<void> Completions(const ApiContext& context, Exchange& exchange) {
  auto answer = std::make_unique<CompletionAnswer>(context, exchange.request());
  return RunAnswer(context, exchange, std::move(answer));
}

}  // namespace gyre::http
