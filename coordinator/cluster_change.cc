// How a plan comes to be: chosen and begun, wired, carried through with the workers, finished or given up, and lost.
#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/log.h"
#include "coordinator/cluster_state.h"

namespace gyre {

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
        uint64_t{num_blocks_} * static_cast<uint64_t>(options_.block_size),
        uint64_t{blocks} * static_cast<uint64_t>(options_.block_size));
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
        on_workers_ =
            on_workers_ || std::any_of(plan_->stages.begin(), plan_->stages.end(), [this](const StagePlan& stage) {
              const auto it = members_.find(stage.worker());
              return it != members_.end() && !it->second.info.local;
            });
        const bool prefill_matches_decode =
            options_.exact || std::all_of(plan_->stages.begin(), plan_->stages.end(), [this](const StagePlan& stage) {
              const auto it = members_.find(stage.worker());
              return it != members_.end() && it->second.info.prefill_matches_decode;
            });
        engine_->Resume(Ring{.epoch = epoch,
                             .stages = static_cast<uint32_t>(plan_->stages.size()),
                             .prefill_matches_decode = prefill_matches_decode,
                             .to_first = change_->to_first,
                             .from_last = change_->from_last});
        break;
    }
  }
  if (change_ != nullptr) MaybeFinish();
}

void Cluster::Impl::MaybeFinish() {
  const PlanChange& t = change_->transaction;
  if (options_.progress && !t.over() && t.progress().total > 0)
    options_.progress(t.progress().done, t.progress().total);
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

}  // namespace gyre
