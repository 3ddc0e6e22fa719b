#include "model/hf/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "model/hf/json.h"
#include "model/hf/unigram_json.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {
namespace {

namespace json = boost::json;

Status ReadNormalizer(const json::object& step, HfTokenizer* t) {
  const std::string kind = Kind(step);
  if (kind == "NFC") {
    t->pre.nfc = true;
  } else if (kind == "Prepend") {
    t->spm.add_space_prefix = true;
  } else if (kind != "Replace") {  // a space by U+2581, which SentencePiece-style tokenizers do anyway
    return Unimplemented("the type \"{}\" is not known, known are NFC, Prepend and Replace", Printable(kind));
  }
  return absl::OkStatus();
}

std::string EscapedForRegex(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Status ReadPreTokenizer(const json::object& step, HfTokenizer* t) {
  const std::string kind = Kind(step);
  if (kind == "ByteLevel") {
    t->byte_level = true;
    if (Flag(step, "add_prefix_space")) return Unimplemented("ByteLevel with a space put before the text is not known");
    if (Flag(step, "use_regex", true)) t->pre.patterns.push_back(PreTokenizerByName("gpt-2")->patterns[0]);
  } else if (kind == "Split") {
    const json::object* pattern = Object(step, "pattern");
    const std::string regex = pattern != nullptr ? Text(pattern->if_contains("Regex")) : "";
    const std::string plain = pattern != nullptr ? Text(pattern->if_contains("String")) : "";
    if (regex.empty() && plain.empty()) return DataLoss("a Split has no pattern, expected a Regex or a String");
    if (plain == " " && !t->byte_level) return absl::OkStatus();  // Gemma's, which its normalizer leaves nothing to do
    const std::string behavior = Text(step.if_contains("behavior"));
    if (behavior != "Isolated" && behavior != "Removed")
      return Unimplemented("a Split whose behavior is \"{}\" is not known, known are Isolated and Removed",
                           Printable(behavior));
    if (behavior == "Removed" && !Flag(step, "invert"))
      return Unimplemented("a Split that removes what matches is not known");
    t->pre.patterns.push_back(regex.empty() ? EscapedForRegex(plain) : regex);
  } else if (kind == "Digits") {
    t->pre.patterns.emplace_back(Flag(step, "individual_digits") ? "\\p{N}" : "\\p{N}+");
  } else if (kind == "Metaspace") {
    const std::string scheme = Text(step.if_contains("prepend_scheme"));
    t->spm.add_space_prefix = scheme.empty() ? Flag(step, "add_prefix_space", true) : scheme != "never";
    t->spm.prefix_first_only = scheme == "first";
  } else {
    return Unimplemented("the type \"{}\" is not known, known are ByteLevel, Split, Digits and Metaspace",
                         Printable(kind));
  }
  return absl::OkStatus();
}

// Whether the post-processor puts this token first (or last).
bool Adds(const json::object* post, const std::string& token, bool first) {
  bool adds = false;
  (void)ForEachStep(post, "processors", [&](const json::object& step) -> Status {
    const json::array* single = Array(step, "single");
    if (single == nullptr || single->empty() || token.empty()) return absl::OkStatus();
    const json::object* end = (first ? single->front() : single->back()).if_object();
    const json::object* special = end != nullptr ? Object(*end, "SpecialToken") : nullptr;
    adds = adds || (special != nullptr && Text(special->if_contains("id")) == token);
    return absl::OkStatus();
  });
  return adds;
}

// The text of "bos_token" and others: a text, or an object with one.
std::string SpecialText(const json::object& settings, const char* key) {
  const json::value* v = settings.if_contains(key);
  if (v != nullptr && v->is_object()) v = v->get_object().if_contains("content");
  return Text(v);
}

bool IsBytePiece(std::string_view piece) { return piece.size() == 6 && piece.substr(0, 3) == "<0x" && piece[5] == '>'; }

struct Entry {
  std::string piece;
  TokenType type = TokenType::kUnused;
  float score = 0;
};

// Collects entries by id; the model's embedding must have a row for each id.
class EntryTable {
 public:
  // `rows`: of the model's embedding, 0 = unknown; `pieces`: in the tokenizer's vocabulary.
  EntryTable(int rows, size_t pieces)
      : rows_(rows), pieces_(pieces), entries_(static_cast<size_t>(std::max(rows, 0))) {}
  Status Put(const json::value& id, Entry entry) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= (int64_t{1} << 24)) {
      return DataLoss("the id of {} is {}", Printable(entry.piece), Printable(json::serialize(id)));
    }
    const auto at = static_cast<size_t>(id.get_int64());
    if (rows_ > 0 && at >= entries_.size())
      return DataLoss("token {} has the id {}, the model has {} rows", Printable(entry.piece), at, rows_);
    if (at >= pieces_ + 100000)
      return DataLoss("token {} has the id {}, of {} tokens", Printable(entry.piece), at, pieces_);
    if (at >= entries_.size()) entries_.resize(at + 1);
    entries_[at] = std::move(entry);
    return absl::OkStatus();
  }
  // Adds special and user-defined tokens, which the vocabulary may have too.
  Status PutAdded(const json::object& root, const std::string& unknown) {
    const json::array* added = Array(root, "added_tokens");
    for (size_t i = 0; added != nullptr && i < added->size(); ++i) {
      const json::object* token = (*added)[i].if_object();
      if (token == nullptr || token->if_contains("id") == nullptr) continue;
      Entry e{Text(token->if_contains("content")), TokenType::kUserDefined};
      if (Flag(*token, "special")) e.type = TokenType::kControl;
      if (!unknown.empty() && e.piece == unknown) e.type = TokenType::kUnknown;
      GYRE_RETURN_IF_ERROR(Put(token->at("id"), std::move(e)));
    }
    return absl::OkStatus();
  }
  std::vector<Entry> Take() { return std::move(entries_); }

