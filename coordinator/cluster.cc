#include "coordinator/cluster.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/log.h"
#include "coordinator/cluster_state.h"

namespace gyre {

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

void Cluster::Impl::Start(Engine* engine, RingPort* port) {
  engine_ = engine;
  port_ = port;
  port_->SetKey(options_.term, options_.key);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "cluster");
    Loop();
  });
}

void Cluster::Impl::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  port_->Cancel({.term = options_.term, .number = UINT64_MAX});
  inbox_.Close();
  thread_.join();
  if (wiring_.joinable()) wiring_.join();
  for (auto& [name, m] : members_) m.control->SetEventSink({});
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

void Cluster::Impl::Leave(const std::string& name, const Status& why) {
  Post([this, name, why] { OnLeave(name, why); });
}

void Cluster::Impl::Report(const std::string& name, const MemberLoad& load) {
  Post([this, name, load] {
    if (auto it = members_.find(name); it != members_.end()) it->second.load = load;
  });
}

void Cluster::Impl::OnRingBroken(Epoch epoch, const Status& why) {
  Post([this, epoch, why] { OnBroken(epoch, why); });
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

void Cluster::Impl::PostOr(const Done& done, std::function<void()> event) {
  if (stopping_) return done(Unavailable("the coordinator stops"));
  Post(std::move(event));
}

void Cluster::Impl::Resize(const std::string& text, Done done) {
  PostOr(done, [this, text, done] { OnResize(text, done); });
}

void Cluster::Impl::Drain(const std::string& name, Done done) {
  PostOr(done, [this, name, done] { OnDrain(name, done); });
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
    if (rest.empty() && m.name != name && plan_->StageOf(m.name) < 0)
      rest.push_back({.name = m.name, .address = m.address});
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

ClusterStatus Cluster::Impl::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

Status Cluster::Impl::WaitForPlan(Deadline deadline) {
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
