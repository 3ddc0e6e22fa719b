// The settings of sampling. Each that is one number describes itself once, as a row of SamplingOptions; what copies,
// checks, prints or parses them walks the rows (docs/fields.md, "Adding a sampler option").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/named_values.h"
#include "base/status.h"

namespace gyre {

// How a token is drawn of those that the filters keep: both give each its probability, and other tokens for a seed.
enum class DrawMethod : int32_t {
  kUniform,  // one random number picks a place in the sum of the probabilities, the likeliest token's first
  // Each token has a random number of its own (of Gumbel's distribution), and the largest sum of it and logit /
  // temperature wins. So texts of two models with similar logits mostly draw the same, and drafts come true more often.
  kGumbel,
};
inline constexpr std::array<std::string_view, 2> kDrawMethodNames = {"uniform", "gumbel"};
constexpr std::optional<DrawMethod> ParseDrawMethod(std::string_view name) {
  return ValueOfName<DrawMethod>(kDrawMethodNames, name);
}

// Order: mask and logit bias -> penalties -> temperature -> top-k -> top-p -> min-p -> draw. Ties are always broken
// alike: the larger adjusted logit, before temperature, comes first, then the smaller id.
struct SamplingParams {
  float temperature = 0.8f;      // 0 = argmax
  int top_k = 40;                // 0 = off
  float top_p = 0.95f;           // 1 = off; the token that crosses p is kept
  float min_p = 0.05f;           // 0 = off; relative to the best
  float repetition_penalty = 1;  // > 0 logits divided, < 0 multiplied; over the last penalty_last_n tokens
  float frequency_penalty = 0;   // times the count among generated tokens
  float presence_penalty = 0;    // once for each id among generated tokens
  int penalty_last_n = 64;       // repetition penalty's reach; -1 = everything
  DrawMethod draw = DrawMethod::kUniform;
  std::vector<std::pair<TokenId, float>> logit_bias;  // -inf bans
  uint64_t seed = 0;

  bool operator==(const SamplingParams&) const = default;
  // kInvalidArgument with the field, what it is and what it may be: outside the range of its row, or a bias that is
  // neither -inf nor in [-1e6, 1e6], or of an id beyond the vocabulary. Biases of one id add up.
  Status Validate(int vocab) const;
};

struct SamplingOption {
  std::string_view name;  // of the field in gRPC, in messages and, unless `openai` is false, in OpenAI's APIs
  std::variant<float SamplingParams::*, int SamplingParams::*> field;
  // From the least value to the most; INT32_MAX is no limit. above_least: the least value itself is excluded.
  double least, most;
  bool above_least = false;
  std::string_view least_means;  // for messages: what the least value does, such as "off"
  // A value that HTTP clients may send beside the range, and the one that it stands for.
  double foreign = 0, foreign_means = 0;
  bool has_foreign = false;
  std::string_view llama;  // its name in the APIs of llama.cpp and Ollama, which OpenAI's APIs here know, too
  bool openai = true;      // other servers of OpenAI's APIs know it by `name`
  // The flag of commands that generate, without its dashes.
  std::string_view flag, flag_value, help;

  // Its name in docs/api.md and in the C API.
  std::string_view shown() const { return openai ? name : llama; }
};

// In the order in which they are shown.
std::span<const SamplingOption> SamplingOptions();

double ValueOf(const SamplingParams& params, const SamplingOption& option);
// REQUIRES: a whole number that fits, if the field is one.
void SetValue(SamplingParams* params, const SamplingOption& option, double value);
// By any of its names; null if no option has it.
const SamplingOption* FindSamplingOption(std::string_view name);
// Sets the field to a number from outside, which may be the foreign one. kInvalidArgument with the name, the number and
// what it may be: out of the option's range, or not a whole number where the field is one.
Status SetChecked(SamplingParams* params, const SamplingOption& option, double value);
// "0 to 100", "above 0 and at most 1", "-1 or more": for messages and documents.
std::string RangeOf(const SamplingOption& option);
bool InRange(const SamplingOption& option, double value);

}  // namespace gyre
