// The number of drafts that a step takes, and whether further ones follow while it is in flight (docs/speculation.md).
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "coordinator/engine/steps_in_flight.h"

namespace gyre {

struct DraftsWanted {
  size_t count = 0;      // 0: none pay
  bool goes_on = false;  // the last token's row does not wait for them, and more follow while they are in flight
  bool operator==(const DraftsWanted&) const = default;
};

// Learns how long the stages compute a step by its number of generated rows, and how much longer it is on its way, and
// weighs the time of a further row against the tokens that it may bring. Not thread-safe: the scheduler owns it.
class DraftDepth {
 public:
  // A chance that all drafts up to one come true below this is not worth a step.
  static constexpr double kLeastBehind = 0.1;

  // Another ring.
  void Begin() { *this = DraftDepth(); }
  // A step of `rows` generated rows, without others, took these times.
  void Observe(uint32_t rows, const StepTimes& times);
  // A step of `rows` rows that waited for no stage was so long on its way.
  void ObserveWay(uint32_t rows, Duration way);

  struct Step {
    uint32_t rows = 0;   // beside the drafts
    double transit = 0;  // of a small step, in seconds
    uint32_t steps = 1;  // that share the ring
  };
  // The number of drafts that a step takes beside its rows, `tokens` of which decide one token each. `chances`: those
  // of the drafts, falling.
  size_t Choose(const Step& step, uint32_t tokens, std::span<const double> chances) const;
  // How many drafts each of step.rows sequences takes, of the same chance after those before; each takes `each` seconds
  // to find. `going_on`: so many sequences may go on behind drafts in flight; 0: none may.
  DraftsWanted ChooseAhead(const Step& step, double chance, size_t most, double each, uint32_t going_on) const;
  // The number of rows behind drafts in flight that a step takes beside step.rows others, for one of `decoding`
  // sequences. A row that counts brings its token a lap earlier; one that does not holds up what follows it.
  size_t ChooseBehind(const Step& step, std::span<const double> chances, uint32_t decoding) const;

 private:
  double TimeOf(size_t rows, const Step& step) const;
  double WayOf(size_t rows, double transit) const;
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
  // Means over the steps that waited for no stage, for the line of their ways by their rows (least squares).
  struct {
    double seen = 0, rows = 0, way = 0, square = 0, product = 0;
  } ways_;
};

}  // namespace gyre
