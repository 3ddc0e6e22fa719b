// The choice of a plan, its beginning, and plans without members because of which a plan failed.
#include <algorithm>
#include <utility>

#include "coordinator/cluster_state.h"

namespace gyre {

// Whether the member holds layers, but of no plan that runs.
bool ClusterState::IsStale(const Member& m) const {
  return (m.holds.size() > 0 || m.late_commit) && !(plan_ && plan_->StageOf(m.info.name) >= 0);
}

std::vector<PlanMember> ClusterState::PlanMembers(bool with_stale) const {
  std::vector<PlanMember> out;
  for (const Member* m : ByOrder()) {
    LayerRange holds = m->holds;
    // It runs these or those: a commit is under way, or an abort was faster.
    if (m->late_commit && m->late_commit->layers.size() > 0) {
      const LayerRange& late = m->late_commit->layers;
      holds = holds.size() > 0 ? LayerRange{std::min(holds.begin, late.begin), std::max(holds.end, late.end)} : late;
    }
    out.push_back({.name = m->info.name,
                   .address = m->info.address,
                   .local = m->info.local,
                   .drained = drained_.count(m->info.name) > 0 || m->leaving,
                   .memory = m->info.memory,
                   .wish = m->info.wish,
                   .holds = with_stale || !IsStale(*m) ? holds : LayerRange{},
                   .mirrors = kept_ ? MirroredBy(kept_->plan, m->info.name) : LayerRange{},
                   .held = sizes_.counts,
                   .disk = m->info.disk});
  }
  return out;
}

// The first plan, or the next after a loss: over the workers and the local member when enough workers are there,
// otherwise over the local member alone.
void ClusterState::MaybePlan(Deadline now) {
  if (change_ != nullptr || broken_ || (plan_ && !fallback_) || now < retry_at_) return;
  if (adopt_ && Adopt(now)) return;
  // Until somebody joins, or one that is left out is tried again.
  retry_at_ = kNoDeadline;
  for (const auto& [name, m] : members_) {
    if (m.left_out_until > now) retry_at_ = std::min(retry_at_, m.left_out_until);
  }
  // A request that kills one worker after the other must not kill the coordinator too, if the workers hold the model.
  if (Suspicious(now) && PlanWorkers(now, false)) return;
  if (!PlanWorkers(now, true) && !plan_) PlanLocal(now);
}

// The names that the plan of the coordinator before is waiting for.
std::string ClusterState::Missing() const {
  std::string out;
  for (const ClusterRecord::Stage& s : adopt_->stages) {
    if (members_.count(s.worker) == 0) out += (out.empty() ? "" : ", ") + s.worker;
  }
  return out;
}

// The plan of the coordinator before, as a repair makes it again: the stages are there, and only links are new. True:
// it is on its way, or its members are waited for.
bool ClusterState::Adopt(Deadline now) {
  if (adopt_until_ == kNoDeadline) adopt_until_ = now + policy_.adopt_wait;
  const std::string missing = Missing();
  if (!missing.empty() && now < adopt_until_) return true;
  const ClusterRecord record = *std::exchange(adopt_, std::nullopt);
  if (!missing.empty()) {
    Log(LogLevel::kWarn, fmt::format("{} did not come back after the restart: the others go on", missing));
    return false;
  }
  std::vector<Assignment> same;
  for (const ClusterRecord::Stage& s : record.stages) {
    same.push_back({s.worker, members_.at(s.worker).info.address, s.layers});
  }
  DraftRules rules;
  if (record.num_blocks > 0) rules.num_blocks = record.num_blocks;
  const StatusOr<Draft> draft = MakeDraft(same, rules);
  Status refusal = draft.status();
  if (draft.ok() && !draft->shortages.empty()) refusal = draft->shortages[0].why;
  if (refusal.ok()) {
    // A worker may hold other layers, of a plan that was not stored any more, with pools as large as the stored ones.
    ModelSizes sizes = sizes_;
    sizes.counts = policy_.sizes.counts.Shrunk(draft->num_blocks);
    std::vector<PlanMember> members = PlanMembers();
    for (PlanMember& m : members) m.held = {};
    const std::vector<Shortage> held = FindShortages(sizes, members, draft->plan);
    if (!held.empty()) refusal = held[0].why;
  }
  if (!refusal.ok()) {
    Log(LogLevel::kWarn, fmt::format("the plan of before the restart can't be made again: {}", Message(refusal)));
    return false;
  }
  if (policy_.has_cache && record.plan != 0) {
    kept_ = Kept{.plan = draft->plan, .salt = SaltOf(draft->plan), .ids = {}, .taken_over = true};
    kept_->plan.epoch.number = record.plan;
    for (StagePlan& s : kept_->plan.stages) {
      s.mirrored_by.clear();
      kept_->ids[s.worker()] = members_.at(s.worker()).id;
    }
  }
  Begin(*draft, Why::kAutomatic, now);
  return true;
}

// True: a plan over workers is on its way.
bool ClusterState::PlanWorkers(Deadline now, bool with_local) {
  // The local member is the last, as it is for ranges without a name.
  std::vector<PlanMember> candidates;
  std::map<std::string, Status> left_out_before, too_small;
  for (bool local : {false, true}) {
    for (PlanMember& m : PlanMembers()) {
      Member& member = members_.at(m.name);
      if (m.local != local || (local && !with_local) || m.drained || member.left_out_until > now) continue;
      left_out_before[m.name] = std::exchange(member.left_out, absl::OkStatus());
      candidates.push_back(std::move(m));
    }
  }
  auto enough = [&] {
    const auto workers =
        std::count_if(candidates.begin(), candidates.end(), [](const PlanMember& m) { return !m.local; });
    // After a loss whoever is left goes on.
    return workers > 0 && (workers >= policy_.min_workers || (on_workers_ && !plan_));
  };
  bool done = false;
  while (!done && enough()) {
    const StatusOr<Draft> draft = DraftFor(candidates);
    if (!draft.ok()) {
      Log(LogLevel::kError, fmt::format("no plan: {}", Message(draft.status())));
      trouble_ = failure_ = draft.status();
      trouble_with_.clear();
      ++failures_;
      break;
    }
    // The local member wishes all layers.
    if (OnlyLocal(draft->plan)) break;
    if (MakeRoom(*draft, &candidates, &too_small)) continue;
    for (const Shortage& s : draft->held) {
      Member& m = members_.at(s.worker);
      StartDrop(m, now);
      retry_at_ = std::min(retry_at_, m.drop->until);
    }
    if (draft->held.empty()) Begin(*draft, Why::kAutomatic, now);
    done = true;
  }
  for (const auto& [name, why] : too_small) {
    members_.at(name).left_out = why;
    if (left_out_before[name] == why) continue;
    Log(LogLevel::kWarn, fmt::format("{} is left out: {}", name, Message(why)));
    if (!done) failure_ = why, ++failures_;
  }
  return done;
}

// The first automatic plan for `members`, of whom the last is the local one, if it is there. It is left out where the
// cache would be cut for its sake.
StatusOr<ClusterState::Draft> ClusterState::DraftFor(std::vector<PlanMember> members) const {
  members.resize(std::min(members.size(), sizes_.layers.size()));
  auto draft_of = [this](const std::vector<PlanMember>& chosen) -> StatusOr<Draft> {
    // After a loss the ring waits until the longest load is over.
    GYRE_ASSIGN_OR_RETURN(const std::vector<Assignment> assignments,
                          ShareLayers(on_workers_ && !plan_ ? OrderByHeld(sizes_, chosen) : chosen));
    return MakeDraft(assignments, {.automatic = true});
  };
  StatusOr<Draft> draft = draft_of(members);
  if (!draft.ok() || draft->num_blocks == num_blocks() || !members.back().local) return draft;
  members.pop_back();
  StatusOr<Draft> without = draft_of(members);
  const bool better = without.ok() && without->shortages.empty() && without->num_blocks > draft->num_blocks;
  return better ? without : draft;
}

// Takes the smallest of those that have too little memory off the list: the others may do without it. False: there is
// none.
bool ClusterState::MakeRoom(const Draft& draft, std::vector<PlanMember>* candidates,
                            std::map<std::string, Status>* too_small) {
  std::vector<Shortage> shortages = draft.shortages;
  for (const Shortage& s : draft.held) {
    const Member& m = members_.at(s.worker);
    if (m.drop && m.drop->failed) shortages.push_back(s);
  }
  if (shortages.empty()) return false;
  const auto least = std::min_element(shortages.begin(), shortages.end(),
                                      [](const Shortage& a, const Shortage& b) { return a.memory < b.memory; });
  (*too_small)[least->worker] = least->why;
  candidates->erase(std::find_if(candidates->begin(), candidates->end(),
                                 [&least](const PlanMember& m) { return m.name == least->worker; }));
  return true;
}

bool ClusterState::OnlyLocal(const Plan& plan) const {
  return std::all_of(plan.stages.begin(), plan.stages.end(),
                     [this](const StagePlan& s) { return members_.at(s.worker()).info.local; });
}

void ClusterState::PlanLocal(Deadline now) {
  for (PlanMember& m : PlanMembers()) {
    Member& member = members_.at(m.name);
    if (!m.local || m.drained || member.left_out_until > now) continue;
    m.wish.reset();  // it is for plans with others
    const StatusOr<std::vector<Assignment>> assignments = BalanceLayers(sizes_, {m});
    const StatusOr<Draft> draft =
        assignments.ok() ? MakeDraft(*assignments, {.automatic = true}) : assignments.status();
    const Status status = !draft.ok() ? draft.status() : draft->shortages.empty() ? Status() : draft->shortages[0].why;
    if (status.ok()) return Begin(*draft, Why::kAutomatic, now);
    member.left_out = status;
    if (std::exchange(local_refusal_, status) != status)
      Log(LogLevel::kWarn, fmt::format("no plan: {}", Message(status)));
    failure_ = status;
    ++failures_;
  }
}

void ClusterState::DismissMember(Member& m) {
  if (m.dismissed) return;
  m.dismissed = true;
  Do(TellMember{m.id, TellMember::kDismiss, {}});
  if (m.ask != 0) Answer(std::exchange(m.ask, 0), Unchanged());
}

// Members that leave give their layers away, all in one change, and are dismissed when they have none.
void ClusterState::LetLeave(Deadline now) {
  if (change_ != nullptr || broken_) return;
  bool holds_layers = false;
  for (auto& [name, m] : members_) {
    if (!m.leaving || m.dismissed) continue;
    if (plan_ && plan_->StageOf(name) >= 0) {
      holds_layers = true;
    } else {
      DismissMember(m);
    }
  }
  if (!holds_layers || now < leave_retry_at_) return;
  const StatusOr<std::vector<Assignment>> assignments = WithoutLeaving();
  const StatusOr<Draft> draft = assignments.ok() ? MakeDraft(*assignments, {.gives_away = true}) : assignments.status();
  Status refusal = draft.status();
  if (draft.ok() && !draft->shortages.empty()) refusal = draft->shortages[0].why;
  if (draft.ok() && !draft->held.empty()) refusal = draft->held[0].why;
  if (refusal.ok()) return Begin(*draft, Why::kLeaving, now);
  // Waiting would change nothing: the others go on as after a loss.
  for (auto& [name, m] : members_) {
    if (!m.leaving || m.dismissed) continue;
    Log(LogLevel::kWarn, fmt::format("{} leaves with its layers: {}", name, Message(refusal)));
    if (m.ask != 0) {
      m.leaving = false;
      Answer(std::exchange(m.ask, 0), refusal);
    } else {
      DismissMember(m);
    }
  }
}

// The same ranges with new links.
void ClusterState::Repair(Deadline now) {
  repair_at_ = kNoDeadline;
  std::vector<Assignment> same;
  for (const StagePlan& s : plan_->stages) same.push_back({s.worker(), s.members[0].address, s.layers});
  Log(LogLevel::kWarn, fmt::format("repairing the ring of plan {}", plan_->epoch.number));
  const StatusOr<Draft> draft = MakeDraft(same, {});
  if (!draft.ok()) {
    retry_at_ = now;
    return LosePlan(Annotate(draft.status(), "the ring could not be repaired"), "");
  }
  Begin(*draft, Why::kRepair, now);
}

// The number for the present members.
uint32_t ClusterState::BlocksThatFit(const Plan& plan, const std::vector<PlanMember>& members, bool reserve) const {
  return std::min(num_blocks(), FitBlocks(policy_.sizes, members, plan, reserve));
}

StatusOr<ClusterState::Draft> ClusterState::MakeDraft(const std::vector<Assignment>& assignments,
                                                      const DraftRules& rules) const {
  Draft draft{.plan = EmptyPlan({.term = policy_.term, .number = next_number_}),
              .num_blocks = std::min(num_blocks(), rules.num_blocks)};
  Plan& plan = draft.plan;
  plan.stages = MakeStages(assignments);
  GYRE_RETURN_IF_ERROR(plan.Validate());
  for (const StagePlan& s : plan.stages) {
    if (members_.count(s.worker()) == 0) return NotFound("no worker '{}'", s.worker());
  }
  SetMirrors(&plan);
  ModelSizes sizes = sizes_;
  const bool first = !on_workers_ && !OnlyLocal(plan);
  // After a loss nothing is in the cache, so it may be cut to what the survivors hold.
  const bool recovers = served_ && !plan_ && !FindShortages(sizes_, PlanMembers(false), plan).empty();
  if (rules.automatic && (first || recovers)) {
    // The first plan over workers decides how large the KV cache is: all that follow must hold it. Where not even one
    // block fits, the refusal has the numbers of the whole cache.
    uint32_t fit = BlocksThatFit(plan, PlanMembers(false), true);
    if (fit == 0 && recovers) fit = BlocksThatFit(plan, PlanMembers(false), false);
    if (fit != 0) draft.num_blocks = fit;
  }
  // The part by which the cache has grown for a member is given back when this member leaves.
  if (rules.gives_away && num_blocks() > least_blocks_ && !FindShortages(sizes_, PlanMembers(), plan).empty()) {
    const uint32_t fit = BlocksThatFit(plan, PlanMembers(), false);
    if (fit >= least_blocks_) draft.num_blocks = fit;
  }
  sizes.counts = policy_.sizes.counts.Shrunk(draft.num_blocks);
  draft.shortages = FindShortages(sizes, PlanMembers(false), plan);
  // The pages that a member holds of a lost plan have the old number.
  for (Shortage& s : FindShortages(sizes_, PlanMembers(true), plan)) {
    if (IsStale(members_.at(s.worker))) draft.held.push_back(std::move(s));
  }
  return draft;
}

Plan ClusterState::EmptyPlan(Epoch epoch) const {
  return {.epoch = epoch,
          .model = policy_.model,
          .model_hash = policy_.model_hash,
          .num_layers = sizes_.num_layers(),
          .coordinator_address = ring_address_,
          .wire = policy_.wire,
          .transport = policy_.transport,
          .stages = {}};
}

void ClusterState::Begin(const Draft& draft, Why why, Deadline now, const Wanted* wanted) {
  adopt_.reset();
  Plan plan = draft.plan;
  plan.epoch = NextEpoch();
  if (policy_.new_key) plan.key = policy_.new_key();
  if (draft.num_blocks < num_blocks()) {
    const auto block_size = static_cast<uint64_t>(policy_.block_size);
    Log(LogLevel::kWarn,
        fmt::format("the KV cache is cut from {} to {} tokens: what the workers hold beside room for a resize",
                    uint64_t{num_blocks()} * block_size, uint64_t{draft.num_blocks} * block_size));
  }
  std::set<std::string> survivors = ChooseRecall(draft, now);
  const bool recalls = !survivors.empty();
  // Only those that have something to give are waited for.
  std::set<std::string> sources;
  for (const StagePlan& s : plan.stages) {
    if (!recalls) break;
    const auto from = RecallSources(kept_->plan, s.layers, s.worker(), survivors);
    for (const LayerSource& source : *from) sources.insert(source.worker);
  }
  std::map<std::string, Participant> participants;
  if (plan_) {
    for (const StagePlan& s : plan_->stages) participants[s.worker()].in_old = true;
  } else if (recalls) {
    for (const std::string& name : sources) participants[name].in_old = true;
  }
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& s = plan.stages[i];
    const int before = plan_ ? plan_->StageOf(s.worker()) : -1;
    const LayerRange had = before < 0 ? LayerRange{} : plan_->stages[static_cast<size_t>(before)].layers;
    Participant& p = participants[s.worker()];
    p.stage = static_cast<int>(i);
    p.copies = plan_ && (s.layers.begin < had.begin || s.layers.end > had.end);
    if (recalls) p.copies = kept_->taken_over || !RecallSources(kept_->plan, s.layers, s.worker(), survivors)->empty();
  }
  std::vector<Participant> list;
  std::map<std::string, uint64_t> ids;
  for (auto& [name, p] : participants) {
    p.worker = name;
    list.push_back(p);
    Member& m = members_.at(name);
    ids[name] = m.id;
    m.drop.reset();  // what is prepared for it is replaced
  }
  change_ = std::make_unique<Change>(
      Change{.plan = plan,
             .transaction = PlanChange(plan.epoch, list, plan_.has_value() && !broken_, policy_.timeouts, recalls),
             .why = why,
             .ask = wanted == nullptr ? 0 : wanted->ask,
             .drains = wanted == nullptr ? "" : wanted->drains,
             .report = Preview(plan, draft.num_blocks, wanted == nullptr ? AskMode{} : wanted->mode),
             .started = now,
             .num_blocks = draft.num_blocks,
             .ids = std::move(ids),
             .survivors = std::move(survivors),
             .mirrored = {}});
  Log(LogLevel::kInfo, fmt::format("plan {}: preparing {}", plan.epoch.number, FormatRanges(plan)));
  Do(WireEnds{plan});
  Apply(change_->transaction.Start(now), now);
}

