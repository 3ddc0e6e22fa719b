// Random joins, leaves, faults, late answers, broken rings, resizes and drains against a cluster. The world checks
// every action; here is checked that all who asked are answered, and that a cluster that is left alone ends up serving.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/testing/cluster_world.h"
#include "tests/testing/draw.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Between;
using testing::ClusterWorld;
using testing::RandomBits;
using testing::SimulatedMember;

class ClusterSoak {
 public:
  explicit ClusterSoak(uint64_t seed) : random_(seed), policy_(Policy(seed)), world_(policy_) {
    with_local_ = Between(random_, 0, 2) > 0;
    if (with_local_) world_.JoinLocal(RandomPreference());
    world_.may_forget = true;
  }

  void RandomEvent() {
    const int what = Between(random_, 0, 99);
    const std::string name = fmt::format("w{}", Between(random_, 1, 5));
    const bool there = world_.has(name);
    if (what < 12) {
      // Sometimes again, before its old membership has ended.
      if (!there || Between(random_, 0, 9) == 0) Join(name);
    } else if (what < 16) {
      if (!there) return;
      switch (Between(random_, 0, 4)) {
        case 0: world_.Silence(name); break;
        case 1: world_.Detach(name); break;
        case 2: world_.WantsToLeave(name); break;
        default: world_.Leave(name);
      }
    } else if (what < 18) {
      if (there) world_.Reattach(name);
    } else if (what < 26) {
      if (there) Upset(world_.member(name));
    } else if (what < 34) {
      if (there) Heal(world_.member(name));
    } else if (what < 37) {
      world_.BreakRing();
    } else if (what < 44) {
      asks_.push_back(world_.Resize(RandomResize()));
    } else if (what < 52) {
      Predict();
    } else if (what < 57) {
      asks_.push_back(world_.Drain(Between(random_, 0, 5) == 0 ? "local" : name));
    } else if (what < 58) {
      asks_.push_back(world_.Undrain(Between(random_, 0, 5) == 0 ? "local" : name));
    } else if (what < 59) {
      world_.engine.drains = !world_.engine.drains;
    } else if (what < 61) {
      world_.wiring_fault = world_.wiring_fault.ok() ? Internal("too many open files") : Status();
    } else if (what < 90) {
      world_.Advance(milliseconds(Between(random_, 1, 60)));
    } else if (what < 98) {
      world_.Advance(seconds(Between(random_, 1, 20)));
    } else {
      world_.Advance(seconds(Between(random_, 60, 200)));
    }
  }

  // A dry run and a change begin to differ here: what the one says the other does.
  void Predict() {
    const std::string text = RandomResize();
    const StatusOr<ChangeReport> dry = world_.DryRun(text);
    const uint64_t ask = world_.Resize(text);
    const bool begins = !world_.answered(ask);
    if (begins != dry.ok()) wrong_ = fmt::format("{}: the dry run says {}", text, dry.status().ToString());
    if (begins && FormatNamedRanges(world_.begun.back()) != dry->named_ranges) wrong_ = "other ranges than predicted";
    asks_.push_back(ask);
    predicted_ += begins;
  }

  // Nothing goes wrong any more, and there are enough members.
  void LeaveAlone() {
    world_.engine.drains = true;
    world_.wiring_fault = absl::OkStatus();
    world_.Undrain("local");
    for (int i = 1; i <= 5; ++i) {
      const std::string name = fmt::format("w{}", i);
      world_.Undrain(name);
      if (!world_.has(name) && i <= policy_.min_workers) Join(name);
      if (world_.has(name)) Heal(world_.member(name));
    }
    if (world_.has("local")) Heal(world_.member("local"));
    world_.Advance(std::chrono::minutes(10));
    // Members that were leaving are gone, and join again.
    world_.LetDismissedGo();
    for (int i = 1; i <= policy_.min_workers; ++i) {
      const std::string name = fmt::format("w{}", i);
      if (!world_.has(name)) Join(name);
      Heal(world_.member(name));
    }
    world_.Advance(std::chrono::minutes(10));
    serves_ = world_.state().serving();
  }

  std::string problem() const {
    if (!world_.problem().empty()) return world_.problem();
    if (!wrong_.empty()) return wrong_;
    if (!serves_) return "";
    if (!*serves_) return "it does not serve: " + world_.text();
    for (uint64_t ask : asks_) {
      if (!world_.answered(ask)) return fmt::format("ask {} has no answer", ask);
    }
    return "";
  }
  ClusterWorld& world() { return world_; }
  const std::vector<uint64_t>& asks() const { return asks_; }
  uint64_t predicted() const { return predicted_; }

