// A grammar that says of a text's state which tokens may come next.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "coordinator/grammar/forced_tokens.h"
#include "coordinator/grammar/masks.h"

namespace gyre::grammar {

// Where a text is in a grammar: a value. To go back is to keep a copy. Of one CompiledGrammar only.
struct GrammarState {
  static constexpr uint32_t kEnded = UINT32_MAX;  // an end token came
  uint32_t id = kDead;
  bool dead() const { return id == kDead; }  // the text is none of the grammar
  bool ended() const { return id == kEnded; }
  bool operator==(const GrammarState&) const = default;
};

struct TokenMask {
  TokenBits words;         // bit id of word id/64: may come next; as RowRequest::mask has them
  size_t allowed = 0;      // how many
  TokenId forced = -1;     // the only one, where allowed == 1
  bool only_ends = false;  // all of them end the text
};

struct CompileOptions {
  size_t mask_bytes = 16 << 20;  // what the kept masks may take
  // Where tokens must come, the mask has one id, which is drawn without an answer. false: this is left to the masks,
  // and each token has its answer.
  bool jump_ahead = true;
  // It splits forced bytes into tokens. It has the trie's vocabulary, and outlives the grammar. null: a token is forced
  // only if no other token can write its bytes.
  const Tokenizer* tokenizer = nullptr;
};

// The grammar of one request, or of several. Its language never changes; what it has found out grows.
//
// Thread-safe. CachedAdvance and CachedMask take a lock that nobody holds for longer than a look-up: these are for the
// engine's thread. Every other call may wait for a mask that another thread makes: up to some ms.
class CompiledGrammar {
 public:
  // trie: of the model; nullptr = only bytes are asked.
  // Errors: kResourceExhausted, the bound that is passed; kInvalidArgument: the vocabulary has no token for what must
  // come first.
  static StatusOr<std::shared_ptr<CompiledGrammar>> Make(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
                                                         const CompileOptions& options = {});

  GrammarState start() const { return {start_}; }
  bool jumps_ahead() const { return options_.jump_ahead; }
  bool takes_nothing() const { return takes_nothing_; }  // whether a text may be empty

  // The state behind a token; dead() if the mask of the state forbids it. A pure function of both. kResourceExhausted:
  // a bound is passed.
  StatusOr<GrammarState> Advance(GrammarState state, TokenId token);
  // The same for bytes.
  StatusOr<GrammarState> Advance(GrammarState state, std::string_view bytes);
  // Whether the text may end.
  bool MayEnd(GrammarState state);
  // The ids that may come next; where a token is forced, it alone. kResourceExhausted: a bound is passed;
  // kFailedPrecondition: the vocabulary has no token for what must come, or the state is dead or ended.
  StatusOr<std::shared_ptr<const TokenMask>> Mask(GrammarState state);
  // For a text before this grammar's, which begins behind the bytes `marker`: whether an id completes them and goes on
  // behind them. Never waits.
  bool MayPass(std::string_view marker) const;
  // All ids but those that do so with bytes behind `space` with which no text of the grammar begins. Errors: as
  // Advance.
  StatusOr<std::shared_ptr<const TokenMask>> MaskBefore(std::string_view marker, std::string_view space);

  // What is known already; else nothing.
  std::optional<GrammarState> CachedAdvance(GrammarState state, TokenId token);
  std::shared_ptr<const TokenMask> CachedMask(GrammarState state);

  // The bytes that must come next, at most so many: while there is one byte only, and the text can't end.
  std::string ForcedBytes(GrammarState state, size_t most);

  struct Size {
    size_t bytes, expressions, states, mask_bytes;
  };
  Size size();

 private:
  CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTrie> trie, const CompileOptions& options);
  StateId Step(GrammarState state, std::string_view bytes);
  void Keep(uint32_t state, std::shared_ptr<const TokenMask> mask);

  const std::shared_ptr<const TokenTrie> trie_;
  const CompileOptions options_;

  std::mutex work_mutex_;  // taken before cache_mutex_
  Parser parser_;
  MaskMaker masks_;
  std::optional<ForcedTokens> forced_;
  uint32_t start_;
  bool takes_nothing_ = false;

  struct Kept {
    std::shared_ptr<const TokenMask> mask;
    std::list<uint32_t>::iterator used;
  };
  std::mutex cache_mutex_;
  absl::flat_hash_map<std::pair<uint32_t, TokenId>, uint32_t> steps_;
  absl::flat_hash_map<uint32_t, Kept> kept_;
  std::list<uint32_t> used_;  // the last used first
  size_t kept_bytes_ = 0;
};

}  // namespace gyre::grammar
