// The membership of a worker's process in a cluster: which coordinator may have the worker, what a new call takes up
// again, and for how long the stage is kept without a coordinator. Pure: facts and times come in. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "proto/control_codec.h"

namespace gyre {

class NodeMembership {
 public:
  // What a coordinator that was found is to this worker.
  enum class Meeting {
    kMayJoin,       // there is no membership, or it is this coordinator's
    kOtherCluster,  // the membership must End: what its predecessor gave the worker goes
    kSuccessor,     // it takes the place of the one before in the same cluster, and gets the stage
    kReplaced,      // another one, whose member this worker is, has taken its place
  };
  Meeting Meet(const ClusterFacts& facts);
  // The coordinator that was met last has welcomed this worker as a new member.
  void Begin(uint64_t term) { current_ = Membership{.term = term, .cluster = cluster_}; }
  void End() { current_.reset(); }
  // A successor is there: what follows is a new membership, with the stage of this one. False: it was known. REQUIRES:
  // active().
  bool AwaitSuccessor();
  // A command came in it.
  void Received(uint64_t number);
  // The call has ended.
  void Detach(Deadline now) { detached_at_ = now; }
  // Whether it has been without a call for too long. `orphan_timeout`: for a coordinator that may be started again.
  bool RunsOut(Deadline now, Duration orphan_timeout) const;

  bool active() const { return current_.has_value(); }
  // Whether its stage is kept for a successor.
  bool awaits_successor() const { return current_ && current_->awaits_successor; }
  uint64_t term() const { return current_ ? current_->term : 0; }
  // What the next hello reattaches to: the membership's term, and the number of the last command. 0: nothing.
  uint64_t resumes_term() const { return Resumes() ? current_->term : 0; }
  uint64_t received() const { return Resumes() ? current_->received : 0; }

 private:
  struct Membership {
    uint64_t term = 0;
    uint64_t received = 0;  // the number of the last command
    uint64_t cluster = 0;   // the id of a cluster whose coordinator has a state; 0 = it has none
    bool awaits_successor = false;
  };
  bool Resumes() const { return current_ && !current_->awaits_successor; }

  std::optional<Membership> current_;
  uint64_t cluster_ = 0;  // of the coordinator that was met last
  Deadline detached_at_{};
};

}  // namespace gyre
