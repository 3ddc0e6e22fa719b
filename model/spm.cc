#include "model/spm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <queue>

#include "model/special_trie.h"

namespace gyre {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t next = text.find(from, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += to;
    at = next + from.size();
  }
}

// Bytes of the UTF-8 character that begins here; 1 where the bytes are no valid character.
size_t CharLength(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b < 0xE0 && tail(1)) return 2;
  if (b >= 0xE0 && b < 0xF0 && tail(1) && tail(2)) {
    if (b == 0xE0 && byte(1) < 0xA0) return 1;   // overlong
    if (b == 0xED && byte(1) >= 0xA0) return 1;  // surrogate
    return 3;
  }
  if (b >= 0xF0 && b < 0xF5 && tail(1) && tail(2) && tail(3)) {
    if (b == 0xF0 && byte(1) < 0x90) return 1;
    if (b == 0xF4 && byte(1) >= 0x90) return 1;
    return 4;
  }
  return 1;
}

// "<0x4A>" -> 0x4A.
std::optional<uint8_t> ByteOfPiece(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (char c : piece.substr(3, 2)) {
    const char* digits = "0123456789ABCDEF";
    const char* found = std::strchr(digits, c >= 'a' && c <= 'f' ? c - 'a' + 'A' : c);
    if (c == 0 || found == nullptr) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(found - digits);
  }
  return static_cast<uint8_t>(value);
}

class SpmTokenizer : public Tokenizer {
 public:
  explicit SpmTokenizer(SpmVocabulary v) : v_(std::move(v)) {
    bytes_.fill(-1);
    ids_.reserve(v_.size());
    for (size_t id = 0; id < v_.size(); ++id) {
      const std::string_view piece = v_.piece(id);
      const auto token = static_cast<TokenId>(id);
      switch (v_.types[id]) {
        case TokenType::kByte:
          if (const auto b = ByteOfPiece(piece)) bytes_[*b] = token;
          break;
        case TokenType::kUserDefined:
          user_defined_.Add(piece, token);
          specials_.Add(piece, token);
          break;
        case TokenType::kControl:
          specials_.Add(piece, token);
          break;
        case TokenType::kUnknown:
          if (unknown_ < 0) unknown_ = token;
          break;
        case TokenType::kUnused:
          break;
        case TokenType::kNormal:
          if (!piece.empty()) ids_.emplace(piece, token);
      }
    }
  }

