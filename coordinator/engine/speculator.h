// The drafts of running sequences: from the text itself, or from a drafter (docs/speculation.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/engine/drafter.h"
#include "coordinator/engine/grammar_guide.h"
#include "coordinator/engine/scheduler.h"
#include "coordinator/engine/sequence.h"
#include "coordinator/engine/speculation.h"

namespace gyre {

// Not thread-safe, but for Prepare: the engine's loop calls it.
class Speculator {
 public:
  struct Options {
    Speculation speculation = Speculation::kAuto;
    std::shared_ptr<Drafter> drafter;  // may be null
    uint32_t draft_tokens = 8;         // its drafts in a step at most
    bool mtp = false;                  // the last stage drafts, too
    int vocab = 0;                     // of the model; a drafter may know more ids
    // Hands a drafter's answer, which comes on any thread, to the loop's call of Take.
    std::function<void(SeqId seq, uint64_t question, std::vector<TokenId> drafts)> answered;
  };
  // `guide` outlives it.
  Speculator(Options options, const GrammarGuide& guide) : options_(std::move(options)), guide_(guide) {}

  // Makes what the drafts of a text come from, if it may have any. Any thread: it reads the whole prompt.
  void Prepare(Sequence* s) const;
  void Begin(Sequence* s);
  // Proposes drafts for the tokens that follow, or asks the drafter for them.
  void Speculate(Sequence* s, Scheduler* scheduler) const;
  // The same behind drafts that are in flight, where that may pay. Called when rows of the sequence were launched.
  void GoOn(Sequence* s, Scheduler* scheduler) const;
  // What the last stage computes for drafts of a sequence's rows: whether it does, and how many drafts it makes where
  // `samples`.
  struct MtpWish {
    bool rows = false;
    uint32_t drafts = 0;
  };
  MtpWish WishOf(Sequence* s, bool samples, const Scheduler& scheduler) const;
  // The last stage's drafts of a step, as many as `made` one after the other, took so long.
  void NoteMtp(Duration took, size_t made);
  // Takes in a drafter's answer to this question.
  void Take(Sequence* s, uint64_t question, std::vector<TokenId> drafts, Scheduler* scheduler) const;
  void End(const Sequence& s) const;
  void Stop() const;

 private:
  bool AskDrafter(Sequence* s, double own_chance, size_t most, Scheduler* scheduler) const;
  bool AskBehind(Sequence* s, double own_chance, size_t most, const std::vector<TokenId>& ahead,
                 const Scheduler& scheduler) const;
  void Ask(Sequence* s, size_t most, std::vector<TokenId> ahead) const;
  bool UsesDrafter(const Sequence& s, const Scheduler& scheduler) const;
  Drafts OwnDrafts(Sequence* s, size_t most, std::span<const TokenId> ahead = {}) const;
  bool ProposeMtp(Sequence* s, double own_chance, size_t most, Scheduler* scheduler) const;
  void Propose(Sequence* s, Drafts drafts, Scheduler* scheduler) const;

  const Options options_;
  const GrammarGuide& guide_;
  DraftChances chances_;  // of all requests
  double mtp_each_ = 0;   // seconds of one of the last stage's drafts; 0: unknown
};

}  // namespace gyre
