#include "worker/node_membership.h"

#include <algorithm>
#include <utility>

namespace gyre {
namespace {

// The time for which a worker without its coordinator keeps its stage: the coordinator may take it up again. One with a
// state may be started again, which takes longer (NodeOptions::orphan_timeout).
constexpr auto kKeepStage = std::chrono::seconds(5);

}  // namespace

NodeMembership::Meeting NodeMembership::Meet(const ClusterFacts& facts) {
  cluster_ = facts.cluster_id;
  if (!current_ || current_->term == facts.term) return Meeting::kMayJoin;
  if (current_->cluster == 0 || current_->cluster != facts.cluster_id) return Meeting::kOtherCluster;
  return facts.term < current_->term ? Meeting::kReplaced : Meeting::kSuccessor;
}

bool NodeMembership::AwaitSuccessor() { return !std::exchange(current_->awaits_successor, true); }

void NodeMembership::Received(uint64_t number) {
  if (current_) current_->received = std::max(current_->received, number);
}

bool NodeMembership::RunsOut(Deadline now, Duration orphan_timeout) const {
  return current_ && now - detached_at_ > (current_->cluster != 0 ? orphan_timeout : Duration(kKeepStage));
}

}  // namespace gyre
