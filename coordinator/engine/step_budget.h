// The number of prompt rows that a step may have beside decoding sequences. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace gyre {

// Learns from the times of steps what decode rows and prompt rows cost on this ring. A step with the rows of one prompt
// may take 1.7 times as long as one without, so that a long prompt hardly slows the sequences that decode. Several
// prompts, up to kCrowd, get as much each: the sooner they decode too, the more rows share a pass over the weights.
// Where more sequences have prompt rows to compute than decode, prompts get at least that ratio. Not thread-safe: the
// scheduler owns it.
class StepBudget {
 public:
  static constexpr uint32_t kFirst = 32, kLeast = 4;  // rows: before anything is measured, and at any time
  static constexpr uint32_t kCrowd = 6;               // prompts

  // A step of these rows took so long, waiting for other steps not counted. Times of 0 or less are ignored.
  void Observe(uint32_t decode_rows, uint32_t prompt_rows, Duration took);
  // Prompt rows for a step with `decode_rows` >= 1; `prompts` sequences have prompt rows to compute, `decoding` >= 1
  // ones decode.
  uint32_t Rows(uint32_t decode_rows, uint32_t prompts, uint32_t decoding) const;

 private:
  static constexpr size_t kSizes = 17;  // powers of two
  // The known time of a step with these decode rows and no others: the seconds of the next smaller step that was
  // measured (of the next larger one, if none is smaller), and the number of rows by which this one is larger.
  struct Known {
    double seconds = 0;  // 0: nothing was measured
    uint32_t more = 0;
  };
  Known KnownTime(uint32_t rows) const;

  std::array<double, kSizes> decode_{};  // seconds, by the power of two that the rows fit into; 0: unknown
  double row_ = 0;                       // seconds of a prompt row; 0: unknown
  bool beside_ = false;                  // it was measured beside decode rows
};

}  // namespace gyre
