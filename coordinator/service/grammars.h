// The grammars of requests, compiled: the same source is compiled once while it is in use.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/engine/request.h"
#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/source.h"

namespace gyre {

class Model;

// Thread-safe. The model outlives it.
class Grammars {
 public:
  explicit Grammars(const Model& model) : model_(model) {}

  // Compiles on the calling thread; that may take two seconds, and longer for the first grammar of a large vocabulary.
  // The start's mask is known then. kInvalidArgument: the source is wrong; kUnimplemented: it can't be obeyed wholly;
  // kResourceExhausted: a bound is passed, by name; kFailedPrecondition: the model has no tokenizer, or none with which
  // such a text can be written.
  // REQUIRES: settings.grammar_source.
  StatusOr<std::shared_ptr<grammar::CompiledGrammar>> Get(const RequestSettings& settings);

 private:
  static constexpr size_t kKept = 32;
  struct Key {
    grammar::Source source;
    bool compact, jump_ahead;
    bool operator==(const Key&) const = default;
  };
  std::shared_ptr<const grammar::TokenTrie> Trie();

  const Model& model_;
  Mutex trie_mutex_;  // held while the trie is built
  std::shared_ptr<const grammar::TokenTrie> trie_ GYRE_GUARDED_BY(trie_mutex_);
  Mutex mutex_;
  // The last used first.
  std::list<std::pair<Key, std::shared_ptr<grammar::CompiledGrammar>>> kept_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
