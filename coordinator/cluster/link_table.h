// The links between members and to the coordinator, as they were measured, and whose links are measured next. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/measured.h"
#include "base/stage_control.h"
#include "coordinator/cluster/balance.h"

namespace gyre {

// A process is known by its member's name. kThisProcess is the coordinator's, where the local member is too. Not
// thread-safe.
class LinkTable {
 public:
  inline static const std::string kThisProcess;

  // `address`: of the coordinator's ring port; "" = nothing is measured. `timeout`: for an answer. A link that failed
  // is tried again after `again`.
  LinkTable(std::string address, Duration timeout, Duration again)
      : address_(std::move(address)), timeout_(timeout), again_(again) {}

  // From now on this process measures when asked.
  void CanMeasureHere() { measures_here_ = true; }
  // A member whose links can be measured.
  struct Peer {
    std::string name, address;
    bool measures = true;  // it may be asked to measure
  };
  // A process, and the peers to which it is to measure its links now.
  struct Order {
    std::string by;
    std::vector<WeightSource> peers;
  };
  // One process at a time measures. `there`: by their names. nullopt: nothing is to be measured now.
  std::optional<Order> Next(const std::vector<Peer>& there, Deadline now);
  // Whether an answer is waited for: soon more is known.
  bool Measuring(Deadline now) const;
  // The answer of a process. Returns the links that failed.
  std::vector<LinkSpeed> Answered(const std::string& by, const StageProbed& probed, Deadline now);
  // A member is gone: under its name another machine may come.
  void Forget(const std::string& name);

  // The links of a process, by the names of the others.
  const std::map<std::string, LinkSpeed>& From(const std::string& name) const;
  // The links of other processes to this member that failed: whose, and why. This process comes first.
  std::vector<std::pair<std::string, std::string>> FailuresTo(const std::string& name) const;
  HopSpeed Hop(const std::string& from, const std::string& to) const;

 private:
  // The links from one process.
  struct Links {
    std::map<std::string, LinkSpeed> found;
    std::map<std::string, Deadline> asked;  // when
    Deadline until{};                       // the time until which an answer is waited for
  };
  std::vector<WeightSource> Wanted(const std::string& by, const std::vector<Peer>& there, Deadline now);

  const std::string address_;
  const Duration timeout_, again_;
  bool measures_here_ = false;
  std::map<std::string, Links> links_;  // by process
};

}  // namespace gyre
