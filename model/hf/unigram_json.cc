#include "model/hf/unigram_json.h"

#include "model/hf/json.h"
#include "model/hf/text_steps.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"

namespace gyre {
namespace {

namespace json = boost::json;
using StepKind = NormalizerStep::Kind;
using Prefix = UnigramOptions::Prefix;

Status ReadPreTokenizer(const json::object& step, UnigramOptions* options) {
  const std::string kind = Kind(step);
  if (kind == "WhitespaceSplit" && !options->split_words) {
    options->steps.push_back({.kind = StepKind::kCollapseWhiteSpace});
    return absl::OkStatus();
  }
  if (kind != "Metaspace" || options->prefix == Prefix::kSpaceUnlessThere || options->split_words) {
    return Unimplemented("the type \"{}\" is not known, known are Metaspace and WhitespaceSplit before it",
                         Printable(kind));
  }
  if (const json::value* replacement = step.if_contains("replacement"); replacement && Text(replacement) != kMetaSpace)
    return Unimplemented("a Metaspace of \"{}\" is not known", Printable(Text(replacement)));
  const std::string scheme = Text(step.if_contains("prepend_scheme"));
  if (!options->steps.empty() && options->steps.back().kind == StepKind::kCollapseWhiteSpace && !scheme.empty() &&
      scheme != "always")
    return Unimplemented("a Metaspace with the prepend_scheme \"{}\" after a WhitespaceSplit is not known",
                         Printable(scheme));
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
  GYRE_ASSIGN_OR_RETURN(std::vector<NormalizerStep> steps, ReadNormalizers(root));
  for (NormalizerStep& s : steps) {
    if (IsMetaPrefix(s)) {  // what decoding takes off again
      options.prefix = Prefix::kSpace;
    } else if (!IsMetaReplace(s)) {  // which is done at the end anyway
      options.steps.push_back(std::move(s));
    }
  }
  const Status pre_tokenizers = ForEachStep(root, "pre_tokenizer", "pretokenizers",
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
