// The cluster's thread and what it does for the state: commands to members, calls of the engine, links, answers.
#include "coordinator/cluster/cluster.h"

#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/inbox.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/ring_address.h"
#include "base/thread.h"
#include "coordinator/cluster/cluster_names.h"
#include "coordinator/cluster/cluster_state.h"
#include "coordinator/cluster/cluster_wiring.h"
#include "coordinator/cluster/life_checks.h"
#include "coordinator/cluster/status_board.h"

namespace gyre {

class Cluster::Impl {
 public:
  explicit Impl(ClusterOptions options) : options_(std::move(options)), own_clock_(options_.now != nullptr) {
    if (!options_.now) options_.now = [] { return Clock::now(); };
  }
  Status Start(Engine* engine, RingPort* port);
  void SetProber(std::function<void(std::vector<WeightSource>)> prober) {
    Post([this, prober = std::move(prober)](ClusterState& state, Deadline now) {
      prober_ = prober;
      return state.CanProbe(now);
    });
  }
  void Report(const std::string& name, const MemberLoad& load) {
    Post([name, load](ClusterState& state, Deadline now) { return state.Reported(name, load, now); });
  }
  void Stop();

  // Any thread.
  StatusOr<Membership> Join(MemberInfo info, std::shared_ptr<StageControl> control);
  using Actions = ClusterState::Actions;
  // An event for the state; run on the loop's thread.
  using Event = std::function<Actions(ClusterState&, Deadline now)>;
  void Post(Event event) { inbox_.Push(std::move(event)); }
  // The event's `ask` ends in one call of `done`.
  void Ask(Done done, const std::function<Event(uint64_t ask)>& event);
  AskMode Mode(bool dry_run) const;
  void AskForTraces();
  ClusterStatus status() const { return board_.Read(options_.now()); }
  StatusBoard& board() { return board_; }

 private:
  void Loop();
  Deadline WakeAt() const;
  void Carry(Actions actions);
  void Publish();
  void End(const Status& why);

  // An action each.
  void Do(TellMember& a) { controls_.at(a.member)->Apply(a.change); }
  void Do(DismissMember& a) { controls_.at(a.member)->Dismiss(); }
  void Do(ForgetMember& a);
  void Do(WireEnds& a);
  void Do(CancelWiring& a);
  void Do(DrainEngine& a);
  void Do(RestoreCache& a);
  void Do(ResumeOldRing&) { engine_->Resume(std::nullopt); }
  void Do(ResumeNewRing& a);
  void Do(ShrinkCache& a) { engine_->Shrink(a.num_blocks, a.whole); }
  void Do(EndRing& a) { engine_->BreakRing(a.epoch, a.why); }
  void Do(GrowCache& a) { engine_->Grow(a.num_blocks); }
  void Do(RefuseRequests& a) { engine_->Lose(a.why); }
  void Do(AwaitRing& a) { engine_->Await(a.why, a.crashed, a.replicated, a.since); }
  void Do(AnswerCaller&) {}  // when all the others are done
  void Do(RecordPlan& a) { board_.Record(std::move(a.record)); }
  void Do(RecordEvent& a) { board_.Record(std::move(a.event)); }
  void Do(KeepRecord& a) {
    if (options_.on_record) options_.on_record(a.record);
  }
  void Do(WriteLog& a) { LogLine(a.level, a.line); }
  void Do(ShowProgress& a);
  void Do(ProbeLinks& a) { controls_.at(a.member)->Probe(a.peers); }
  void Do(CheckLife& a);
  void Do(ProbeFromHere& a) { prober_(std::move(a.peers)); }
  void Answer(uint64_t ask, StatusOr<ChangeReport> answer);
  std::function<void(UnitList)> ToDrained(Epoch epoch);

  ClusterOptions options_;
  const bool own_clock_;
  Engine* engine_ = nullptr;
  std::function<void(std::vector<WeightSource>)> prober_;  // the cluster's thread
  RingPort* port_ = nullptr;
  std::atomic<bool> stopping_{false};
  Inbox<Event> inbox_;
  std::thread thread_;

  // Owned by the loop's thread.
  std::optional<ClusterState> state_;
  std::map<uint64_t, std::shared_ptr<StageControl>> controls_;  // by membership
  std::optional<Wiring> wiring_;
  std::optional<Epoch> wired_epoch_;  // its ends are wanted
  RingEnds ends_;
  std::weak_ptr<Link> first_link_;  // of the ring that the engine uses
  Deadline sampled_at_ = Deadline::min();

