// The addresses of a cluster's coordinators for a worker or a client: one of them leads, the others stand by.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace grpc {
class ClientContext;
}

namespace gyre {

// The trailer in which a coordinator that stands by names the leader; empty: it knows none.
constexpr char kLeaderTrailer[] = "gyre-leader";

// The order in which coordinators are asked: the last leader, then the others in turn. Pure; not thread-safe.
class Coordinators {
 public:
  // "HOST:PORT[,HOST:PORT...]". kInvalidArgument: one of them is no address.
  static StatusOr<Coordinators> Parse(const std::string& text);

  const std::string& current() const { return current_; }
  bool several() const { return all_.size() > 1; }
  // The current one leads: the next search begins with it.
  void Found();
  // The current one does not lead, or is not there. `leader`: the one that it named, "" = none; it is asked next, once
  // a round, as two of them may name each other. False: all were asked, so the caller waits before the next round.
  bool Next(const std::string& leader);

 private:
  std::vector<std::string> all_;
  std::string current_;
  size_t at_ = 0;          // of the list, asked last
  size_t left_ = 0;        // not asked in this round
  bool followed_ = false;  // a name in this round
};

// Valid after the call's end.
struct LeaderAnswer {
  bool stands_by = false;
  std::string leader;  // "" = it knows none
};
LeaderAnswer ReadLeader(const grpc::ClientContext& context);

}  // namespace gyre
