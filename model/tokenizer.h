// Text <-> token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace gyre {

enum class TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct EncodeOptions {
  bool add_special = false;    // BOS/EOS as the model's file asks
  bool parse_special = false;  // recognise control tokens in the text; off, so that user text can't forge them
  // A sign that keeps text from being a control token: text that contains it is not recognised as one, and the sign is
  // then removed. "" = no sign.
  std::string_view guard = {};
};

// Immutable, thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int size() const = 0;
  // Any bytes; invalid UTF-8 becomes byte tokens (or the unknown token where the vocabulary has no bytes).
  virtual std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const = 0;
  // The bytes of one token, possibly not whole UTF-8; "" for control tokens. `at_start`: the first of a text, where
  // SentencePiece drops the space that it prepended. Unknown ids give "".
  virtual std::string Piece(TokenId id, bool at_start = false) const = 0;
  // Whether a token that follows a special one counts as the first of a text.
  virtual bool starts_after_special() const { return true; }
  // The stored text of a token, also of control tokens. Unknown ids give "".
  virtual std::string Text(TokenId id) const = 0;
  virtual TokenType type(TokenId id) const = 0;
  virtual TokenId bos() const = 0;  // -1 = none
  virtual TokenId eos() const = 0;  // -1 = none
  virtual bool add_bos() const = 0;
  virtual bool add_eos() const = 0;
  virtual bool IsEndOfGeneration(TokenId id) const = 0;  // eos, eot and their kin
  virtual const std::string& kind() const = 0;           // "spm", "bpe", "unigram", "wordpiece", "rwkv"

  // The text of these ids. Control tokens have none, unless `control_texts`: then they have their stored text. Stops
  // soon after it has more than `most` bytes.
  std::string Decode(const std::vector<TokenId>& ids, bool control_texts = false, size_t most = SIZE_MAX) const;
  // The bytes of one id in the middle of a text; of a control token as in Decode.
  std::string Bytes(TokenId id, bool control_texts) const;
};

}  // namespace gyre
