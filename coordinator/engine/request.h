// A request to the engine, and the events that answer it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/step.h"
#include "coordinator/engine/logprobs.h"
#include "coordinator/engine/sampling_options.h"
#include "coordinator/engine/speculation.h"
#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/source.h"
#include "model/answer_format.h"
#include "model/pooling.h"
#include "model/tool_reader.h"

namespace gyre {

// Why a request for text to an encoder is refused.
inline constexpr char kEncoderMakesNoText[] =
    "this model is an encoder: it makes vectors of texts (/v1/embeddings), and no text, scores or logits";

// What the model says of the prompt's own ids: a PromptTokenEvent for each from position `from` on (docs/scoring.md).
struct ScoreSettings {
  // 1 to the prompt's size. Rows before that of the id at `from` - 1 may come from the prefix cache.
  uint32_t from = 1;
  uint32_t top = 0;     // so many of the likeliest ids beside, 0..RequestLimits::max_score_ids
  bool logits = false;  // all logits beside
  // The ids from `from` on have rows as when they were drawn one after the other; else those of a prompt. Where the two
  // classes differ in bits (docs/bits.md), so do scores.
  bool generated = false;
  // For the position from + i the ids whose log-probabilities are wanted beside, rising; positions at the end may lack.
  std::vector<std::vector<TokenId>> named = {};
  bool operator==(const ScoreSettings&) const = default;
};

// The id that ends a text (Finished::stop_id) has an event like any other, without text.
struct TokenEvent {
  TokenId token = 0;
  float probability = 0;  // what it was drawn with: after bias, penalties, temperature and filters
  std::string text;       // may be empty: half a character, or what may become a stop string
  // With Request::logprobs: the log-softmax of the model's raw logits, before bias, penalties, temperature and filters,
  // as OpenAI's servers give it at any temperature. -inf is possible, a value that is no number is not.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // of the likeliest ids, best first (ties: the lower id); the token may be among them
};
// What a client's question (coordinator/service/service.h) and the engine's request have in common.
struct RequestSettings {
  SamplingParams sampling;
  std::vector<std::string> stops;
  std::vector<TokenId> stop_ids;  // beside the tokenizer's end-of-generation ids
  bool ignore_end = false;        // end-of-generation ids and stop_ids are tokens like any other
  // Nothing ends the text before it has this many tokens: until then the ids that would end it are banned, and stop
  // strings are not looked for. With ignore_end the ids are not banned.
  uint32_t min_new_tokens = 0;
  // The text is one of this grammar, and may end only where the grammar says so; nullopt: any text. Not with
  // ignore_end. Where nothing but an end is allowed, min_new_tokens does not keep it off.
  std::optional<grammar::Source> grammar_source;
  bool compact_json = false;  // where the grammar is JSON, it has no white space
  // Tokens that must come take no answer. A text may have other tokens than without, as docs/grammar.md says. Not with
  // a logit_bias, which may ban them.
  bool jump_ahead = true;
  std::shared_ptr<grammar::CompiledGrammar> grammar;  // the same, compiled; the service does that
  AnswerFormat answer_format;             // the grammar begins where reasoning ends; without markers at once
  std::optional<DeclaredTools> one_call;  // the text ends behind its first call of one of these tools
  bool prompt_logits = false;             // a LogitsEvent for each prompt row, in order
  // Each TokenEvent has log-probabilities: its own and those of this many of the likeliest ids, 0..20.
  std::optional<uint32_t> logprobs;
  // A PromptTokenEvent with the same for each token of the prompt but the first, in order, before the first TokenEvent.
  // The prompt takes nothing from the prefix cache. Not with prompt_logits. The engine reads it as a score.
  std::optional<uint32_t> prompt_logprobs;
  // Not with prompt_logits or prompt_logprobs.
  std::optional<ScoreSettings> score;
  // An EmbeddingEvent, and no text: no logits or log-probabilities are asked for. With the mean of all rows the prompt
  // takes nothing from the prefix cache.
  std::optional<Pooling> embedding;
  SpeculationSettings speculation;
  bool progress = false;  // a PromptProgress event for each step that has rows of the prompt
  int priority = 0;
  uint64_t tenant = 0;      // who asks: tenants share the rows of a step fairly; 0 = everybody without a name
  uint32_t adapter = 0;     // the number of one of the model's adapters; 0 = EngineOptions::adapter
  uint64_t cache_salt = 0;  // requests share a prefix cache only with those of the same salt
  // Where messages of a conversation begin or end in the prompt, rising. What is kept of the prompt for later requests
  // is kept there (docs/memory.md); it changes no text. The service sets it for conversations.
  std::vector<uint32_t> boundaries;
  Deadline deadline = kNoDeadline;
};

struct Request : RequestSettings {
  std::vector<TokenId> prompt;  // >= 1 id
  // What the text may be, for the most part: a source of drafts.
  std::vector<TokenId> prediction;
  // 0: only the prompt is computed, as for an embedding. Prompt and text together never have more tokens than the
  // context, unless it is shifted.
  uint32_t max_new_tokens = 0;
  std::string id;  // for the log: what the client knows the request by; "" = nothing
  // By which it can be reattached when its reader, or this process, is gone (NewRequestId); "" = it can't. Without a
  // StateKeeper it means nothing.
  std::string reattach_id;
  // The text continues after these tokens, which were drawn before; their texts are not read. Each has its event again.
  // Not with prompt_logits, prompt_logprobs, a score or an embedding.
  std::vector<TokenEvent> generated;
};

enum class FinishReason : uint8_t { kStop, kLength };

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;                        // of the prompt: what the prefix cache had when the request began
  uint32_t generated_tokens = 0;                     // with the id that ended the text
  uint32_t context_shifts = 0;                       // how often the context was full and lost its older tokens
  uint32_t drafted_tokens = 0, accepted_drafts = 0;  // guesses whose rows were computed; those that were drawn
  Duration to_first_token{}, total{};
};