PrepareRequest ClusterState::RequestFor(const std::string& worker) const {
  const Plan& plan = change_->plan;
  const MemoryCounts& counts = policy_.sizes.counts;
  PrepareRequest request{.plan = plan,
                         .stage = plan.StageOf(worker),
                         .block_size = policy_.block_size,
                         .num_blocks = counts.num_blocks,
                         .num_slots = counts.num_slots,
                         .window_blocks = counts.window_blocks,
                         .fresh = change_->num_blocks < num_blocks(),
                         .kv_type = policy_.kv_type,
                         .sources = {}};
  if (request.stage >= 0) request.weight_sources = WeightSourcesFor(worker);
  if (change_->recalls()) request.recalls = kept_->plan.epoch.number;
  if (request.stage < 0 || (!plan_ && !change_->recalls()) || request.fresh) return request;
  // Where the pages of its new layers are now.
  const LayerRange range = plan.stages[static_cast<size_t>(request.stage)].layers;
  if (change_->recalls()) {
    request.sources = *RecallSources(kept_->plan, range, worker, change_->survivors);
    return request;
  }
  for (const StagePlan& s : plan_->stages) {
    const LayerRange common{std::max(range.begin, s.layers.begin), std::min(range.end, s.layers.end)};
    if (common.size() <= 0 || s.worker() == worker) continue;
    request.sources.push_back({.layers = common, .worker = s.worker(), .address = s.members[0].address});
  }
  return request;
}

