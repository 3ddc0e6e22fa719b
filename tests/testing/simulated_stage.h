// A stage for tests of the scheduler: where a real one stores keys, values and states it stores fingerprints of the
// rows, and finds rows that read what is not their own.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/memory_counts.h"
#include "coordinator/engine/scheduler_types.h"
#include "tests/testing/draw.h"

namespace gyre::testing {

// A hash of both.
uint64_t Mix(uint64_t a, uint64_t b);

template <typename T>
uint64_t Num(T id) {
  return static_cast<uint64_t>(id);
}

// What the fingerprints of a sequence's rows depend on.
struct RowInputs {
  std::vector<TokenId> tokens;
  size_t prompt = 0;  // so many of them
  uint64_t salt = 0;
  std::vector<uint64_t> ring_namespaces;  // of the ring that computed each launched row
  RowClass ClassOf(size_t position) const { return position < prompt ? RowClass::kPrompt : RowClass::kGenerated; }
};

struct StepInFlight {
  struct Rows {  // of one sequence
    StepItem item;
    RowInputs inputs;
    uint64_t drops = 0;  // TrackedSequence::drops when it was launched
    bool right = true;   // every row got the fingerprint of its sequence's own prefix
  };
  StepId id{};
  std::vector<Rows> items;
  bool fails = false;
};

// The first position that a row at `position` reads in layers with a window.
uint32_t FirstInWindow(const SchedulerOptions& options, uint32_t position);

// A page's cell holds a fingerprint of all inputs of its row: the row's token and, through the cells that it read,
// every row before it. A row that reads one wrong cell gets a wrong fingerprint, and so do all rows after it.
class SimulatedStage {
 public:
  using Place = MemoryCounts::Place;
  // A slot's state is a fingerprint of all rows that were applied to it.
  struct Slot {
    SeqId seq{};
    uint32_t incarnation = 0, position = 0, number = 0;
    uint64_t state = 0;
  };
  struct Unit {  // the cells of a page, or a slot
    std::vector<uint64_t> cells;
    Slot slot;
  };

  explicit SimulatedStage(const SchedulerOptions& options);

  // Whether the stage applies the rows: its slot must be at their first position. REQUIRES: there are slots.
  bool GoesOn(const StepItem& item) const;
  // Writes the step's rows, whatever happened to their sequences meanwhile.
  void Execute(StepInFlight* step, RandomBits& random);
  uint64_t last_step() const { return last_step_; }  // that it saw

  uint32_t units(int group) const { return options_.memory[group]; }
  // The steps in which the unit became full and was last written; 0: none did.
  uint64_t full(Place unit) const { return stamps(unit).full; }
  uint64_t written(Place unit) const { return stamps(unit).written; }
  Unit Read(Place unit) const;
  // The unit comes from a replica.
  void PutBack(Place unit, const Unit& copy);
  // What the group's units hold is gone, and anything may be there.
  void Lose(int group, RandomBits& random);
  // For a replica that begins anew: only what becomes full from now on is full.
  void ForgetFull();
  // The pools begin anew.
  void ForgetStamps();

 private:
  struct Stamps {
    uint64_t full = 0, written = 0;
  };
  const Stamps& stamps(Place unit) const { return stamps_[static_cast<size_t>(unit.group)][unit.number]; }
  Stamps& stamps(int group, BlockId unit) { return stamps_[static_cast<size_t>(group)][unit]; }
  uint64_t& Cell(const StepItem& item, uint32_t position);
  uint64_t& Windowed(const StepItem& item, uint32_t position);
  uint64_t RowOf(const RowInputs& inputs, size_t position, uint64_t read) const;
  void WriteRows(StepInFlight::Rows* rows);
  void Apply(StepInFlight::Rows* rows);
  void Stamp(const StepItem& item);

  const SchedulerOptions options_;
  std::vector<uint64_t> cells_, windowed_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Stamps>> stamps_;  // by KV group
  uint64_t last_step_ = 0;
};

}  // namespace gyre::testing
