// The answers for a prompt's own rows that a request asks for: logits, log-probabilities, hidden states.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "coordinator/engine/engine_state.h"

namespace gyre {
namespace {

std::span<const TokenId> NamedAt(const ScoreSettings& score, uint32_t position) {
  const size_t at = position - score.from;
  return at < score.named.size() ? std::span<const TokenId>(score.named[at]) : std::span<const TokenId>();
}

// The ids whose logits a score needs at a position: its own and the named ones, rising.
std::vector<TokenId> TargetsOf(const Request& r, uint32_t position) {
  const std::span<const TokenId> named = NamedAt(*r.score, position);
  std::vector<TokenId> ids(named.begin(), named.end());
  const TokenId own = r.prompt[position];
  const auto at = std::lower_bound(ids.begin(), ids.end(), own);
  if (at == ids.end() || *at != own) ids.insert(at, own);
  return ids;
}

}  // namespace

RowAnswers Engine::Impl::AnswersOf(const Request& r, const EngineOptions& options) {
  constexpr uint64_t kRow = 64;  // what an answer has beside
  const auto rows = static_cast<uint32_t>(r.prompt.size());
  const uint64_t all = static_cast<uint64_t>(options.vocab) * sizeof(float);
  if (r.prompt_logits) return {.first = 0, .end = rows, .bytes_each = kRow + all};
  if (r.embedding == Pooling::kMean)
    return {.first = 0, .end = rows, .bytes_each = kRow + static_cast<uint64_t>(options.dim) * sizeof(float)};
  if (!r.score) return {};
  size_t named = 0;
  for (const auto& ids : r.score->named) named = std::max(named, ids.size());
  // What follows the last row is no token of the prompt.
  return {.first = r.score->from - 1,
          .end = rows - 1,
          .bytes_each = kRow + (r.score->logits ? all : 0) + (r.score->top + named) * sizeof(TokenLogit)};
}

// The answers that are asked of an item's rows.
void Engine::Impl::AskRows(Sequence& s, const StepItem& item, StepId step, std::vector<RowRequest>* requests) {
  const Request& r = s.request;
  const uint32_t end = item.first_position + item.count;
  // The rows that no answer has been used of; after a replay these are not all. After a shift of the context no row is
  // one of the prompt, and all of those are scored.
  const uint32_t first = std::max(item.first_position, s.scored);
  const uint32_t scored_end = std::min(end, s.answers.end);
  if (r.embedding) {
    const auto ask = [&](uint32_t from, uint32_t to) {
      if (from >= to) return;
      requests->push_back({.first = from - item.first_position,
                           .count = to - from,
                           .mode = RowMode::kHidden,
                           .biased = {},
                           .mask = {}});
    };
    if (r.embedding == Pooling::kMean) {
      ask(first, end);
    } else if (item.sample_last) {
      // The last row's answer ends the prompt, also where an encoder's first row counts.
      if (r.embedding == Pooling::kFirst && item.first_position == 0) ask(0, std::min(1u, end - 1));
      ask(end - 1, end);
    }
    return;
  }
  const bool full = r.prompt_logits || (r.score && r.score->logits);
  if (full && first < scored_end) {
    const std::optional<uint32_t> sampled = item.samples() ? r.logprobs : std::nullopt;
    requests->push_back({.first = first - item.first_position,
                         .count = scored_end - first,
                         .mode = RowMode::kFullLogits,
                         .biased = {},
                         .mask = {},
                         .logprobs = r.score ? std::optional(r.score->top) : sampled});
  }
  for (uint32_t position = first; !full && position < scored_end; ++position) {
    requests->push_back({.first = position - item.first_position,
                         .mode = RowMode::kTargets,
                         .biased = TargetsOf(r, position + 1),
                         .mask = {},
                         .logprobs = r.score->top});
  }
  // The last row's answer says what a sample needs, or there is none to be drawn.
  if (item.samples() && (first >= scored_end || scored_end < end)) AskSamples(s, item, step, requests);
}

// Takes in a row's answer where the request asks for its prompt's rows, each once and in their order.
Status Engine::Impl::TakePromptRow(Sequence& s, const StepItem& item, const RowAnswer& answer) {
  const Request& r = s.request;
  if (r.embedding) return item.row_class == RowClass::kPrompt ? TakeHidden(s, answer) : absl::OkStatus();
  if (answer.position != s.scored || s.scored >= s.answers.end) return absl::OkStatus();
  const bool full = r.prompt_logits || r.score->logits;
  if (full) GYRE_RETURN_IF_ERROR(CheckFull(answer.values, answer.position));
  if (r.prompt_logits) {
    Deliver(s, LogitsEvent{.position = answer.position, .logits = answer.values});
    ++s.scored;
    return absl::OkStatus();
  }
  const auto logit = [&](TokenId id) -> StatusOr<float> {
    if (full) return answer.values[static_cast<size_t>(id)];
    return RawLogit(answer, id);
  };
  const uint32_t position = answer.position + 1;
  GYRE_ASSIGN_OR_RETURN(const RowLogprobs row, RowLogprobs::Read(answer, r.score->top, options_.vocab));
  PromptTokenEvent event{.position = position, .token = r.prompt[position], .top = row.top(), .rest = row.rest()};
  GYRE_ASSIGN_OR_RETURN(const float own, logit(event.token));
  event.logprob = row.Of(own);
  for (const TokenId id : NamedAt(*r.score, position)) {
    GYRE_ASSIGN_OR_RETURN(const float named, logit(id));
    event.named.push_back({.id = id, .logprob = row.Of(named)});
  }
  if (full) event.logits = answer.values;
  Deliver(s, std::move(event));
  ++s.scored;
  return absl::OkStatus();
}

Status Engine::Impl::TakeHidden(Sequence& s, const RowAnswer& answer) {
  const auto dim = static_cast<size_t>(options_.dim);
  if (answer.mode != RowMode::kHidden || answer.values.size() != dim) {
    return Internal("the last stage sent {} values as the hidden state of position {}, expected {}",
                    answer.values.size(), answer.position, dim);
  }
  if (s.request.embedding != Pooling::kMean) {
    const size_t row = s.request.embedding == Pooling::kFirst ? 0 : s.request.prompt.size() - 1;
    if (answer.position == row) s.pooled.assign(answer.values.begin(), answer.values.end());
    return absl::OkStatus();
  }
  // One row after the other in double: neither chunks nor stages change a bit of the sum.
  if (answer.position != s.scored) return absl::OkStatus();
  s.pooled.resize(dim);
  for (size_t i = 0; i < dim; ++i) s.pooled[i] += static_cast<double>(answer.values[i]);
  ++s.scored;
  return absl::OkStatus();
}

// After the prompt's last row, and after each generated one.
Status Engine::Impl::EndPrompt(Sequence& s) {
  const Request& r = s.request;
  if (s.scored < s.answers.end) return Internal("the last stage gave no answer for position {}", s.scored);
  if (!r.embedding) return absl::OkStatus();
  const double rows = r.embedding == Pooling::kMean ? static_cast<double>(r.prompt.size()) : 1;
  EmbeddingEvent event;
  for (double sum : s.pooled) {
    if (!std::isfinite(sum)) return Internal("the prompt's hidden states have a value that is no finite number");
    event.values.push_back(static_cast<float>(sum / rows));
  }
  Deliver(s, std::move(event));
  return absl::OkStatus();
}

void Engine::Impl::TellProgress(Sequence& s, const StepItem& item) {
  const auto prompt = static_cast<uint32_t>(s.request.prompt.size());
  const uint32_t done = std::min(item.first_position + item.count, prompt);
  if (s.generated() > 0 || done <= s.told) return;
  s.told = done;
  Deliver(s,
          PromptProgress{.total = prompt, .cached = s.cached.value_or(0), .processed = done, .time = Now() - s.began});
}

}  // namespace gyre
