#include "coordinator/grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "model/marked_text.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

// How many characters a clean token has; -1 = it is not clean.
int CleanCharacters(std::string_view piece) {
  int count = 0;
  for (size_t i = 0; i < piece.size(); ++count) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    const size_t n = ValidUtf8Length(piece, i);
    if (n == 0 || byte < 0x20 || byte == '"' || byte == '\\') return -1;
    i += n;
  }
  return count;
}

std::vector<std::string> Pieces(const Tokenizer& t, int vocab) {
  std::vector<std::string> pieces(static_cast<size_t>(std::max(t.size(), vocab)));
  for (TokenId id = 0; id < t.size(); ++id) pieces[static_cast<size_t>(id)] = PieceOf(t, id);
  return pieces;
}

std::vector<TokenId> Ends(const Tokenizer& t) {
  std::vector<TokenId> ends;
  for (TokenId id = 0; id < t.size(); ++id) {
    if (t.IsEndOfGeneration(id)) ends.push_back(id);
  }
  return ends;
}

}  // namespace

TokenTrie::Nodes::Nodes(const std::vector<std::string>& pieces, const std::vector<TokenId>& rising)
    : nodes_{{0, -1, 0, 0}}, first_tokens_{0} {
  std::vector<size_t> path = {0};  // the nodes of the last piece
  std::string_view last;
  auto close = [&](size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (TokenId id : rising) {
    const std::string_view piece = pieces[static_cast<size_t>(id)];
    const size_t common =
        static_cast<size_t>(std::mismatch(last.begin(), last.end(), piece.begin(), piece.end()).first - last.begin());
    close(common);
    for (size_t i = common; i < piece.size(); ++i) {
      path.push_back(nodes_.size());
      nodes_.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(piece[i])});
      first_tokens_.push_back(static_cast<uint32_t>(tokens_.size()));
    }
    nodes_.back().token = id;
    tokens_.push_back(id);
    last = piece;
  }
  close(0);
  nodes_[0].end = static_cast<uint32_t>(nodes_.size());
  first_tokens_.push_back(static_cast<uint32_t>(tokens_.size()));
  below_.resize(nodes_.size());
  std::vector<uint64_t> kinds(UINT16_MAX + 2);  // by depth, of the nodes since the last one above
  for (size_t at = nodes_.size(); at-- > 0;) {
    const Node& node = nodes_[at];
    below_[at] = std::exchange(kinds[node.depth + 1u], 0);
    kinds[node.depth] |= below_[at] | uint64_t{1} << KindOf(node.byte);
  }
}

std::string PieceOf(const Tokenizer& tokenizer, TokenId id) {
  const TokenType type = tokenizer.type(id);
  if (type == TokenType::kUnused || type == TokenType::kUnknown || tokenizer.IsEndOfGeneration(id)) return {};
  if (type == TokenType::kControl) return MarkedControl(tokenizer.Text(id));
  std::string piece = tokenizer.Piece(id);
  // No other token may begin or end what stands for a control token.
  constexpr char kMarks[] = {kMarkBegin, kMarkEnd};
  if (piece.find_first_of(std::string_view(kMarks, sizeof kMarks)) != std::string::npos) piece.clear();
  return piece;
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int vocab) : TokenTrie(Pieces(tokenizer, vocab), Ends(tokenizer)) {}

TokenTrie::TokenTrie(std::vector<std::string> pieces, std::vector<TokenId> ends)
    : pieces_(std::move(pieces)), ends_(std::move(ends)) {
  std::sort(ends_.begin(), ends_.end());
  std::vector<TokenId> rising, few_bytes, many_bytes;
  std::array<std::vector<TokenId>, std::size(kCleanLevels)> others;
  for (size_t id = 0; id < pieces_.size(); ++id) {
    if (IsEnd(static_cast<TokenId>(id)) || pieces_[id].size() > UINT16_MAX) pieces_[id].clear();
    if (!pieces_[id].empty()) rising.push_back(static_cast<TokenId>(id));
  }
  std::sort(rising.begin(), rising.end(), [this](TokenId a, TokenId b) {
    const int order = piece(a).compare(piece(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<TokenId> distinct;
  for (TokenId id : rising) {
    if (!distinct.empty() && piece(distinct.back()) == piece(id)) {
      twins_.emplace_back(distinct.back(), id);
    } else {
      distinct.push_back(id);
    }
  }
  std::sort(twins_.begin(), twins_.end());
  clean_.assign(kMostClean + 1, TokenBits(words()));
  for (TokenId id : distinct) {
    if (piece(id).size() > kMostShort) {
      many_bytes.push_back(id);
      continue;
    }
    few_bytes.push_back(id);
    const int characters = CleanCharacters(piece(id));
    if (characters >= 0) Mark(id, &clean_[static_cast<size_t>(characters)]);
    for (size_t i = 0; i < others.size(); ++i) {
      if (characters < 0 || characters > kCleanLevels[i]) others[i].push_back(id);
    }
  }
  for (size_t k = 1; k < clean_.size(); ++k) {
    for (size_t w = 0; w < words(); ++w) clean_[k][w] |= clean_[k - 1][w];
  }
  nodes_ = Nodes(pieces_, distinct);
  short_ = Nodes(pieces_, few_bytes);
  long_ = Nodes(pieces_, many_bytes);
  for (size_t i = 0; i < others.size(); ++i) others_[i] = Nodes(pieces_, others[i]);
}

bool TokenTrie::IsEnd(TokenId id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

TokenId TokenTrie::Longest(std::string_view bytes) const {
  TokenId longest = -1;
  uint32_t at = 0;
  for (size_t i = 0; i < bytes.size() && (at = Child(at, bytes[i])) != 0; ++i) {
    if (nodes_[at].token >= 0) longest = nodes_[at].token;
  }
  return longest;
}

uint32_t TokenTrie::Find(std::string_view bytes) const {
  uint32_t at = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    at = Child(at, bytes[i]);
    if (at == 0) return 0;
  }
  return at;
}

uint32_t TokenTrie::Child(uint32_t node, char byte) const {
  uint32_t at = node + 1;
  while (at < nodes_[node].end && nodes_[at].byte != static_cast<uint8_t>(byte)) at = nodes_[at].end;
  return at < nodes_[node].end ? at : 0;
}

const TokenBits& TokenTrie::Clean(int characters) const { return clean_[static_cast<size_t>(characters)]; }

const TokenTrie::Nodes& TokenTrie::Others(int characters) const {
  const Nodes* fewest = &short_;
  for (size_t i = 0; i < others_.size() && kCleanLevels[i] <= characters; ++i) fewest = &others_[i];
  return *fewest;
}

void TokenTrie::MarkTwins(TokenId token, bool mark, TokenBits* bits) const {
  for (auto t = std::lower_bound(twins_.begin(), twins_.end(), std::pair(token, TokenId{0}));
       t != twins_.end() && t->first == token; ++t) {
    const uint64_t bit = uint64_t{1} << (static_cast<size_t>(t->second) % 64);
    uint64_t& word = (*bits)[static_cast<size_t>(t->second) / 64];
    word = mark ? word | bit : word & ~bit;
  }
}

}  // namespace gyre::grammar
