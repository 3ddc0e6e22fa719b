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
  if (came_ >= guess_.tokens.size()) return;
  const bool came_true = guess_.tokens[came_] == token;
  const size_t match = from_drafter_ ? DraftChances::kDrafter : guess_.match + came_;
  chances_.Note(match, came_true, kWeight);
  if (all_ != nullptr) all_->Note(match, came_true, kWeightOfAll);
  came_ = came_true ? came_ + 1 : guess_.tokens.size();
}

Drafts RequestDrafts::Propose(const SpeculationSettings& settings, size_t most) {
  // At least one is looked for, so that what the text shows of their chances is seen although none is sent.
  guess_ = ngrams_.Draft(std::max<size_t>(1, std::min<size_t>(settings.n_max, most)));
  from_drafter_ = false;
  return Cut(settings, most);
}

Drafts RequestDrafts::Take(std::vector<TokenId> guesses, const SpeculationSettings& settings, size_t most) {
  // An empty answer counts as a wrong guess, so that the drafter is asked less.
  if (guesses.empty()) chances_.Note(DraftChances::kDrafter, false, kWeight);
  guess_ = {.tokens = std::move(guesses)};
  from_drafter_ = true;
  return Cut(settings, most);
}

Drafts RequestDrafts::Cut(const SpeculationSettings& settings, size_t most) {
  came_ = 0;
  Drafts drafts;
  double chance = 1;
  for (const TokenId token : guess_.tokens) {
    chance *= chances_.Of(from_drafter_ ? DraftChances::kDrafter : guess_.match + drafts.tokens.size());
    if (drafts.tokens.size() >= std::min<size_t>(settings.n_max, most) || chance < kLeastChance ||
        chance < settings.p_min) {
      break;
    }
    drafts.tokens.push_back(token);
    drafts.chances.push_back(static_cast<float>(chance));
  }
  if (drafts.tokens.size() < settings.n_min) return {};
  return drafts;
}

}  // namespace gyre
