// Draws a token from a row's answer. Pure: the same seed and position give the same token, whatever the ring.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/step.h"
#include "coordinator/engine/sampling_options.h"

namespace gyre {

// The tokens that penalties count.
struct TokenHistory {
  std::span<const TokenId> tokens;  // prompt and generated
  size_t prompt_length = 0;
};

struct Draw {
  TokenId token = 0;
  float probability = 0;  // after all filters, what the token was drawn with
};

// The request for a row that is to be sampled; the caller sets `first` and `count`. `candidates`: how many
// ids to ask for, unless top_k says.
RowRequest MakeRowRequest(const SamplingParams& params, const TokenHistory& history, std::span<const uint64_t> mask,
                          uint32_t candidates = 64);

// nullopt: the candidates do not decide it; ask for the full logits. `position` is the row's position.
// kInternal: the answer does not fit the request, or no id can be drawn (all masked or NaN). kInvalidArgument: no id
// can be drawn, and the request bans some. `moved`: the number of tokens that a context shift dropped. It is added to
// the position, so that no random number is used twice.
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
// A number of Gumbel's standard distribution, by the same generator, of its own for each id (Gumbel 1954; for draws
// that two models share: Daliri, Musco, Suresh 2025).
double GumbelAt(uint64_t seed, uint32_t position, TokenId id);

}  // namespace gyre
