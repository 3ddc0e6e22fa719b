#include "coordinator/cluster/speeds.h"

namespace gyre {

Balance Speeds::BalanceOf(const std::vector<PlanMember>& members, const Roster& roster, const ModelSizes& sizes) const {
  Balance b{.sizes = sizes, .rows = rows_, .row_bytes = row_bytes_, .members = {}, .hops = {}};
  std::vector<std::string> processes;
  for (const PlanMember& m : members) {
    const MemberInfo& info = roster.At(m.name).info;
    processes.push_back(info.local ? LinkTable::kThisProcess : m.name);
    b.members.push_back({.member = m, .speed = info.speed, .slowdown = slowdowns_.Rounded(m.name)});
  }
  FillUnknown(&b.members);
  processes.push_back(LinkTable::kThisProcess);
  for (const std::string& from : processes) {
    b.hops.emplace_back();
    for (const std::string& to : processes) b.hops.back().push_back(links_.Hop(from, to));
  }
  return b;
}

void Speeds::Observe(const std::vector<PlanMember>& members, const std::vector<RingStage>& stages, const Roster& roster,
                     const ModelSizes& sizes, Deadline now) {
  std::vector<Slowdowns::Stage> reports;
  for (const RingStage& s : stages) {
    const std::string& name = members[s.member].name;
    reports.push_back({name, roster.At(name).report.load});
  }
  const auto predict = [&](double rows) {
    Balance b = BalanceOf(members, roster, sizes);
    b.rows = rows;
    for (RatedMember& m : b.members) m.slowdown = 1, m.member.memory = 0;
    return TimeOf(b, stages).stages;
  };
  slowdowns_.Observe(reports, predict, now);
}

}  // namespace gyre