  StatusBoard board_;
  LifeChecks life_checks_{[this](const LifeChecks::Check& check) {
    Post([member = Membership{check.worker, check.member}](ClusterState& state, Deadline now) {
      return state.FoundGone(member, now);
    });
  }};
  Mutex mutex_;
  Status ended_ GYRE_GUARDED_BY(mutex_);  // why nothing is taken in any more
  MemberNames names_ GYRE_GUARDED_BY(mutex_);
  std::map<uint64_t, Done> asks_ GYRE_GUARDED_BY(mutex_);
  uint64_t next_ask_ GYRE_GUARDED_BY(mutex_) = 1;
};

// The cluster's main loop: what happened, then what is due.
void Cluster::Impl::Loop() {
  Carry(state_->Ticked(options_.now()));
  while (!stopping_) {
    const std::optional<Event> event = inbox_.Pop(WakeAt());
    if (stopping_) break;
    const Deadline now = options_.now();
    state_->SeeRing(engine_->progress());
    Carry(event ? (*event)(*state_, now) : state_->Ticked(now));
  }
}

Deadline Cluster::Impl::WakeAt() const {
  const Deadline next = state_->deadline();
  if (next == kNoDeadline) return kNoDeadline;
  const Duration left = next - options_.now();
  // A clock that is not this machine's may be put on at any time.
  return After(own_clock_ ? std::min<Duration>(left, std::chrono::milliseconds(10)) : left);
}

void Cluster::Impl::Carry(Actions actions) {
  for (ClusterAction& action : actions) std::visit([this](auto& a) { Do(a); }, action);
  Publish();
  // Last, so that who is told can see it.
  for (ClusterAction& action : actions) {
    if (auto* a = std::get_if<AnswerCaller>(&action)) Answer(a->ask, std::move(a->answer));
  }
}

void Cluster::Impl::Publish() {
  constexpr Duration kSample = std::chrono::milliseconds(250);
  const Deadline now = options_.now();
  if (now - kSample >= sampled_at_) {
    sampled_at_ = now;
    board_.CountTokens(now, engine_->stats().tokens_generated);
  }
  StatusBoard::News news{.status = state_->status(now),
                         .serving = state_->serving(),
                         .failures = state_->failures(),
                         .failure = state_->failure()};
  if (const auto link = first_link_.lock()) {
    news.status.first_hop = link->RoundTrip();
    news.status.first_hop_transport = link->transport();
  }
  board_.Show(std::move(news));
}

void Cluster::Impl::Do(ForgetMember& a) {
  const auto it = controls_.find(a.member.id);
  it->second->SetEventSink({});
  controls_.erase(it);
  MutexLock lock(&mutex_);
  names_.Free(a.member);
}

void Cluster::Impl::Do(WireEnds& a) {
  wired_epoch_ = a.plan.epoch;
  ends_ = {};
  wiring_->Start(a.plan);
}

void Cluster::Impl::Do(CancelWiring& a) {
  wiring_->Cancel(a.epoch);
  if (wired_epoch_ == a.epoch) wired_epoch_.reset();
  ends_ = {};
}

std::function<void(UnitList)> Cluster::Impl::ToDrained(Epoch epoch) {
  return [this, epoch](UnitList live) {
    Post(
        [epoch, live = std::move(live)](ClusterState& state, Deadline now) { return state.Drained(epoch, live, now); });
  };
}

void Cluster::Impl::Do(DrainEngine& a) { engine_->Drain(ToDrained(a.epoch)); }
void Cluster::Impl::Do(RestoreCache& a) { engine_->Restore(a.step, ToDrained(a.epoch)); }

void Cluster::Impl::Do(ResumeNewRing& a) {
  // No more links of the plans before are made.
  if (a.epoch.number > 1) wiring_->Cancel({.term = a.epoch.term, .number = a.epoch.number - 1});
  first_link_ = ends_.to_first;
  engine_->Resume(Ring{.epoch = a.epoch,
                       .stages = a.stages,
                       .prefill_matches_decode = a.prefill_matches_decode,
                       .cache_namespace = a.cache_namespace,
                       .restores = a.restores,
                       .missing = a.missing,
                       .step_floor = a.step_floor,
                       .own_member = a.own_member,
                       .to_first = std::move(ends_.to_first),
                       .from_last = std::move(ends_.from_last)});
  ends_ = {};
}

void Cluster::Impl::Do(CheckLife& a) {
  const StatusOr<RingAddress> address = ParseRingAddress(a.address);
  if (address.ok() && !address->tcp.empty()) life_checks_.Begin({a.worker, a.member, address->tcp});
}

void Cluster::Impl::Do(ShowProgress& a) {
  if (options_.progress && a.loaded.total > 0) options_.progress(a.loaded.done, a.loaded.total);
}

void Cluster::Impl::Answer(uint64_t ask, StatusOr<ChangeReport> answer) {
  Done done;
  {
    MutexLock lock(&mutex_);
    const auto it = asks_.find(ask);
    if (it == asks_.end()) return;
    done = std::move(it->second);
    asks_.erase(it);
  }
  done(std::move(answer));
}

// Nothing is taken in any more: everybody who waits is told.
void Cluster::Impl::End(const Status& why) {
  std::map<uint64_t, Done> asks;
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = why;
    asks.swap(asks_);
  }
  inbox_.Close();
  board_.End(why);
  for (auto& [id, done] : asks) done(why);
}

