#include "coordinator/grammar/forced_tokens.h"

#include "coordinator/grammar/token_walk.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

// So many forced bytes are looked at: the first token rarely depends on more, and where a longer one might begin them,
// nothing is forced.
constexpr size_t kMostBytes = 48;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

std::string ForcedBytes(Parser* parser, StateId state, size_t most, std::vector<StateId>* states) {
  std::string forced;
  states->assign(1, state);
  while (forced.size() < most && state != kDead && !parser->Accepts(state)) {
    int only = -1;
    bool one = true;
    for (const Parser::Item& i : parser->items(state)) {
      for (const FirstStep::Bytes& b : parser->expressions().First(i.rest).bytes) {
        one = one && b.first == b.last && (only < 0 || only == b.first);
        only = b.first;
      }
    }
    if (!one || only < 0) break;
    forced += static_cast<char>(only);
    state = parser->Next(state, static_cast<uint8_t>(only));
    states->push_back(state);
  }
  return forced;
}

// Whether the grammar takes a token that begins with these last forced bytes and is longer. behind: the state behind
// them.
bool ForcedTokens::Crosses(std::string_view rest, StateId behind) {
  const uint32_t node = trie_.Find(rest);
  if (node == 0) return false;
  return !WalkTokens(&parser_, behind, trie_.nodes(), node, &path_, [](TokenId) { return false; });
}

// The first token of `bytes` behind another text; -1: none begins with them.
TokenId ForcedTokens::First(const std::string& before, std::string_view bytes) const {
  const std::vector<TokenId> ids = tokenizer_.Encode(before + std::string(bytes), {});
  size_t length = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (length == before.size()) {
      if (ids[i] < 0 || ids[i] >= trie_.size()) return -1;
      const std::string& piece = trie_.piece(ids[i]);
      return !piece.empty() && bytes.starts_with(piece) ? ids[i] : -1;
    }
    length += tokenizer_.Piece(ids[i], i == 0).size();
  }
  return -1;
}

// A text's last tokens depend on what follows it only where a token crosses its end. So for each place where one may
// begin to, and for none, the bytes before that place are tokenized alone: their tokens are final. The first one is
// forced if it is the same in all of these.
TokenId ForcedTokens::After(StateId state) {
  std::string bytes = ForcedBytes(&parser_, state, kMostBytes, &states_);
  size_t whole = 0;  // bytes of whole characters
  while (whole < bytes.size()) {
    const size_t length = ValidUtf8Length(bytes, whole);
    if (length == 0) break;
    whole += length;
  }
  bytes.resize(whole);
  if (bytes.empty()) return -1;
  const StateId behind = states_[bytes.size()];
  const std::string before(1, IsSpace(bytes[0]) ? 'x' : '\n');  // neither joins the bytes in one token
  const TokenId first = First(before, bytes);
  if (first < 0) return -1;
  for (size_t at = bytes.size(); at-- > 0;) {
    if (!Crosses(std::string_view(bytes).substr(at), behind)) continue;
    size_t begin = at;  // of the character
    while (begin > 0 && ContinuesUtf8(bytes[begin])) --begin;
    if (begin == 0 || First(before, std::string_view(bytes).substr(0, begin)) != first) return -1;
  }
  return first;
}

}  // namespace gyre::grammar
