#include "model/presplit.h"

#include <algorithm>

#include "model/quoted.h"
#include "model/text_pattern.h"

namespace gyre {
namespace {

// The expressions of the publishers' tokenizer.json files.
constexpr std::string_view kGpt2 = R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kLlama3 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kQwen2 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kQwen35 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kTekken =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kO200k =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// Chinese characters stay together, and apart from all other letters.
constexpr std::string_view kKimi =
    R"re(\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kBailing =
    R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)re";
constexpr std::string_view kSeedCoder =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDeepSeekV3 =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDeepSeekLetters =
    R"re(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)re";
constexpr std::string_view kBloom = R"re( ?[^(\s|[.,!?…。，、।۔،])]+)re";
constexpr std::string_view kCjk = "[一-龥ࠀ-一가-\\x{D7FF}]+";
constexpr std::string_view kKana = "[一-龥぀-ゟ゠-ヿ]+";

struct Row {
  std::string_view name;
  std::vector<std::string_view> patterns;
  bool nfc = false, ignore_merges = false, add_bos = false;
};

const std::vector<Row>& Rows() {
  static const auto* rows = new std::vector<Row>{
      {"gpt-2", {kGpt2}},
      {"phi-2", {kGpt2}},
      {"mpt", {kGpt2}},
      {"olmo", {kGpt2}},
      {"modern-bert", {kGpt2}, true},
      {"jais", {kGpt2}},
      {"trillion", {kGpt2}},
      {"llama-bpe", {kLlama3}, false, true, true},
      {"llama3", {kLlama3}, false, true, true},
      {"llama-v3", {kLlama3}, false, true, true},
      {"falcon3", {kLlama3}, false, true, true},
      {"pixtral", {kLlama3}, false, true, true},
      {"dbrx", {kLlama3}},
      {"smaug-bpe", {kLlama3}},
      {"chatglm-bpe", {kLlama3}},
      {"glm4", {kLlama3}},
      {"lfm2", {kLlama3}, false, true, true},
      {"qwen2", {kQwen2}, true},
      {"deepseek-r1-qwen", {kQwen2}, true},
      {"qwen35", {kQwen35}, true},
      {"stablelm2", {kQwen2}},
      {"hunyuan", {kQwen2}},
      {"megrez", {kQwen2}},
      {"grok-2", {kQwen2}},
      {"tekken", {kTekken}, false, true, true},
      {"gpt-4o", {kO200k}},
      {"minimax-m2", {kO200k}},
      {"kimi-k2", {kKimi}},
      {"llama4", {kO200k}, false, false, true},
      {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", kGpt2, "[0-9][0-9][0-9]"}},
      {"starcoder", {"\\p{N}", kGpt2}},
      {"refact", {"\\p{N}", kGpt2}},
      {"command-r", {"\\p{N}", kGpt2}, true},
      {"smollm", {"\\p{N}", kGpt2}},
      {"codeshell", {"\\p{N}", kGpt2}},
      {"exaone", {"\\p{N}", kGpt2}},
      {"minerva-7b", {"\\p{N}", kGpt2}},
      {"granite-docling", {"\\p{N}", kGpt2}},
      {"deepseek-llm",
       {"[\r\n]", kDeepSeekLetters, "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+", "\\s+$", kCjk, "\\p{N}+"}},
      {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kCjk, "\\p{N}"}},
      {"deepseek-v3", {"\\p{N}{1,3}", kKana, kDeepSeekV3}},
      {"hunyuan-dense", {"\\p{N}{1,3}", kKana, kDeepSeekV3}},
      {"bloom", {kBloom}},
      {"poro-chat", {kBloom}},
      {"gpt3-finnish", {kBloom}},
      {"viking", {kBloom, "\\p{N}"}},
      {"bailingmoe", {kBailing}},
      {"seed-coder", {kSeedCoder}},
      {"chameleon",
       {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
        "[\\p{P}!-/:-@\\[-`{-~]", kGpt2}},
  };
  return *rows;
}

// Whether the normalizers are form C alone.
bool IsNfc(const std::vector<NormalizerStep>& steps) {
  return steps.size() == 1 && steps[0].kind == NormalizerStep::Kind::kForm && steps[0].form == UnicodeForm::kNfc;
}

// An expression that matches all text cuts it in the same way if the text between matches is left out.
bool Isolates(const SplitStep& s) {
  return s.invert ? s.behavior == SplitStep::Behavior::kRemoved : s.behavior == SplitStep::Behavior::kIsolated;
}

}  // namespace

