#include "base/plan.h"

namespace gyre {

Status Plan::Validate() const {
  if (stages.empty()) return InvalidArgument("a plan has no stages");
  int next = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const StagePlan& s = stages[i];
    if (s.layers.begin != next) {
      return InvalidArgument("stage {} begins at layer {}, expected {}: ranges must tile 0-{} without gap or overlap",
                             i, s.layers.begin, next, num_layers - 1);
    }
    if (s.layers.size() <= 0) return InvalidArgument("stage {} has no layers", i);
    if (s.members.empty()) return InvalidArgument("stage {} has no worker", i);
    if (s.first != (i == 0) || s.last != (i + 1 == stages.size())) {
      return InvalidArgument("stage {} of {} has wrong first/last marks", i, stages.size());
    }
    next = s.layers.end;
  }
  if (next != num_layers) {
    return InvalidArgument("the plan ends at layer {}, the model has layers 0-{}", next - 1, num_layers - 1);
  }
  return absl::OkStatus();
}

StatusOr<Plan> EvenPlan(Epoch epoch, uint32_t model, int num_layers, const std::vector<std::string>& names) {
  const int n = static_cast<int>(names.size());
  if (n < 1) return InvalidArgument("a plan needs at least one stage");
  if (n > num_layers) return InvalidArgument("{} stages asked for, but the model has only {} layers", n, num_layers);
  Plan plan{.epoch = epoch, .model = model, .num_layers = num_layers, .stages = {}};
  int begin = 0;
  for (int i = 0; i < n; ++i) {
    const int size = num_layers / n + (i < num_layers % n ? 1 : 0);
    plan.stages.push_back({.layers = {begin, begin + size},
                           .first = i == 0,
                           .last = i == n - 1,
                           .members = {{.worker = names[static_cast<size_t>(i)]}}});
    begin += size;
  }
  return plan;
}

std::string FormatRanges(const Plan& plan) {
  std::string out;
  for (const StagePlan& s : plan.stages) {
    if (!out.empty()) out += ',';
    out += fmt::format("{}-{}", s.layers.begin, s.layers.end - 1);
  }
  return out;
}

}  // namespace gyre