 private:
  ClusterPolicy Policy(uint64_t seed) {
    ClusterPolicy policy = ClusterWorld::Policy(Between(random_, 2, 8), Between(random_, 1, 3));
    policy.min_workers = std::min(policy.min_workers, policy.sizes.num_layers());
    policy.replicate_kv = seed % 2 == 0;
    return policy;
  }
  std::optional<LayerRange> RandomPreference() {
    if (Between(random_, 0, 2) > 0) return std::nullopt;
    const int layers = policy_.sizes.num_layers(), begin = Between(random_, 0, layers - 1);
    return LayerRange{begin, Between(random_, begin + 1, layers)};
  }
  void Join(const std::string& name) {
    MemberInfo info;
    // Enough for everything, or just for its share and a little.
    const auto layers = static_cast<uint64_t>(policy_.sizes.num_layers());
    if (Between(random_, 0, 2) == 0) info.memory = 110 * (layers + static_cast<uint64_t>(Between(random_, 0, 3)));
    world_.Join(name, info);
    if (Between(random_, 0, 3) == 0) Upset(world_.member(name));
  }
  void Upset(SimulatedMember& m) {
    switch (Between(random_, 0, 5)) {
      case 0: m.reachable = false; break;
      case 1: m.silent = true; break;
      case 2: m.load_fault = ResourceExhausted("no memory"); break;
      case 3: m.deaf = {ChangeVerb::kCommit}; break;
      case 4: m.delay = seconds(Between(random_, 1, 8)); break;
      default: m.delay = milliseconds(Between(random_, 1, 200)); break;
    }
  }
  static void Heal(SimulatedMember& m) {
    m.reachable = true;
    m.silent = false;
    m.load_fault = absl::OkStatus();
    m.deaf.clear();
    m.delay = milliseconds(10);
  }
  std::string RandomResize() {
    if (Between(random_, 0, 9) == 0) return "0-2,1-9";
    const int layers = policy_.sizes.num_layers();
    std::string out;
    int begin = 0;
    std::vector<int> names{1, 2, 3, 4, 5};
    std::shuffle(names.begin(), names.end(), random_);
    for (int i = 0; begin < layers && i < 5; ++i) {
      const int end = i == 3 ? layers : Between(random_, begin + 1, layers);
      out += fmt::format("{}w{}={}-{}", out.empty() ? "" : ",", names[static_cast<size_t>(i)], begin, end - 1);
      begin = end;
    }
    return out;
  }

  RandomBits random_;
  const ClusterPolicy policy_;
  ClusterWorld world_;
  bool with_local_ = false;
  std::vector<uint64_t> asks_;
  std::string wrong_;
  uint64_t predicted_ = 0;
  std::optional<bool> serves_;  // after it was left alone
};

// A soak that reaches nothing tests nothing: the events of all seeds together must have caused plenty of each.
TEST(ClusterSoakTest, EverythingEndsWell) {
  uint64_t plans = 0, aborted = 0, lost = 0, good = 0, asks = 0, drains = 0, repairs = 0, left_out = 0, predicted = 0,
           beside = 0;
  const auto add = [&](uint64_t, ClusterSoak& soak) {
    const ClusterStatus status = soak.world().status();
    plans += status.plans, aborted += status.aborted, lost += status.lost;
    for (uint64_t ask : soak.asks()) good += soak.world().answer(ask).ok();
    asks += soak.asks().size();
    const auto& calls = soak.world().engine.calls;
    drains += static_cast<uint64_t>(std::count(calls.begin(), calls.end(), "drain"));
    repairs += soak.world().logged("repairing the ring");
    left_out += soak.world().logged("is left out");
    predicted += soak.predicted();
    for (const Plan& plan : soak.world().begun) beside += plan.stages.size() > 1 && plan.StageOf("local") >= 0;
  };
  const auto make = [](uint64_t seed) { return std::make_unique<ClusterSoak>(seed); };
  if (!testing::Soak({1500}, 150, make, add)) return;
  EXPECT_GE(plans, 5000u);
  EXPECT_GE(aborted, 3000u);
  EXPECT_GE(lost, 1000u);
  EXPECT_GE(drains, 1500u);
  EXPECT_GE(good, 1000u);
  EXPECT_GE(asks - good, 1000u);
  EXPECT_GE(repairs, 300u);
  EXPECT_GE(left_out, 500u);
  EXPECT_GE(predicted, 1000u);
  EXPECT_GE(beside, 1000u);
  RecordProperty("plans", std::to_string(plans));
}

}  // namespace
}  // namespace gyre
