// One member of the cluster, and the rules that are about it alone: what it holds in memory, for how long plans do
// without it, whether its control connection is cut. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/stage_control.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/load_window.h"
#include "coordinator/cluster/ring_watch.h"

namespace gyre {

// The layers that a member holds in memory: those of the plan that serves, or of a lost plan until it drops them. It
// drops them by preparing and committing a stage without layers. Not thread-safe.
class Holdings {
 public:
  Holdings() = default;
  explicit Holdings(LayerRange layers) : layers_(layers) {}

  // The layers that it runs.
  LayerRange layers() const { return layers_; }
  bool any() const { return layers_.size() > 0 || late_; }
  // All that it may hold: if a plan was lost during its commit, the member runs either the old or the new layers.
  LayerRange Most() const {
    if (!late_ || late_->layers.size() == 0) return layers_;
    if (layers_.size() == 0) return late_->layers;
    return {std::min(layers_.begin, late_->layers.begin), std::max(layers_.end, late_->layers.end)};
  }

  // A plan serves that gives it these layers.
  void Serves(LayerRange layers) {
    layers_ = layers;
    late_.reset();
  }
  // A plan serves that gives it none, and it has said that it committed: otherwise it may still hold what it had.
  void Released() { layers_ = {}; }
  // A plan that would have given it these layers was lost after the decision.
  void PlanLost(Epoch epoch, LayerRange layers, bool committed) {
    if (committed) {
      layers_ = layers;
    } else {
      late_ = Late{epoch, layers};
    }
  }
  // Its answer to a command of that plan, which comes late.
  void OnLateAnswer(const StageEvent& event) {
    if (!late_ || late_->epoch != event.epoch) return;
    const bool committed = event.AnswerTo(ChangeVerb::kCommit) != nullptr;
    if (committed) layers_ = late_->layers;
    if (committed || event.AnswerTo(ChangeVerb::kAbort) != nullptr) late_.reset();
  }

  // It is told to drop all, by a plan of this epoch. After `until` that counts as failed.
  void BeginDrop(Epoch epoch, Deadline until) { drop_ = Drop{.epoch = epoch, .until = until}; }
  bool dropping() const { return drop_ && !drop_->failed; }
  bool drop_failed() const { return drop_ && drop_->failed; }
  // REQUIRES: it was told to drop.
  Deadline drop_until() const { return drop_->until; }
  void Tick(Deadline now) {
    if (drop_ && now >= drop_->until) drop_->failed = true;
  }
  // The command that follows, if any. kRelease: it holds nothing any more.
  std::optional<ChangeVerb> OnDropAnswer(const StageEvent& event) {
    if (!drop_ || drop_->epoch != event.epoch) return std::nullopt;
    if (std::holds_alternative<StageFault>(event.what)) drop_->failed = true;
    if (event.AnswerTo(ChangeVerb::kPrepare) != nullptr) return ChangeVerb::kCommit;
    if (event.AnswerTo(ChangeVerb::kCommit) == nullptr) return std::nullopt;
    layers_ = {};
    late_.reset();
    drop_.reset();
    return ChangeVerb::kRelease;
  }
  // It prepares a stage of a plan in place of the one without layers.
  void EndDrop() { drop_.reset(); }

 private:
  // Layers of a plan that was lost while it was being committed.
  struct Late {
    Epoch epoch;
    LayerRange layers;
  };
  struct Drop {
    Epoch epoch;
    Deadline until{};
    bool failed = false;
  };
  LayerRange layers_;
  std::optional<Late> late_;
  std::optional<Drop> drop_;
};

// Why automatic plans do without a member, and for how long. Not thread-safe.
class LeftOut {
 public:
  // OK: they don't.
  const Status& why() const { return why_; }
  bool for_now(Deadline now) const { return until_ > now; }
  Deadline until() const { return until_; }

  // A plan failed because of it: it is left out for a while, longer each time. Returns that time.
  Duration PlanFailed(const Status& why, Deadline now, const ClusterPolicy& policy) {
    pause_ = pause_ == Duration{} ? policy.leave_out : std::min(2 * pause_, policy.longest_pause);
    why_ = why;
    until_ = now + pause_;
    return pause_;
  }
  // It has too little memory for its share: the next plan tries again.
  void TooSmall(const Status& why) { why_ = why; }
  // A plan is tried with it. Returns why it was left out before.
  Status Try() { return std::exchange(why_, absl::OkStatus()); }
  // A plan with it serves.
  void Served() { *this = {}; }

 private:
  Status why_;
  Deadline until_{};
  Duration pause_{};
};

// A member's control connection: where it is cut, the member is waited for. Not thread-safe.
class ControlConnection {
 public:
  // OK: it is not cut.
  const Status& cut() const { return why_; }
  // The time until which it may come back.
  Deadline until() const { return until_; }
  // `stream`: rises with every connection. A connection before this one may end late.
  bool IsCurrent(uint64_t stream) const { return stream >= stream_; }
  void Cut(const Status& why, Deadline until) {
    why_ = why;
    until_ = until;
  }
  // Another one takes its place. Returns why the one before was cut.
  Status Replace(uint64_t stream) {
    stream_ = stream;
    until_ = kNoDeadline;
    return std::exchange(why_, absl::OkStatus());
  }

 private:
  uint64_t stream_ = 0;
  Deadline until_ = kNoDeadline;
  Status why_;
};

struct Member {
  MemberInfo info;
  uint64_t id = 0;     // of its membership
  uint64_t order = 0;  // of joining
  MemberReport report;
  LoadWindow loads;
  Holdings holdings;
  LeftOut left_out;
  ControlConnection control;
  bool leaving = false;    // it gets no layers any more
  bool dismissed = false;  // it was told that it may go
  uint64_t ask = 0;        // who had it removed, and has no answer yet

  // A report says how much room its disk has for weights that it fetches. True: it has more than before.
  bool HearOfRoom(const MemberLoad& load) {
    if (!info.fetches || load.weights_room == 0) return false;
    return std::exchange(info.disk, load.weights_room) < load.weights_room;
  }
  // It computes no layer without an end, and answers: OK. Otherwise what it does for too long.
  Status CheckStuck(const ClusterPolicy& policy) const;
};

}  // namespace gyre
