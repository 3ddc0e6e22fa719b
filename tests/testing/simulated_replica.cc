#include "tests/testing/simulated_replica.h"

#include <algorithm>

namespace gyre::testing {

void SimulatedReplica::Copy(const SimulatedStage& stage, int most) {
  if (!round_) round_ = Round{};
  Group& group = groups_[static_cast<size_t>(round_->group)];
  const uint32_t units = stage.units(round_->group);
  if (round_->from == 0) {
    group.next_since = stage.last_step();
    round_->step = std::min(round_->step, stage.last_step());
  }
  for (; round_->from < units && most > 0; ++round_->from) {
    const SimulatedStage::Place unit{round_->group, round_->from};
    if (stage.full(unit) <= group.since) continue;
    group.copies[unit.number] = stage.Read(unit);
    --most;
  }
  if (round_->from < units) return;
  group.since = group.next_since;
  round_->from = 0;
  if (static_cast<size_t>(++round_->group) < groups_.size()) return;
  whole_ = std::max(whole_, round_->step);
  round_.reset();
}

const SimulatedStage::Unit* SimulatedReplica::Find(SimulatedStage::Place unit) const {
  const auto& copies = groups_[static_cast<size_t>(unit.group)].copies;
  const auto copy = copies.find(unit.number);
  return copy == copies.end() ? nullptr : &copy->second;
}

void SimulatedReplica::ChangeRing() {
  whole_ = 0;
  round_.reset();
}

void SimulatedReplica::Forget() { *this = {}; }

}  // namespace gyre::testing
