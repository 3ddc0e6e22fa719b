#include "tests/testing/simulated_stage.h"

#include <algorithm>

namespace gyre::testing {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint32_t FirstInWindow(const SchedulerOptions& options, uint32_t position) {
  return position + 1 > options.window ? position + 1 - options.window : 0;
}

SimulatedStage::SimulatedStage(const SchedulerOptions& options)
    : options_(options),
      cells_(size_t{options.memory[kPageGroup]} * options.block_size),
      windowed_(size_t{options.memory[kWindowGroup]} * options.block_size),
      slots_(options.memory[kSlotGroup]) {
  for (const int group : {kPageGroup, kSlotGroup, kWindowGroup}) stamps_.emplace_back(units(group));
}

bool SimulatedStage::GoesOn(const StepItem& item) const {
  const Slot& slot = slots_.at(item.slots.begin == kNoBlock ? item.slots.slot : item.slots.begin);
  if (item.first_position == 0) return true;
  const bool own = slot.seq == item.seq && slot.incarnation == item.incarnation;
  const bool snapshot = item.slots.begin != kNoBlock && slot.number != 0 && slot.number == item.slots.begin_number;
  return slot.position == item.first_position && (item.slots.begin == kNoBlock ? own : snapshot);
}

void SimulatedStage::Execute(StepInFlight* step, RandomBits& random) {
  last_step_ = Num(step->id);
  const bool recurrent = options_.memory[kSlotGroup] > 0;
  // One stage failed the step, and this stage may be before or after it.
  if (recurrent && step->fails && Chance(random, 0.5)) return;
  for (StepInFlight::Rows& rows : step->items) {
    if (recurrent && !GoesOn(rows.item)) return;
    WriteRows(&rows);
    Stamp(rows.item);
    if (recurrent) Apply(&rows);
    if (!step->fails || Chance(random, 0.3)) continue;
    for (uint32_t i = 0; i < rows.item.count; ++i) {
      Cell(rows.item, rows.item.first_position + i) = random();
      if (options_.memory[kWindowGroup] > 0) Windowed(rows.item, rows.item.first_position + i) = random();
    }
  }
}

void SimulatedStage::WriteRows(StepInFlight::Rows* rows) {
  uint64_t read = 0, own = 0;
  std::vector<uint64_t> of_rows;  // what each row's windowed cell should hold
  for (uint32_t p = 0; p < rows->item.first_position + rows->item.count; ++p) {
    if (options_.memory[kWindowGroup] > 0) {
      of_rows.push_back(RowOf(rows->inputs, p, own));
      if (p >= rows->item.first_position) {
        for (uint32_t q = FirstInWindow(options_, p); q < p; ++q)
          rows->right = rows->right && Windowed(rows->item, q) == of_rows[q];
        Windowed(rows->item, p) = of_rows[p];
      }
    }
    if (p >= rows->item.first_position) Cell(rows->item, p) = RowOf(rows->inputs, p, read);
    own = Mix(own, RowOf(rows->inputs, p, own));
    read = Mix(read, Cell(rows->item, p));
    rows->right = rows->right && read == own;
  }
}

void SimulatedStage::Apply(StepInFlight::Rows* rows) {
  const StepItem& item = rows->item;
  Slot& slot = slots_.at(item.slots.slot);
  if (item.slots.begin != kNoBlock) slot = slots_.at(item.slots.begin);
  if (item.first_position == 0) slot = {};
  slot.seq = item.seq;
  slot.number = 0;
  slot.incarnation = item.incarnation;
  slot.position = item.first_position + item.count;
  uint64_t own = 0;
  for (uint32_t p = 0; p < slot.position; ++p) {
    const uint64_t row = RowOf(rows->inputs, p, own);
    if (p >= item.first_position) slot.state = Mix(slot.state, RowOf(rows->inputs, p, slot.state));
    own = Mix(own, row);
    for (const SlotTable::Mark& mark : item.slots.marks) {
      if (item.first_position + mark.row != p) continue;
      slots_.at(mark.slot) = slot;
      slots_.at(mark.slot).position = p + 1;
    }
  }
  rows->right = rows->right && slot.state == own;
  if (item.slots.copy == kNoBlock) return;
  slots_.at(item.slots.copy) = slot;
  slots_.at(item.slots.copy).number = item.slots.copy_number;
}

// As a real stage stamps what its rows fill.
void SimulatedStage::Stamp(const StepItem& item) {
  const uint32_t end = item.first_position + item.count;
  for (uint32_t b = item.first_position / options_.block_size; b * options_.block_size < end; ++b) {
    const bool full = (b + 1) * options_.block_size <= end;
    const auto stamp = [this, full](Stamps& of) {
      of.written = last_step_;
      if (full) of.full = last_step_;
    };
    stamp(stamps(kPageGroup, item.blocks[b]));
    if (options_.memory[kWindowGroup] > 0) stamp(stamps(kWindowGroup, item.window.blocks[b - item.window.first]));
  }
  if (options_.memory[kSlotGroup] == 0) return;
  for (const BlockId slot : {item.slots.slot, item.slots.copy}) {
    if (slot != kNoBlock) stamps(kSlotGroup, slot).written = last_step_;
  }
  for (const SlotTable::Mark& mark : item.slots.marks) stamps(kSlotGroup, mark.slot).written = last_step_;
  if (item.slots.copy != kNoBlock) stamps(kSlotGroup, item.slots.copy).full = last_step_;
}

uint64_t SimulatedStage::RowOf(const RowInputs& inputs, size_t position, uint64_t read) const {
  const uint64_t row_class = options_.prefill_matches_decode ? 0 : Num(inputs.ClassOf(position));
  return Mix(Mix(read, Num(static_cast<uint32_t>(inputs.tokens[position]))),
             Mix(Mix(inputs.salt, row_class), inputs.ring_namespaces[position]));
}

uint64_t& SimulatedStage::Cell(const StepItem& item, uint32_t position) {
  const BlockId block = item.blocks[position / options_.block_size];
  return cells_[size_t{block} * options_.block_size + position % options_.block_size];
}

uint64_t& SimulatedStage::Windowed(const StepItem& item, uint32_t position) {
  const BlockId block = item.window.blocks[position / options_.block_size - item.window.first];
  return windowed_[size_t{block} * options_.block_size + position % options_.block_size];
}

SimulatedStage::Unit SimulatedStage::Read(Place unit) const {
  if (unit.group == kSlotGroup) return {.cells = {}, .slot = slots_[unit.number]};
  const std::vector<uint64_t>& cells = unit.group == kPageGroup ? cells_ : windowed_;
  const auto begin = cells.begin() + static_cast<std::ptrdiff_t>(size_t{unit.number} * options_.block_size);
  return {.cells = {begin, begin + options_.block_size}, .slot = {}};
}

void SimulatedStage::PutBack(Place unit, const Unit& copy) {
  stamps(unit.group, unit.number) = {.full = 1, .written = last_step_};
  if (unit.group == kSlotGroup) {
    slots_[unit.number] = copy.slot;
    return;
  }
  std::vector<uint64_t>& cells = unit.group == kPageGroup ? cells_ : windowed_;
  std::copy(copy.cells.begin(), copy.cells.end(),
            cells.begin() + static_cast<std::ptrdiff_t>(size_t{unit.number} * options_.block_size));
}

void SimulatedStage::Lose(int group, RandomBits& random) {
  if (group == kSlotGroup) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    return;
  }
  for (uint64_t& cell : group == kPageGroup ? cells_ : windowed_) cell = random();
}

void SimulatedStage::ForgetFull() {
  for (std::vector<Stamps>& group : stamps_) {
    for (Stamps& unit : group) unit.full = 0;
  }
}

void SimulatedStage::ForgetStamps() {
  for (std::vector<Stamps>& group : stamps_) std::fill(group.begin(), group.end(), Stamps{});
}

}  // namespace gyre::testing
