// The number of drafts that a step takes (docs/speculation.md). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "coordinator/engine/steps_in_flight.h"

namespace gyre {

// Learns how long the stages compute a step by its number of generated rows, and weighs the time of a further row
// against the tokens that it may bring. Not thread-safe: the scheduler owns it.
class DraftDepth {
 public:
  // Another ring.
  void Begin() { *this = DraftDepth(); }
  // A step of `rows` generated rows, without others, took these times.
  void Observe(uint32_t rows, const StepTimes& times);
  // The number of drafts that a step takes beside its `rows` rows, `tokens` of which decide one token each. `chances`:
  // those of the drafts, falling. `transit`: in seconds. `steps`: how many share the ring.
  size_t Choose(uint32_t rows, uint32_t tokens, std::span<const double> chances, double transit, uint32_t steps) const;

  // How many drafts each of `rows` sequences in a step takes, of the same chance after those before; each takes `each`
  // seconds to find.
  size_t ChooseAhead(uint32_t rows, double chance, size_t most, double each, double transit, uint32_t steps) const;

 private:
  double TimeOf(size_t rows, double transit, uint32_t steps) const;
  size_t MostRows(uint32_t rows) const;
  static constexpr size_t kRows = 128;
  struct Cost {
    double computed = 0, slowest = 0;  // seconds: by all stages, by the slowest; 0: unknown
    uint64_t seen = 0;                 // the number of the last step with this number of rows
  };
  const Cost* Known(size_t rows) const;
  Cost CostOf(size_t rows) const;

  std::array<Cost, kRows + 1> costs_{};  // by rows
  uint64_t steps_ = 0;
};

}  // namespace gyre