// All that may have weights which this worker lacks: the coordinator, workers with the file, those that fetched some.
std::vector<WeightSource> ClusterState::WeightSourcesFor(const std::string& worker) const {
  std::vector<WeightSource> sources;
  if (!members_.at(worker).info.fetches) return sources;
  if (!ring_address_.empty()) sources.push_back({"coordinator", ring_address_});
  for (const auto& [name, m] : members_) {
    if (name == worker || m.info.local || m.info.address.empty()) continue;
    if (!m.info.fetches || m.holds.size() > 0) sources.push_back({name, m.info.address});
  }
  return sources;
}

// There is no command for it: a stage without layers takes the place of what the member holds.
void ClusterState::StartDrop(Member& m, Deadline now) {
  if (m.drop && !m.drop->failed) return;
  if (kept_ && !plan_ && kept_->ids.count(m.info.name) > 0) kept_.reset();  // its pages go
  const Epoch epoch = NextEpoch();
  const MemoryCounts& counts = policy_.sizes.counts;
  m.drop = Drop{.epoch = epoch, .until = now + policy_.timeouts.commit};
  Do(PrepareMember{m.id,
                   {.plan = EmptyPlan(epoch),
                    .stage = -1,
                    .block_size = policy_.block_size,
                    .num_blocks = counts.num_blocks,
                    .num_slots = counts.num_slots,
                    .window_blocks = counts.window_blocks,
                    .kv_type = policy_.kv_type,
                    .sources = {}}});
}

void ClusterState::OnDropEvent(Member& m, const StageEvent& event) {
  if (!m.drop || m.drop->epoch != event.epoch) return;
  if (std::holds_alternative<StageReady>(event.what)) Do(TellMember{m.id, TellMember::kCommit, event.epoch});
  if (std::holds_alternative<StageFault>(event.what)) m.drop->failed = true;
  if (std::holds_alternative<StageCommitted>(event.what)) {
    Do(TellMember{m.id, TellMember::kRelease, event.epoch});
    m.drop.reset();
    m.holds = {};
    m.late_commit.reset();
    retry_at_ = Deadline{};
  }
}

void ClusterState::LeaveOut(Member& m, const Status& why, Deadline now) {
  m.pause = m.pause == Duration{} ? policy_.leave_out : std::min(2 * m.pause, policy_.longest_pause);
  m.left_out = why;
  m.left_out_until = now + m.pause;
  Log(LogLevel::kWarn, fmt::format("{} is left out of plans for {} s: {}", m.info.name,
                                   std::chrono::duration_cast<std::chrono::seconds>(m.pause).count(), Message(why)));
}

}  // namespace gyre
