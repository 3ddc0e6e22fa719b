#include "model/hf/tokenizer_keys.h"

#include <span>
#include <string_view>
#include <utility>

#include "model/hf/json.h"
#include "model/hf/model_types.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr std::string_view kRootKeys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                          "pre_tokenizer", "post_processor", "decoder", "model"};
constexpr std::string_view kAddedTokenKeys[] = {"id",     "content", "single_word", "lstrip",
                                                "rstrip", "special", "normalized"};
constexpr std::string_view kBpeKeys[] = {"type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "vocab",
                                         "merges"};
constexpr std::string_view kUnigramKeys[] = {"type", "unk_id", "vocab", "byte_fallback"};

// The keys of each type of step. A type that several sections have has the keys of all of them here.
constexpr std::string_view kTypeOnly[] = {"type"};
constexpr std::string_view kByteLevelKeys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex"};
constexpr std::string_view kMetaspaceKeys[] = {"type",           "replacement", "str_rep", "add_prefix_space",
                                               "prepend_scheme", "split"};
constexpr std::string_view kReplaceKeys[] = {"type", "pattern", "content"};
constexpr std::string_view kSplitKeys[] = {"type", "pattern", "behavior", "invert"};
constexpr std::string_view kStripKeys[] = {"type", "strip_left", "strip_right", "content", "start", "stop"};
constexpr std::string_view kTemplateKeys[] = {"type", "single", "pair", "special_tokens"};
constexpr std::string_view kAroundKeys[] = {"type", "sep", "cls", "trim_offsets", "add_prefix_space"};
constexpr std::string_view kPrependKeys[] = {"type", "prepend"};
constexpr std::string_view kPrecompiledKeys[] = {"type", "precompiled_charsmap"};
constexpr std::string_view kDigitsKeys[] = {"type", "individual_digits"};
constexpr std::string_view kPunctuationKeys[] = {"type", "behavior"};
constexpr std::string_view kDelimiterKeys[] = {"type", "delimiter"};

struct StepKeys {
  std::string_view type;
  std::span<const std::string_view> keys;
};
constexpr StepKeys kSteps[] = {
    {"NFC", kTypeOnly},
    {"NFD", kTypeOnly},
    {"NFKC", kTypeOnly},
    {"NFKD", kTypeOnly},
    {"Lowercase", kTypeOnly},
    {"StripAccents", kTypeOnly},
    {"Nmt", kTypeOnly},
    {"Whitespace", kTypeOnly},
    {"WhitespaceSplit", kTypeOnly},
    {"ByteFallback", kTypeOnly},
    {"Fuse", kTypeOnly},
    {"ByteLevel", kByteLevelKeys},
    {"Metaspace", kMetaspaceKeys},
    {"Replace", kReplaceKeys},
    {"Split", kSplitKeys},
    {"Strip", kStripKeys},
    {"TemplateProcessing", kTemplateKeys},
    {"RobertaProcessing", kAroundKeys},
    {"BertProcessing", kAroundKeys},
    {"Prepend", kPrependKeys},
    {"Precompiled", kPrecompiledKeys},
    {"Digits", kDigitsKeys},
    {"Punctuation", kPunctuationKeys},
    {"CharDelimiterSplit", kDelimiterKeys},
};

Status CheckStep(const json::object& step) {
  const std::string type = Kind(step);
  for (const StepKeys& known : kSteps) {
    if (known.type == type) return OnlyKeys(step, known.keys, type);
  }
  return absl::OkStatus();
}

// Used: read by the tokenizer, its vocabulary, or the chat template. The others concern how transformers pads, cuts,
// decodes or is loaded.
constexpr std::string_view kKnownSettings[] = {"*_token",
                                               "*_tokens",
                                               "*_token_id",
                                               "add_prefix_space",
                                               "added_tokens_decoder",
                                               "additional_special_tokens_ids",
                                               "auto_map",
                                               "backend",
                                               "chat_template",
                                               "clean_up_tokenization_spaces",
                                               "errors",
                                               "fix_mistral_regex",
                                               "from_slow",
                                               "is_local",
                                               "legacy",
                                               "local_files_only",
                                               "max_length",
                                               "merges_file",
                                               "model_input_names",
                                               "model_max_length",
                                               "model_specific_special_tokens",
                                               "name_or_path",
                                               "pad_to_multiple_of",
                                               "padding",
                                               "padding_side",
                                               "processor_class",
                                               "return_tensors",
                                               "response_schema",
                                               "sp_model_kwargs",
                                               "spaces_between_special_tokens",
                                               "special_tokens_map_file",
                                               "split_special_tokens",
                                               "stride",
                                               "tokenizer_class",
                                               "tokenizer_file",
                                               "tokenizer_type",
                                               "transformers_version",
                                               "truncation",
                                               "truncation_side",
                                               "truncation_strategy",
                                               "trust_remote_code",
                                               "use_default_system_prompt",
                                               "use_fast",
                                               "vocab_file",
                                               "vocab_size",
                                               "_*"};

}  // namespace

Status CheckTokenizerKeys(const json::object& tokenizer) {
  GYRE_RETURN_IF_ERROR(OnlyKeys(tokenizer, kRootKeys, "tokenizer.json"));
  if (const json::object* model = Object(tokenizer, "model"))
    GYRE_RETURN_IF_ERROR(OnlyKeys(
        *model, Kind(*model) == "Unigram" ? std::span<const std::string_view>(kUnigramKeys) : kBpeKeys, "model"));
  if (const json::array* added = Array(tokenizer, "added_tokens")) {
    for (const json::value& token : *added) {
      if (const json::object* o = token.if_object())
        GYRE_RETURN_IF_ERROR(OnlyKeys(*o, kAddedTokenKeys, "added_tokens"));
    }
  }
  for (const auto& [section, list] : {std::pair("normalizer", "normalizers"),
                                      {"pre_tokenizer", "pretokenizers"},
                                      {"post_processor", "processors"},
                                      {"decoder", "decoders"}}) {
    GYRE_RETURN_IF_ERROR(Annotate(ForEachStep(tokenizer, section, list, CheckStep), section));
  }
  return absl::OkStatus();
}

std::vector<std::string> UnknownTokenizerSettings(const json::object& settings) {
  std::vector<std::string> out;
  for (const auto& item : settings) {
    const std::string_view key(item.key().data(), item.key().size());
    if (!IsEmpty(item.value()) && !IsListed(kKnownSettings, key)) out.push_back(Printable(key));
  }
  return out;
}

}  // namespace gyre
