// The common path of all routes that generate, from a request's body to the engine and back. A route only reads its
// body and writes its answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/answer_parts.h"
#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/openai_logprobs.h"
#include "coordinator/http/openai_sampling.h"

namespace gyre::http {

// The part of one choice that one event adds.
struct Delta {
  size_t choice = 0;
  std::string reasoning, text;
  std::optional<TokenId> id;
  std::vector<TokenScore> scores;          // with logprobs: of the tokens that the text comes from
  std::optional<TokenScore> prompt_score;  // with prompt_logprobs: of a token of the prompt; then nothing else is there
  std::optional<FinishReason> finish;      // the last one of its choice

  std::span<const TokenId> ids() const {
    if (!id) return {};
    return {&*id, 1};
  }
};

// The sum over all choices. Choices of one prompt count it once.
struct UsageSum {
  uint64_t prompt = 0, cached = 0, completion = 0;
  uint64_t reasoning = 0;  // of the completion's: those before the content begins
  uint64_t shifts = 0;     // of the context
};

// A complete choice.
struct Choice {
  std::string reasoning, text;
  std::vector<TokenId> ids;
  std::vector<TokenScore> scores, prompt_scores;
  FinishReason finish = FinishReason::kStop;
};

// One HTTP request to a route that generates.
class OpenAiAnswer {
 public:
  virtual ~OpenAiAnswer() = default;

  // Fills the protected members below. Runs on a thread of the service; the other functions on the server's thread.
  virtual std::optional<ApiError> Read(std::string_view body) = 0;

  // The complete answer as JSON.
  virtual std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) = 0;
  // The same as events, each appended to `out`.
  virtual void AppendBegin(std::string* out) = 0;
  virtual void AppendDelta(const Delta& delta, std::string* out) = 0;
  virtual void AppendEnd(const UsageSum& usage, std::string* out) = 0;
  virtual void AppendError(const ApiError& error, std::string* out);

  bool stream() const { return streaming_.stream; }
  bool with_logprobs() const { return with_logprobs_; }
  size_t choices_per_prompt() const { return static_cast<size_t>(n_); }
  std::vector<Request> TakeRequests() { return std::move(requests_); }
  std::vector<AnswerParts> TakeParts() { return std::move(parts_); }

 protected:
  std::vector<Request> requests_;  // n_ for each prompt, side by side
  // For answers that have reasoning beside their text; call it when the requests are made.
  void PartRequests(const ApiContext& context);

  std::vector<AnswerParts> parts_;  // one for each request, or none: then all of an answer is text
  int64_t n_ = 1;
  bool with_logprobs_ = false;
  StreamFields streaming_;
};

// Reads, generates and answers, as a whole or as a stream.
Awaitable<void> RunAnswer(const ApiContext& context, Exchange& exchange, std::unique_ptr<OpenAiAnswer> answer);

// Parts of several answers.
// The reason, with its quotes.
const char* QuotedFinish(FinishReason reason);
// "usage" of chat and completions, as JSON.
std::string UsageJson(const UsageSum& usage);
// Appends [1,2,3].
void AppendIds(std::span<const TokenId> ids, std::string* out);
// The beginning of each object of an answer: {"id":...,"object":...,"created":...,"model":...,
// "system_fingerprint":...,"choices":[
std::string ObjectBeginning(const ApiContext& context, const std::string& id, std::string_view object,
                            const std::string& model);

}  // namespace gyre::http
