// Every order of a few events that there is: three workers, and whatever may happen to them, to their links and to the
// coordinator. The world checks each action; afterwards nothing more goes wrong, and the cluster must serve, with every
// caller answered once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "fmt/format.h"
#include "tests/testing/cluster_world.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using testing::SimulatedMember;

// A cluster with its workers' processes, which outlive a coordinator.
class Explored {
 public:
  enum Event : uint8_t {
    kWait,            // beyond detach_grace and repair_grace
    kFirstDies,       // the process of w1, and it comes back as a new one
    kLastDies,        // the process of w3, and does not come back
    kSecondIsSilent,  // w2 is lost; its process drops its stage and joins again
    kControlIsCut,    // of w2
    kControlIsBack,
    kSecondLeaves,  // SIGTERM
    kFourthJoins,   // with more memory
    kRingBreaks,
    kLinkIsSilent,  // the reports say so, of the link from the first stage to the second
    kStageIsStuck,  // w3's
    kResize,        // to two stages, or to w4
    kDrain,         // w1
    kRestart,       // of the coordinator with its state, or another one's takeover
    kEvents
  };

  Explored() {
    ClusterPolicy policy = ClusterWorld::Policy(6, 3);
    for (auto& memory : policy.sizes.memory) memory.unit = 10;
    world_ = std::make_unique<ClusterWorld>(policy);
    policy_ = policy;
    // The cache is cut to what they hold, and grows where a larger worker takes their place.
    for (const char* name : {"w1", "w2", "w3"}) Join(name, kMemory);
    world_->Advance(seconds(1));
  }
  ClusterWorld& world() { return *world_; }

  void Do(Event event) {
    ClusterWorld& w = *world_;
    w.may_forget = true;
    switch (event) {
      case kWait: return w.Advance(milliseconds(1700));
      case kFirstDies:
        if (w.has("w1")) w.Leave("w1");
        return Join("w1", kMemory);
      case kLastDies:
        if (w.has("w3")) w.Leave("w3");
        return;
      case kSecondIsSilent:
        if (!w.has("w2")) return;
        w.Silence("w2");
        return Join("w2", kMemory);
      case kControlIsCut:
        if (w.has("w2")) w.Detach("w2");
        return;
      case kControlIsBack:
        if (w.has("w2")) w.Reattach("w2");
        return;
      case kSecondLeaves:
        if (w.has("w2")) w.WantsToLeave("w2");
        return;
      case kFourthJoins:
        if (!w.has("w4")) Join("w4", 4000);
        return;
      case kRingBreaks: return w.BreakRing();
      case kLinkIsSilent: return ReportSilence();
      case kStageIsStuck:
        if (w.has("w3")) w.Report("w3", {.unanswered_us = 11'000'000});
        return;
      case kResize: asks_.push_back(w.Resize(w.has("w4") ? "w4=0-5" : "3")); return;
      case kDrain: asks_.push_back(w.Drain("w1")); return;
      case kRestart: return Restart();
      case kEvents: return;
    }
  }

  // All is well from now on. Empty, or what is wrong then.
  std::string End() {
    for (int round = 0; round < 2; ++round) {
      world_->LetDismissedGo();
      for (const char* name : {"w1", "w2", "w3"}) {
        if (!world_->has(name)) Join(name, kMemory);
      }
      world_->Undrain("w1");
      world_->Advance(std::chrono::minutes(2));
    }
    if (!world_->problem().empty()) return world_->problem();
    if (!world_->state().serving()) return "it does not serve: " + world_->text();
    for (const uint64_t ask : asks_) {
      if (!world_->answered(ask)) return "a caller has no answer";
    }
    return "";
  }
  uint64_t lost() const { return world_->status().lost; }
  bool grew() const { return grew_ || world_->logged("the KV cache grows"); }

 private:
  static constexpr uint64_t kMemory = 590;  // for a layer more than two, with nine of the ten blocks
  void Join(const std::string& name, uint64_t memory, LayerRange holds = {}, uint32_t blocks = 0) {
    SimulatedMember& m = world_->Join(name, {.memory = memory, .holds = holds});
    m.runs = holds;
    m.blocks = blocks;
  }
  void ReportSilence() {
    const ClusterStatus status = world_->status();
    if (!status.plan || status.plan->stages.size() < 2) return;
    const uint64_t number = status.plan->epoch.number;
    for (int i = 0; i < 24; ++i) {
      world_->progress = {.plan = number, .step_sent = 9, .step_came = 8};
      for (size_t s = 0; s < status.plan->stages.size(); ++s) {
        const std::string name = status.plan->stages[s].worker();
        if (world_->has(name)) world_->Report(name, {.plan = number, .step_taken = s == 0 ? 9u : 8u});
      }
      world_->Advance(milliseconds(250));
    }
  }
  // Callers of the old process are gone with it. Workers hold what they ran, and come back.
  void Restart() {
    const std::unique_ptr<ClusterWorld> old = std::move(world_);
    problem_before_ = old->problem();
    grew_ |= old->logged("the KV cache grows");
    asks_.clear();
    ++policy_.term;
    policy_.record = old->record;
    world_ = std::make_unique<ClusterWorld>(policy_);
    world_->may_forget = true;
    for (const char* name : {"w1", "w2", "w3", "w4"}) {
      if (!old->has(name) || old->member(name).dismissed) continue;
      Join(name, old->member(name).info.memory, old->member(name).runs, old->member(name).blocks);
    }
  }

  ClusterPolicy policy_;
  std::unique_ptr<ClusterWorld> world_;
  std::vector<uint64_t> asks_;
  std::string problem_before_;
  bool grew_ = false;
};

// GYRE_EXPLORE_DEPTH says how many events.
TEST(ClusterExploreTest, NoOrderOfEventsIsWithoutAWayOn) {
  const char* const given = std::getenv("GYRE_EXPLORE_DEPTH");
  const size_t depth = given != nullptr ? std::stoul(given) : 3;
  uint64_t runs = 0, lost = 0, grew = 0;
  // Each event comes at once after the one before, or in the middle of the plan change that this one began.
  std::vector<size_t> events(depth);
  for (bool more = true; more;) {
    Explored explored;
    std::string story;
    for (size_t i = 0; i < depth; ++i) {
      const size_t event = events[i] % Explored::kEvents;
      const bool later = events[i] >= Explored::kEvents;
      if (later) explored.world().Advance(milliseconds(12));
      explored.Do(static_cast<Explored::Event>(event));
      story += fmt::format(" {}{}", later ? "+" : "", event);
      ASSERT_EQ(explored.world().problem(), "") << "events" << story << '\n'
                                                << fmt::format("{}", fmt::join(explored.world().log(), "\n"));
    }
    ASSERT_EQ(explored.End(), "") << "events" << story << '\n'
                                  << fmt::format("{}", fmt::join(explored.world().log(), "\n"));
    ++runs;
    lost += explored.lost();
    grew += explored.grew();
    more = false;
    for (size_t i = 0; i < depth && !more; ++i) {
      // The first one has none before it.
      more = ++events[i] < (i == 0 ? 1 : 2) * Explored::kEvents;
      if (!more) events[i] = 0;
    }
  }
  EXPECT_GE(lost, runs / 4);
  EXPECT_GE(grew, runs / 200);
  fmt::print("{} orders of {} events; {} plans were lost, in {} the cache grew\n", runs, depth, lost, grew);
}

}  // namespace
}  // namespace gyre