// The same of a prompt's token, given those before it.
struct PromptTokenEvent {
  uint32_t position = 0;  // >= 1
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  double rest = 0;                       // the logarithm of the probability of all ids but those of `top`; may be -inf
  std::vector<TokenLogprob> named = {};  // with ScoreSettings::named: those ids, rising
  std::vector<float> logits = {};        // with ScoreSettings::logits: [vocab]
};
// How far the prompt is computed. What a replay computes again is not told again.
struct PromptProgress {
  uint32_t total = 0;      // its tokens
  uint32_t cached = 0;     // those that the prefix cache had when the request began
  uint32_t processed = 0;  // those that are computed, and those
  Duration time{};         // since its first rows were launched
};
struct LogitsEvent {
  uint32_t position = 0;
  std::vector<float> logits;  // [vocab]
};
struct EmbeddingEvent {
  std::vector<float> values;  // [dim], finite, not normalized
};
// The ring lost a member: the request waits for another ring, and goes on with what it had. For people; may come any
// number of times.
struct Waiting {
  Status why;
};
// The three terminal events: exactly one ends every request.
struct Finished {
  FinishReason reason = FinishReason::kStop;
  std::string text;  // what was held back
  Usage usage;
  std::string stop;      // the stop string that ended the text; "" if none did
  TokenId stop_id = -1;  // the end-of-generation id (a drawn BOS too) or stop id that ended it; -1 if none did
};
struct Failed {
  Status status;
};
struct Cancelled {};

using Event = std::variant<TokenEvent, PromptTokenEvent, LogitsEvent, EmbeddingEvent, Waiting, PromptProgress, Finished,
                           Failed, Cancelled>;
// Called on the engine's thread; must not block. It may call Submit, Cancel, Hold and Unhold.
using EventSink = std::function<void(SeqId, const Event&)>;

// Limits of a request, and of the number of waiting ones. Submit refuses requests beyond, with the numbers.
struct RequestLimits {
  uint32_t max_waiting = 1024;  // requests beyond those that may run at once (SchedulerOptions::max_sequences)
  uint32_t max_stops = 64;
  uint32_t max_stop_bytes = 4096;  // of each stop string
  uint32_t max_stop_ids = 4096;
  uint32_t max_logit_biases = 4096;
  uint32_t max_boundaries = 4096;
  uint32_t max_logprobs = 20;         // the likeliest ids of a token
  uint32_t max_score_ids = kMaxTopK;  // of each position of a score: the likeliest ones, and the named ones
};

// kInvalidArgument: a setting is beyond the limits, out of its range, or names an id beyond the vocabulary. Service and
// engine both refuse by it.
Status CheckSettings(const RequestSettings& settings, const RequestLimits& limits, int vocab);
// The part of it that needs no model: the number of stop strings and stop ids, and the length of the strings.
Status CheckStops(const std::vector<std::string>& stops, size_t stop_ids, const RequestLimits& limits);

}  // namespace gyre
