#include "tests/testing/simulated_member.h"

#include <algorithm>

namespace gyre::testing {
namespace {

LayerRange LayersOf(const PrepareRequest& request) {
  return request.stage < 0 ? LayerRange{} : request.plan.stages[static_cast<size_t>(request.stage)].layers;
}

}  // namespace

void SimulatedMember::Prepare(const PrepareRequest& request, uint32_t num_blocks) {
  prepared.clear();
  loaded.reset();
  prepared[request.plan.epoch] = request;
  ready = {.verb = ChangeVerb::kPrepare,
           .replicated = request.restores != 0 && replica_of == request.restores ? replicated : std::nullopt};
  if (request.stage >= 0) next_blocks = num_blocks;
}

// Pools that begin anew are empty until the others are gone.
uint64_t SimulatedMember::NeedsFor(const PrepareRequest& request, const ModelSizes& sizes) const {
  const LayerRange gets = LayersOf(request);
  std::set<int> union_of;
  for (LayerRange r : {gets, runs}) {
    for (int i = r.begin; i < r.end; ++i) union_of.insert(i);
  }
  const auto units = [&sizes](size_t layers, uint32_t of_blocks) { return layers * sizes.memory[0].unit * of_blocks; };
  const uint64_t pages = request.fresh ? std::max(units(static_cast<size_t>(runs.size()), blocks),
                                                  units(static_cast<size_t>(gets.size()), next_blocks))
                                       : units(union_of.size(), next_blocks);
  return union_of.size() * sizes.layers[0] + pages;
}

std::optional<StageAnswer> SimulatedMember::Move() const {
  if (!move_fault.ok()) return StageFault{move_fault};
  if (!moves) return std::nullopt;
  return StageDone{.verb = ChangeVerb::kMove, .pages = 5, .bytes = 50, .last_pages = 1, .missing = lacks};
}

std::optional<StageAnswer> SimulatedMember::Tell(const Change& change) {
  if (change.verb == ChangeVerb::kMove) return Move();
  if (silent || deaf.count(change.verb) > 0) return std::nullopt;
  switch (change.verb) {
    case ChangeVerb::kPrepare:
    case ChangeVerb::kMove: break;
    case ChangeVerb::kCommit: return Commit(change.epoch);
    case ChangeVerb::kRelease: Release(change.epoch); break;
    case ChangeVerb::kAbort: prepared.erase(change.epoch); return StageDone{.verb = ChangeVerb::kAbort};
  }
  return std::nullopt;
}

StageAnswer SimulatedMember::Commit(Epoch epoch) {
  const auto it = prepared.find(epoch);
  if (it == prepared.end()) return StageFault{FailedPrecondition("not prepared")};
  retired = runs;
  ran = it->second;
  runs = LayersOf(*ran);
  blocks = next_blocks;
  prepared.clear();
  return StageDone{.verb = ChangeVerb::kCommit};
}

void SimulatedMember::Release(Epoch epoch) {
  retired = {};
  replica_of = 0;
  if (!ran || ran->plan.epoch != epoch) return;
  for (const StagePlan& s : ran->plan.stages) {
    if (s.replicated_by == info.name) replica_of = epoch.number;
  }
}

StageProbed MeasureLinks(const std::map<std::string, LinkSpeed>& links, const std::vector<WeightSource>& peers) {
  StageProbed out;
  for (const WeightSource& peer : peers) {
    const auto it = links.find(peer.name);
    out.links.push_back(it != links.end() ? it->second : LinkSpeed{.to = peer.name, .failure = ""});
  }
  return out;
}

}  // namespace gyre::testing
