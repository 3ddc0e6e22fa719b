// The drafts of one request, and the measured rate at which drafts are accepted (docs/speculation.md). Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/named_values.h"
#include "coordinator/engine/ngram_drafter.h"
#include "coordinator/engine/scheduler_types.h"

namespace gyre {

// The drafters that are used. kAuto: all that there are; the others one each.
enum class Speculation : uint8_t { kAuto, kOff, kNgram, kDraft, kMtp };
inline constexpr std::array<std::string_view, 5> kSpeculationNames = {"auto", "off", "ngram", "draft", "mtp"};
// Whether a setting uses this drafter.
constexpr bool Uses(Speculation setting, Speculation drafter) {
  return setting == drafter || setting == Speculation::kAuto;
}
constexpr std::optional<Speculation> ParseSpeculation(std::string_view name) {
  return ValueOfName<Speculation>(kSpeculationNames, name);
}

// A request's settings of speculation, named as in llama.cpp's server. They change no text.
struct SpeculationSettings {
  uint32_t n_max = 32;  // drafts of a step at most; 0: none
  uint32_t n_min = 0;   // fewer are not sent
  float p_min = 0;      // a draft with a smaller chance is not sent
  bool operator==(const SpeculationSettings&) const = default;
};
inline constexpr uint32_t kMostDrafts = 64;

// How often drafts came true, by where they are from: a match of some length in the text, or a drafter.
class DraftChances {
 public:
  // In place of the match's length: a draft model, and the model's layer for drafts.
  static constexpr size_t kDrafter = 0, kMtp = SIZE_MAX;
  double Of(size_t match) const { return rates_[Level(match)]; }
  // `weight`: of this draft, against all before.
  void Note(size_t match, bool came_true, double weight) {
    double& rate = rates_[Level(match)];
    rate += ((came_true ? 1 : 0) - rate) * weight;
  }

 private:
  static constexpr std::array<size_t, 7> kLevels = {0, 1, 4, 6, 10, 20, kMtp};
  static size_t Level(size_t match) {
    return static_cast<size_t>(std::upper_bound(kLevels.begin(), kLevels.end(), match) - kLevels.begin()) - 1;
  }
  std::array<double, kLevels.size()> rates_ = {0.7, 0.4, 0.5, 0.6, 0.7, 0.8, 0.7};
};

// Not thread-safe. It is made on the thread that submits; then the engine's loop owns it.
class RequestDrafts {
 public:
  // `prediction`: what the answer may be, for the most part.
  RequestDrafts(std::span<const TokenId> prompt, std::span<const TokenId> prediction);

  // All requests' chances, with which this one begins until it has shown more. They outlive it.
  void Begin(DraftChances* all) {
    all_ = all;
    chances_ = *all;
  }
  // The text has one token more.
  void Drawn(TokenId token);
  // Drafts for what follows, from the text itself. `ahead`: drafts that are in flight, behind which they go.
  Drafts Propose(const SpeculationSettings& settings, size_t most, std::span<const TokenId> ahead = {});
  // Drafts that a drafter guessed: kDrafter or kMtp of DraftChances.
  Drafts Take(size_t drafter, const std::vector<TokenId>& guesses, const SpeculationSettings& settings, size_t most,
              std::span<const TokenId> ahead = {});
  // The chance of a drafter's guess, given that those before it came true.
  double drafter_chance() const { return chances_.Of(DraftChances::kDrafter); }
  double mtp_chance() const { return chances_.Of(DraftChances::kMtp); }
  // What the last stage guesses of the token that is drawn next and of those behind it.
  void Expect(std::vector<TokenId> mtp) { mtp_ = std::move(mtp); }
  // Returns those of these guesses that are not drawn yet; all before them were drawn as guessed.
  std::vector<TokenId> TakeGuesses() { return std::exchange(mtp_, {}); }
  // The chance that the first `n` drafts come true.
  double ChanceOfFirst(size_t n) const;
  // A drafter is asked now and then even where its guesses do not pay, as that may change.
  bool TriesDrafter() { return ++untried_ % kTryEvery == 0; }
  bool TriesMtp() { return ++untried_mtp_ % kTryEvery == 0; }

  size_t told = 0;  // tokens that a drafter knows
  // The last question to the drafter: about the first `known` tokens of the text and the `assumed` ones behind them.
  struct Question {
    uint64_t number = 0;
    size_t known = 0;
    std::vector<TokenId> assumed;
    bool open = false;  // its answer has not come
  };
  Question question;

 private:
  static constexpr uint32_t kTryEvery = 64;
  struct Guess {
    TokenId token = 0;
    size_t match = 0;  // where it is from, as in DraftChances
  };
  Drafts Cut(const SpeculationSettings& settings, size_t most, size_t ahead);

  NgramDrafter ngrams_;
  std::deque<Guess> guesses_;  // of the tokens that follow the text, whether they were sent or not
  std::vector<TokenId> mtp_;
  uint32_t untried_ = 0, untried_mtp_ = 0;
  DraftChances chances_;
  DraftChances* all_ = nullptr;
};

}  // namespace gyre
