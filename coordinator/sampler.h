// Draws a token from a row's answer. Pure: the same seed and position give the same token, whatever the ring.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/step.h"

namespace gyre {

// Order: mask and logit bias -> penalties -> temperature -> top-k -> top-p -> min-p -> draw. Ties everywhere: adjusted
// logit before temperature falling, then id rising.
struct SamplingParams {
  float temperature = 0.8f;      // 0 = argmax
  int top_k = 40;                // 0 = off
  float top_p = 0.95f;           // 1 = off; the token that crosses p is kept
  float min_p = 0.05f;           // 0 = off; relative to the best
  float repetition_penalty = 1;  // > 0 logits divided, < 0 multiplied; over the last penalty_last_n tokens
  float frequency_penalty = 0;   // times the count among generated tokens
  float presence_penalty = 0;    // once for each id among generated tokens
  int penalty_last_n = 64;       // repetition penalty's reach; -1 = everything
  std::vector<std::pair<TokenId, float>> logit_bias;  // -inf bans
  uint64_t seed = 0;

  // kInvalidArgument with the field, what it is and what it may be: temperature [0, 100], top_p (0, 1], min_p [0, 1],
  // repetition_penalty (0, 100], the other two penalties [-2, 2], a bias -inf or [-1e6, 1e6]. Biases of one id add up.
  Status Validate(int vocab) const;
};

// The tokens that penalties count.
struct TokenHistory {
  std::span<const TokenId> tokens;  // prompt and generated
  size_t prompt_length = 0;
};

struct Draw {
  TokenId token = 0;
  float probability = 0;  // after all filters, what the token was drawn with
};

// The request for a row that is to be sampled; first and count are the caller's. candidates = K when no filter says.
RowRequest MakeRowRequest(const SamplingParams& params, const TokenHistory& history, std::span<const uint64_t> mask,
                          uint32_t candidates = 64);

// nullopt: the candidates do not decide it; ask for the full logits. `position` is the row's position.
// kInvalidArgument/kInternal: the answer does not fit the request, or nothing is left to draw (all masked or NaN).
// `moved`: by how many positions the text is longer than what stands in the context, so that no number is drawn twice.
StatusOr<std::optional<Draw>> SampleCandidates(const SamplingParams& params, const TokenHistory& history,
                                               const RowRequest& request, const RowAnswer& answer, int vocab,
                                               uint32_t moved = 0);
StatusOr<Draw> SampleFull(const SamplingParams& params, const TokenHistory& history, std::span<const uint64_t> mask,
                          std::span<const float> logits, uint32_t position);

// The block function of the generator below: 128 bits from a counter and a key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1), 53 bits, a counter-based generator (Philox 4x32-10; Salmon et al. 2011) keyed by seed and
// position.
double UniformAt(uint64_t seed, uint32_t position);

}  // namespace gyre
