// The tokens of a vocabulary by their bytes.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace gyre::grammar {

// The ids that may come next: bit id of word id/64, as RowRequest::mask has them.
using TokenBits = std::vector<uint64_t>;

// A token's bytes as a grammar has them. Control tokens stand by their names with the marks of model/marked_text.h,
// which no text of UTF-8 has: a grammar allows one only where it names it. "": unused tokens, and the ends of a text.
std::string PieceOf(const Tokenizer& tokenizer, TokenId id);

// Built once a model. Immutable, thread-safe.
class TokenTrie {
 public:
  struct Node {
    uint32_t end;    // the next node that isn't below this one
    TokenId token;   // a token with just these bytes; -1 = none
    uint16_t depth;  // bytes; 0: the root, which is node 0
    uint8_t byte;    // the last of them
  };
  // Nodes in the order in which a walk meets them; a node's children begin right behind it.
  class Nodes {
   public:
    // rising: ids in the order of their pieces, one of each piece.
    explicit Nodes(const std::vector<std::string>& pieces = {}, const std::vector<TokenId>& rising = {});
    size_t size() const { return nodes_.size(); }
    const Node& operator[](size_t node) const { return nodes_[node]; }
    // The tokens at a node and below it.
    std::span<const TokenId> Tokens(uint32_t node) const {
      const size_t first = first_tokens_[node];
      return {tokens_.data() + first, first_tokens_[nodes_[node].end] - first};
    }
    // The kinds of the bytes of all nodes below.
    uint64_t Below(uint32_t node) const { return below_[node]; }

   private:
    std::vector<Node> nodes_;
    std::vector<TokenId> tokens_;         // in the order of the nodes
    std::vector<uint32_t> first_tokens_;  // by node, and one more
    std::vector<uint64_t> below_;         // by node: bit KindOf(byte)
  };
  // Bytes in 64 kinds. Bytes that begin or end a marker or a text are with few others.
  static int KindOf(uint8_t byte) {
    return byte < 32 ? byte / 8 : byte < 128 ? 4 + (byte - 32) / 2 : 52 + (byte - 128) / 12;
  }

  // The tokens have the bytes of PieceOf; those without bytes are in no walk.
  // vocab: ids of the model, which may be more than the tokenizer's.
  explicit TokenTrie(const Tokenizer& tokenizer, int vocab = 0);
  // pieces[id]; "" = none. ends: the ids that end a text.
  TokenTrie(std::vector<std::string> pieces, std::vector<TokenId> ends);

  int size() const { return static_cast<int>(pieces_.size()); }
  size_t words() const { return (pieces_.size() + 63) / 64; }
  const std::string& piece(TokenId id) const { return pieces_[static_cast<size_t>(id)]; }
  const std::vector<TokenId>& ends() const { return ends_; }
  bool IsEnd(TokenId id) const;

  // The longest token with which the bytes begin; -1 = none.
  TokenId Longest(std::string_view bytes) const;
  // The node at which tokens go on that begin with these bytes; 0 = no token does. REQUIRES: bytes.
  uint32_t Find(std::string_view bytes) const;

  const Nodes& nodes() const { return nodes_; }
  // The same of the tokens of at most kMostShort bytes, which are nearly all, and of the others.
  static constexpr size_t kMostShort = 32;
  const Nodes& short_nodes() const { return short_; }
  const Nodes& long_nodes() const { return long_; }
  // Sets the bit of a node's token, and of those with the same bytes.
  void Mark(TokenId token, TokenBits* bits) const {
    (*bits)[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
    if (!twins_.empty()) MarkTwins(token, true, bits);
  }
  // Clears them.
  void Unmark(TokenId token, TokenBits* bits) const {
    (*bits)[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(token) % 64));
    if (!twins_.empty()) MarkTwins(token, false, bits);
  }

  // A short token is clean if it is whole characters that stand for themselves within a string of JSON. Most are: a
  // walk that finds that all clean texts of so many characters may follow takes their bits as one, and walks the rest.
  static constexpr int kMostClean = 32;  // characters; kMostShort bytes have no more
  // The clean tokens of at most so many characters.
  const TokenBits& Clean(int characters) const;
  // All other short tokens, and perhaps some of these.
  const Nodes& Others(int characters) const;

 private:
  uint32_t Child(uint32_t node, char byte) const;  // 0 = none
  void MarkTwins(TokenId token, bool mark, TokenBits* bits) const;

  std::vector<std::string> pieces_;
  std::vector<TokenId> ends_;  // rising
  Nodes nodes_, short_, long_;
  // [i]: those that are not clean, and the clean ones of more than kCleanLevels[i] characters.
  static constexpr int kCleanLevels[] = {3, 6, 10, 18, kMostClean};
  std::array<Nodes, std::size(kCleanLevels)> others_;
  std::vector<TokenBits> clean_;                    // [k]: of at most k characters
  std::vector<std::pair<TokenId, TokenId>> twins_;  // rising: the token in the trie, another with its bytes
};

}  // namespace gyre::grammar