Status Cluster::Impl::Start(Engine* engine, RingPort* port) {
  engine_ = engine;
  port_ = port;
  state_.emplace(options_, port_->address());
  wiring_.emplace(port_, [this](Epoch epoch, RingEnds ends) {
    Post([this, epoch, ends = std::move(ends)](ClusterState& state, Deadline now) {
      if (wired_epoch_ == epoch) ends_ = ends;
      return state.Wired(epoch, ends.to_first_status, ends.from_last_status, now);
    });
  });
  GYRE_ASSIGN_OR_RETURN(thread_, StartThread("cluster", [this] {
                          // The edge of the thread: without it nothing changes any more, so requests end with a
                          // sentence.
                          try {
                            Loop();
                          } catch (const std::exception& e) {
                            const Status why = Internal("the cluster's thread ended: {}", e.what());
                            Log(LogLevel::kError, "{}", Message(why));
                            engine_->Lose(why);
                            ClusterStatus last = board_.Read(options_.now());
                            last.state = Message(why);
                            last.plan.reset();
                            board_.Show({.status = std::move(last), .serving = false, .failures = 0, .failure = why});
                            End(why);
                            if (options_.on_fatal) options_.on_fatal(why);
                          }
                        }));
  return absl::OkStatus();
}

void Cluster::Impl::Stop() {
  if (thread_.joinable()) {
    stopping_ = true;
    port_->Cancel({.term = options_.term, .number = UINT64_MAX});
    inbox_.Close();
    thread_.join();
    wiring_->Stop();
    // Their calls are not hung up here: the server's end tells the workers why.
    for (auto& [id, control] : controls_) control->SetEventSink([](const StageEvent&) {});
    controls_.clear();
  }
  End(Unavailable("the coordinator stops"));
}

StatusOr<Membership> Cluster::Impl::Join(MemberInfo info, std::shared_ptr<StageControl> control) {
  GYRE_RETURN_IF_ERROR(ClusterState::CheckMember(options_, info));
  // Under the lock, so that memberships of a name reach the state in the order of their ids.
  MutexLock lock(&mutex_);
  GYRE_RETURN_IF_ERROR(ended_);
  if (info.certified && names_.Taken(info.name, info.instance)) {
    return Unavailable("another process is attached as {}, whose name it has in its certificate", info.name);
  }
  const Membership member =
      info.certified ? names_.TakeExactly(info.name, info.instance) : names_.Take(info.name, info.instance);
  info.name = member.name;
  control->SetEventSink([this, id = member.id, name = member.name](const StageEvent& event) {
    if (const auto* trace = std::get_if<StageTrace>(&event.what)) {
      if (options_.tracer != nullptr) options_.tracer->AddSpans(name, trace->spans, trace->clock_error);
      return;
    }
    Post([id, event](ClusterState& state, Deadline now) { return state.Said(id, event, now); });
  });
  Post([this, info = std::move(info), control = std::move(control), id = member.id](ClusterState& state, Deadline now) {
    controls_[id] = control;
    return state.Joined(info, id, now);
  });
  return member;
}

void Cluster::Impl::Ask(Done done, const std::function<Event(uint64_t ask)>& event) {
  Status ended;
  {
    MutexLock lock(&mutex_);
    ended = ended_;
    if (ended.ok()) {
      const uint64_t ask = next_ask_++;
      asks_[ask] = std::move(done);
      return Post(event(ask));
    }
  }
  done(ended);
}

AskMode Cluster::Impl::Mode(bool dry_run) const {
  if (engine_ == nullptr) return {.dry_run = dry_run};  // nothing was started
  const SchedulerStats stats = engine_->stats().scheduler;
  AskMode mode{.dry_run = dry_run};
  for (int group = 0; group < kKvGroups; ++group) {
    const UnitStats& of = stats.memory[static_cast<size_t>(group)];
    mode.live[group] = of.units - of.available + of.kept;
  }
  return mode;
}

