#include "coordinator/cluster.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "base/inbox.h"
#include "base/log.h"
#include "base/mutex.h"

namespace gyre {

class Cluster::Impl {
 public:
  explicit Impl(ClusterOptions options) : options_(std::move(options)) {}

  void Start(Engine* engine, RingPort* port) {
    engine_ = engine;
    port_ = port;
    port_->SetKey(options_.term, options_.key);
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "cluster");
      Loop();
    });
  }
  void Stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    port_->Cancel({.term = options_.term, .number = UINT64_MAX});
    inbox_.Close();
    thread_.join();
    if (wiring_.joinable()) wiring_.join();
    for (auto& [name, m] : members_) m.control->SetEventSink({});
  }

  StatusOr<std::string> Join(MemberInfo info, std::shared_ptr<StageControl> control);
  void Leave(const std::string& name, const Status& why) {
    Post([this, name, why] { OnLeave(name, why); });
  }
  void Report(const std::string& name, const MemberLoad& load) {
    Post([this, name, load] {
      if (auto it = members_.find(name); it != members_.end()) it->second.load = load;
    });
  }
  void OnRingBroken(Epoch epoch, const Status& why) {
    Post([this, epoch, why] { OnBroken(epoch, why); });
  }
  void Resize(const std::string& text, Done done) {
    PostOr(done, [this, text, done] { OnResize(text, done); });
  }
  void Drain(const std::string& name, Done done) {
    PostOr(done, [this, name, done] { OnDrain(name, done); });
  }
  ClusterStatus status() const {
    MutexLock lock(&mutex_);
    return status_;
  }
  Status WaitForPlan(Deadline deadline) {
    MutexLock lock(&mutex_);
    const uint64_t failures = failures_;
    while (!serving_) {
      if (failures_ != failures) return failure_;
      if (!changed_.WaitUntil(&mutex_, deadline) && Clock::now() >= deadline) {
        return DeadlineExceeded("no plan yet: {}", status_.state);
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Member {
    MemberInfo info;
    std::shared_ptr<StageControl> control;
    uint64_t order = 0;  // of joining
    MemberLoad load;
  };
  // The plan change that is under way.
  struct Change {
    Plan plan;
    PlanChange transaction;
    Deadline started = Clock::now();
    Done done;
    bool automatic = false;  // nobody asked for it
    uint32_t num_blocks = 0;
    std::shared_ptr<Link> to_first, from_last;
    std::vector<std::shared_ptr<StageControl>> controls;  // of participants; a member may leave meanwhile
    std::map<std::string, StageControl*> by_name;
  };

  void Post(std::function<void()> event) { inbox_.Push(std::move(event)); }
  void PostOr(const Done& done, std::function<void()> event) {
    if (stopping_) return done(Unavailable("the coordinator stops"));
    Post(std::move(event));
  }

  void Loop();
  Deadline NextDeadline() const;
  void OnLeave(const std::string& name, const Status& why);
  void OnBroken(Epoch epoch, const Status& why);
  void OnResize(const std::string& text, const Done& done);
  void OnDrain(const std::string& name, const Done& done);
  Status Busy() const;

  void MaybePlan();
  Status Begin(std::vector<Assignment> assignments, Done done, bool automatic);
  PrepareRequest RequestFor(const Change& change, const std::string& worker) const;
  void WireEnds(const Plan& plan);
  void OnWired(Epoch epoch, StatusOr<std::unique_ptr<Link>> to_first, StatusOr<std::unique_ptr<Link>> from_last);
  void Apply(const PlanChange::Actions& actions);
  void MaybeFinish();
  void LosePlan(const Status& why);

  std::vector<PlanMember> PlanMembers(bool workers_only) const;
  std::vector<const Member*> ByOrder() const;
  void Publish();
  std::string Describe() const;

  const ClusterOptions options_;
  ModelSizes sizes_ = options_.sizes;          // its pages are of num_blocks_
  uint32_t num_blocks_ = options_.num_blocks;  // shrinks once, with the first plan over workers
  bool on_workers_ = false;                    // a plan over workers has served
  Engine* engine_ = nullptr;
  RingPort* port_ = nullptr;
  std::atomic<bool> stopping_{false};
  Inbox<std::function<void()>> inbox_;
  std::thread thread_, wiring_;

  // Owned by the loop's thread.
  std::map<std::string, Member> members_;
  std::optional<Plan> plan_;      // what runs
  std::unique_ptr<Change> change_;
  bool fallback_ = false;         // the plan is the local member's alone, until enough workers are there
  bool broken_ = false;           // the running plan's ring ended
  Deadline repair_at_ = kNoDeadline;
  Deadline retry_at_{};
  Status lost_;                   // why there is no plan any more
  uint64_t next_number_ = 1;
  ClusterStatus counts_;

  std::atomic<uint64_t> next_order_{1};
  mutable Mutex mutex_;
  CondVar changed_;
  ClusterStatus status_ GYRE_GUARDED_BY(mutex_);
  bool serving_ GYRE_GUARDED_BY(mutex_) = false;
  uint64_t failures_ GYRE_GUARDED_BY(mutex_) = 0;  // of first plans
  Status failure_ GYRE_GUARDED_BY(mutex_);
  std::map<std::string, int> names_ GYRE_GUARDED_BY(mutex_);  // of living members
};

// The cluster's main loop: what happened, then what is due.
void Cluster::Impl::Loop() {
  Publish();
  while (!stopping_) {
    std::optional<std::function<void()>> event = inbox_.Pop(NextDeadline());
    if (stopping_) break;
    if (event) (*event)();
    const Deadline now = Clock::now();
    if (change_ != nullptr) Apply(change_->transaction.OnTick(now));
    if (repair_at_ <= now && change_ == nullptr && plan_) {
      repair_at_ = kNoDeadline;
      std::vector<Assignment> same;
      for (const StagePlan& s : plan_->stages) same.push_back({s.worker(), s.members[0].address, s.layers});
      Log(LogLevel::kWarn, "repairing the ring of plan {}", plan_->epoch.number);
      if (const Status status = Begin(same, {}, true); !status.ok()) LosePlan(status);
    }
    MaybePlan();
    Publish();
  }
  if (change_ != nullptr && change_->done) change_->done(Unavailable("the coordinator stops"));
  change_ = nullptr;
}

Deadline Cluster::Impl::NextDeadline() const {
  Deadline next = repair_at_;
  if (change_ != nullptr) next = std::min(next, change_->transaction.deadline());
  if (change_ == nullptr && !plan_ && retry_at_ > Clock::now()) next = std::min(next, retry_at_);
  return next;
}

StatusOr<std::string> Cluster::Impl::Join(MemberInfo info, std::shared_ptr<StageControl> control) {
  if (info.model_hash != options_.model_hash) {
    return FailedPrecondition("{} has another model file (hash {:016x}, expected {:016x})", info.name, info.model_hash,
                              options_.model_hash);
  }
  if (!options_.isa.empty() && info.isa != options_.isa) {
    return FailedPrecondition("{} computes with {}, the cluster asks for {} (--bit-equal)", info.name, info.isa,
                              options_.isa);
  }
  if (!Has(info.wire_types, options_.wire)) {
    return FailedPrecondition("{} sends activations as {}, the cluster asks for {} ({})", info.name,
                              WireTypeNames(info.wire_types), WireTypeName(options_.wire),
                              options_.isa.empty() ? "--wire" : "--bit-equal");
  }
  if (info.wish && (info.wish->begin < 0 || info.wish->size() <= 0 || info.wish->end > sizes_.num_layers())) {
    return InvalidArgument("{} wants layers {}, the model has 0-{}", info.name, FormatRange(*info.wish),
                           sizes_.num_layers() - 1);
  }
  {
    MutexLock lock(&mutex_);
    std::string name = info.name.empty() ? "worker" : info.name;
    for (int i = 2; names_.count(name) > 0; ++i) name = fmt::format("{}-{}", info.name, i);
    names_[name] = 1;
    info.name = name;
  }
  const std::string name = info.name;
  const uint64_t order = next_order_++;
  // Whatever name the worker uses, its events carry the one that it has here.
  control->SetEventSink([this, name](StageEvent event) {
    event.worker = name;
    Post([this, event = std::move(event)] {
      if (change_ != nullptr) Apply(change_->transaction.OnEvent(event, Clock::now()));
    });
  });
  Post([this, info = std::move(info), control = std::move(control), order] {
    Log(LogLevel::kInfo, "{} joined from {}", info.name, info.host.empty() ? "this process" : info.host);
    members_[info.name] = {.info = info, .control = control, .order = order, .load = {}};
    retry_at_ = Clock::now();
  });
  return name;
}

void Cluster::Impl::OnLeave(const std::string& name, const Status& why) {
  const auto it = members_.find(name);
  if (it == members_.end()) return;
  Log(LogLevel::kWarn, "{} is gone: {}", name, Message(why));
  it->second.control->SetEventSink({});
  members_.erase(it);
  {
    MutexLock lock(&mutex_);
    names_.erase(name);
  }
  // After the decision the new plan says whether it is missed.
  const bool decided = change_ != nullptr && change_->transaction.decided();
  const int stage = plan_ && !decided ? plan_->StageOf(name) : -1;
  const LayerRange layers = stage >= 0 ? plan_->stages[static_cast<size_t>(stage)].layers : LayerRange{};
  if (change_ != nullptr) Apply(change_->transaction.OnLost(name, why, Clock::now()));
  if (stage >= 0) {
    LosePlan(Unavailable("worker {} with layers {} is gone: {}", name, FormatRange(layers), Message(why)));
  }
}

void Cluster::Impl::OnBroken(Epoch epoch, const Status& why) {
  if (!plan_ || plan_->epoch != epoch) return;
  broken_ = true;
  repair_at_ = After(options_.repair_grace);
  if (change_ != nullptr && !change_->transaction.decided()) {
    Apply(change_->transaction.OnLost("", Annotate(why, "the running ring broke"), Clock::now()));
  }
}

Status Cluster::Impl::Busy() const {
  if (change_ == nullptr) return absl::OkStatus();
  return FailedPrecondition("plan {} is being made ({}); try again when it is done", change_->plan.epoch.number,
                            ChangeStateName(change_->transaction.state()));
}

void Cluster::Impl::OnResize(const std::string& text, const Done& done) {
  if (const Status busy = Busy(); !busy.ok()) return done(busy);
  StatusOr<std::vector<Assignment>> assignments = ParseResize(text, sizes_, PlanMembers(false));
  if (!assignments.ok()) return done(assignments.status());
  if (const Status status = Begin(*std::move(assignments), done, false); !status.ok()) done(status);
}

void Cluster::Impl::OnDrain(const std::string& name, const Done& done) {
  if (const Status busy = Busy(); !busy.ok()) return done(busy);
  if (members_.count(name) == 0) return done(NotFound("no worker '{}'", name));
  if (!plan_ || plan_->StageOf(name) < 0) return done(FailedPrecondition("{} has no layers", name));
  std::vector<PlanMember> rest;
  for (const StagePlan& s : plan_->stages) {
    if (s.worker() != name) rest.push_back({.name = s.worker(), .address = s.members[0].address});
  }
  // The last one's layers go to those that wait, else to the local member.
  for (const PlanMember& m : PlanMembers(false)) {
    if (rest.empty() && m.name != name && plan_->StageOf(m.name) < 0) rest.push_back({.name = m.name, .address = m.address});
  }
  if (rest.empty()) return done(FailedPrecondition("{} is the only worker: nobody can take its layers", name));
  StatusOr<std::vector<Assignment>> assignments = BalanceLayers(sizes_, rest);
  if (!assignments.ok()) return done(assignments.status());
  if (const Status status = Begin(*std::move(assignments), done, false); !status.ok()) done(status);
}

std::vector<const Cluster::Impl::Member*> Cluster::Impl::ByOrder() const {
  std::vector<const Member*> out;
  for (const auto& [name, m] : members_) out.push_back(&m);
  std::sort(out.begin(), out.end(), [](const Member* a, const Member* b) { return a->order < b->order; });
  return out;
}

std::vector<PlanMember> Cluster::Impl::PlanMembers(bool workers_only) const {
  std::vector<PlanMember> out;
  for (const Member* m : ByOrder()) {
    if (workers_only && m->info.local) continue;
    out.push_back({.name = m->info.name,
                   .address = m->info.address,
                   .local = m->info.local,
                   .memory = m->info.memory,
                   .wish = m->info.wish});
  }
  return out;
}

// The first plan, or the next after a loss: over the workers when enough are there, else the local member alone.
void Cluster::Impl::MaybePlan() {
  if (change_ != nullptr || (plan_ && !fallback_) || broken_ || retry_at_ > Clock::now()) return;
  std::vector<PlanMember> workers = PlanMembers(true);
  const bool enough = !workers.empty() && static_cast<int>(workers.size()) >= options_.min_workers;
  if (plan_ && !enough) return;
  std::vector<PlanMember> chosen = workers;
  if (!enough) {
    chosen.clear();
    for (const PlanMember& m : PlanMembers(false)) {
      if (m.local && chosen.empty()) chosen.push_back(m);
    }
    if (chosen.empty()) {
      const Status missing = Unavailable("{}{} of {} workers have joined", lost_.ok() ? "" : Message(lost_) + "; ",
                                         workers.size(), options_.min_workers);
      retry_at_ = kNoDeadline;  // until somebody joins
      engine_->Lose(missing);
      return;
    }
  }
  chosen.resize(std::min(chosen.size(), sizes_.layers.size()));
  Status status;
  StatusOr<std::vector<Assignment>> assignments = BalanceLayers(sizes_, chosen);
  status = assignments.status();
  if (status.ok()) status = Begin(*std::move(assignments), {}, true);
  if (status.ok()) return;
  Log(LogLevel::kError, "no plan: {}", Message(status));
  retry_at_ = plan_ ? kNoDeadline : After(options_.retry);
  if (!plan_) engine_->Lose(status);
  MutexLock lock(&mutex_);
  ++failures_;
  failure_ = status;
  changed_.SignalAll();
}

Status Cluster::Impl::Begin(std::vector<Assignment> assignments, Done done, bool automatic) {
  Plan plan{.epoch = {.term = options_.term, .number = next_number_},
            .model = options_.model,
            .model_hash = options_.model_hash,
            .num_layers = sizes_.num_layers(),
            .coordinator_address = port_->address(),
            .key = options_.key,
            .wire = options_.wire,
            .stages = MakeStages(assignments)};
  GYRE_RETURN_IF_ERROR(plan.Validate());
  for (const StagePlan& s : plan.stages) {
    if (members_.count(s.worker()) == 0) return NotFound("no worker '{}'", s.worker());
  }
  const Plan* old = plan_ ? &*plan_ : nullptr;
  uint32_t blocks = num_blocks_;
  ModelSizes sizes = sizes_;
  auto local = [this](const StagePlan& stage) { return members_.at(stage.worker()).info.local; };
  if (automatic && !on_workers_ && !std::all_of(plan.stages.begin(), plan.stages.end(), local)) {
    // The first plan over workers decides how large the KV cache is: all that follow must hold it.
    blocks = FitBlocks(sizes_, PlanMembers(false), old, plan, num_blocks_);
    sizes.kv_per_layer = sizes.kv_per_layer / num_blocks_ * blocks;
  }
  if (blocks == 0) {  // not even a little: the refusal has the numbers
    blocks = num_blocks_;
    sizes = sizes_;
  }
  GYRE_RETURN_IF_ERROR(CheckMemory(sizes, PlanMembers(false), old, plan));
  if (blocks < num_blocks_) {
    Log(LogLevel::kWarn, "the KV cache is cut from {} to {} tokens: what the workers hold beside room for a resize",
        uint64_t{num_blocks_} * static_cast<uint64_t>(options_.block_size), uint64_t{blocks} * static_cast<uint64_t>(options_.block_size));
  }
  ++next_number_;
  std::map<std::string, Participant> participants;
  if (plan_) {
    for (const StagePlan& s : plan_->stages) participants[s.worker()].in_old = true;
  }
  for (const StagePlan& s : plan.stages) {
    Participant& p = participants[s.worker()];
    p.in_new = true;
    const int before = plan_ ? plan_->StageOf(s.worker()) : -1;
    const LayerRange had = before < 0 ? LayerRange{} : plan_->stages[static_cast<size_t>(before)].layers;
    p.copies = plan_ && (s.layers.begin < had.begin || s.layers.end > had.end);
  }
  std::vector<Participant> list;
  for (auto& [name, p] : participants) {
    p.worker = name;
    list.push_back(p);
  }
  change_ = std::make_unique<Change>(
      Change{.plan = plan,
             .transaction = PlanChange(plan.epoch, list, plan_.has_value() && !broken_, options_.timeouts),
             .done = std::move(done),
             .automatic = automatic,
             .num_blocks = blocks});
  for (const Participant& p : list) {
    const Member& m = members_.at(p.worker);
    change_->controls.push_back(m.control);
    change_->by_name[p.worker] = m.control.get();
  }
  Log(LogLevel::kInfo, "plan {}: preparing {}", plan.epoch.number, FormatRanges(plan));
  if (wiring_.joinable()) wiring_.join();
  wiring_ = std::thread([this, plan] { WireEnds(plan); });
  Apply(change_->transaction.Start(Clock::now()));
  return absl::OkStatus();
}

PrepareRequest Cluster::Impl::RequestFor(const Change& change, const std::string& worker) const {
  PrepareRequest request{.plan = change.plan,
                         .stage = change.plan.StageOf(worker),
                         .block_size = options_.block_size,
                         .num_blocks = change.num_blocks,
                         .kv_type = options_.kv_type,
                         .sources = {}};
  if (request.stage < 0 || !plan_) return request;
  // Where the pages of its new layers are now.
  const LayerRange range = change.plan.stages[static_cast<size_t>(request.stage)].layers;
  for (const StagePlan& s : plan_->stages) {
    const LayerRange common{std::max(range.begin, s.layers.begin), std::min(range.end, s.layers.end)};
    if (common.size() <= 0 || s.worker() == worker) continue;
    request.sources.push_back({.layers = common, .worker = s.worker(), .address = s.members[0].address});
  }
  return request;
}

void Cluster::Impl::WireEnds(const Plan& plan) {
  pthread_setname_np(pthread_self(), "wiring");
  const Deadline deadline = After(std::chrono::minutes(10));
  Hello hello{.role = LinkRole::kRing,
              .epoch = plan.epoch,
              .hop = static_cast<uint32_t>(plan.stages.size()),
              .model_hash = plan.model_hash,
              .key = plan.key,
              .from = "coordinator",
              .wire = plan.wire};
  auto from_last = std::async(std::launch::async, [this, hello, deadline] { return port_->Accept(hello, deadline); });
  hello.hop = 0;
  auto to_first = port_->Dial(plan.HopAddress(0), hello, deadline);
  if (!to_first.ok()) port_->Cancel(plan.epoch);
  auto last = std::make_shared<StatusOr<std::unique_ptr<Link>>>(from_last.get());
  auto first = std::make_shared<StatusOr<std::unique_ptr<Link>>>(std::move(to_first));
  Post([this, epoch = plan.epoch, first, last] { OnWired(epoch, std::move(*first), std::move(*last)); });
}

void Cluster::Impl::OnWired(Epoch epoch, StatusOr<std::unique_ptr<Link>> to_first,
                            StatusOr<std::unique_ptr<Link>> from_last) {
  if (change_ == nullptr || change_->plan.epoch != epoch) return;
  Status status = to_first.status();
  if (status.ok()) status = from_last.status();
  if (status.ok()) {
    change_->to_first = *std::move(to_first);
    change_->from_last = *std::move(from_last);
  }
  Apply(change_->transaction.OnWired(status, Clock::now()));
}

void Cluster::Impl::Apply(const PlanChange::Actions& actions) {
  for (const ChangeAction& a : actions) {
    StageControl* control = a.worker.empty() ? nullptr : change_->by_name.at(a.worker);
    const Epoch epoch = change_->plan.epoch;
    switch (a.kind) {
      case ChangeAction::kPrepare: control->Prepare(RequestFor(*change_, a.worker)); break;
      case ChangeAction::kMove: control->Move(epoch, a.blocks); break;
      case ChangeAction::kCommit: control->Commit(epoch); break;
      case ChangeAction::kRelease: control->Release(epoch); break;
      case ChangeAction::kAbort: control->Abort(epoch); break;
      case ChangeAction::kDrainEngine:
        engine_->Drain([this, epoch](std::vector<BlockId> live) {
          Post([this, epoch, live = std::move(live)] {
            if (change_ == nullptr || change_->plan.epoch != epoch) return;
            // A smaller cache forgets everything, so that nothing needs to move.
            const bool shrinks = change_->num_blocks < num_blocks_;
            Apply(change_->transaction.OnDrained(shrinks ? std::vector<BlockId>() : live, Clock::now()));
          });
        });
        break;
      case ChangeAction::kResumeOld: engine_->Resume(std::nullopt); break;
      case ChangeAction::kResumeNew:
        plan_ = change_->plan;
        broken_ = false;
        repair_at_ = kNoDeadline;
        lost_ = absl::OkStatus();
        if (change_->num_blocks < num_blocks_) {
          sizes_.kv_per_layer = sizes_.kv_per_layer / num_blocks_ * change_->num_blocks;
          num_blocks_ = change_->num_blocks;
          engine_->Shrink(num_blocks_);
        }
        on_workers_ = on_workers_ || std::any_of(plan_->stages.begin(), plan_->stages.end(), [this](const StagePlan& stage) {
                        const auto it = members_.find(stage.worker());
                        return it != members_.end() && !it->second.info.local;
                      });
        engine_->Resume(Ring{.epoch = epoch,
                             .stages = static_cast<uint32_t>(plan_->stages.size()),
                             .to_first = change_->to_first,
                             .from_last = change_->from_last});
        break;
    }
  }
  if (change_ != nullptr) MaybeFinish();
}

void Cluster::Impl::MaybeFinish() {
  const PlanChange& t = change_->transaction;
  if (options_.progress && !t.over() && t.progress().total > 0) options_.progress(t.progress().done, t.progress().total);
  if (!t.over()) return;
  const std::unique_ptr<Change> change = std::move(change_);
  const uint64_t number = change->plan.epoch.number;
  if (t.state() == ChangeState::kDone) {
    ++counts_.plans;
    fallback_ = plan_->stages.size() == 1 && members_.count(plan_->stages[0].worker()) > 0 &&
                members_.at(plan_->stages[0].worker()).info.local && change->automatic;
    const ChangeReport report{.epoch = change->plan.epoch,
                              .ranges = FormatRanges(change->plan),
                              .pages_moved = t.pages_moved(),
                              .last_pages = t.last_pages(),
                              .took = Clock::now() - change->started};
    counts_.last_change = report;
    Log(LogLevel::kInfo, "plan {} serves: {}; {} pages moved, {} in the pause", number, report.ranges,
        report.pages_moved, report.last_pages);
    Publish();  // who is told can see it
    if (change->done) change->done(report);
    return;
  }
  ++counts_.aborted;
  port_->Cancel(change->plan.epoch);
  Log(LogLevel::kWarn, "plan {} was {}: {}", number, ChangeStateName(t.state()), Message(t.status()));
  if (t.state() == ChangeState::kFaulted) {
    plan_ = change->plan;
    LosePlan(t.status());
  } else if (broken_ && change->automatic) {
    LosePlan(t.status());  // the ring could not be repaired
  } else if (t.drain_expired()) {
    // A step that does not land is a broken link of the old plan.
    broken_ = true;
    repair_at_ = Clock::now();
  }
  if (change->automatic) retry_at_ = After(options_.retry);
  Publish();
  if (change->done) change->done(t.status());
  MutexLock lock(&mutex_);
  ++failures_;
  failure_ = t.status();
  changed_.SignalAll();
}

void Cluster::Impl::LosePlan(const Status& why) {
  ++counts_.lost;
  lost_ = why;
  plan_.reset();
  broken_ = false;
  fallback_ = false;
  repair_at_ = kNoDeadline;
  retry_at_ = Clock::now();
  engine_->Lose(why);
}

std::string Cluster::Impl::Describe() const {
  if (change_ != nullptr) {
    return fmt::format("plan {}: {}", change_->plan.epoch.number, ChangeStateName(change_->transaction.state()));
  }
  if (broken_) return "the ring is being repaired";
  if (plan_) return "serving";
  if (!lost_.ok()) return Message(lost_);
  size_t workers = 0;
  for (const auto& [name, m] : members_) workers += m.info.local ? 0 : 1;
  return fmt::format("{} of {} workers have joined", workers, options_.min_workers);
}

void Cluster::Impl::Publish() {
  ClusterStatus s = counts_;
  s.plan = plan_;
  s.state = Describe();
  s.wire = options_.wire;
  for (const Member* m : ByOrder()) {
    MemberStatus member{.info = m->info, .load = m->load};
    const int stage = plan_ ? plan_->StageOf(m->info.name) : -1;
    if (stage >= 0) {
      member.layers = plan_->stages[static_cast<size_t>(stage)].layers;
      member.weight_bytes = RangeBytes(sizes_, *member.layers);
      member.kv_bytes = sizes_.kv_per_layer * static_cast<uint64_t>(member.layers->size());
    }
    s.members.push_back(std::move(member));
  }
  std::stable_sort(s.members.begin(), s.members.end(), [](const MemberStatus& a, const MemberStatus& b) {
    if (a.layers.has_value() != b.layers.has_value()) return a.layers.has_value();
    return a.layers && a.layers->begin < b.layers->begin;
  });
  MutexLock lock(&mutex_);
  status_ = std::move(s);
  serving_ = plan_.has_value() && !broken_;
  changed_.SignalAll();
}

Cluster::Cluster(ClusterOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Cluster::~Cluster() { impl_->Stop(); }
void Cluster::Start(Engine* engine, RingPort* port) { impl_->Start(engine, port); }
void Cluster::Stop() { impl_->Stop(); }
StatusOr<std::string> Cluster::Join(MemberInfo info, std::shared_ptr<StageControl> control) {
  return impl_->Join(std::move(info), std::move(control));
}
void Cluster::Leave(const std::string& name, const Status& why) { impl_->Leave(name, why); }
void Cluster::Report(const std::string& name, const MemberLoad& load) { impl_->Report(name, load); }
void Cluster::OnRingBroken(Epoch epoch, const Status& why) { impl_->OnRingBroken(epoch, why); }
void Cluster::Resize(const std::string& text, Done done) { impl_->Resize(text, std::move(done)); }
void Cluster::Drain(const std::string& name, Done done) { impl_->Drain(name, std::move(done)); }
StatusOr<ChangeReport> Cluster::ResizeAndWait(const std::string& text) {
  auto answer = std::make_shared<std::promise<StatusOr<ChangeReport>>>();
  auto future = answer->get_future();
  Resize(text, [answer](StatusOr<ChangeReport> r) { answer->set_value(std::move(r)); });
  try {
    return future.get();
  } catch (const std::future_error&) {  // stopped before it was its turn
    return Unavailable("the coordinator stops");
  }
}
ClusterStatus Cluster::status() const { return impl_->status(); }
Status Cluster::WaitForPlan(Deadline deadline) { return impl_->WaitForPlan(deadline); }

}  // namespace gyre
