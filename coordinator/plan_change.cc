#include "coordinator/plan_change.h"

#include <memory>
#include <string>
#include <vector>

#include "base/inbox.h"

namespace gyre {
namespace {

using Events = Inbox<StageEvent>;

// Collects one answer of type Want from each stage.
template <typename Want>
class Round {
 public:
  Round(const Plan& plan, std::span<StageControl* const> stages, Events& events, const PlanChangeOptions& options)
      : plan_(plan), stages_(stages), events_(events), options_(options), answered_(stages.size()),
        progress_(stages.size()) {}

  Status Wait() {
    for (size_t missing = stages_.size(); missing > 0;) {
      std::optional<StageEvent> event = events_.Pop(options_.deadline);
      if (!event) return DeadlineExceeded("plan {}: no answer from {}", plan_.epoch.number, Missing());
      if (event->epoch != plan_.epoch) continue;  // a late word about an older change
      const size_t stage = IndexOf(event->worker);
      if (stage == stages_.size()) continue;
      if (auto* fault = std::get_if<StageFault>(&event->what)) return Annotate(fault->status, event->worker);
      if (auto* progress = std::get_if<StageProgress>(&event->what)) Report(stage, *progress);
      if (std::holds_alternative<Want>(event->what) && !answered_[stage]) {
        answered_[stage] = true;
        --missing;
      }
    }
    return absl::OkStatus();
  }

 private:
  size_t IndexOf(const std::string& worker) const {
    size_t i = 0;
    while (i < stages_.size() && stages_[i]->name() != worker) ++i;
    return i;
  }
  void Report(size_t stage, const StageProgress& progress) {
    if (!options_.progress) return;
    progress_[stage] = progress;
    uint64_t done = 0, total = 0;
    for (const StageProgress& p : progress_) done += p.done, total += p.total;
    options_.progress(done, total);
  }
  std::string Missing() const {
    std::string names;
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (!answered_[i]) names += (names.empty() ? "" : ", ") + stages_[i]->name();
    }
    return names;
  }

  const Plan& plan_;
  std::span<StageControl* const> stages_;
  Events& events_;
  const PlanChangeOptions& options_;
  std::vector<bool> answered_;
  std::vector<StageProgress> progress_;
};

}  // namespace

Status ChangePlan(const Plan& plan, std::span<StageControl* const> stages, const PlanChangeOptions& options) {
  GYRE_RETURN_IF_ERROR(plan.Validate());
  if (stages.size() != plan.stages.size()) {
    return InvalidArgument("the plan has {} stages, {} workers were given", plan.stages.size(), stages.size());
  }
  // Shared with the sinks: a late event may come after this call has returned.
  auto events = std::make_shared<Events>();
  for (StageControl* stage : stages) stage->SetEventSink([events](StageEvent e) { events->Push(std::move(e)); });
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i]->Prepare({.plan = plan,
                        .stage = static_cast<int>(i),
                        .block_size = options.block_size,
                        .num_blocks = options.num_blocks,
                        .kv_type = options.kv_type});
  }
  Status status = Round<StageReady>(plan, stages, *events, options).Wait();
  if (!status.ok()) {
    for (StageControl* stage : stages) stage->Abort(plan.epoch);
    return status;
  }
  for (StageControl* stage : stages) stage->Commit(plan.epoch);
  return Round<StageCommitted>(plan, stages, *events, options).Wait();
}

}  // namespace gyre
