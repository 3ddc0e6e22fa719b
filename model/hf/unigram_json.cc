#include "model/hf/unigram_json.h"

#include <optional>

#include "absl/strings/escaping.h"
#include "model/hf/json.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"

namespace gyre {
namespace {

namespace json = boost::json;
using StepKind = NormalizerStep::Kind;
using Prefix = UnigramOptions::Prefix;

// A step's output is at most this many times as long as its input.
constexpr size_t kMaxContent = 256;

StatusOr<std::string> Content(const json::object& step, const char* key) {
  const json::value* v = step.if_contains(key);
  if (v == nullptr || !v->is_string()) return DataLoss("a {} has no {}", Printable(Kind(step)), key);
  std::string text = Text(v);
  if (text.size() > kMaxContent) {
    return DataLoss("the {} of a {} has {} bytes, expected at most {}", key, Printable(Kind(step)), text.size(),
                    kMaxContent);
  }
  return text;
}

StatusOr<NormalizerStep> ReadCharsmap(const json::object& step) {
  const std::string text = Text(step.if_contains("precompiled_charsmap"));
  std::string bytes;
  if (!absl::Base64Unescape(absl::string_view(text.data(), text.size()), &bytes)) {
    return DataLoss("precompiled_charsmap is no base64");
  }
  StatusOr<Charsmap> charsmap = Charsmap::Parse(bytes);
  GYRE_RETURN_IF_ERROR(Annotate(charsmap.status(), "precompiled_charsmap"));
  return NormalizerStep{.kind = StepKind::kCharsmap,
                        .charsmap = std::make_shared<const Charsmap>(*std::move(charsmap))};
}

StatusOr<NormalizerStep> ReadReplace(const json::object& step) {
  NormalizerStep s;
  GYRE_ASSIGN_OR_RETURN(s.to, Content(step, "content"));
  const json::object* pattern = Object(step, "pattern");
  if (pattern == nullptr) return DataLoss("a Replace has no pattern, expected a Regex or a String");
  if (const json::value* regex = pattern->if_contains("Regex")) {
    if (Text(regex) != " {2,}") {
      return Unimplemented("a Replace of the expression \"{}\" is not known, known is \" {{2,}}\"",
                           Printable(Text(regex)));
    }
    s.kind = StepKind::kReplaceSpaces;
    return s;
  }
  s.from = Text(pattern->if_contains("String"));
  if (s.from.empty()) return DataLoss("a Replace has an empty pattern, expected a Regex or a String");
  return s;
}

Status ReadStep(const json::object& step, UnigramOptions* options) {
  const std::string kind = Kind(step);
  NormalizerStep s;
  if (kind == "Precompiled") {
    GYRE_ASSIGN_OR_RETURN(s, ReadCharsmap(step));
    if (s.charsmap->empty()) return absl::OkStatus();
  } else if (kind == "Replace") {
    GYRE_ASSIGN_OR_RETURN(s, ReadReplace(step));
    if (s.from == " " && s.to == kMetaSpace) return absl::OkStatus();  // as is done at the end anyway
  } else if (kind == "Prepend") {
    s.kind = StepKind::kPrepend;
    GYRE_ASSIGN_OR_RETURN(s.to, Content(step, "prepend"));
    if (s.to == kMetaSpace) {  // what decoding takes off again
      options->prefix = Prefix::kSpace;
      return absl::OkStatus();
    }
  } else if (kind == "NFC" || kind == "NFD" || kind == "NFKC" || kind == "NFKD") {
    s.kind = StepKind::kForm;
    s.form = kind == "NFC"    ? UnicodeForm::kNfc
             : kind == "NFD"  ? UnicodeForm::kNfd
             : kind == "NFKC" ? UnicodeForm::kNfkc
                              : UnicodeForm::kNfkd;
  } else if (kind == "Lowercase") {
    s.kind = StepKind::kLowercase;
  } else if (kind == "StripAccents") {
    s.kind = StepKind::kStripAccents;
  } else if (kind == "Strip") {
    s.kind = StepKind::kStrip;
    s.left = Flag(step, "strip_left", true);
    s.right = Flag(step, "strip_right", true);
  } else {
    return Unimplemented(
        "the type \"{}\" is not known, known are Precompiled, Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, "
        "StripAccents and Strip",
        Printable(kind));
  }
  options->steps.push_back(std::move(s));
  return absl::OkStatus();
}

Status ReadPreTokenizer(const json::object& step, UnigramOptions* options) {
  const std::string kind = Kind(step);
  if (kind == "WhitespaceSplit" && !options->split_words) {
    options->steps.push_back({.kind = StepKind::kCollapseWhiteSpace});
    return absl::OkStatus();
  }
  if (kind != "Metaspace") {
    return Unimplemented("the type \"{}\" is not known, known are Metaspace and WhitespaceSplit before it",
                         Printable(kind));
  }
  if (const json::value* replacement = step.if_contains("replacement"); replacement && Text(replacement) != kMetaSpace)
    return Unimplemented("a Metaspace of \"{}\" is not known", Printable(Text(replacement)));
  const std::string scheme = Text(step.if_contains("prepend_scheme"));
  const bool prepends = scheme.empty() ? Flag(step, "add_prefix_space", true) : scheme != "never";
  if (prepends) options->prefix = Prefix::kSpaceUnlessThere;
  options->prefix_first_only = scheme == "first";
  options->split_words = Flag(step, "split", true);
  return absl::OkStatus();
}

}  // namespace

StatusOr<UnigramOptions> ReadUnigramOptions(const json::object& root) {
  UnigramOptions options;
  options.prefix = Prefix::kNone;
  const Status normalizers = ForEachStep(Object(root, "normalizer"), "normalizers",
                                         [&](const json::object& s) { return ReadStep(s, &options); });
  GYRE_RETURN_IF_ERROR(Annotate(normalizers, "normalizer"));
  const Status pre_tokenizers = ForEachStep(Object(root, "pre_tokenizer"), "pretokenizers",
                                            [&](const json::object& s) { return ReadPreTokenizer(s, &options); });
  GYRE_RETURN_IF_ERROR(Annotate(pre_tokenizers, "pre_tokenizer"));
  return options;
}

Status WriteUnigramOptions(const UnigramOptions& options, const Vocabulary& v, std::vector<int32_t>* types,
                           Metadata* out) {
  const auto& steps = options.steps;
  auto is = [&](size_t i, StepKind kind) { return i < steps.size() && steps[i].kind == kind; };
  size_t at = 0;
  if (is(at, StepKind::kCharsmap)) out->SetBytes("tokenizer.ggml.precompiled_charsmap", steps[at++].charsmap->Bytes());
  // GGUF collapses spaces only; SentencePiece's map turns other white space into spaces before.
  const bool mapped = at > 0;
  bool collapses = false;
  if (is(at, StepKind::kCollapseSpaces) || (mapped && is(at, StepKind::kCollapseWhiteSpace))) {
    collapses = true;
    ++at;
  } else if (mapped && is(at, StepKind::kStrip) && !steps[at].left && is(at + 1, StepKind::kReplaceSpaces) &&
             steps[at + 1].to == kMetaSpace && options.prefix == Prefix::kSpaceUnlessThere) {
    collapses = true;
    at += 2;
  }
  if (at < steps.size() || (options.prefix == Prefix::kSpaceUnlessThere && !collapses)) {
    return Unimplemented("the tokenizer's normalizers are more than GGUF has keys for");
  }
  out->Set("tokenizer.ggml.remove_extra_whitespaces", collapses);
  out->Set("tokenizer.ggml.add_space_prefix", options.prefix != Prefix::kNone);
  if (options.prefix_first_only) out->Set(kPrefixFirstOnlyKey, true);
  for (size_t id = 0; id < v.size(); ++id) {
    if (options.split_words && v.types[id] == TokenType::kNormal &&
        v.piece(id).find(kMetaSpace, 1) != std::string_view::npos)
      (*types)[id] = static_cast<int32_t>(TokenType::kUnused);
    if (v.types[id] == TokenType::kUnknown) out->Set("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(id));
  }
  return absl::OkStatus();
}

}  // namespace gyre
