// The common path of OpenAI's and ollama's routes that generate, from a request's body to the engine and back. A route
// only reads its body and writes its answer.
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
#include "coordinator/http/tool_fields.h"

namespace gyre::http {

// The part of one choice that one event adds.
struct Delta {
  size_t choice = 0;
  std::string reasoning, text;
  std::vector<AnswerDelta> parts;  // with tools: these two and calls, in their order
  std::optional<TokenId> id;
  std::vector<TokenScore> scores;          // with logprobs: of the tokens that the text comes from
  std::optional<TokenScore> prompt_score;  // with prompt_logprobs: of a token of the prompt; then nothing else is there
  std::optional<FinishReason> finish;      // the last one of its choice
  bool called = false;                     // with `finish`: the choice has a complete call

  std::span<const TokenId> ids() const {
    if (!id) return {};
    return {&*id, 1};
  }
};

// The sum over all choices. Choices of one prompt count it once.
struct UsageSum {
  uint64_t prompt = 0, cached = 0, completion = 0;
  uint64_t reasoning = 0;              // of the completion's: those before the content begins
  uint64_t shifts = 0;                 // of the context
  uint64_t drafted = 0, accepted = 0;  // drafts; those that are part of the completion
  Duration to_first_token{}, total{};  // of the choice that took longest
};

// A complete choice.
struct Choice {
  std::string reasoning, text;
  std::vector<AnswerDelta> parts;  // as in Delta
  std::vector<TokenId> ids;
  std::vector<TokenScore> scores, prompt_scores;
  FinishReason finish = FinishReason::kStop;
  bool called = false;
};

// One HTTP request to a route that generates.
class OpenAiAnswer {
 public:
  virtual ~OpenAiAnswer() = default;

  // Fills the protected members below. Runs on a thread of the service; the other functions on the server's thread.
  std::optional<ApiError> Read(std::string_view body);

  // The complete answer as JSON.
  virtual std::string Whole(const std::vector<Choice>& choices, const UsageSum& usage) = 0;
  // The same as events, each appended to `out`.
  virtual void AppendBegin(std::string* out) = 0;
  virtual void AppendDelta(const Delta& delta, std::string* out) = 0;
  virtual void AppendEnd(const UsageSum& usage, std::string* out) = 0;
  virtual void AppendError(const ApiError& error, std::string* out);

  // Appends an event on the way through a prompt, with Question::progress. It has no id: a stream that is reattached
  // has none of them.
  virtual void AppendProgress(size_t /*choice*/, const PromptProgress& /*progress*/, std::string* /*out*/) {}
  // Appends what a silent stream sends, so that nobody takes it for dead. Call it after AppendBegin.
  virtual void AppendPing(std::string* out);
  // Whether a stream consists of JSON objects, each in a line, instead of events. Such a stream can't be reattached.
  virtual bool json_lines() const { return false; }

  bool stream() const { return streaming_.stream; }
  bool with_logprobs() const { return with_logprobs_; }
  bool with_tools() const { return tools_.any(); }
  size_t choices_per_prompt() const { return static_cast<size_t>(n_); }
  std::vector<Request> TakeRequests() { return std::move(requests_); }
  std::vector<AnswerParts> TakeParts() { return std::move(parts_); }

 protected:
  std::vector<Request> requests_;  // n_ for each prompt, side by side
  // Fills parts_, for answers that have reasoning, if it is to stand beside their text, or calls. Call it when the
  // requests are made.
  void PartRequests(const ApiContext& context, bool reasoning = true);

  std::vector<AnswerParts> parts_;  // one for each request, or none: then all of an answer is text
  int64_t n_ = 1;
  bool with_logprobs_ = false;
  StreamFields streaming_;
  ToolRequest tools_;

 private:
  // The two steps of Read: the body's fields, then the requests that they ask for.
  virtual void ReadFields(JsonFields& fields, Question* question) = 0;
  virtual std::optional<ApiError> Prepare(Question question) = 0;
};

// Reads, generates and answers, as a whole or as a stream.
Awaitable<void> RunAnswer(const ApiContext& context, Exchange& exchange, std::unique_ptr<OpenAiAnswer> answer);

// Parts of several answers.
// The reason, with its quotes. `called`: a text that ended by itself has calls.
const char* QuotedFinish(FinishReason reason, bool called = false);
// "usage" of chat and completions, as JSON.
std::string UsageJson(const UsageSum& usage);
// Ends an event that has choices: {...,"choices":[...],"prompt_progress":{...}. `end`: from the end of the choices on.
void AppendPromptProgress(const PromptProgress& progress, std::string_view end, std::string* out);
// Appends [1,2,3].
void AppendIds(std::span<const TokenId> ids, std::string* out);
// The beginning of each object of an answer: {"id":...,"object":...,"created":...,"model":...,
// "system_fingerprint":...,"choices":[
std::string ObjectBeginning(const ApiContext& context, const std::string& id, std::string_view object,
                            const std::string& model);

}  // namespace gyre::http
