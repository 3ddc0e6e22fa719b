// The drafter of a last stage whose model has a layer for drafts (docs/speculation.md, MTP). Nothing here changes an
// answer: a wrong state of it costs drafts that are not drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/step.h"
#include "model/spec.h"
#include "worker/forward.h"
#include "worker/layer.h"
#include "worker/selected_logits.h"

namespace gyre {

// The stage's thread owns it. The arguments outlive it; `logits` and `selected` are the stage's, which needs them for
// its answers only.
class MtpDrafter {
 public:
  // REQUIRES: the ends have the layer.
  MtpDrafter(const ModelSpec& spec, const Ends& ends, Backend& backend, Forward& forward, SelectedLogits& selected,
             DeviceBuffer<float>& logits)
      : spec_(spec),
        ends_(ends),
        backend_(backend),
        forward_(forward),
        selected_(selected),
        logits_(logits),
        dim_(static_cast<size_t>(spec.dim)),
        vocab_(static_cast<size_t>(spec.vocab)) {}
  MtpDrafter(const MtpDrafter&) = delete;
  MtpDrafter& operator=(const MtpDrafter&) = delete;

  // Whether the layer computes rows of this step.
  static bool Drafts(const StepBatch& batch);
  // kInvalidArgument: what the step says of a sequence's drafts is not of this model, or not within its pages.
  Status Check(const SeqRows& s) const;
  // Before the answers: keeps the final-normed hidden states of all rows x [rows][dim], and leaves x to the logit rows.
  void KeepHidden(float* x, size_t rows, size_t sequences, const RowPlaces& logit_rows);
  // Behind the answers: the layer computes its rows, and drafts are added to the answers.
  void Draft(const StepBatch& batch, StepAnswer* answer);

 private:
  // A text that gets drafts.
  struct Drafted {
    const SeqRows* rows;
    RowAnswer* answer;  // whose last draft is the token before the next one
  };
  // The token behind a row that a draft was made for, before it was drawn.
  struct Guess {
    SeqId seq{};
    uint32_t incarnation = 0;
    uint32_t position = 0;
    TokenId token = 0;
  };
  bool RepeatGuess(const SeqRows& s, size_t at);
  void KeepGuess(const Guess& guess, size_t row);
  void AddRows(const SeqRows& s, size_t before, size_t extra, std::span<RowAnswer> answers,
               std::vector<Drafted>* drafted);
  void DraftNext(std::span<const Drafted> drafted, const float* hidden);
  const float* Embedded(std::span<const TokenId> ids);

  const ModelSpec& spec_;
  const Ends& ends_;
  Backend& backend_;
  Forward& forward_;
  SelectedLogits& selected_;
  DeviceBuffer<float>& logits_;
  const size_t dim_, vocab_;
  // The rows of the layer: their places, the tokens behind them, and which of the step's they are.
  StepBatch batch_;
  RowPlaces places_, logit_rows_;
  std::vector<TokenId> ids_;
  std::vector<uint32_t> rows_;
  std::vector<float> host_;
  DeviceBuffer<float> hidden_, gathered_, x_;
  std::vector<std::pair<Guess, size_t>> made_;  // in this step, with their rows
  // The last guesses, and the hidden states [kGuesses][dim] of their rows.
  static constexpr size_t kGuesses = 64;
  std::vector<Guess> guesses_;
  DeviceBuffer<float> kept_;
  size_t next_guess_ = 0;
};

}  // namespace gyre
