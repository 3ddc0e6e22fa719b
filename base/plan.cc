#include "base/plan.h"

#include <sys/random.h>

#include <set>

#include "fmt/format.h"

namespace gyre {

RingKey RandomRingKey() {
  RingKey key{};
  // getrandom never blocks once the kernel is up, and never returns less for so few bytes.
  [[maybe_unused]] const ssize_t n = getrandom(key.data(), key.size(), 0);
  return key;
}

Status Plan::Validate() const {
  if (!IsActivations(wire))
    return InvalidArgument("a plan with activations of {}, expected f32, f16 or q8", WireTypeName(wire));
  if (!IsTransportPreference(transport)) {
    return InvalidArgument("a plan with links over {}, expected one of {}", static_cast<int>(transport),
                           fmt::join(TransportPreferences(), ", "));
  }
  if (stages.empty()) return InvalidArgument("a plan has no stages");
  int next = 0;
  std::set<std::string> seen;
  for (size_t i = 0; i < stages.size(); ++i) {
    const StagePlan& s = stages[i];
    if (s.members.empty()) return InvalidArgument("stage {} has no worker", i);
    if (s.layers.size() <= 0) return InvalidArgument("{} has no layers", s.worker());
    if (s.layers.begin < 0 || s.layers.end > num_layers) {
      return InvalidArgument("{} of {} {} out of range: the model has layers 0-{}", LayersText(s.layers), s.worker(),
                             s.layers.size() == 1 ? "is" : "are", num_layers - 1);
    }
    if (s.layers.begin > next) {
      return InvalidArgument("nobody has {}: the ranges must cover 0-{} without a gap",
                             LayersText({next, s.layers.begin}), num_layers - 1);
    }
    if (s.layers.begin < next) {
      return InvalidArgument("{} of {} overlap{} the range before: each layer has one owner", LayersText(s.layers),
                             s.worker(), s.layers.size() == 1 ? "s" : "");
    }
    if (s.first != (i == 0) || s.last != (i + 1 == stages.size())) {
      return InvalidArgument("stage {} of {} has wrong first/last marks", i, stages.size());
    }
    if (!seen.insert(s.worker()).second) return InvalidArgument("{} stands in the plan twice", s.worker());
    next = s.layers.end;
  }
  if (next != num_layers) {
    return InvalidArgument("nobody has {}: the ranges must cover 0-{} without a gap", LayersText({next, num_layers}),
                           num_layers - 1);
  }
  return absl::OkStatus();
}

int Plan::StageOf(const std::string& worker) const {
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].worker() == worker) return static_cast<int>(i);
  }
  return -1;
}

const std::string& Plan::HopAddress(size_t hop) const {
  return hop < stages.size() ? stages[hop].members.front().address : coordinator_address;
}

std::vector<StagePlan> MakeStages(const std::vector<Assignment>& assignments) {
  std::vector<StagePlan> stages;
  for (size_t i = 0; i < assignments.size(); ++i) {
    const Assignment& a = assignments[i];
    stages.push_back({.layers = a.layers,
                      .first = i == 0,
                      .last = i + 1 == assignments.size(),
                      .members = {{.worker = a.worker, .address = a.address}}});
  }
  return stages;
}

std::string FormatRange(LayerRange range) {
  return range.size() == 1 ? fmt::format("{}", range.begin) : fmt::format("{}-{}", range.begin, range.end - 1);
}

std::string LayersText(LayerRange range) { return (range.size() == 1 ? "layer " : "layers ") + FormatRange(range); }

std::string FormatRanges(const Plan& plan) {
  std::string out;
  for (const StagePlan& s : plan.stages) {
    if (!out.empty()) out += ',';
    out += fmt::format("{}-{}", s.layers.begin, s.layers.end - 1);
  }
  return out;
}

std::string FormatNamedRanges(const Plan& plan) {
  std::string out;
  for (const StagePlan& s : plan.stages) {
    if (!out.empty()) out += ',';
    out += fmt::format("{}={}-{}", s.worker(), s.layers.begin, s.layers.end - 1);
  }
  return out;
}

}  // namespace gyre