StatusOr<PreTokenizer> PreTokenizerByName(std::string_view name) {
  std::string known;
  for (const Row& row : Rows()) {
    if (row.name == name) {
      PreTokenizer p{.steps = {},
                     .patterns = {},
                     .after_spelling = {},
                     .ignore_merges = row.ignore_merges,
                     .add_bos = row.add_bos};
      if (row.nfc) p.steps.push_back({.kind = NormalizerStep::Kind::kForm, .form = UnicodeForm::kNfc});
      for (std::string_view pattern : row.patterns) p.patterns.emplace_back(std::string(pattern));
      return p;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Unimplemented("the pre-tokenizer \"{}\" is not known, known are {}", Printable(name), known);
}

std::string PreTokenizerName(const PreTokenizer& pre) {
  if (pre.prefix_space || !pre.after_spelling.empty() || !(pre.steps.empty() || IsNfc(pre.steps))) return "";
  for (const Row& row : Rows()) {
    if (row.nfc == !pre.steps.empty() && row.ignore_merges == pre.ignore_merges &&
        std::equal(row.patterns.begin(), row.patterns.end(), pre.patterns.begin(), pre.patterns.end(),
                   [](std::string_view pattern, const SplitStep& s) { return pattern == s.pattern && Isolates(s); })) {
      return std::string(row.name);
    }
  }
  return "";
}

struct PreSplit::Step {
  TextPattern pattern;
  SplitStep::Behavior behavior;
  bool invert;
};

PreSplit::PreSplit() = default;
PreSplit::PreSplit(PreSplit&&) noexcept = default;
PreSplit& PreSplit::operator=(PreSplit&&) noexcept = default;
PreSplit::~PreSplit() = default;
bool PreSplit::empty() const { return steps_.empty(); }

StatusOr<PreSplit> PreSplit::Compile(const std::vector<SplitStep>& steps) {
  PreSplit split;
  for (const SplitStep& s : steps) {
    GYRE_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Compile(s.pattern));
    split.steps_.push_back({.pattern = std::move(pattern), .behavior = s.behavior, .invert = s.invert});
  }
  return split;
}

namespace {

// Takes the parts of a text, matches and what is between them in turn, and puts out spans.
class SpanMaker {
 public:
  SpanMaker(SplitStep::Behavior behavior, bool invert, std::vector<TextSpan>* out)
      : behavior_(behavior), invert_(invert), out_(*out), first_(out->size()) {}
  void Add(size_t begin, size_t end, bool match) {
    using Behavior = SplitStep::Behavior;
    if (begin == end) return;
    match = match != invert_;
    const bool after = out_.size() > first_;  // there is a span that this part may join
    if (behavior_ == Behavior::kRemoved) {
      if (!match) out_.push_back({begin, end});
    } else if (after && ((behavior_ == Behavior::kContiguous && match == match_before_) ||
                         (behavior_ == Behavior::kMergedWithPrevious && match && !match_before_) ||
                         (behavior_ == Behavior::kMergedWithNext && !match && match_before_))) {
      out_.back().end = end;
    } else {
      out_.push_back({begin, end});
    }
    match_before_ = match;
  }

 private:
  const SplitStep::Behavior behavior_;
  const bool invert_;
  std::vector<TextSpan>& out_;
  const size_t first_;
  bool match_before_ = false;
};

}  // namespace

void PreSplit::Split(std::string_view text, std::vector<TextSpan>* spans) const {
  std::vector<TextSpan> before;
  spans->clear();
  if (!text.empty()) spans->push_back({0, text.size()});
  for (const Step& step : steps_) {
    before.swap(*spans);
    spans->clear();
    for (const TextSpan& s : before) {
      const std::string_view part = text.substr(s.begin, s.end - s.begin);
      SpanMaker maker(step.behavior, step.invert, spans);
      size_t at = 0;
      if (step.pattern.MayMatch(part)) {
        for (TextPattern::Match m; step.pattern.Find(part, at, &m); at = m.end) {
          maker.Add(s.begin + at, s.begin + m.begin, false);
          maker.Add(s.begin + m.begin, s.begin + m.end, true);
        }
      }
      maker.Add(s.begin + at, s.end, false);
    }
  }
}

}  // namespace gyre
