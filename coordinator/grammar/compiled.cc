#include "coordinator/grammar/compiled.h"

#include <algorithm>

namespace gyre::grammar {
namespace {

constexpr size_t kMostSteps = 1 << 18;

}  // namespace

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTrie> trie, const CompileOptions& options)
    : trie_(std::move(trie)),
      options_(options),
      parser_(std::move(grammar)),
      masks_(&parser_, trie_.get()),
      start_(parser_.start()) {
  if (trie_ != nullptr && options_.jump_ahead && options_.tokenizer != nullptr) {
    forced_.emplace(&parser_, trie_.get(), options_.tokenizer);
  }
}

StatusOr<std::shared_ptr<CompiledGrammar>> CompiledGrammar::Make(Grammar grammar, std::shared_ptr<const TokenTrie> trie,
                                                                 const CompileOptions& options) {
  std::shared_ptr<CompiledGrammar> made(new CompiledGrammar(std::move(grammar), std::move(trie), options));
  made->takes_nothing_ = made->parser_.Accepts(made->start_);
  GYRE_RETURN_IF_ERROR(made->parser_.budget().status());
  if (made->trie_ != nullptr) {
    const StatusOr<std::shared_ptr<const TokenMask>> first = made->Mask(made->start());
    if (absl::IsFailedPrecondition(first.status())) return InvalidArgument("{}", Message(first.status()));
    GYRE_RETURN_IF_ERROR(first.status());
  }
  made->parser_.budget().Begin(false);
  return made;
}

StateId CompiledGrammar::Step(GrammarState state, std::string_view bytes) {
  if (state.ended()) return kDead;
  return parser_.Next(state.id, bytes);
}

StatusOr<GrammarState> CompiledGrammar::Advance(GrammarState state, std::string_view bytes) {
  const std::lock_guard work(work_mutex_);
  parser_.budget().Begin(false);
  const GrammarState next{Step(state, bytes)};
  GYRE_RETURN_IF_ERROR(parser_.budget().status());
  return next;
}

StatusOr<GrammarState> CompiledGrammar::Advance(GrammarState state, TokenId token) {
  if (const std::optional<GrammarState> known = CachedAdvance(state, token)) return *known;
  GrammarState next;
  if (trie_ == nullptr || token < 0 || token >= trie_->size()) return next;
  {
    const std::lock_guard work(work_mutex_);
    parser_.budget().Begin(false);
    if (trie_->IsEnd(token)) {
      if (!state.ended() && parser_.Accepts(state.id)) next.id = GrammarState::kEnded;
    } else if (!trie_->piece(token).empty()) {
      next.id = Step(state, trie_->piece(token));
    }
    GYRE_RETURN_IF_ERROR(parser_.budget().status());
  }
  const std::lock_guard cache(cache_mutex_);
  if (steps_.size() >= kMostSteps) steps_.clear();
  steps_[{state.id, token}] = next.id;
  return next;
}

bool CompiledGrammar::MayEnd(GrammarState state) {
  if (state.ended()) return true;
  const std::lock_guard work(work_mutex_);
  return parser_.Accepts(state.id);
}

StatusOr<std::shared_ptr<const TokenMask>> CompiledGrammar::Mask(GrammarState state) {
  if (state.dead() || state.ended() || trie_ == nullptr) {
    return FailedPrecondition("grammar: a text that is {} has no next token", state.ended() ? "ended" : "wrong");
  }
  const std::lock_guard work(work_mutex_);
  if (std::shared_ptr<const TokenMask> known = CachedMask(state)) return known;
  auto mask = std::make_shared<TokenMask>();
  mask->words.resize(trie_->words());
  if (parser_.budget().passed()) return parser_.budget().status();
  const TokenId forced = forced_ ? forced_->After(state.id) : -1;
  if (forced >= 0) {
    mask->words[static_cast<size_t>(forced) / 64] |= uint64_t{1} << static_cast<size_t>(forced) % 64;
  } else {
    masks_.Make(state.id, &mask->words);
  }
  GYRE_RETURN_IF_ERROR(parser_.budget().status());
  for (size_t w = 0; w < mask->words.size(); ++w) {
    const uint64_t word = mask->words[w];
    if (word == 0) continue;
    mask->allowed += static_cast<size_t>(__builtin_popcountll(word));
    mask->forced = static_cast<TokenId>(w * 64 + static_cast<size_t>(__builtin_ctzll(word)));
  }
  if (mask->allowed == 0) {
    return FailedPrecondition("grammar: the vocabulary has no token for what must come next");
  }
  if (mask->allowed != 1) mask->forced = -1;
  const std::vector<TokenId>& ends = trie_->ends();
  mask->only_ends = mask->allowed <= ends.size() && std::all_of(ends.begin(), ends.end(), [&](TokenId end) {
                      return (mask->words[static_cast<size_t>(end) / 64] >> static_cast<size_t>(end) % 64 & 1) != 0;
                    });
  Keep(state.id, mask);
  return std::shared_ptr<const TokenMask>(std::move(mask));
}

