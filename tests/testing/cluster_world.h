// A simulated world for a ClusterState: members that answer, an engine, links, callers, a clock. It finds violations.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster_state.h"

namespace gyre::testing {

// A simulated member. A test can change its behaviour at any time.
struct SimMember {
  MemberInfo info;
  uint64_t id = 0;                                 // of its membership
  Duration delay = std::chrono::milliseconds(10);  // before each answer
  Status load_fault;                               // of every Prepare that gives it layers
  bool reachable = true;                           // at its ring address
  bool silent = false;                             // it answers nothing
  Status recall_fault;                             // its answer to a Prepare that recalls
  Status move_fault;                               // its answer to a Move
  bool moves = true;                               // it answers a Move
  std::set<TellMember::What> deaf;                 // commands that it doesn't answer
  std::map<Epoch, PrepareRequest> prepared;        // at most one
  std::optional<Epoch> loaded;                     // it waits for its links
  LayerRange runs, retired;
  StageReady ready;                      // to the last Prepare
  std::optional<PrepareRequest> ran;     // by which it got what it runs
  uint32_t blocks = 0, next_blocks = 0;  // that its pools may be filled to, and those of what is prepared
  uint64_t stream = 1;                   // of its control connection
  bool dismissed = false;                // its process ends
  // Its mirror: of which plan, and up to which step it is whole.
  uint64_t mirror_of = 0;
  std::optional<uint64_t> mirrored = 100;
  std::vector<BlockId> lacks;              // what it says to be missing of a recall
  std::map<std::string, LinkSpeed> links;  // what it says of its links; others are fast
  bool probes = true;                      // it measures them when it is asked
};

class ClusterWorld {
 public:
  explicit ClusterWorld(const ClusterPolicy& policy) : policy_(policy), state_(policy, "here:1") {
    served_ = policy.record && !policy.record->stages.empty();
    Tick();
  }

  static ClusterPolicy Policy(int layers, int min_workers) {
    ClusterPolicy p;
    p.term = 7;
    p.sizes.layers.assign(static_cast<size_t>(layers), 100);
    p.sizes.memory.assign(static_cast<size_t>(layers), {kPageGroup, 1});
    p.sizes.counts.num_blocks = 10;
    p.min_workers = min_workers;
    return p;
  }

