// The route POST /v1/completions.
#include <span>

#include "coordinator/http/grammar_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_answer.h"
#include "coordinator/http/openai_routes.h"
#include "coordinator/http/sampling_fields.h"
#include "fmt/format.h"
#include "model/weights.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class CompletionAnswer : public OpenAiAnswer {
 public:
  CompletionAnswer(const ApiContext& context, const HttpRequest& request)
      : context_(context), id_("cmpl-" + AnswerId(request)), tenant_(request.caller.tenant) {}

  std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) override;
  void AppendBegin(std::string* out) override;
  void AppendDelta(const Delta& delta, std::string* out) override;
  void AppendProgress(size_t choice, const PromptProgress& progress, std::string* out) override;
  void AppendEnd(const UsageSum& usage, std::string* out) override;

 private:
  struct Prompt {
    std::string text;  // with echo
    std::vector<TokenId> ids;
    bool hidden_bos = false;  // the tokenizer added it to the text
  };
  void ReadFields(JsonFields& fields, Question* question) override;
  std::optional<ApiError> Prepare(Question question) override;
  std::optional<ApiError> AddPrompt(const PromptInput& input, const Question& question);
  const Prompt& PromptOf(size_t choice) const { return prompts_[choice / static_cast<size_t>(n_)]; }
  // Appends the fields after the text of a choice.
  void CloseChoice(size_t choice, std::span<const TokenId> ids, std::span<const TokenScore> scores, const char* finish,
                   std::string* out);
  void AppendChunk(const Delta& delta, const char* finish, std::string* out);
  // The scores include that of the first token, which has none.
  std::vector<TokenScore> ScoresOfPrompt(size_t choice, std::vector<TokenScore> scores) const;
  // Appends the prompt as a part of the text. `scores`: of its tokens.
  void AppendEcho(size_t choice, std::vector<TokenScore> scores, std::string* out);

  const ApiContext& context_;
  const std::string id_;
  const uint64_t tenant_;
  std::string model_;
  std::vector<PromptInput> inputs_;
  std::vector<Prompt> prompts_;
  bool echo_ = false, with_ids_ = false;
  // The state of each choice:
  std::vector<size_t> offsets_;                         // characters of the text so far
  std::vector<std::vector<TokenScore>> prompt_scores_;  // until the prompt is echoed
  std::vector<bool> echoed_;
  std::string chunk_begin_, chunk_end_;  // of each event of a stream
};