void Cluster::Impl::AskForTraces() {
  if (options_.tracer == nullptr || !options_.tracer->on()) return;
  Post([this](ClusterState&, Deadline) {
    for (auto& [id, control] : controls_) control->Trace(Clock::now());
    return Actions();
  });
}

Cluster::Cluster(ClusterOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Cluster::~Cluster() { impl_->Stop(); }
Status Cluster::Start(Engine* engine, RingPort* port) { return impl_->Start(engine, port); }
void Cluster::Stop() { impl_->Stop(); }
StatusOr<Membership> Cluster::Join(MemberInfo info, std::shared_ptr<StageControl> control) {
  return impl_->Join(std::move(info), std::move(control));
}
void Cluster::Leave(const Membership& member, const Status& why, bool crashed) {
  impl_->Post(
      [member, why, crashed](ClusterState& state, Deadline now) { return state.Left(member, why, now, crashed); });
}
void Cluster::Report(const std::string& name, const MemberLoad& load) { impl_->Report(name, load); }
void Cluster::SetProber(std::function<void(std::vector<WeightSource> peers)> prober) {
  impl_->SetProber(std::move(prober));
}
void Cluster::Probed(StageProbed probed) {
  impl_->Post([probed = std::move(probed)](ClusterState& state, Deadline now) { return state.Probed(probed, now); });
}
void Cluster::Detach(const Membership& member, uint64_t stream, const Status& why) {
  impl_->Post(
      [member, stream, why](ClusterState& state, Deadline now) { return state.Detached(member, stream, why, now); });
}
void Cluster::Reattach(const Membership& member, uint64_t stream) {
  impl_->Post([member, stream](ClusterState& state, Deadline now) { return state.Reattached(member, stream, now); });
}
void Cluster::WantsToLeave(const Membership& member) {
  impl_->Post([member](ClusterState& state, Deadline now) { return state.WantsToLeave(member, now); });
}
void Cluster::Remove(const std::string& name, Done done) {
  impl_->Ask(std::move(done), [&name](uint64_t ask) {
    return [name, ask](ClusterState& state, Deadline now) { return state.AskedToRemove(ask, name, now); };
  });
}
void Cluster::AskForTraces() { impl_->AskForTraces(); }
void Cluster::OnRingBroken(Epoch epoch, const Status& why) {
  impl_->Post([epoch, why](ClusterState& state, Deadline now) { return state.RingBroken(epoch, why, now); });
}
void Cluster::Resize(const std::string& text, Done done, bool dry_run) {
  impl_->Ask(std::move(done), [&text, mode = impl_->Mode(dry_run)](uint64_t ask) {
    return [text, ask, mode](ClusterState& state, Deadline now) { return state.AskedToResize(ask, text, now, mode); };
  });
}
void Cluster::ResizeCache(uint64_t tokens, Done done, bool dry_run) {
  impl_->Ask(std::move(done), [tokens, mode = impl_->Mode(dry_run)](uint64_t ask) {
    return [tokens, ask, mode](ClusterState& state, Deadline now) {
      return state.AskedToResizeCache(ask, tokens, now, mode);
    };
  });
}
void Cluster::TakeProposed(Done done, bool dry_run) {
  impl_->Ask(std::move(done), [mode = impl_->Mode(dry_run)](uint64_t ask) {
    return [ask, mode](ClusterState& state, Deadline now) { return state.AskedForProposed(ask, now, mode); };
  });
}
void Cluster::Drain(const std::string& name, Done done, bool dry_run) {
  impl_->Ask(std::move(done), [&name, mode = impl_->Mode(dry_run)](uint64_t ask) {
    return [name, ask, mode](ClusterState& state, Deadline now) { return state.AskedToDrain(ask, name, now, mode); };
  });
}
void Cluster::Undrain(const std::string& name, Done done) {
  impl_->Ask(std::move(done), [&name](uint64_t ask) {
    return [name, ask](ClusterState& state, Deadline now) { return state.AskedToUndrain(ask, name, now); };
  });
}
StatusOr<ChangeReport> Cluster::ResizeAndWait(const std::string& text) {
  auto answer = std::make_shared<std::promise<StatusOr<ChangeReport>>>();
  auto future = answer->get_future();
  Resize(text, [answer](StatusOr<ChangeReport> r) { answer->set_value(std::move(r)); });
  return future.get();
}
ClusterStatus Cluster::status() const { return impl_->status(); }
std::shared_ptr<void> Cluster::Subscribe(std::function<void()> changed) {
  return impl_->board().Subscribe(std::move(changed));
}
Status Cluster::WaitForPlan(Deadline deadline) { return impl_->board().WaitForPlan(deadline); }

}  // namespace gyre
