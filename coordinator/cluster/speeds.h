// What was measured of machines and links, as the input of the search for the fastest ring. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cluster/balance.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/link_table.h"
#include "coordinator/cluster/roster.h"
#include "coordinator/cluster/slowdowns.h"

namespace gyre {

// Not thread-safe.
class Speeds {
 public:
  // `ring_address`: of the coordinator's ring port.
  Speeds(const ClusterPolicy& policy, const std::string& ring_address)
      : rows_(policy.rows),
        row_bytes_(policy.row_bytes),
        links_(ring_address, policy.probe_answer, policy.probe_again),
        slowdowns_(policy.observe) {}

  LinkTable& links() { return links_; }
  const LinkTable& links() const { return links_; }
  Slowdowns& slowdowns() { return slowdowns_; }
  const Slowdowns& slowdowns() const { return slowdowns_; }
  void Forget(const std::string& member) {
    links_.Forget(member);
    slowdowns_.Forget(member);
  }

  // REQUIRES: the members are in the roster.
  Balance BalanceOf(const std::vector<PlanMember>& members, const Roster& roster, const ModelSizes& sizes) const;
  // Notes how long the steps of a ring took, compared with the measured speeds. `stages`: of these members, who are all
  // that have layers, in ring order.
  void Observe(const std::vector<PlanMember>& members, const std::vector<RingStage>& stages, const Roster& roster,
               const ModelSizes& sizes, Deadline now);

 private:
  const double rows_, row_bytes_;
  LinkTable links_;
  Slowdowns slowdowns_;
};

}  // namespace gyre
