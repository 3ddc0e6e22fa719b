// The answers for a prompt's own rows that a request asks for: logits, log-probabilities, hidden states.
#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/engine/engine_state.h"

namespace gyre {
namespace {

// The prompt's rows, from the first, whose answers the request takes in.
uint32_t RowsToScore(const Request& r) {
  const auto rows = static_cast<uint32_t>(r.prompt.size());
  if (r.prompt_logits || r.embedding == Pooling::kMean) return rows;
  return r.prompt_logprobs ? rows - 1 : 0;  // what follows the last row is no token of the prompt
}

}  // namespace

// The answers that are asked of an item's rows.
void Engine::Impl::AskRows(Sequence& s, const StepItem& item, StepId step, std::vector<RowRequest>* requests) {
  const Request& r = s.request;
  const uint32_t end = item.first_position + item.count;
  const bool samples = item.samples() && !r.embedding;
  // After a shift of the context the rows are no longer those of the prompt.
  if (item.row_class == RowClass::kPrompt && r.prompt_logits && s.window.shifts() == 0) {
    requests->push_back({.first = 0,
                         .count = item.count,
                         .mode = RowMode::kFullLogits,
                         .biased = {},
                         .mask = {},
                         .logprobs = samples ? r.logprobs : std::nullopt});
    return;
  }
  // The rows that no answer has been used of; after a replay these are not all.
  const uint32_t first = std::max(item.first_position, s.scored);
  if (r.embedding) {
    const bool mean = r.embedding == Pooling::kMean;
    const uint32_t from = mean ? first : end - 1;
    if (mean ? from < end : item.sample_last) {
      requests->push_back({.first = from - item.first_position,
                           .count = end - from,
                           .mode = RowMode::kHidden,
                           .biased = {},
                           .mask = {}});
    }
    return;
  }
  for (uint32_t position = first; position < std::min(end, RowsToScore(r)); ++position) {
    requests->push_back({.first = position - item.first_position,
                         .mode = RowMode::kTargets,
                         .biased = {r.prompt[position + 1]},
                         .mask = {},
                         .logprobs = r.prompt_logprobs});
  }
  if (samples) AskSamples(s, item, step, requests);
}

// Takes in a row's answer where the request asks for its prompt's rows, each once and in their order.
Status Engine::Impl::TakePromptRow(Sequence& s, const StepItem& item, const RowAnswer& answer) {
  const Request& r = s.request;
  if (item.row_class != RowClass::kPrompt) return absl::OkStatus();
  if (r.embedding) return TakeHidden(s, answer);
  if (answer.position != s.scored || s.scored >= RowsToScore(r)) return absl::OkStatus();
  if (r.prompt_logits) {
    GYRE_RETURN_IF_ERROR(CheckFull(answer.values, answer.position));
    Deliver(s, LogitsEvent{.position = answer.position, .logits = answer.values});
  } else {
    const TokenId next = r.prompt[answer.position + 1];
    GYRE_ASSIGN_OR_RETURN(const RowLogprobs row, RowLogprobs::Read(answer, *r.prompt_logprobs, options_.vocab));
    GYRE_ASSIGN_OR_RETURN(const float logit, RawLogit(answer, next));
    Deliver(s, PromptTokenEvent{
                   .position = answer.position + 1, .token = next, .logprob = row.Of(logit), .top = row.top()});
  }
  ++s.scored;
  return absl::OkStatus();
}

Status Engine::Impl::TakeHidden(Sequence& s, const RowAnswer& answer) {
  const auto dim = static_cast<size_t>(options_.dim);
  if (answer.mode != RowMode::kHidden || answer.values.size() != dim) {
    return Internal("the last stage sent {} values as the hidden state of position {}, expected {}",
                    answer.values.size(), answer.position, dim);
  }
  if (s.request.embedding == Pooling::kLast) {
    if (answer.position + 1 == s.request.prompt.size()) s.pooled.assign(answer.values.begin(), answer.values.end());
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
  if (s.scored < RowsToScore(r)) return Internal("the last stage gave no answer for position {}", s.scored);
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
