#include "model/hf/tokenizer_json.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "model/hf/added_tokens.h"
#include "model/hf/json.h"
#include "model/hf/post_processor.h"
#include "model/hf/text_steps.h"
#include "model/hf/token_entries.h"
#include "model/hf/tokenizer_keys.h"
#include "model/hf/unigram_json.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {
namespace {

namespace json = boost::json;

Status ReadBytePreTokenizer(const json::object& step, HfTokenizer* t, bool* spelled) {
  if (Kind(step) == "ByteLevel") {
    if (*spelled) return Unimplemented("ByteLevel twice is not known");
    *spelled = true;
    t->pre.prefix_space = Flag(step, "add_prefix_space");
    if (t->pre.prefix_space && !t->pre.patterns.empty())
      return Unimplemented(
          "ByteLevel with a space put before the text, after a pre-tokenizer that cuts it, is not known");
    if (Flag(step, "use_regex", true)) t->pre.patterns.push_back(PreTokenizerByName("gpt-2")->patterns[0]);
    return absl::OkStatus();
  }
  GYRE_ASSIGN_OR_RETURN(std::optional<SplitStep> split, ReadSplitStep(step));
  if (!split) {
    return Unimplemented(
        "the type \"{}\" is not known beside a model of bytes, known are ByteLevel, Split, Digits, Punctuation, "
        "Whitespace, WhitespaceSplit and CharDelimiterSplit",
        Printable(Kind(step)));
  }
  (*spelled ? t->pre.after_spelling : t->pre.patterns).push_back(*std::move(split));
  return absl::OkStatus();
}

Status ReadPiecePreTokenizer(const json::object& step, HfTokenizer* t) {
  SpmOptions& o = t->spm;
  if (Kind(step) == "Metaspace") {
    if (o.replace_spaces || !o.patterns.empty()) return Unimplemented("a Metaspace after other steps is not known");
    const json::value* replacement = step.if_contains("replacement");
    if (replacement != nullptr && Text(replacement) != kMetaSpace)
      return Unimplemented("a Metaspace of \"{}\" is not known", Printable(Text(replacement)));
    const std::string scheme = Text(step.if_contains("prepend_scheme"));
    o.replace_spaces = o.meta_space = o.prefix_unless_there = true;
    o.add_space_prefix = scheme.empty() ? Flag(step, "add_prefix_space", true) : scheme != "never";
    o.prefix_first_only = scheme == "first";
    o.split_words = Flag(step, "split", true);
    return absl::OkStatus();
  }
  GYRE_ASSIGN_OR_RETURN(std::optional<SplitStep> split, ReadSplitStep(step));
  if (!split) {
    return Unimplemented(
        "the type \"{}\" is not known beside a model of pieces, known are Metaspace, Split, Digits, Punctuation, "
        "Whitespace, WhitespaceSplit and CharDelimiterSplit",
        Printable(Kind(step)));
  }
  // Gemma's, for which its normalizer leaves nothing to do.
  const json::object* pattern = Object(step, "pattern");
  const bool spaces = pattern != nullptr && Text(pattern->if_contains("String")) == " ";
  if (spaces && !o.steps.empty() && IsMetaReplace(o.steps.back())) return absl::OkStatus();
  if (o.split_words) return Unimplemented("a Metaspace that cuts the text, before other steps, is not known");
  o.patterns.push_back(*std::move(split));
  return absl::OkStatus();
}

// Fields that change the result, and that no known model of bytes or pieces has.
Status CheckModel(const json::object& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string text = Text(model.if_contains(key)); !text.empty())
      return Unimplemented("model: a {} (\"{}\") is not known", key, Printable(text));
  }
  const json::value* dropout = model.if_contains("dropout");
  if (dropout != nullptr && dropout->is_number() && dropout->to_number<double>() != 0)
    return Unimplemented("model: dropout, which makes ids random, is not known");
  return absl::OkStatus();
}