  // Events.
  SimMember& Join(const std::string& name, MemberInfo info = {}) {
    info.name = name;
    info.address = name + ":1";
    info.host = "host";
    auto m = std::make_shared<SimMember>();
    m->info = info;
    m->id = next_id_++;
    members_[name] = m;
    Do(state_.Joined(info, m->id, now_));
    return *m;
  }
  SimMember& JoinLocal(std::optional<LayerRange> wish = {}) { return Join("local", {.local = true, .wish = wish}); }
  void Leave(const std::string& name, const std::string& why = "its connection ended") {
    const uint64_t id = members_.at(name)->id;
    members_.erase(name);
    Do(state_.Left({name, id}, Unavailable("{}", why), now_));
  }
  // The member is lost, but its process may live.
  void Silence(const std::string& name) {
    const uint64_t id = members_.at(name)->id;
    members_.erase(name);
    Do(state_.Left({name, id}, Unavailable("nothing was heard of it"), now_, false));
  }
  // Its control stream ends, and another one replaces it.
  void Detach(const std::string& name) {
    const auto m = members_.at(name);
    Do(state_.Detached({name, m->id}, m->stream, Unavailable("its stream ended"), now_));
  }
  void Reattach(const std::string& name) {
    const auto m = members_.at(name);
    Do(state_.Reattached({name, m->id}, ++m->stream, now_));
  }
  // Ends the previous stream.
  void EndOldStream(const std::string& name) {
    const auto m = members_.at(name);
    Do(state_.Detached({name, m->id}, m->stream - 1, Unavailable("its stream ended"), now_));
  }
  void WantsToLeave(const std::string& name) { Do(state_.WantsToLeave({name, members_.at(name)->id}, now_)); }
  uint64_t Remove(const std::string& name) {
    const uint64_t ask = Asked();
    Do(state_.AskedToRemove(ask, name, now_));
    return ask;
  }
  // Removes processes that were dismissed.
  void LetDismissedGo() {
    std::vector<std::string> names;
    for (const auto& [name, m] : members_) {
      if (m->dismissed) names.push_back(name);
    }
    for (const std::string& name : names) Leave(name);
  }
  uint64_t Resize(const std::string& text) {
    const uint64_t ask = Asked();
    Do(state_.AskedToResize(ask, text, now_));
    return ask;
  }
  uint64_t Drain(const std::string& name) {
    const uint64_t ask = Asked();
    Do(state_.AskedToDrain(ask, name, now_));
    return ask;
  }
  uint64_t Undrain(const std::string& name) {
    const uint64_t ask = Asked();
    Do(state_.AskedToUndrain(ask, name, now_));
    return ask;
  }
  uint64_t TakeProposed() {
    const uint64_t ask = Asked();
    Do(state_.AskedForProposed(ask, now_));
    return ask;
  }
  // Asks what a resize would do. This must change nothing.
  StatusOr<ChangeReport> DryRun(const std::string& text, uint32_t live_blocks = 0) {
    const uint64_t ask = Asked();
    Dry(state_.AskedToResize(ask, text, now_, {.dry_run = true, .live = {.num_blocks = live_blocks}}));
    return answer(ask);
  }
  StatusOr<ChangeReport> DryDrain(const std::string& name) {
    const uint64_t ask = Asked();
    Dry(state_.AskedToDrain(ask, name, now_, {.dry_run = true}));
    return answer(ask);
  }
  // From now on this process measures its links, with the results in `links`.
  void CanProbe() { Do(state_.CanProbe(now_)); }
  void Report(const std::string& name, const MemberLoad& load) { Do(state_.Reported(name, load, progress, now_)); }
  // Breaks the ring as the engine does it: once per ring.
  void BreakRing() {
    if (!ring_ || ring_broken_) return;
    ring_broken_ = true;
    Do(state_.RingBroken(*ring_, Unavailable("the ring: a link ended"), now_));
  }
  void Tick() { Do(state_.Ticked(now_)); }
  // Lets time pass, with all events that are due in it.
  void Advance(Duration d) {
    const Deadline end = now_ + d;
    for (int rounds = 0; problem_.empty(); ++rounds) {
      if (rounds > 200000) return Wrong("the state asks for ticks without an end");
      const Deadline event = todo_.empty() ? kNoDeadline : todo_.begin()->first;
      const Deadline next = std::min(event, state_.deadline());
      if (next > end) break;
      now_ = std::max(now_, next);
      if (event <= now_) {
        auto node = todo_.extract(todo_.begin());
        node.mapped()();
      } else {
        Tick();
      }
    }
    now_ = end;
    Tick();
  }
  void After(Duration d, std::function<void()> what) { todo_.emplace(now_ + d, std::move(what)); }

