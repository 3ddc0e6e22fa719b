#include "coordinator/service/grammars.h"

#include <algorithm>

#include "model/weights.h"

namespace gyre {

std::shared_ptr<const grammar::TokenTrie> Grammars::Trie() {
  MutexLock lock(&trie_mutex_);
  if (trie_ == nullptr) trie_ = std::make_shared<grammar::TokenTrie>(*model_.tokenizer(), model_.spec().vocab);
  return trie_;
}

StatusOr<std::shared_ptr<grammar::CompiledGrammar>> Grammars::Get(const RequestSettings& settings) {
  // A ban on a token that is forced would leave none.
  const Key key{.source = *settings.grammar_source,
                .compact = settings.compact_json,
                .jump_ahead = settings.jump_ahead && settings.sampling.logit_bias.empty()};
  if (model_.tokenizer() == nullptr) return FailedPrecondition("{}", model_.tokenizer_note());
  {
    MutexLock lock(&mutex_);
    const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const auto& k) { return k.first == key; });
    if (known != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, known);
      return kept_.front().second;
    }
  }
  GYRE_ASSIGN_OR_RETURN(grammar::Grammar read, grammar::ReadSource(key.source, key.compact));
  GYRE_ASSIGN_OR_RETURN(
      auto compiled, grammar::CompiledGrammar::Make(std::move(read), Trie(),
                                                    {.jump_ahead = key.jump_ahead, .tokenizer = model_.tokenizer()}));
  GYRE_RETURN_IF_ERROR(compiled->Mask(compiled->start()).status());
  MutexLock lock(&mutex_);
  kept_.emplace_front(key, compiled);
  if (kept_.size() > kKept) kept_.pop_back();
  return compiled;
}

}  // namespace gyre