// The pre-tokenizers of a BPE, and what goes with them.
Status ReadSteps(const json::object& root, const json::object& settings, bool byte_fallback, HfTokenizer* t) {
  const Status steps_are_read = ForEachStep(root, "pre_tokenizer", "pretokenizers", [&](const json::object& s) {
    t->byte_level = t->byte_level || Kind(s) == "ByteLevel";
    return absl::OkStatus();
  });
  GYRE_RETURN_IF_ERROR(Annotate(steps_are_read, "pre_tokenizer"));
  if (!t->byte_level && !byte_fallback)
    return Unimplemented(
        "model: a BPE neither on bytes (a pre-tokenizer ByteLevel) nor with byte tokens (byte_fallback)");
  GYRE_ASSIGN_OR_RETURN(std::vector<NormalizerStep> steps, ReadNormalizers(root));
  bool spelled = false;
  if (t->byte_level) {
    t->pre.steps = std::move(steps);
  } else {
    t->spm = {.add_space_prefix = false, .meta_space = false, .as_json = true, .replace_spaces = false};
    t->spm.steps = std::move(steps);
  }
  const Status pre_tokenizers = ForEachStep(root, "pre_tokenizer", "pretokenizers", [&](const json::object& s) {
    return t->byte_level ? ReadBytePreTokenizer(s, t, &spelled) : ReadPiecePreTokenizer(s, t);
  });
  GYRE_RETURN_IF_ERROR(Annotate(pre_tokenizers, "pre_tokenizer"));
  GYRE_ASSIGN_OR_RETURN(const DecoderFacts decoder,
                        ReadDecoder(root, t->byte_level ? DecodedAs::kBytes : DecodedAs::kPieces));
  if (t->byte_level) {
    // transformers lets tokenizer_config.json decide, if ByteLevel is the only step.
    const json::object* only = Object(root, "pre_tokenizer");
    if (only != nullptr && Kind(*only) == "ByteLevel")
      t->pre.prefix_space = Flag(settings, "add_prefix_space", t->pre.prefix_space);
    return absl::OkStatus();
  }
  SpmOptions& o = t->spm;
  const bool prefix = std::any_of(o.steps.begin(), o.steps.end(), IsMetaPrefix);
  o.meta_space = o.meta_space || decoder.meta_space || std::any_of(o.steps.begin(), o.steps.end(), IsMetaReplace);
  o.drop_space = decoder.given ? decoder.drop_space : prefix || o.add_space_prefix;
  return absl::OkStatus();
}

// Sets how each added token is found. A special token that is to be found in normalized text must not arise from a text
// that does not spell it, as then messages could forge it.
Status SetRules(const std::vector<TokenEntry>& entries, const std::vector<NormalizerStep>& steps, Vocabulary* v) {
  for (size_t id = 0; id < entries.size(); ++id) {
    FindRule rule = entries[id].rule;
    const TokenType type = entries[id].type;
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    if (rule.normalized && type == TokenType::kControl && !ChangeSpacesOnly(steps)) {
      if (Normalize(entries[id].piece, steps) != entries[id].piece) {
        return Unimplemented(
            "added_tokens: the special token {} is to be found in normalized text, and the normalizers "
            "change it",
            Printable(entries[id].piece));
      }
      rule.normalized = false;
    }
    if (!rule.plain()) v->rules.emplace(static_cast<TokenId>(id), rule);
  }
  return absl::OkStatus();
}

// Sets the tokens that are put around a text. tokenizer_config.json's add_bos_token and add_eos_token decide about
// these two, where they are given.
Status SetTokensAround(const json::object& root, const json::object& settings,
                       const std::function<TokenId(const std::string&)>& id_of, Vocabulary* v) {
  GYRE_ASSIGN_OR_RETURN(TokensAround around, ReadPostProcessor(root, id_of));
  // These classes of transformers put the begin token first unless they are told otherwise.
  const std::string kind = Text(settings.if_contains("tokenizer_class"));
  const bool by_class = kind == "LlamaTokenizer" || kind == "LlamaTokenizerFast" || kind == "GemmaTokenizer" ||
                        kind == "GemmaTokenizerFast";
  const bool nothing = around.prefix.empty() && around.suffix.empty();
  if (v->bos < 0 && !around.prefix.empty()) v->bos = around.prefix.front();
  auto has = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  v->add_bos = Flag(settings, "add_bos_token", (nothing && by_class) || has(around.prefix, v->bos));
  v->add_eos = Flag(settings, "add_eos_token", has(around.suffix, v->eos));
  if (!v->add_bos) std::erase(around.prefix, v->bos);
  if (!v->add_eos) std::erase(around.suffix, v->eos);
  if (v->add_bos && v->bos >= 0 && !has(around.prefix, v->bos)) around.prefix.insert(around.prefix.begin(), v->bos);
  if (v->add_eos && v->eos >= 0 && !has(around.suffix, v->eos)) around.suffix.push_back(v->eos);
  const std::vector<TokenId> bos(v->add_bos && v->bos >= 0 ? 1 : 0, v->bos),
      eos(v->add_eos && v->eos >= 0 ? 1 : 0, v->eos);
  if (around.prefix == bos && around.suffix == eos) return absl::OkStatus();
  v->prefix = std::move(around.prefix);
  v->suffix = std::move(around.suffix);
  return absl::OkStatus();
}

}  // namespace

