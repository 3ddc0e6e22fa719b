// The last stage's answers: from final-normed rows to what was asked of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/step.h"
#include "worker/forward.h"

namespace gyre {

// Final-normed hidden states of the newest sampled rows, for questions that come after the answer.
class HiddenRing {
 public:
  HiddenRing(size_t rows, size_t dim) : rows_(rows), dim_(dim) {}
  void Keep(const LogitsQuestion& key, const float* hidden);
  // Null where it is gone.
  const float* Find(const LogitsQuestion& key) const;

 private:
  struct Row {
    LogitsQuestion key;
    std::vector<float> hidden;
  };
  const size_t rows_, dim_;
  std::vector<Row> kept_;
  size_t next_ = 0;
};

// Scratch is reused over steps. Not thread-safe.
class Answers {
 public:
  static constexpr size_t kKeptRows = 256;

  Answers(const ModelSpec& spec, Forward& forward, Backend& backend);

  // Rows of the step that have a request, rising; valid until the next call.
  std::span<const uint32_t> Wanted(const StepBatch& batch);
  // REQUIRES: the forward ran the layers with these wanted rows.
  void Make(const StepBatch& batch, StepAnswer* answer);
  LogitsAnswer Answer(const LogitsQuestion& question);

 private:
  void AnswerRow(const RowRequest& request, const float* hidden, const float* logits, RowAnswer* row);

  Forward& forward_;
  Backend& backend_;
  const size_t dim_, vocab_;
  HiddenRing ring_;
  std::vector<uint32_t> wanted_;
  std::vector<float> logits_;
  std::vector<TokenId> top_;
};

}  // namespace gyre
