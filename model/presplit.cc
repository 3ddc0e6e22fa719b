#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/presplit.h"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "model/quoted.h"
#include "model/utf8.h"

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
constexpr std::string_view kBloom =
    R"re( ?[^(\s|.,!?…。，、।۔،)]+)re";  // the publisher's nested class, written as a plain one
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

// PCRE2's \s lacks U+0085, which the engines of the publishers' expressions count as white space.
std::string WithUnicodeSpace(const std::string& pattern) {
  constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? std::string(kSpace) : "[" + std::string(kSpace) + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + std::string(kSpace) + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
    } else if (c == ']' && in_class) {
      in_class = false;
    }
    out += c;
  }
  return out;
}

}  // namespace

StatusOr<PreTokenizer> PreTokenizerByName(std::string_view name) {
  std::string known;
  for (const Row& row : Rows()) {
    if (row.name == name) {
      PreTokenizer p{.patterns = {}, .nfc = row.nfc, .ignore_merges = row.ignore_merges, .add_bos = row.add_bos};
      for (std::string_view pattern : row.patterns) p.patterns.emplace_back(pattern);
      return p;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Unimplemented("the pre-tokenizer \"{}\" is not known, known are {}", Printable(name), known);
}

std::string PreTokenizerName(const PreTokenizer& pre) {
  for (const Row& row : Rows()) {
    if (row.nfc == pre.nfc && row.ignore_merges == pre.ignore_merges &&
        std::equal(row.patterns.begin(), row.patterns.end(), pre.patterns.begin(), pre.patterns.end())) {
      return std::string(row.name);
    }
  }
  return "";
}

struct PreSplit::Pattern {
  explicit Pattern(pcre2_code* c) : code(c) {}
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code); }
  // Whether a match may begin with some byte of the text.
  bool MayMatch(std::string_view text) const {
    return std::any_of(text.begin(), text.end(), [&](char c) { return begins[static_cast<uint8_t>(c)]; });
  }
  pcre2_code* code;
  std::array<bool, 256> begins;
  bool any = true;  // almost every stretch has such a byte: looking for it would only cost
};

PreSplit::PreSplit() = default;
PreSplit::PreSplit(PreSplit&&) noexcept = default;
PreSplit& PreSplit::operator=(PreSplit&&) noexcept = default;
PreSplit::~PreSplit() = default;

StatusOr<PreSplit> PreSplit::Compile(const std::vector<std::string>& patterns) {
  PreSplit split;
  for (const std::string& pattern : patterns) {
    const std::string text = WithUnicodeSpace(pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR words[200] = {};
      pcre2_get_error_message(error, words, sizeof words);
      return InvalidArgument("the pre-tokenizer's expression {} is not one: {} at {}", Printable(pattern),
                             reinterpret_cast<const char*>(words), offset);
    }
    split.patterns_.push_back(std::make_unique<Pattern>(code));
    Pattern& p = *split.patterns_.back();
    p.begins.fill(true);
    const uint8_t* first = nullptr;
    if (pcre2_pattern_info(code, PCRE2_INFO_FIRSTBITMAP, &first) == 0 && first != nullptr) {
      for (unsigned b = 0; b < 256; ++b) p.begins[b] = (first[b / 8] >> b % 8 & 1) != 0;
      p.any = p.begins['e'] || p.begins[' '];
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, pcre2_match interprets the pattern
  }
  return split;
}

void PreSplit::Split(std::string_view text, std::vector<size_t>* ends) const {
  struct Scratch {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    ~Scratch() { pcre2_match_data_free(data); }
  };
  thread_local Scratch scratch;
  std::vector<size_t> before;
  ends->assign(text.empty() ? 0 : 1, text.size());
  for (const auto& pattern : patterns_) {
    before.swap(*ends);
    ends->clear();
    size_t begin = 0;
    for (const size_t end : before) {
      const std::string_view stretch = text.substr(begin, end - begin);
      if (!pattern->any && !pattern->MayMatch(stretch)) {
        ends->push_back(end);
        begin = end;
        continue;
      }
      size_t at = 0;    // end of the last stretch that was put out
      size_t from = 0;  // where the search goes on
      while (from < stretch.size()) {
        const int found = pcre2_match(pattern->code, reinterpret_cast<PCRE2_SPTR>(stretch.data()), stretch.size(), from,
                                      0, scratch.data, nullptr);
        if (found < 0) break;  // no further match, or a limit: the rest is one stretch
        const PCRE2_SIZE* match = pcre2_get_ovector_pointer(scratch.data);
        if (match[1] <= match[0]) {  // an empty match is skipped
          from = std::max(from, match[1]) + Utf8Length(stretch, std::max(from, match[1]));
          continue;
        }
        if (match[0] > at) ends->push_back(begin + match[0]);
        ends->push_back(begin + match[1]);
        at = from = match[1];
      }
      if (at < stretch.size()) ends->push_back(end);
      begin = end;
    }
  }
}

}  // namespace gyre