void CompletionAnswer::ReadFields(JsonFields& fields, Question* question) {
  model_ = ReadModel(fields, context_);
  inputs_ = ReadPrompts(fields, "prompt", context_.service.model().spec().vocab, kMaxChoices);
  question->tenant = tenant_;
  ReadSampling(fields, context_, model_, question);
  ReadMostTokens(fields, "max_tokens", -1, question);
  n_ = fields.Integer("n", 1, kMaxChoices).value_or(1);
  const int64_t best_of = fields.Integer("best_of", 0, kMaxChoices).value_or(0);
  if (best_of != 0 && best_of != n_) {
    fields.RefuseAny("best_of", "every answer that is generated is given; n says how many");
  }
  if (static_cast<int64_t>(inputs_.size()) * n_ > kMaxChoices) {
    fields.Fail(BadRequest(
        fmt::format("{} prompts of {} choices each are more than {}", inputs_.size(), n_, kMaxChoices), "n"));
  }
  streaming_ = ReadStreaming(fields);
  question->progress = streaming_.progress;
  echo_ = fields.Bool("echo").value_or(false);
  with_ids_ = fields.Bool("return_token_ids").value_or(false);
  const std::optional<int64_t> logprobs = fields.Integer("logprobs", 0, 20);
  if (logprobs) question->logprobs = static_cast<uint32_t>(*logprobs);
  if (echo_) question->prompt_logprobs = question->logprobs;
  with_logprobs_ = logprobs.has_value();
  fields.Refuse("suffix", "the model continues a text, it fills no gaps");
  ReadTextFormat(fields, "response_format", question);
  if (!fields.Bool("add_special_tokens").value_or(true))
    fields.RefuseAny("add_special_tokens", "give the prompt as ids");
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
  prompt.ids = requests_[first].prompt;
  if (ids == nullptr) {
    prompt.text = echo_ ? std::get<std::string>(input) : "";
    const StatusOr<std::string> bos = context_.service.TokenBytes(prompt.ids.front(), true);
    prompt.hidden_bos = bos.ok() && prompt.text.compare(0, bos->size(), *bos) != 0;
  }
  if (echo_ && ids != nullptr) {
    StatusOr<std::string> text = context_.service.Detokenize(*ids, true);
    if (!text.ok()) return FromInput(text.status(), "prompt");
    prompt.text = ValidUtf8(*text);
  }
  prompts_.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<ApiError> CompletionAnswer::Prepare(Question question) {
  for (const PromptInput& input : inputs_) {
    if (std::optional<ApiError> error = AddPrompt(input, question)) return error;
  }
  offsets_.resize(requests_.size());
  prompt_scores_.resize(requests_.size());
  echoed_.resize(requests_.size());
  chunk_begin_ = "data: " + ObjectBeginning(context_, id_, "text_completion", model_);
  chunk_end_ = streaming_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
  return std::nullopt;
}

void CompletionAnswer::CloseChoice(size_t choice, std::span<const TokenId> ids, std::span<const TokenScore> scores,
                                   const char* finish, std::string* out) {
  *out += ",\"logprobs\":";
  if (with_logprobs_) {
    AppendTextLogprobs(context_.service, scores, &offsets_[choice], out);
  } else {
    *out += "null";
  }
  if (with_ids_) {
    *out += ",\"token_ids\":";
    AppendIds(ids, out);
  }
  *out += ",\"finish_reason\":";
  *out += finish;
}

std::vector<TokenScore> CompletionAnswer::ScoresOfPrompt(size_t choice, std::vector<TokenScore> scores) const {
  const Prompt& prompt = PromptOf(choice);
  for (TokenScore& score : scores) score.shown = true;
  scores.insert(scores.begin(), TokenScore{.token = prompt.ids.front(), .shown = !prompt.hidden_bos});
  return scores;
}

std::string CompletionAnswer::Whole(const std::vector<Choice>& choices, const UsageSum& usage) {
  std::string out = ObjectBeginning(context_, id_, "text_completion", model_);
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"text\":", i);
    AppendQuoted(PromptOf(i).text + choice.text, &out);
    std::vector<TokenScore> scores;
    if (echo_ && with_logprobs_) scores = ScoresOfPrompt(i, choice.prompt_scores);
    scores.insert(scores.end(), choice.scores.begin(), choice.scores.end());
    CloseChoice(i, choice.ids, scores, QuotedFinish(choice.finish), &out);
    if (with_ids_) {
      out += ",\"prompt_token_ids\":";
      AppendIds(PromptOf(i).ids, &out);
    }
    out += '}';
  }
  return out + "],\"usage\":" + UsageJson(usage) + "}";
}

void CompletionAnswer::AppendChunk(const Delta& delta, const char* finish, std::string* out) {
  *out += chunk_begin_;
  fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"text\":", delta.choice);
  AppendQuoted(delta.text, out);
  CloseChoice(delta.choice, delta.ids(), delta.scores, finish, out);
  *out += '}';
  *out += chunk_end_;
}

void CompletionAnswer::AppendEcho(size_t choice, std::vector<TokenScore> scores, std::string* out) {
  Delta echo;
  echo.choice = choice;
  echo.text = PromptOf(choice).text;
  echo.scores = std::move(scores);
  AppendChunk(echo, "null", out);
  if (!with_ids_) return;
  // The ids go into the choice, which ends before the end of the event.
  std::string ids = ",\"prompt_token_ids\":";
  AppendIds(PromptOf(choice).ids, &ids);
  out->insert(out->size() - chunk_end_.size() - 1, ids);
}

void CompletionAnswer::AppendBegin(std::string* out) {
  if (!echo_ && !with_ids_) return;
  if (echo_ && with_logprobs_) return;  // the scores of the prompt come first
  for (size_t i = 0; i < offsets_.size(); ++i) AppendEcho(i, {}, out);
}

void CompletionAnswer::AppendDelta(const Delta& delta, std::string* out) {
  const size_t i = delta.choice;
  if (delta.prompt_score) return prompt_scores_[i].push_back(*delta.prompt_score);
  if (echo_ && with_logprobs_ && !echoed_[i]) {
    echoed_[i] = true;
    AppendEcho(i, ScoresOfPrompt(i, std::move(prompt_scores_[i])), out);
  }
  const bool scored = with_logprobs_ && !delta.scores.empty();
  if (!delta.text.empty() || scored || (with_ids_ && delta.id)) AppendChunk(delta, "null", out);
  if (!delta.finish) return;
  Delta end;
  end.choice = i;
  AppendChunk(end, QuotedFinish(*delta.finish), out);
}

void CompletionAnswer::AppendProgress(size_t choice, const PromptProgress& progress, std::string* out) {
  *out += chunk_begin_;
  fmt::format_to(std::back_inserter(*out), R"({{"index":{},"text":"","logprobs":null,"finish_reason":null}})", choice);
  AppendPromptProgress(progress, chunk_end_, out);
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