bool CompiledGrammar::MayPass(std::string_view marker) const {
  if (trie_ == nullptr || marker.empty()) return false;
  const uint32_t node = trie_->Find(marker);
  return node != 0 && trie_->nodes()[node].end > node + 1;
}

StatusOr<std::shared_ptr<const TokenMask>> CompiledGrammar::MaskBefore(std::string_view marker,
                                                                       std::string_view space) {
  auto mask = std::make_shared<TokenMask>();
  mask->words.assign(trie_->words(), ~uint64_t{0});
  if (const auto used = static_cast<size_t>(trie_->size()) % 64; used != 0)
    mask->words.back() = (uint64_t{1} << used) - 1;
  for (const TokenId token :
       MayPass(marker) ? trie_->nodes().Tokens(trie_->Find(marker)) : std::span<const TokenId>()) {
    const std::string_view behind = std::string_view(trie_->piece(token)).substr(marker.size());
    const size_t begin = behind.find_first_not_of(space);
    if (begin == std::string_view::npos) continue;
    GYRE_ASSIGN_OR_RETURN(const GrammarState state, Advance(start(), behind.substr(begin)));
    if (state.dead()) trie_->Unmark(token, &mask->words);
  }
  for (const uint64_t word : mask->words) mask->allowed += static_cast<size_t>(__builtin_popcountll(word));
  return std::shared_ptr<const TokenMask>(std::move(mask));
}

void CompiledGrammar::Keep(uint32_t state, std::shared_ptr<const TokenMask> mask) {
  const size_t bytes = mask->words.size() * sizeof(uint64_t) + 128;
  const std::lock_guard cache(cache_mutex_);
  while (!used_.empty() && kept_bytes_ + bytes > options_.mask_bytes) {
    kept_.erase(used_.back());
    used_.pop_back();
    kept_bytes_ -= bytes;
  }
  used_.push_front(state);
  kept_[state] = {std::move(mask), used_.begin()};
  kept_bytes_ += bytes;
}

std::optional<GrammarState> CompiledGrammar::CachedAdvance(GrammarState state, TokenId token) {
  const std::lock_guard cache(cache_mutex_);
  const auto at = steps_.find({state.id, token});
  if (at == steps_.end()) return std::nullopt;
  return GrammarState{at->second};
}

std::shared_ptr<const TokenMask> CompiledGrammar::CachedMask(GrammarState state) {
  const std::lock_guard cache(cache_mutex_);
  const auto at = kept_.find(state.id);
  if (at == kept_.end()) return nullptr;
  used_.splice(used_.begin(), used_, at->second.used);
  return at->second.mask;
}

std::string CompiledGrammar::ForcedBytes(GrammarState state, size_t most) {
  if (state.ended()) return "";
  const std::lock_guard work(work_mutex_);
  std::vector<StateId> states;
  return grammar::ForcedBytes(&parser_, state.id, most, &states);
}

CompiledGrammar::Size CompiledGrammar::size() {
  const std::lock_guard work(work_mutex_);
  const std::lock_guard cache(cache_mutex_);
  return {parser_.budget().bytes(), parser_.expressions().size(), parser_.states(), kept_bytes_};
}

}  // namespace gyre::grammar
