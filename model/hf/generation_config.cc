#include "model/hf/generation_config.h"

#include <algorithm>
#include <string_view>

#include "model/hf/json.h"
#include "model/hf/model_types.h"
#include "model/quoted.h"
#include "model/recommended_sampling.h"

namespace gyre {
namespace {

namespace json = boost::json;

// These keys name ids that the tokenizer's files name too, limits that each request has for itself, how transformers
// computes, or what it returns.
constexpr std::string_view kNoAdvice[] = {"_*",
                                          "bos_token_id",
                                          "pad_token_id",
                                          "decoder_start_token_id",
                                          "transformers_version",
                                          "max_length",
                                          "max_new_tokens",
                                          "max_time",
                                          "use_cache",
                                          "cache_*",
                                          "return_*",
                                          "output_*",
                                          "num_return_sequences",
                                          "return_dict_in_generate",
                                          "trust_remote_code",
                                          "chat_format",
                                          "max_window_size",
                                          "low_memory",
                                          "prefill_chunk_size",
                                          "disable_compile",
                                          "compile_config",
                                          "is_assistant",
                                          "num_assistant_tokens*",
                                          "assistant_*",
                                          "target_lookbehind",
                                          "prompt_lookup_num_tokens",
                                          "max_matching_ngram_size",
                                          "speculative_*",
                                          "early_stopping",
                                          "length_penalty",
                                          "use_mtp",
                                          "continuous_batching_config"};

// Values that change nothing.
struct Neutral {
  const char* key;
  const char* value;  // in JSON
};
constexpr Neutral kNeutral[] = {
    {"num_beams", "1"},
    {"num_beam_groups", "1"},
    {"diversity_penalty", "0"},
    {"typical_p", "1"},
    {"top_h", "1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"guidance_scale", "1"},
    {"encoder_repetition_penalty", "1"},
    {"no_repeat_ngram_size", "0"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"min_length", "0"},
    {"min_new_tokens", "0"},
    {"renormalize_logits", "false"},
    {"remove_invalid_values", "false"},
    {"token_healing", "false"},
};

bool ChangesNothing(std::string_view key, const json::value& v) {
  if (IsEmpty(v)) return true;
  for (const Neutral& n : kNeutral) {
    if (key == n.key) return Equal(v, json::parse(n.value));
  }
  return false;
}

bool IsAdvice(std::string_view key) {
  const auto all = SamplingAdviceKeys();
  return std::any_of(all.begin(), all.end(), [key](const auto& a) { return a.in_folders && a.name == key; });
}

bool IsId(const json::value& v) { return v.is_int64() && v.get_int64() >= 0; }

}  // namespace

StatusOr<std::vector<std::string>> UnusedAdvice(const json::object& generation) {
  std::vector<std::string> unused;
  for (const auto& item : generation) {
    const std::string_view key(item.key().data(), item.key().size());
    const json::value& v = item.value();
    if (v.is_null() || IsListed(kNoAdvice, key)) continue;
    if (key == "eos_token_id") {
      const json::array* several = v.if_array();
      if (several != nullptr ? !std::all_of(several->begin(), several->end(), IsId) : !IsId(v))
        return DataLoss("eos_token_id is {}, expected an id or a list of ids", Shown(v));
    } else if (key == "do_sample") {
      if (!v.is_bool()) return DataLoss("do_sample is {}, expected true or false", Shown(v));
    } else if (IsAdvice(key)) {
      if (!v.is_number()) return DataLoss("{} is {}, expected a number", key, Shown(v));
    } else if (!ChangesNothing(key, v)) {
      unused.push_back(fmt::format("{} ({})", Printable(key), Shown(v)));
    }
  }
  return unused;
}

void SetSampling(const json::object& generation, Metadata* metadata) {
  const json::value* samples = generation.if_contains("do_sample");
  if (samples != nullptr && samples->is_bool() && !samples->get_bool()) return;
  for (const SamplingAdvice& advice : SamplingAdviceKeys()) {
    const json::value* value = advice.in_folders ? generation.if_contains(advice.name) : nullptr;
    if (value == nullptr || !value->is_number()) continue;
    const double number = value->to_number<double>();
    if (!advice.whole) {
      metadata->Set(advice.gguf_key, static_cast<float>(number));
    } else if (number >= 0 && number <= INT32_MAX) {
      metadata->Set(advice.gguf_key, static_cast<uint32_t>(number));
    }
  }
}

}  // namespace gyre
