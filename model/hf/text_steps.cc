#include "model/hf/text_steps.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "model/hf/json.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"

namespace gyre {
namespace {

namespace json = boost::json;
using StepKind = NormalizerStep::Kind;
using Behavior = SplitStep::Behavior;

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

// A pattern is an expression or a plain text.
struct Pattern {
  std::string regex, plain;  // one of them
};
StatusOr<Pattern> ReadPattern(const json::object& step) {
  const json::object* pattern = Object(step, "pattern");
  Pattern out;
  if (pattern != nullptr) {
    out.regex = Text(pattern->if_contains("Regex"));
    out.plain = Text(pattern->if_contains("String"));
  }
  if (out.regex.empty() && out.plain.empty())
    return DataLoss("a {} has no pattern, expected a Regex or a String", Printable(Kind(step)));
  return out;
}

// The library gives a meaning of its own to matches without characters.
StatusOr<TextPattern> CompileExpression(const std::string& regex) {
  StatusOr<TextPattern> pattern = TextPattern::Compile(regex);
  if (pattern.ok() && pattern->MatchesEmpty())
    return Unimplemented("the expression {} may match where there is no character", Printable(regex));
  return pattern;
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
  GYRE_ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(step));
  s.from = std::move(pattern.plain);
  if (pattern.regex == " {2,}") {
    s.kind = StepKind::kReplaceSpaces;
  } else if (!pattern.regex.empty()) {
    s.kind = StepKind::kReplacePattern;
    GYRE_ASSIGN_OR_RETURN(TextPattern compiled, CompileExpression(pattern.regex));
    s.pattern = std::make_shared<const TextPattern>(std::move(compiled));
  }
  return s;
}

Status ReadNormalizer(const json::object& step, std::vector<NormalizerStep>* steps) {
  const std::string kind = Kind(step);
  NormalizerStep s;
  if (kind == "Precompiled") {
    GYRE_ASSIGN_OR_RETURN(s, ReadCharsmap(step));
    if (s.charsmap->empty()) return absl::OkStatus();
  } else if (kind == "Replace") {
    GYRE_ASSIGN_OR_RETURN(s, ReadReplace(step));
  } else if (kind == "Prepend") {
    s.kind = StepKind::kPrepend;
    GYRE_ASSIGN_OR_RETURN(s.to, Content(step, "prepend"));
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
  } else if (kind == "Nmt") {
    s.kind = StepKind::kNmt;
  } else if (kind == "Strip") {
    s.kind = StepKind::kStrip;
    s.left = Flag(step, "strip_left", true);
    s.right = Flag(step, "strip_right", true);
  } else {
    return Unimplemented(
        "the type \"{}\" is not known, known are Precompiled, Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, "
        "StripAccents, Nmt and Strip",
        Printable(kind));
  }
  steps->push_back(std::move(s));
  return absl::OkStatus();
}

StatusOr<Behavior> ReadBehavior(const json::object& step) {
  const std::string name = Text(step.if_contains("behavior"));
  for (const auto& [known, behavior] : {std::pair("Isolated", Behavior::kIsolated),
                                        {"Removed", Behavior::kRemoved},
                                        {"Contiguous", Behavior::kContiguous},
                                        {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                        {"MergedWithNext", Behavior::kMergedWithNext}}) {
    if (name == known) return behavior;
  }
  return Unimplemented(
      "a {} whose behavior is \"{}\" is not known, known are Isolated, Removed, Contiguous, MergedWithPrevious and "
      "MergedWithNext",
      Printable(Kind(step)), Printable(name));
}

std::string EscapedForRegex(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

bool IsMetaPrefix(const NormalizerStep& s) { return s.kind == StepKind::kPrepend && s.to == kMetaSpace; }
bool IsMetaReplace(const NormalizerStep& s) {
  return s.kind == StepKind::kReplace && s.from == " " && s.to == kMetaSpace;
}
bool ChangeSpacesOnly(const std::vector<NormalizerStep>& steps) {
  return std::all_of(steps.begin(), steps.end(),
                     [](const NormalizerStep& s) { return IsMetaPrefix(s) || IsMetaReplace(s); });
}

StatusOr<std::vector<NormalizerStep>> ReadNormalizers(const json::object& root) {
  std::vector<NormalizerStep> steps;
  const Status read =
      ForEachStep(root, "normalizer", "normalizers", [&](const json::object& s) { return ReadNormalizer(s, &steps); });
  GYRE_RETURN_IF_ERROR(Annotate(read, "normalizer"));
  return steps;
}

StatusOr<std::optional<SplitStep>> ReadSplitStep(const json::object& step) {
  const std::string kind = Kind(step);
  if (kind == "Split") {
    GYRE_ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(step));
    GYRE_ASSIGN_OR_RETURN(const Behavior behavior, ReadBehavior(step));
    std::string regex = pattern.regex.empty() ? EscapedForRegex(pattern.plain) : pattern.regex;
    GYRE_RETURN_IF_ERROR(CompileExpression(regex).status());
    return SplitStep(std::move(regex), behavior, Flag(step, "invert"));
  }
  if (kind == "Digits") return SplitStep(Flag(step, "individual_digits") ? "\\p{N}" : "\\p{N}+");
  if (kind == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    if (step.if_contains("behavior") != nullptr) {
      GYRE_ASSIGN_OR_RETURN(behavior, ReadBehavior(step));
    }
    // A row of the table (model/presplit.cc) has the same for Falcon.
    if (behavior == Behavior::kContiguous) return SplitStep("[\\p{P}\\$\\+<=>\\^~\\|`]+");
    return SplitStep("[\\p{P}\\$\\+<=>\\^~\\|`]", behavior);
  }
  if (kind == "Whitespace") return SplitStep("\\w+|[^\\w\\s]+", Behavior::kRemoved, true);
  if (kind == "WhitespaceSplit") return SplitStep("\\s", Behavior::kRemoved);
  if (kind == "CharDelimiterSplit") {
    GYRE_ASSIGN_OR_RETURN(const std::string delimiter, Content(step, "delimiter"));
    if (delimiter.empty()) return DataLoss("a CharDelimiterSplit has no delimiter");
    return SplitStep(EscapedForRegex(delimiter), Behavior::kRemoved);
  }
  return std::optional<SplitStep>();
}

}  // namespace gyre
