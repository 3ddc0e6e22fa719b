#include "coordinator/cluster/explain_layers.h"

#include <algorithm>

#include "base/describe_bytes.h"
#include "fmt/format.h"

namespace gyre {
namespace {

// The reason is worked out for this number of members without layers at most, as each costs a search.
constexpr int kExplained = 4;

std::string GigaBytes(double per_second) { return fmt::format("{:.1f} GB/s", per_second / 1e9); }

}  // namespace

std::string MillisText(double seconds) { return fmt::format("{:.3g} ms", seconds * 1e3); }

std::map<std::string, LayersExplanation> ExplainLayers(const Balance& balance, const std::vector<RingStage>& now,
                                                       const std::vector<RingStage>& best, const Roster& roster,
                                                       const Speeds& speeds) {
  std::map<std::string, LayersExplanation> out;
  Balance here = balance;
  for (RatedMember& m : here.members) m.member.memory = m.member.disk = 0;
  const RingTime time = TimeOf(here, now);
  const double best_seconds = best.empty() ? kNever : TimeOf(balance, best).seconds;
  for (size_t i = 0; i < now.size() && i < time.stages.size(); ++i) {
    const RatedMember& r = balance.members[now[i].member];
    LayersExplanation& e = out[r.member.name];
    e.stage_seconds = time.stages[i];
    const bool known = !(roster.At(r.member.name).info.speed == MachineSpeed{});
    e.why = fmt::format("its {} {} {} of a step of {:.0f} rows: {:.1f} MiB at {}{}{}", LayersText(now[i].layers),
                        now[i].layers.size() == 1 ? "takes" : "take", MillisText(time.stages[i]), balance.rows,
                        static_cast<double>(RangeBytes(balance.sizes, now[i].layers)) / (1 << 20),
                        GigaBytes(r.speed.memory_bytes_per_second), known ? "" : " (taken to be as fast as the others)",
                        i == time.slowest ? "; it is the slowest stage" : "");
    const double slowdown = speeds.slowdowns().Of(r.member.name);
    if (slowdown > 0) e.why += fmt::format("; its steps take {:.2f} times what was measured for", slowdown);
  }
  int explained = 0;
  for (size_t i = 0; i < balance.members.size(); ++i) {
    const RatedMember& r = balance.members[i];
    const auto is_it = [i](const RingStage& s) { return s.member == i; };
    if (std::any_of(now.begin(), now.end(), is_it)) continue;
    LayersExplanation& e = out[r.member.name];
    const auto in_best = std::find_if(best.begin(), best.end(), is_it);
    if (in_best != best.end()) {
      e.why = fmt::format("it would have {} in the best plan, in which a step is expected every {}",
                          LayersText(in_best->layers), MillisText(best_seconds));
      continue;
    }
    if (++explained > kExplained) continue;
    for (const auto& [to, link] : speeds.links().From(r.member.name)) {
      if (!link.failure.empty()) e.why += fmt::format("it does not reach {}: {}; ", to, link.failure);
    }
    for (const auto& [by, failure] : speeds.links().FailuresTo(r.member.name)) {
      e.why += fmt::format("{} does not reach it: {}; ", by, failure);
    }
    Balance forced = balance;
    forced.members[i].must = true;
    const StatusOr<std::vector<RingStage>> with = BestRing(forced, now.size());
    if (with.ok()) {
      e.why += fmt::format("with it a step is expected every {} at best, and every {} without it",
                           MillisText(TimeOf(forced, *with).seconds), MillisText(best_seconds));
    } else if (r.member.memory != 0 || r.member.disk != 0) {
      e.why += "no plan has room for its share: it has ";
      if (r.member.memory != 0) e.why += DescribeBytes(r.member.memory) + " of memory";
      if (r.member.memory != 0 && r.member.disk != 0) e.why += " and ";
      if (r.member.disk != 0) e.why += fmt::format("room for {} of weights on its disk", DescribeBytes(r.member.disk));
    } else {
      e.why += "no plan with it can be made";
    }
  }
  return out;
}

}  // namespace gyre
