#include "coordinator/engine/sampling_options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace gyre {
namespace {

constexpr double kNoLimit = std::numeric_limits<int32_t>::max();
constexpr float kMaxBias = 1e6f;

constexpr SamplingOption kOptions[] = {
    {.name = "temperature",
     .field = &SamplingParams::temperature,
     .least = 0,
     .most = 100,
     .llama = "temperature",
     .flag = "temp",
     .flag_value = "X",
     .help = "temperature of sampling; 0 always takes the likeliest token"},
    {.name = "top_k",
     .field = &SamplingParams::top_k,
     .least = 0,
     .most = kNoLimit,
     .least_means = "off",
     .foreign = -1,
     .foreign_means = 0,
     .has_foreign = true,
     .llama = "top_k",
     .flag = "top-k",
     .flag_value = "K",
     .help = "sample from the K likeliest tokens; 0 takes all"},
    // The token that crosses top_p is kept, so a tiny value keeps only the likeliest token, as 0 does elsewhere.
    {.name = "top_p",
     .field = &SamplingParams::top_p,
     .least = 0,
     .most = 1,
     .above_least = true,
     .foreign = 0,
     .foreign_means = 1e-9,
     .has_foreign = true,
     .llama = "top_p",
     .flag = "top-p",
     .flag_value = "P",
     .help = "sample from the likeliest tokens, whose probabilities add up to P; 1 takes all"},
    {.name = "min_p",
     .field = &SamplingParams::min_p,
     .least = 0,
     .most = 1,
     .llama = "min_p",
     .flag = "min-p",
     .flag_value = "P",
     .help = "drop tokens whose probability is below P times that of the likeliest; 0 drops none"},
    {.name = "repetition_penalty",
     .field = &SamplingParams::repetition_penalty,
     .least = 0,
     .most = 100,
     .above_least = true,
     .llama = "repeat_penalty",
     .flag = "repeat-penalty",
     .flag_value = "X",
     .help = "make tokens less likely that are in the text already; 1 changes nothing"},
    {.name = "penalty_last_n",
     .field = &SamplingParams::penalty_last_n,
     .least = -1,
     .most = kNoLimit,
     .least_means = "everything",
     .llama = "repeat_last_n",
     .openai = false,
     .flag = "repeat-last-n",
     .flag_value = "N",
     .help = "number of last tokens that --repeat-penalty looks at; -1 is all"},
    {.name = "frequency_penalty",
     .field = &SamplingParams::frequency_penalty,
     .least = -2,
     .most = 2,
     .llama = "frequency_penalty",
     .flag = "frequency-penalty",
     .flag_value = "X",
     .help = "subtract X from the logit of a token for each time that it was generated"},
    {.name = "presence_penalty",
     .field = &SamplingParams::presence_penalty,
     .least = -2,
     .most = 2,
     .llama = "presence_penalty",
     .flag = "presence-penalty",
     .flag_value = "X",
     .help = "subtract X once from the logit of a token that was generated"},
};

Status OutOfItsRange(const SamplingOption& option, double value) {
  return InvalidArgument("{} is {}, it must be {}", option.name, value, RangeOf(option));
}

}  // namespace

std::span<const SamplingOption> SamplingOptions() { return kOptions; }

const SamplingOption* FindSamplingOption(std::string_view name) {
  const auto* it = std::find_if(std::begin(kOptions), std::end(kOptions),
                                [name](const auto& o) { return o.name == name || o.llama == name; });
  return it == std::end(kOptions) ? nullptr : it;
}

double ValueOf(const SamplingParams& params, const SamplingOption& option) {
  return std::visit([&params](auto field) { return static_cast<double>(params.*field); }, option.field);
}

void SetValue(SamplingParams* params, const SamplingOption& option, double value) {
  std::visit([&](auto field) { params->*field = static_cast<std::decay_t<decltype(params->*field)>>(value); },
             option.field);
}

Status SetChecked(SamplingParams* params, const SamplingOption& option, double value) {
  const bool whole = std::holds_alternative<int SamplingParams::*>(option.field);
  if (option.has_foreign && value == option.foreign) {
    SetValue(params, option, option.foreign_means);
    return {};
  }
  if (!InRange(option, value)) return OutOfItsRange(option, value);
  if (whole && value != std::trunc(value)) {
    return InvalidArgument("{} is {}, it must be a whole number", option.name, value);
  }
  SamplingParams set = *params;
  SetValue(&set, option, value);
  // As a float, a tiny number above 0 may be 0.
  if (!InRange(option, ValueOf(set, option))) return OutOfItsRange(option, value);
  *params = std::move(set);
  return {};
}

bool InRange(const SamplingOption& o, double value) {
  // NaN is in no range.
  return (o.above_least ? value > o.least : value >= o.least) && value <= o.most;
}

std::string RangeOf(const SamplingOption& o) {
  const std::string means = o.least_means.empty() ? "" : fmt::format(" ({})", o.least_means);
  if (o.most == kNoLimit) return fmt::format("{}{} or more", o.least, means);
  if (o.above_least) return fmt::format("above {} and at most {}", o.least, o.most);
  return fmt::format("{}{} to {}", o.least, means, o.most);
}

Status SamplingParams::Validate(int vocab) const {
  for (const SamplingOption& option : kOptions) {
    const double value = ValueOf(*this, option);
    if (!InRange(option, value)) return OutOfItsRange(option, value);
  }
  if (draw != DrawMethod::kUniform && draw != DrawMethod::kGumbel) {
    return InvalidArgument("draw is {}, it must be {} or {}", static_cast<int>(draw), 0, 1);
  }
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab) {
      return InvalidArgument("logit_bias names the token id {}, the vocabulary has 0-{}", id, vocab - 1);
    }
    if (bias == -std::numeric_limits<float>::infinity() || (bias >= -kMaxBias && bias <= kMaxBias)) continue;
    return InvalidArgument("logit_bias of token id {} is {}, it must be -inf or lie in [{}, {}]", id, bias, -kMaxBias,
                           kMaxBias);
  }
  return {};
}

}  // namespace gyre
