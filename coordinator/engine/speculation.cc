#include "coordinator/engine/speculation.h"

#include <utility>

namespace gyre {
namespace {

// A request learns from its last dozen drafts, all of them together from some hundreds.
constexpr double kWeight = 1.0 / 12, kWeightOfAll = 1.0 / 256;
// A tail of drafts that is drawn less often than this is not worth its place in a frame.
constexpr double kLeastChance = 0.05;

}  // namespace

RequestDrafts::RequestDrafts(std::span<const TokenId> prompt, std::span<const TokenId> prediction) {
  if (!prediction.empty()) {
    // The prediction follows the prompt's last tokens, as the answer will, so that its beginning is found, too.
    constexpr size_t kBefore = 8;
    ngrams_.Add(prompt.last(std::min(prompt.size(), kBefore)));
    ngrams_.Add(prediction);
    ngrams_.Break();
  }
  ngrams_.Add(prompt);
}

void RequestDrafts::Drawn(TokenId token) {
  ngrams_.Add(token);
  if (!mtp_.empty() && mtp_.front() == token)
    mtp_.erase(mtp_.begin());
  else
    mtp_.clear();
  if (guesses_.empty()) return;
  const Guess guess = guesses_.front();
  const bool came_true = guess.token == token;
  chances_.Note(guess.match, came_true, kWeight);
  if (all_ != nullptr) all_->Note(guess.match, came_true, kWeightOfAll);
  if (came_true) {
    guesses_.pop_front();
  } else {
    guesses_.clear();
  }
}

double RequestDrafts::ChanceOfFirst(size_t n) const {
  double chance = 1;
  for (size_t i = 0; i < std::min(n, guesses_.size()); ++i) chance *= chances_.Of(guesses_[i].match);
  return chance;
}

Drafts RequestDrafts::Propose(const SpeculationSettings& settings, size_t most, std::span<const TokenId> ahead) {
  // At least one is looked for, so that what the text shows of their chances is seen although none is sent.
  const size_t wanted = std::max<size_t>(1, std::min<size_t>(settings.n_max, most));
  const NgramDrafter::Guess guess = ngrams_.Draft(ahead.size() + wanted);
  const bool agrees =
      guess.tokens.size() >= ahead.size() && std::equal(ahead.begin(), ahead.end(), guess.tokens.begin());
  if (!agrees || guesses_.size() < ahead.size()) return {};
  guesses_.resize(ahead.size());
  for (size_t i = ahead.size(); i < guess.tokens.size(); ++i) guesses_.push_back({guess.tokens[i], guess.match + i});
  return Cut(settings, most, ahead.size());
}

Drafts RequestDrafts::Take(size_t drafter, const std::vector<TokenId>& guesses, const SpeculationSettings& settings,
                           size_t most, std::span<const TokenId> ahead) {
  // An empty answer counts as a wrong guess, so that the drafter is asked less.
  if (guesses.empty()) chances_.Note(drafter, false, kWeight);
  if (guesses_.size() < ahead.size()) return {};
  guesses_.resize(ahead.size());
  for (const TokenId token : guesses) guesses_.push_back({token, drafter});
  return Cut(settings, most, ahead.size());
}

Drafts RequestDrafts::Cut(const SpeculationSettings& settings, size_t most, size_t ahead) {
  Drafts drafts;
  double chance = ChanceOfFirst(ahead);
  for (size_t i = ahead; i < guesses_.size(); ++i) {
    chance *= chances_.Of(guesses_[i].match);
    if (drafts.tokens.size() >= std::min<size_t>(settings.n_max, most) || chance < kLeastChance ||
        chance < settings.p_min) {
      break;
    }
    drafts.tokens.push_back(guesses_[i].token);
    drafts.chances.push_back(static_cast<float>(chance));
  }
  if (drafts.tokens.size() < settings.n_min) return {};
  return drafts;
}

}  // namespace gyre