 private:
  const int rows_;
  const size_t pieces_;
  std::vector<Entry> entries_;
};

TokenType TypeOf(std::string_view piece, bool byte_fallback) {
  return byte_fallback && IsBytePiece(piece) ? TokenType::kByte : TokenType::kNormal;
}

// "vocab": {piece: id}.
StatusOr<std::vector<Entry>> ReadEntries(const json::object& root, const json::object& model, int vocab,
                                         bool byte_fallback) {
  const json::object* pieces = Object(model, "vocab");
  if (pieces == nullptr) return DataLoss("model.vocab is missing");
  EntryTable table(vocab, pieces->size());
  for (const auto& item : *pieces) {
    std::string piece(item.key().data(), item.key().size());
    const TokenType type = TypeOf(piece, byte_fallback);
    GYRE_RETURN_IF_ERROR(table.Put(item.value(), {std::move(piece), type}));
  }
  GYRE_RETURN_IF_ERROR(table.PutAdded(root, Text(model.if_contains("unk_token"))));
  return table.Take();
}

// "vocab": [[piece, score]], in the order of the ids.
StatusOr<std::vector<Entry>> ReadScoredEntries(const json::object& root, const json::object& model, int vocab,
                                               bool byte_fallback) {
  const json::array* pieces = Array(model, "vocab");
  if (pieces == nullptr) return DataLoss("model.vocab is missing, or no list of pieces with their scores");
  int64_t unknown = -1;
  if (const json::value* id = model.if_contains("unk_id"); id != nullptr && !id->is_null()) {
    if (!id->is_int64() || id->get_int64() < 0 || id->get_int64() >= static_cast<int64_t>(pieces->size())) {
      return DataLoss("model.unk_id is {}, of {} pieces", Printable(json::serialize(*id)), pieces->size());
    }
    unknown = id->get_int64();
  }
  EntryTable table(vocab, pieces->size());
  std::string unknown_piece;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const json::array* pair = (*pieces)[i].if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number()) {
      return DataLoss("model.vocab: entry {} is {}, expected a piece and its score", i,
                      Printable(json::serialize((*pieces)[i])));
    }
    Entry e{Text(&(*pair)[0])};
    e.type = TypeOf(e.piece, byte_fallback);
    e.score = static_cast<float>((*pair)[1].to_number<double>());
    if (static_cast<int64_t>(i) == unknown) {
      e.type = TokenType::kUnknown;
      unknown_piece = e.piece;
    }
    GYRE_RETURN_IF_ERROR(table.Put(static_cast<int64_t>(i), std::move(e)));
  }
  GYRE_RETURN_IF_ERROR(table.PutAdded(root, unknown_piece));
  return table.Take();
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
  HfTokenizer t;
  const bool byte_fallback = Flag(*model, "byte_fallback");
  std::vector<Entry> entries;
  if (unigram) {
    GYRE_ASSIGN_OR_RETURN(t.unigram, ReadUnigramOptions(root));
    GYRE_ASSIGN_OR_RETURN(entries, ReadScoredEntries(root, *model, vocab, byte_fallback));
  } else {
    t.spm.add_space_prefix = false;
    GYRE_RETURN_IF_ERROR(ForEachStep(Object(root, "pre_tokenizer"), "pretokenizers", [&](const json::object& s) {
      t.byte_level = t.byte_level || Kind(s) == "ByteLevel";
      return absl::OkStatus();
    }));
    const Status normalizers = ForEachStep(Object(root, "normalizer"), "normalizers",
                                           [&](const json::object& s) { return ReadNormalizer(s, &t); });
    GYRE_RETURN_IF_ERROR(Annotate(normalizers, "normalizer"));
    const Status pre_tokenizers = ForEachStep(Object(root, "pre_tokenizer"), "pretokenizers",
                                              [&](const json::object& s) { return ReadPreTokenizer(s, &t); });
    GYRE_RETURN_IF_ERROR(Annotate(pre_tokenizers, "pre_tokenizer"));
    t.pre.ignore_merges = Flag(*model, "ignore_merges");
    if (!t.byte_level && !byte_fallback)
      return Unimplemented(
          "model: a BPE neither on bytes (a pre-tokenizer ByteLevel) nor with byte tokens (byte_fallback)");
    GYRE_ASSIGN_OR_RETURN(entries, ReadEntries(root, *model, vocab, byte_fallback));
  }

  Vocabulary& v = t.vocabulary;
  std::unordered_map<std::string, TokenId> ids;
  for (const Entry& e : entries) {
    v.Add(t.byte_level && e.type == TokenType::kNormal ? BytesOfSpelling(e.piece) : e.piece, e.type);
    if (e.type != TokenType::kUnused) ids.emplace(e.piece, static_cast<TokenId>(v.size()) - 1);
  }
  AddEndsByName(&v);
  auto id_of = [&](const std::string& piece) {
    const auto it = ids.find(piece);
    return it == ids.end() ? -1 : it->second;
  };
  const std::string bos = SpecialText(settings, "bos_token"), eos = SpecialText(settings, "eos_token");
  v.bos = bos.empty() ? -1 : id_of(bos);
  v.eos = eos.empty() ? -1 : id_of(eos);
  if (v.eos >= 0) v.end_ids.push_back(v.eos);
  if (const json::value* ends = settings.if_contains("eos_token_id")) {
    const json::array several = ends->is_array() ? ends->get_array() : json::array{*ends};
    for (const json::value& e : several) {
      if (!e.is_int64() || e.get_int64() < 0 || e.get_int64() >= static_cast<int64_t>(v.size())) continue;
      v.end_ids.push_back(static_cast<TokenId>(e.get_int64()));
      if (v.eos < 0) v.eos = v.end_ids.back();
    }
  }
  const json::object* post = Object(root, "post_processor");
  v.add_bos = Flag(settings, "add_bos_token", Adds(post, bos, true));
  v.add_eos = Flag(settings, "add_eos_token", Adds(post, eos, false));

  if (unigram) {
    for (const Entry& e : entries) v.scores.push_back(e.score);
    return t;
  }
  const json::array* merges = Array(*model, "merges");
  if (merges == nullptr) return DataLoss("model.merges is missing");
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
                                                                        : piece);
    types.push_back(static_cast<int32_t>(v.types[i]));
  }
  if (t.unigram) GYRE_RETURN_IF_ERROR(WriteUnigramOptions(*t.unigram, v, &types, out));
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
    if (!t.unigram) out->Set("tokenizer.ggml.add_space_prefix", t.spm.add_space_prefix);
    if (!t.unigram && t.spm.prefix_first_only) out->Set(kPrefixFirstOnlyKey, true);
  }
  if (v.bos >= 0) out->Set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(v.bos));
  if (v.eos >= 0) out->Set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(v.eos));
  for (TokenId end : v.end_ids) {
    if (end != v.eos) out->Set("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(end));
  }
  out->Set("tokenizer.ggml.add_bos_token", v.add_bos);
  out->Set("tokenizer.ggml.add_eos_token", v.add_eos);
  return absl::OkStatus();
}

}  // namespace gyre