  // The visible state.
  const std::string& problem() const { return problem_; }
  ClusterState& state() { return state_; }
  SimMember& member(const std::string& name) { return *members_.at(name); }
  bool has(const std::string& name) const { return members_.count(name) > 0; }
  ClusterStatus status() const { return state_.status(now_); }
  std::string text() const { return status().state; }
  std::string ranges() const {
    const ClusterStatus s = status();
    return s.plan ? FormatPlan(*s.plan) : "";
  }
  Deadline now() const { return now_; }
  bool answered(uint64_t ask) const { return answers_.at(ask).has_value(); }
  StatusOr<ChangeReport> answer(uint64_t ask) const {
    return answers_.at(ask) ? *answers_.at(ask) : Internal("no answer");
  }
  bool logged(const std::string& part) const {
    return std::any_of(log_.begin(), log_.end(),
                       [&part](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  const std::vector<std::string>& log() const { return log_; }
  std::vector<PlanRecord> records;
  std::optional<ClusterRecord> record;  // that was kept last
  // Calls of the engine, as "drain", "old", "new 3", "shrink 4", "refuse", "await".
  std::map<std::string, LinkSpeed> links;  // from this process
  RingProgress progress;                   // what the engine says beside each report
  std::vector<std::string> engine_calls;
  std::vector<Status> losses;
  std::vector<Plan> begun;  // plans that were wired
  std::vector<Epoch> cancelled;
  uint64_t salt = 0;                // of the last ring
  bool own_member = false;          // likewise
  bool crashed = false;             // of the last loss
  bool mirrored = false;            // likewise: the engine keeps its cache
  std::vector<BlockId> missing;     // of what the last ring has of it
  uint64_t step_floor = 0;          // of the last ring
  uint32_t num_blocks = 0;          // of the last Prepare that gave layers
  std::vector<std::string> probes;  // members that were asked to measure links; "": this process
  int commands_to_strangers = 0;
  bool may_forget = false;             // members that did not come back, or are stuck
  std::vector<std::string> forgotten;  // those that this happened to
  bool engine_drains = true;
  Status wiring_fault;  // of the coordinator's own links

 private:
  static std::string FormatPlan(const Plan& plan) {
    std::string out;
    for (const StagePlan& s : plan.stages) {
      out += (out.empty() ? "" : ",") + fmt::format("{}={}", s.worker(), FormatRange(s.layers));
    }
    return out;
  }
  void Wrong(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  uint64_t Asked() {
    answers_[next_ask_] = std::nullopt;
    return next_ask_++;
  }
  std::shared_ptr<SimMember> Find(uint64_t id) {
    for (auto& [name, m] : members_) {
      if (m->id == id) return m;
    }
    ++commands_to_strangers;
    Wrong("a command to a member that has left");
    return std::make_shared<SimMember>();
  }
  void Do(ClusterState::Actions actions) {
    for (ClusterAction& a : actions) std::visit([this](auto& action) { Play(action); }, a);
    CheckEngine();
  }
  void Dry(ClusterState::Actions actions) {
    const bool only_answers = std::all_of(
        actions.begin(), actions.end(), [](const ClusterAction& a) { return std::holds_alternative<AnswerCaller>(a); });
    if (!only_answers) Wrong("a dry run does something");
    Do(std::move(actions));
  }
  // Delivers an event of a member later, unless it is silent or has left by then.
  void Say(const std::shared_ptr<SimMember>& m, Epoch epoch, decltype(StageEvent::what) what) {
    if (m->silent) return;
    After(m->delay, [this, m, epoch, what = std::move(what)] {
      if (m->silent || !has(m->info.name) || members_.at(m->info.name) != m) return;
      if (std::holds_alternative<StageReady>(what) && m->prepared.count(epoch) == 0) return;  // aborted meanwhile
      Do(state_.Said(m->id, {.worker = "whoever", .epoch = epoch, .what = what}, now_));
    });
  }

  void Play(PrepareMember& a) {
    const auto m = Find(a.member);
    const Epoch epoch = a.request.plan.epoch;
    if (!used_.insert({epoch.number, a.member}).second) Wrong("a member prepares an epoch twice");
    if (wiring_ != epoch && !drop_epochs_.insert(epoch.number).second) Wrong("an epoch is used twice");
    m->prepared.clear();
    m->loaded.reset();
    m->prepared[epoch] = a.request;
    // A plan that is recalled is the last one that served, and its pages are at members that ran it or mirrored it.
    const uint64_t recalls = a.request.recalls;
    const uint64_t recallable = last_ring_                            ? last_ring_->number
                                : policy_.record && policy_.has_cache ? policy_.record->plan
                                                                      : 0;
    if (recalls != 0 && recalls != recallable) Wrong("another plan is recalled");
    m->ready = {.mirrored = recalls != 0 && m->mirror_of == recalls ? m->mirrored : std::nullopt};
    for (const LayerSource& s : a.request.sources) {
      if (!has(s.worker)) Wrong("pages are to come from a member that has left");
      if (has(s.worker) && s.mirror != 0 && members_.at(s.worker)->mirror_of != s.mirror)
        Wrong("pages are to come from a mirror that there is not");
      if (has(s.worker) && s.mirror == 0 &&
          (s.layers.begin < members_.at(s.worker)->runs.begin || s.layers.end > members_.at(s.worker)->runs.end))
        Wrong("pages are to come from a member that does not run their layers");
    }
    if (a.request.stage < 0) return Say(m, epoch, m->ready);
    num_blocks = state_.status(now_).num_blocks;
    const LayerRange gets = a.request.plan.stages[static_cast<size_t>(a.request.stage)].layers;
    std::set<int> union_of;
    for (LayerRange r : {gets, m->runs}) {
      for (int i = r.begin; i < r.end; ++i) union_of.insert(i);
    }
    // Pools that begin anew are empty until the others are gone.
    m->next_blocks = num_blocks;
    const auto units = [this](size_t layers, uint32_t blocks) {
      return layers * policy_.sizes.memory[0].unit * blocks;
    };
    const uint64_t pages = a.request.fresh ? std::max(units(static_cast<size_t>(m->runs.size()), m->blocks),
                                                      units(static_cast<size_t>(gets.size()), num_blocks))
                                           : units(union_of.size(), num_blocks);
    const uint64_t needs = union_of.size() * policy_.sizes.layers[0] + pages;
    if (m->info.memory != 0 && needs > m->info.memory) {
      Wrong(fmt::format("{} is asked for more than it holds: {} blocks of {} beside {} of {} need {} of {} (plan {})",
                        m->info.name, num_blocks, FormatRange(gets), m->blocks, FormatRange(m->runs), needs,
                        m->info.memory, a.request.plan.epoch.number));
    }
    if (m->silent) return;
    if (!m->load_fault.ok()) return Say(m, epoch, StageFault{m->load_fault});
    if (recalls != 0 && !m->recall_fault.ok()) return Say(m, epoch, StageFault{m->recall_fault});
    Say(m, epoch, StageProgress{1, 2});
    After(m->delay, [this, m, epoch] {
      if (m->silent || m->prepared.count(epoch) == 0) return;
      m->loaded = epoch;
      Say(m, epoch, StageProgress{2, 2});
      MaybeConnect(m->prepared.at(epoch).plan);
    });
  }
  // Once all stages have loaded, their links are made; or one fails, and with it those before it.
  void MaybeConnect(const Plan& plan) {
    std::vector<std::shared_ptr<SimMember>> stages;
    for (const StagePlan& s : plan.stages) {
      if (!has(s.worker()) || members_.at(s.worker())->loaded != plan.epoch) return;
      stages.push_back(members_.at(s.worker()));
    }
    for (size_t i = stages.size(); i-- > 1;) {
      if (stages[i]->reachable) continue;
      for (size_t k = 0; k < i; ++k) {
        Say(stages[k], plan.epoch,
            StageFault{Unavailable("{}: {}", kLinkToNextStage, k + 1 == i ? "Connection refused" : "it was closed")});
      }
      return;
    }
    const Status first = stages[0]->reachable ? wiring_fault : Unavailable("Connection refused");
    if (wiring_ == plan.epoch) {
      After(std::chrono::milliseconds(1), [this, epoch = plan.epoch, first] {
        if (wiring_ == epoch && first.ok()) wired_ = true;
        Do(state_.Wired(epoch, first, absl::OkStatus(), now_));
      });
    }
    for (const auto& m : stages) {
      if (m != stages[0] || first.ok()) Say(m, plan.epoch, m->ready);
    }
  }
  void Play(MoveMember& a) {
    const auto m = Find(a.member);
    if (m->prepared.count(a.epoch) == 0) Wrong("a Move of what is not prepared");
    if (!m->move_fault.ok()) return Say(m, a.epoch, StageFault{m->move_fault});
    if (m->moves) Say(m, a.epoch, StageMoved{.pages = 5, .bytes = 50, .last_pages = 1, .missing = m->lacks});
  }
  void Play(TellMember& a) {
    const auto m = Find(a.member);
    if (a.what == TellMember::kDismiss && m->dismissed) Wrong("a member is dismissed twice");
    if (m->silent && a.what != TellMember::kDismiss) return;
    switch (a.what) {
      case TellMember::kCommit: {
        if (m->deaf.count(a.what) > 0) return;
        const auto it = m->prepared.find(a.epoch);
        if (it == m->prepared.end()) return Say(m, a.epoch, StageFault{FailedPrecondition("not prepared")});
        const PrepareRequest& r = it->second;
        m->retired = m->runs;
        m->ran = r;
        m->runs = r.stage < 0 ? LayerRange{} : r.plan.stages[static_cast<size_t>(r.stage)].layers;
        m->blocks = m->next_blocks;
        m->prepared.clear();
        return Say(m, a.epoch, StageCommitted{});
      }
      case TellMember::kRelease:
        m->retired = {};
        m->mirror_of = 0;
        if (!m->ran || m->ran->plan.epoch != a.epoch) return;
        for (const StagePlan& s : m->ran->plan.stages) {
          if (s.mirrored_by == m->info.name) m->mirror_of = a.epoch.number;
        }
        return;
      case TellMember::kDismiss: m->dismissed = true; return;
      case TellMember::kAbort: m->prepared.erase(a.epoch); return Say(m, a.epoch, StageAborted{});
    }
  }
  void Play(ForgetMember& a) {
    for (const auto& [name, m] : members_) {
      if (m->id != a.member.id) continue;
      if (!may_forget) Wrong("a member that has not left is forgotten");
      forgotten.push_back(name);
      members_.erase(name);
      return;
    }
  }
  void Play(WireEnds& a) {
    if (wiring_) Wrong(fmt::format("plan {} begins while plan {} is being made", a.plan.epoch.number, wiring_->number));
    if (!epochs_.insert(a.plan.epoch.number).second || drop_epochs_.count(a.plan.epoch.number) > 0) {
      Wrong("an epoch is used twice");
    }
    if (!a.plan.Validate().ok()) Wrong("a plan is not valid");
    wiring_ = a.plan.epoch;
    wired_ = false;
    begun.push_back(a.plan);
  }
  void Play(CancelWiring& a) {
    if (wiring_ != a.epoch) Wrong("a wiring is cancelled that is not under way");
    wiring_.reset();
    cancelled.push_back(a.epoch);
  }
  void Play(DrainEngine& a) {
    if (!ring_ || ring_broken_) Wrong("an engine without a ring is drained");
    engine_calls.push_back("drain");
    draining_ = true;
    After(std::chrono::milliseconds(5), [this, epoch = a.epoch] {
      if (!engine_drains || !draining_ || ring_broken_) return;
      drained_ = true;
      Do(state_.Drained(epoch, {1, 2}, now_));
    });
    drain_started_ = now_;
    drained_ = false;
  }
  void Play(RecallCache& a) {
    if (ring_) Wrong("a cache is recalled while there is a ring");
    if (!mirrored && (!policy_.has_cache || last_ring_)) Wrong("a cache is recalled that was forgotten");
    engine_calls.push_back(a.step ? fmt::format("recall {}", *a.step) : "recall nothing");
    recalled_ = a.epoch;
    After(std::chrono::milliseconds(5), [this, epoch = a.epoch] { Do(state_.Drained(epoch, {1, 2}, now_)); });
  }
  void Play(ResumeOldRing&) {
    if (!ring_ || ring_broken_) Wrong("the engine goes on over a ring that is broken");
    if (!drained_ && now_ - drain_started_ >= policy_.timeouts.drain)
      Wrong("the engine goes on over a ring that lost a step");
    if (!draining_) Wrong("an engine goes on that was not stopped");
    engine_calls.push_back("old");
    draining_ = false;
  }
  void Play(ResumeNewRing& a) {
    if (wiring_ != a.epoch || !wired_) Wrong("a ring that is not wired");
    if (ring_ && !ring_broken_ && !draining_) Wrong("the engine's ring is changed while it uses it");
    if (a.recalls && recalled_ != a.epoch) Wrong("the engine goes on with a cache that was not recalled");
    engine_calls.push_back(fmt::format("new {}{}", a.epoch.number, a.recalls ? " with the cache" : ""));
    missing = a.missing;
    step_floor = a.step_floor;
    mirrored = false;
    last_ring_ = a.epoch;
    wiring_.reset();
    served_ = true;
    ring_ = a.epoch;
    salt = a.salt;
    own_member = a.own_member;
    draining_ = ring_broken_ = false;
  }
  void Play(EndRing& a) {
    engine_calls.push_back("break");
    After(std::chrono::milliseconds(1), [this, epoch = a.epoch] {
      if (ring_ == epoch) BreakRing();
    });
  }
  void Play(GrowCache& a) {
    engine_calls.push_back(fmt::format("grow {}", a.num_blocks));
    for (auto& [name, m] : members_) m->blocks = a.num_blocks;
  }
  void Play(ShrinkCache& a) { engine_calls.push_back(fmt::format("shrink {}", a.num_blocks)); }
  void Play(RefuseRequests& a) {
    if (served_) Wrong("requests are refused after a plan has served");
    engine_calls.push_back("refuse");
    losses.push_back(a.why);
  }
  void Play(AwaitRing& a) {
    if (!served_) Wrong("requests wait before a plan has served");
    if (ring_) crashed = a.crashed, mirrored = a.mirrored;
    engine_calls.push_back("await");
    losses.push_back(a.why);
    ring_.reset();
    draining_ = ring_broken_ = false;
  }
  void Play(AnswerCaller& a) {
    auto& answer = answers_.at(a.ask);
    if (answer) Wrong("a caller is answered twice");
    answer = std::move(a.answer);
  }
  void Play(RecordPlan& a) { records.push_back(a.record); }
  void Play(KeepRecord& a) { record = a.record; }
  void Play(WriteLog& a) {
    log_.push_back(fmt::format("{:.3f} {}", std::chrono::duration<double>(now_.time_since_epoch()).count(), a.line));
  }
  void Play(ShowProgress&) {}
  void Play(ProbeLinks& a) {
    const auto m = Find(a.member);
    if (m->info.local) Wrong("the local member is to measure links");
    probes.push_back(m->info.name);
    if (!m->probes) return;
    StageProbed probed;
    for (const WeightSource& peer : a.peers) {
      const auto it = m->links.find(peer.name);
      probed.links.push_back(it != m->links.end() ? it->second : LinkSpeed{.to = peer.name, .failure = ""});
    }
    Say(m, {}, std::move(probed));
  }

  void Play(ProbeFromHere& a) {
    probes.push_back("");
    StageProbed probed;
    for (const WeightSource& peer : a.peers) {
      const auto it = links.find(peer.name);
      probed.links.push_back(it != links.end() ? it->second : LinkSpeed{.to = peer.name, .failure = ""});
    }
    After(std::chrono::milliseconds(1), [this, probed] { Do(state_.Probed(probed, now_)); });
  }

  // For a stopped engine there must be an event that lets it go on.
  void CheckEngine() {
    if (state_.serving() && (!ring_ || ring_broken_)) Wrong("the state serves, the engine has no ring");
    if (ring_ && !status().plan) Wrong("the engine has a ring of no plan");
    if (draining_ && !ring_broken_ && !wiring_) Wrong("the engine is stopped and nothing goes on");
  }

  const ClusterPolicy policy_;
  ClusterState state_;
  Deadline now_ = Deadline{} + std::chrono::hours(1);
  std::multimap<Deadline, std::function<void()>> todo_;
  std::map<std::string, std::shared_ptr<SimMember>> members_;
  std::map<uint64_t, std::optional<StatusOr<ChangeReport>>> answers_;
  std::vector<std::string> log_;
  uint64_t next_id_ = 1, next_ask_ = 1;
  std::string problem_;

  std::set<std::pair<uint64_t, uint64_t>> used_;
  std::set<uint64_t> epochs_, drop_epochs_;
  std::optional<Epoch> wiring_;  // of the change that is under way
  bool wired_ = false;
  std::optional<Epoch> ring_;
  std::optional<Epoch> last_ring_, recalled_;
  bool served_ = false;
  bool ring_broken_ = false, draining_ = false, drained_ = false;
  Deadline drain_started_{};
};

}  // namespace gyre::testing