  int size() const override { return static_cast<int>(v_.size()); }
  TokenType type(TokenId id) const override {
    return Known(id) ? v_.types[static_cast<size_t>(id)] : TokenType::kUnused;
  }
  TokenId bos() const override { return v_.bos; }
  TokenId eos() const override { return v_.eos; }
  bool add_bos() const override { return v_.add_bos && v_.bos >= 0; }
  bool add_eos() const override { return v_.add_eos && v_.eos >= 0; }
  const std::string& kind() const override {
    static const std::string kKind = "spm";
    return kKind;
  }
  bool IsEndOfGeneration(TokenId id) const override {
    return std::find(v_.end_ids.begin(), v_.end_ids.end(), id) != v_.end_ids.end();
  }

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> out;
    if (options.add_special && add_bos()) out.push_back(v_.bos);
    // Stored user-defined tokens have plain spaces; a literal U+2581 counts as a space too.
    const std::string plain = v_.meta_space ? ReplaceAll(text, kMetaSpace, " ") : std::string(text);
    const std::string_view all(plain);
    const SpecialTrie& trie = options.parse_special ? specials_ : user_defined_;
    size_t begin = 0;
    for (size_t at = 0; at < all.size();) {
      const TokenId special = trie.LongestAt(all, at);
      if (special < 0) {
        ++at;
        continue;
      }
      EncodePlain(all.substr(begin, at - begin), &out);
      out.push_back(special);
      at += v_.piece(static_cast<size_t>(special)).size();
      begin = at;
    }
    EncodePlain(all.substr(begin), &out);
    if (options.add_special && add_eos()) out.push_back(v_.eos);
    return out;
  }

  std::string Piece(TokenId id, bool at_start) const override {
    if (!Known(id)) return "";
    const auto i = static_cast<size_t>(id);
    const std::string_view piece = v_.piece(i);
    if (v_.types[i] == TokenType::kControl || v_.types[i] == TokenType::kUnknown) return "";
    if (v_.types[i] == TokenType::kByte) {
      const auto b = ByteOfPiece(piece);
      return b ? std::string(1, static_cast<char>(*b)) : std::string();
    }
    std::string text = v_.meta_space ? ReplaceAll(piece, kMetaSpace, " ") : std::string(piece);
    if (at_start && v_.add_space_prefix && !text.empty() && text[0] == ' ') text.erase(0, 1);
    return text;
  }

 private:
  struct Symbol {
    size_t begin, length;  // length 0: merged away
    int previous, next;
  };
  struct Merge {
    float score;
    int left, right;
    size_t length;  // of the merged piece; a stale entry has another
    bool operator<(const Merge& other) const { return score != other.score ? score < other.score : left > other.left; }
  };

  bool Known(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < v_.size(); }

  // The space is put before every stretch between special tokens, not only the first: the published behaviour of the
  // models that have a prefix.
  void EncodePlain(std::string_view text, std::vector<TokenId>* out) const {
    if (text.empty()) return;
    std::string normal = v_.add_space_prefix ? " " : "";
    normal += text;
    if (v_.meta_space) normal = ReplaceAll(normal, " ", kMetaSpace);
    EncodeNormal(normal, out);
  }

  void EncodeNormal(std::string_view text, std::vector<TokenId>* out) const {
    std::vector<Symbol> symbols;
    for (size_t at = 0; at < text.size();) {
      const size_t length = CharLength(text, at);
      const int index = static_cast<int>(symbols.size());
      symbols.push_back({at, length, index - 1, index + 1});
      at += length;
    }
    symbols.back().next = -1;
    std::priority_queue<Merge> merges;
    auto consider = [&](int left, int right) {
      if (left < 0 || right < 0) return;
      const auto l = static_cast<size_t>(left), r = static_cast<size_t>(right);
      const size_t length = symbols[l].length + symbols[r].length;
      const auto it = ids_.find(text.substr(symbols[l].begin, length));
      if (it == ids_.end()) return;
      merges.push({v_.scores[static_cast<size_t>(it->second)], left, right, length});
    };
    for (int i = 1; i < static_cast<int>(symbols.size()); ++i) consider(i - 1, i);
    while (!merges.empty()) {
      const Merge m = merges.top();
      merges.pop();
      Symbol& left = symbols[static_cast<size_t>(m.left)];
      Symbol& right = symbols[static_cast<size_t>(m.right)];
      if (left.length == 0 || right.length == 0 || left.length + right.length != m.length) continue;
      left.length = m.length;
      left.next = right.next;
      right.length = 0;
      if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = m.left;
      consider(left.previous, m.left);
      consider(m.left, left.next);
    }
    for (int i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      const Symbol& s = symbols[static_cast<size_t>(i)];
      Emit(text.substr(s.begin, s.length), out);
    }
  }

  void Emit(std::string_view piece, std::vector<TokenId>* out) const {
    const auto it = ids_.find(piece);
    if (it != ids_.end()) {
      out->push_back(it->second);
      return;
    }
    bool said_unknown = false;
    for (char c : piece) {
      const TokenId byte = bytes_[static_cast<uint8_t>(c)];
      if (byte >= 0) {
        out->push_back(byte);
      } else if (unknown_ >= 0 && !said_unknown) {
        out->push_back(unknown_);
        said_unknown = true;
      }
    }
  }

  const SpmVocabulary v_;
  std::unordered_map<std::string_view, TokenId> ids_;  // normal pieces, into v_.text
  std::array<TokenId, 256> bytes_;
  SpecialTrie user_defined_;  // recognised always
  SpecialTrie specials_;      // these and the control tokens
  TokenId unknown_ = -1;
};

// Control tokens by whose names a turn or a text ends, in the vocabularies seen so far.
bool EndsByName(std::string_view piece) {
  for (std::string_view name : {"</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
                                "<|end_of_text|>", "<|eom_id|>"}) {
    if (piece == name) return true;
  }
  return false;
}

constexpr size_t kMaxVocabulary = size_t{1} << 24;

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(SpmVocabulary v) {
  if (v.size() == 0) return DataLoss("the vocabulary is empty");
  const auto n = static_cast<TokenId>(v.size());
  if (v.bos < -1 || v.eos < -1 || v.bos >= n || v.eos >= n) {
    return DataLoss("begin and end tokens {} and {} are not in a vocabulary of {}", v.bos, v.eos, n);
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<SpmTokenizer>(std::move(v)));
}

StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(const GgufValue* tokens, gguf.Array("tokenizer.ggml.tokens", GgufType::kString));
  GYRE_ASSIGN_OR_RETURN(const GgufValue* scores, gguf.Array("tokenizer.ggml.scores", GgufType::kF32));
  GYRE_ASSIGN_OR_RETURN(const GgufValue* types, gguf.Array("tokenizer.ggml.token_type", GgufType::kI32));
  if (tokens == nullptr) return DataLoss("key tokenizer.ggml.tokens is missing");
  if (tokens->count > kMaxVocabulary) return DataLoss("tokenizer.ggml.tokens has {} entries", tokens->count);
  if (scores == nullptr || scores->count != tokens->count) {
    return DataLoss("tokenizer.ggml.scores has {} entries, expected {}", scores == nullptr ? 0 : scores->count,
                    tokens->count);
  }
  if (types != nullptr && types->count != tokens->count) {
    return DataLoss("tokenizer.ggml.token_type has {} entries, expected {}", types->count, tokens->count);
  }
  if (tokens->bytes.size() > std::numeric_limits<uint32_t>::max()) {
    return DataLoss("tokenizer.ggml.tokens takes {} bytes", tokens->bytes.size());
  }
  SpmVocabulary v;
  v.Reserve(tokens->bytes.size(), tokens->count);
  Status bad;
  ForEachString(*tokens, [&](uint64_t i, std::string_view piece) {
    float score = 0;
    std::memcpy(&score, scores->bytes.data() + 4 * i, 4);
    int32_t type = 1;
    if (types != nullptr) std::memcpy(&type, types->bytes.data() + 4 * i, 4);
    if ((type < 1 || type > 6) && bad.ok())
      bad = DataLoss("tokenizer.ggml.token_type: entry {} is {}, expected 1 to 6", i, type);
    if (std::isnan(score) && bad.ok()) bad = DataLoss("tokenizer.ggml.scores: entry {} is no number", i);
    const auto token_type = static_cast<TokenType>(std::clamp(type, 1, 6));
    v.Add(piece, score, token_type);
    if (token_type == TokenType::kControl && EndsByName(piece)) v.end_ids.push_back(static_cast<TokenId>(i));
  });
  GYRE_RETURN_IF_ERROR(bad);
  const auto last = static_cast<int64_t>(v.size()) - 1;
  // Converters write -1 as u32 for a token that the vocabulary has not.
  auto id = [&](const char* key) -> StatusOr<std::optional<int64_t>> {
    GYRE_ASSIGN_OR_RETURN(const auto any, gguf.Int(key, -1, std::numeric_limits<uint32_t>::max()));
    if (any && (*any == -1 || *any == std::numeric_limits<uint32_t>::max())) return std::optional<int64_t>();
    return gguf.Int(key, 0, last);
  };
  GYRE_ASSIGN_OR_RETURN(const auto bos, id("tokenizer.ggml.bos_token_id"));
  GYRE_ASSIGN_OR_RETURN(const auto eos, id("tokenizer.ggml.eos_token_id"));
  v.bos = static_cast<TokenId>(bos.value_or(-1));
  v.eos = static_cast<TokenId>(eos.value_or(-1));
  if (v.eos >= 0) v.end_ids.push_back(v.eos);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    GYRE_ASSIGN_OR_RETURN(const auto end, id(key));
    if (end) v.end_ids.push_back(static_cast<TokenId>(*end));
  }
  GYRE_ASSIGN_OR_RETURN(const auto add_bos, gguf.Bool("tokenizer.ggml.add_bos_token"));
  GYRE_ASSIGN_OR_RETURN(const auto add_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  GYRE_ASSIGN_OR_RETURN(const auto add_space, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  v.add_bos = add_bos.value_or(true);
  v.add_eos = add_eos.value_or(false);
  v.add_space_prefix = add_space.value_or(true);
  return MakeSpmTokenizer(std::move(v));
}

StatusOr<std::unique_ptr<Tokenizer>> SpmFromBin(std::span<const std::byte> file, int vocab) {
  SpmVocabulary v;
  v.meta_space = false;
  v.bos = 1;
  v.eos = 2;
  v.end_ids = {2};
  if (file.size() > std::numeric_limits<uint32_t>::max()) return DataLoss("{} bytes are no tokenizer.bin", file.size());
  v.Reserve(file.size(), std::min<size_t>(static_cast<size_t>(vocab), file.size() / 8));
  size_t at = 4;  // u32 longest piece
  for (int id = 0; id < vocab; ++id) {
    float score = 0;
    uint32_t length = 0;
    if (file.size() < 8 || at > file.size() - 8)
      return DataLoss("offset {}: token {} of {} is cut short", at, id, vocab);
    std::memcpy(&score, file.data() + at, 4);
    std::memcpy(&length, file.data() + at + 4, 4);
    at += 8;
    if (length > file.size() - at) {
      return DataLoss("offset {}: token {} takes {} bytes, the file has {} left", at, id, length, file.size() - at);
    }
    if (std::isnan(score)) return DataLoss("token {}: the score is no number", id);
    const std::string_view piece(reinterpret_cast<const char*>(file.data()) + at, length);
    at += length;
    TokenType type = TokenType::kNormal;
    if (id == 0) type = TokenType::kUnknown;
    if (id == 1 || id == 2) type = TokenType::kControl;
    if (id >= 3 && id < 259 && ByteOfPiece(piece)) type = TokenType::kByte;
    v.Add(piece, score, type);
  }
  if (v.size() > 1 && v.scores.back() > v.scores.front()) {
    return Unimplemented("its scores rise with the token (ranks of byte-level BPE), known are scores that fall");
  }
  if (at != file.size()) return DataLoss("{} bytes follow the {} tokens of the model", file.size() - at, vocab);
  return MakeSpmTokenizer(std::move(v));
}

}  // namespace gyre
