#include "coordinator/engine/request.h"

#include <limits>
#include <unordered_set>

namespace gyre {
namespace {

Status CheckLogprobs(const char* field, const std::optional<uint32_t>& n, const RequestLimits& limits) {
  if (!n || *n <= limits.max_logprobs) return absl::OkStatus();
  return InvalidArgument("{} is {}, at most {} of the likeliest ids are given", field, *n, limits.max_logprobs);
}

Status CheckScore(const ScoreSettings& score, const RequestLimits& limits, int vocab) {
  if (score.from == 0) return InvalidArgument("a score begins at position 1, as nothing stands before the first id");
  if (score.top > limits.max_score_ids) {
    return InvalidArgument("a score is asked for {} of the likeliest ids, at most {} are given", score.top,
                           limits.max_score_ids);
  }
  for (size_t i = 0; i < score.named.size(); ++i) {
    const std::vector<TokenId>& ids = score.named[i];
    const uint64_t position = uint64_t{score.from} + i;
    if (ids.size() > limits.max_score_ids) {
      return InvalidArgument("a score names {} ids for position {}, at most {} are taken", ids.size(), position,
                             limits.max_score_ids);
    }
    for (size_t k = 0; k < ids.size(); ++k) {
      if (ids[k] < 0 || (vocab > 0 && ids[k] >= vocab)) {
        return InvalidArgument("a score names the id {} for position {}, the vocabulary has 0-{}", ids[k], position,
                               vocab - 1);
      }
      if (k > 0 && ids[k] <= ids[k - 1])
        return InvalidArgument("the ids that a score names for position {} do not rise", position);
    }
  }
  return absl::OkStatus();
}

// Refuses a request that could draw no token.
Status CheckBans(const SamplingParams& params, int vocab) {
  std::unordered_set<TokenId> banned;
  for (const auto& [id, bias] : params.logit_bias) {
    if (bias == -std::numeric_limits<float>::infinity()) banned.insert(id);
  }
  if (banned.empty() || banned.size() < static_cast<size_t>(vocab)) return absl::OkStatus();
  return InvalidArgument("logit_bias forbids all {} ids of the vocabulary, so that none could be drawn", vocab);
}

}  // namespace

Status CheckSettings(const RequestSettings& s, const RequestLimits& limits, int vocab) {
  GYRE_RETURN_IF_ERROR(CheckLogprobs("logprobs", s.logprobs, limits));
  GYRE_RETURN_IF_ERROR(CheckLogprobs("prompt_logprobs", s.prompt_logprobs, limits));
  if (s.score) GYRE_RETURN_IF_ERROR(CheckScore(*s.score, limits, vocab));
  GYRE_RETURN_IF_ERROR(CheckStops(s.stops, s.stop_ids.size(), limits));
  for (const TokenId id : s.stop_ids) {
    if (vocab > 0 && id >= vocab) {
      return InvalidArgument("stop id {} is out of range, the vocabulary has 0-{}", id, vocab - 1);
    }
  }
  if (s.sampling.logit_bias.size() > limits.max_logit_biases) {
    return InvalidArgument("the request has {} logit biases, at most {} are taken", s.sampling.logit_bias.size(),
                           limits.max_logit_biases);
  }
  if (s.boundaries.size() > limits.max_boundaries) {
    return InvalidArgument("the request has {} boundaries of messages, at most {} are taken", s.boundaries.size(),
                           limits.max_boundaries);
  }
  if ((s.grammar_source || s.grammar != nullptr) && s.ignore_end) {
    return InvalidArgument("a text of a grammar ends where the grammar does, so ignore_end can't be asked for");
  }
  if (s.speculation.n_max > kMostDrafts || !(s.speculation.p_min >= 0 && s.speculation.p_min <= 1)) {
    return InvalidArgument("speculative.n_max is {} and speculative.p_min {}, they must be 0 to {} and 0 to 1",
                           s.speculation.n_max, s.speculation.p_min, kMostDrafts);
  }
  GYRE_RETURN_IF_ERROR(CheckBans(s.sampling, vocab));
  return s.sampling.Validate(vocab);
}

Status CheckStops(const std::vector<std::string>& stops, size_t stop_ids, const RequestLimits& limits) {
  if (stops.size() > limits.max_stops) {
    return InvalidArgument("the request has {} stop strings, at most {} are taken", stops.size(), limits.max_stops);
  }
  for (const std::string& stop : stops) {
    if (stop.size() > limits.max_stop_bytes) {
      return InvalidArgument("a stop string has {} bytes, at most {} are taken", stop.size(), limits.max_stop_bytes);
    }
  }
  if (stop_ids > limits.max_stop_ids) {
    return InvalidArgument("the request has {} stop ids, at most {} are taken", stop_ids, limits.max_stop_ids);
  }
  return absl::OkStatus();
}

}  // namespace gyre
