// The number of steps in flight, and the number of them among which the decoding sequences are divided. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace gyre {

// The time of a step, as the stages report it in the frame that they pass on (docs/wire.md).
struct StepTimes {
  Duration computed{};  // by all stages; 0: unknown
  Duration slowest{};   // by the one that took longest
  Duration drafts{};    // of that of the last one: for drafts that come with the answers
  bool queued = true;   // a stage was not free when it came
};

// A ring is used fully when its slowest stage always has a step to compute: with as many steps in flight as that stage
// computes in the time that one step takes to come back (the bandwidth-delay product of networks). Over short ways that
// is one for each stage. Over long ones it is more; but smaller steps read the weights more often, so decoding
// sequences are dealt into more steps only where tokens come clearly faster by the times that were measured. Not
// thread-safe: the scheduler owns it.
class StepsInFlight {
 public:
  static constexpr uint32_t kMost = 64;

  // Another ring: what is known of the last one is forgotten.
  void Begin(uint32_t stages);
  // A step of these rows has landed; `loop`: since it was launched.
  void Observe(uint32_t decode_rows, uint32_t prompt_rows, Duration loop, const StepTimes& times);
  // Called while `decoding` sequences decode, before a step is planned.
  void Choose(uint32_t decoding);

  // Decoding sequences are dealt into so many steps.
  uint32_t groups() const { return groups_; }
  // The number of steps that may be in flight; more than groups() if prompts, or the coordinator's turn, fill the rest.
  uint32_t steps() const { return steps_; }
  uint64_t changes() const { return changes_; }  // of groups()
  // The transit time in seconds; nullopt: unknown.
  std::optional<double> latency() const;

 private:
  static constexpr size_t kSizes = 12;  // powers of two
  // The means over decode steps whose number of rows fits into one power of two.
  struct Size {
    double rows = 0, computed = 0, slowest = 0;  // means; seconds; 0: unknown
  };
  struct Cost {
    double computed = 0, slowest = 0;
  };
  // The time of a decode step with this many rows. REQUIRES: some size is known.
  Cost CostOf(double rows) const;
  // Seconds from one token of each sequence to the next, where `decoding` ones are dealt into `groups`.
  double Turn(uint32_t decoding, uint32_t groups) const;
  void NoteLatency(double seconds);

  uint32_t least_ = 1;  // groups
  uint32_t groups_ = 1, steps_ = 1;
  uint64_t changes_ = 0;
  std::array<Size, kSizes> sizes_{};
  double mean_computed_ = 0, mean_slowest_ = 0;  // of all steps
  // The least latency of the newest samples, and of those before.
  double latency_now_ = 0, latency_before_ = 0;
  uint32_t latency_samples_ = 0;
  uint32_t landed_ = 0;      // since the last choice
  uint32_t chosen_for_ = 0;  // decoding sequences
};

}  // namespace gyre