StatusOr<HfTokenizer> ReadTokenizerJson(const json::object& root, const json::object& settings, int vocab) {
  const json::object* model = Object(root, "model");
  if (model == nullptr) return DataLoss("\"model\" is missing");
  const std::string kind = Kind(*model);
  const bool unigram = kind == "Unigram";
  if (!unigram && kind != "BPE" && !(kind.empty() && model->if_contains("merges") != nullptr)) {
    return Unimplemented("model: the type \"{}\" is not known, known are BPE and Unigram", Printable(kind));
  }
  if (Flag(settings, "split_special_tokens"))
    return Unimplemented("tokenizer_config.json: split_special_tokens is not known");
  HfTokenizer t;
  const bool byte_fallback = Flag(*model, "byte_fallback");
  std::vector<TokenEntry> entries;
  if (unigram) {
    GYRE_ASSIGN_OR_RETURN(t.unigram, ReadUnigramOptions(root));
    GYRE_RETURN_IF_ERROR(ReadDecoder(root, DecodedAs::kPieces).status());
    GYRE_ASSIGN_OR_RETURN(entries, ReadScoredEntries(root, *model, settings, vocab, byte_fallback));
  } else {
    GYRE_RETURN_IF_ERROR(CheckModel(*model));
    GYRE_RETURN_IF_ERROR(ReadSteps(root, settings, byte_fallback, &t));
    t.pre.ignore_merges = Flag(*model, "ignore_merges");
    t.pre.fuse_unknown = Flag(*model, "fuse_unk");
    if (t.pre.ignore_merges && !t.byte_level)
      return Unimplemented("model: ignore_merges is not known without ByteLevel");
    GYRE_ASSIGN_OR_RETURN(entries, ReadEntries(root, *model, settings, vocab, byte_fallback));
  }
  GYRE_RETURN_IF_ERROR(CheckTokenizerKeys(root));

  Vocabulary& v = t.vocabulary;
  std::unordered_map<std::string, TokenId> ids;
  for (const TokenEntry& e : entries) {
    v.Add(t.byte_level && e.type == TokenType::kNormal ? BytesOfSpelling(e.piece) : e.piece, e.type);
    const TokenId id = static_cast<TokenId>(v.size()) - 1;
    if (e.type != TokenType::kUnused) ids.emplace(e.piece, id);
    v.finds_unknown = v.finds_unknown || (e.type == TokenType::kUnknown && e.added);
    if (e.type == TokenType::kUserDefined && e.in_model)
      v.also.emplace_back(t.byte_level ? BytesOfSpelling(e.piece) : e.piece, id);
  }
  AddEndsByName(&v);
  auto id_of = [&](const std::string& piece) {
    const auto it = ids.find(piece);
    return it == ids.end() ? -1 : it->second;
  };
  const std::string bos = SpecialText(settings, "bos_token"), eos = SpecialText(settings, "eos_token");
  for (const auto& [key, piece] : {std::pair("bos_token", bos), std::pair("eos_token", eos)}) {
    if (piece.empty() || id_of(piece) >= 0) continue;
    Log(LogLevel::kWarn, "{} is {}, which is no token of the vocabulary: it counts as none", key, Printable(piece));
  }
  v.bos = bos.empty() ? -1 : id_of(bos);
  v.eos = eos.empty() ? -1 : id_of(eos);
  if (v.eos >= 0) v.end_ids.push_back(v.eos);
  if (const json::value* ends = settings.if_contains("eos_token_id")) {
    const json::array several = ends->is_array() ? ends->get_array() : json::array{*ends};
    for (const json::value& e : several) {
      if (e.is_null() || e == json::value(-1)) continue;  // there is none
      if (!e.is_int64() || e.get_int64() < 0) {
        return DataLoss("eos_token_id is {}, expected the id of a token, or a list of ids", json::serialize(e));
      }
      // Folders in use have such ids, of the vocabulary that a model was made from.
      if (e.get_int64() >= static_cast<int64_t>(v.size())) {
        Log(LogLevel::kWarn, "eos_token_id names the token {}, the vocabulary has 0-{}: no text ends with it",
            e.get_int64(), v.size() - 1);
        continue;
      }
      v.end_ids.push_back(static_cast<TokenId>(e.get_int64()));
      if (v.eos < 0) v.eos = v.end_ids.back();
    }
  }
  GYRE_RETURN_IF_ERROR(SetRules(entries, unigram ? t.unigram->steps : t.byte_level ? t.pre.steps : t.spm.steps, &v));
  GYRE_RETURN_IF_ERROR(SetTokensAround(root, settings, id_of, &v));

  if (unigram) {
    for (const TokenEntry& e : entries) v.scores.push_back(e.score);
    return t;
  }
  const json::array* merges = Array(*model, "merges");
  if (merges == nullptr) return DataLoss("model.merges is missing");
  // Text never becomes a control token by merging.
  std::unordered_set<std::string> control;
  for (const TokenEntry& e : entries) {
    if (t.byte_level && e.in_model && (e.type == TokenType::kControl || e.type == TokenType::kUnknown))
      control.insert(e.piece);
  }
  MergeReader reader(v);
  std::optional<MergeScores> scores;
  if (!t.byte_level) scores.emplace(&v);
  for (const json::value& m : *merges) {
    std::string left, right;
    if (const json::array* pair = m.if_array(); pair != nullptr && pair->size() == 2) {
      left = Text(&(*pair)[0]);
      right = Text(&(*pair)[1]);
    } else {
      const std::string line = Text(&m);
      const size_t space = line.find(' ', 1);
      if (space != std::string::npos) {
        left = line.substr(0, space);
        right = line.substr(space + 1);
      }
    }
    if (left.empty() || right.empty()) return DataLoss("model.merges: {} is no pair", Printable(json::serialize(m)));
    if (!control.empty() && (control.contains(left) || control.contains(right) || control.contains(left + right)))
      continue;
    GYRE_RETURN_IF_ERROR(Annotate(t.byte_level ? reader.Add(left, right) : scores->Add(left, right), "model.merges"));
  }
  if (t.byte_level) {
    t.merges = reader.Take();
    t.pre_name = PreTokenizerName(t.pre);
  } else {
    scores->Finish();
  }
  return t;
}

StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(HfTokenizer t) {
  if (t.byte_level) return MakeBpeTokenizer(std::move(t.vocabulary), t.merges, t.pre);
  if (t.unigram) return MakeUnigramTokenizer(std::move(t.vocabulary), *std::move(t.unigram));
  return MakeSpmTokenizer(std::move(t.vocabulary), t.spm);
}

namespace {

// GGUF has keys for three ends. Other programs know some by their names, which need none.
void WriteEnds(const Vocabulary& v, Metadata* out) {
  std::vector<int32_t> all, others;
  for (const TokenId end : v.end_ids) {
    if (std::find(all.begin(), all.end(), end) != all.end()) continue;
    all.push_back(end);
    if (end != v.eos) others.push_back(end);
  }
  std::stable_partition(others.begin(), others.end(),
                        [&](int32_t id) { return !EndsByName(v.piece(static_cast<size_t>(id))); });
  if (!others.empty()) out->Set("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(others[0]));
  if (others.size() > 1) out->Set("tokenizer.ggml.eom_token_id", static_cast<uint32_t>(others[1]));
  if (others.size() > 2) out->SetInts(kEndsKey, all);
}

Status WriteSpmOptions(const SpmOptions& o, Metadata* out) {
  const bool prefix = o.add_space_prefix || std::any_of(o.steps.begin(), o.steps.end(), IsMetaPrefix);
  if (!ChangeSpacesOnly(o.steps) || !o.patterns.empty() || !o.meta_space || prefix != o.drop_space)
    return Unimplemented("the tokenizer's normalizers, pre-tokenizers or decoder are more than GGUF has keys for");
  out->Set("tokenizer.ggml.add_space_prefix", prefix);
  if (o.prefix_first_only) out->Set(kPrefixFirstOnlyKey, true);
  if (o.prefix_unless_there && prefix) out->Set(kPrefixUnlessThereKey, true);
  if (o.split_words) out->Set(kSplitWordsKey, true);
  return absl::OkStatus();
}

Status WriteRules(const Vocabulary& v, const std::vector<NormalizerStep>& steps, Metadata* out) {
  std::map<const char*, std::vector<int32_t>> lists;
  for (const auto& [id, rule] : v.rules) {
    const std::string piece(v.piece(static_cast<size_t>(id)));
    // A token that needs U+2581 before it in the folder is found without it too, as GGUF's readers have it.
    if (rule.normalized && !ChangeSpacesOnly(steps) && Normalize(piece, steps) != piece) {
      return Unimplemented("GGUF has no key for the token \"{}\", which is to be found in normalized text",
                           Printable(piece));
    }
    if (rule.strip_left) lists[kStripLeftKey].push_back(id);
    if (rule.strip_right) lists[kStripRightKey].push_back(id);
    if (rule.whole_word) lists[kWholeWordKey].push_back(id);
  }
  if (!v.prefix.empty()) lists[kPrefixKey] = v.prefix;
  if (!v.suffix.empty()) lists[kSuffixKey] = v.suffix;
  for (const auto& [key, ids] : lists) out->SetInts(key, ids);
  return absl::OkStatus();
}

}  // namespace

Status WriteTokenizer(const HfTokenizer& t, Metadata* out) {
  const Vocabulary& v = t.vocabulary;
  if (t.byte_level && t.pre_name.empty())
    return Unimplemented("the tokenizer's expressions are those of no pre-tokenizer that GGUF has a name for");
  std::vector<std::string> pieces;
  std::vector<int32_t> types;
  for (size_t i = 0; i < v.size(); ++i) {
    const std::string piece(v.piece(i));
    // Each unused row gets a different text, as texts must be unique.
    pieces.push_back(v.types[i] == TokenType::kUnused                   ? fmt::format("[PAD{}]", i)
                     : t.byte_level && v.types[i] == TokenType::kNormal ? SpellingOfBytes(piece)
                     : !t.byte_level && !t.unigram && v.types[i] == TokenType::kUserDefined
                         ? ReplaceAll(piece, kMetaSpace, " ")  // as GGUF has them
                         : piece);
    types.push_back(static_cast<int32_t>(v.types[i]));
  }
  if (t.unigram) GYRE_RETURN_IF_ERROR(WriteUnigramOptions(*t.unigram, v, &types, out));
  if (!t.unigram && !t.byte_level) GYRE_RETURN_IF_ERROR(WriteSpmOptions(t.spm, out));
  GYRE_RETURN_IF_ERROR(WriteRules(v, t.unigram ? t.unigram->steps : t.byte_level ? t.pre.steps : t.spm.steps, out));
  out->Set("tokenizer.ggml.model", std::string_view(t.byte_level ? "gpt2" : t.unigram ? "t5" : "llama"));
  out->SetStrings("tokenizer.ggml.tokens", pieces);
  out->SetInts("tokenizer.ggml.token_type", types);
  if (t.byte_level) {
    std::vector<std::string> merges;
    for (const BpeMerge& m : t.merges)
      merges.push_back(pieces[static_cast<size_t>(m.left)] + " " + pieces[static_cast<size_t>(m.right)]);
    out->Set("tokenizer.ggml.pre", std::string_view(t.pre_name));
    out->SetStrings("tokenizer.ggml.merges", merges);
  } else {
    out->SetFloats("tokenizer.ggml.scores", v.scores);
  }
  if (v.bos >= 0) out->Set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(v.bos));
  if (v.eos >= 0) out->Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(v.eos));
  WriteEnds(v, out);
  out->Set("tokenizer.ggml.add_bos_token", v.add_bos);
  out->Set("tokenizer.ggml.add_eos_token", v.add_eos);
  return absl::OkStatus();
}

}  // namespace gyre
