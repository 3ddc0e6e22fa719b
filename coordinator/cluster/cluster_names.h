// The names of living members: unique, and kept by a process that joins again.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/cluster/cluster_types.h"

namespace gyre {

// Not thread-safe.
class MemberNames {
 public:
  // `wanted`, or with -2, -3 behind it where that is taken. An instance (0: unknown) that has a name already keeps it,
  // and its membership before this one has ended.
  Membership Take(const std::string& wanted, uint64_t instance);
  // The name itself, which another membership of the same instance may have. REQUIRES: it is not Taken.
  Membership TakeExactly(const std::string& name, uint64_t instance);
  // Whether another instance than this one has the name.
  bool Taken(const std::string& name, uint64_t instance) const;
  // Nothing happens if another membership has the name by now.
  void Free(const Membership& member);

 private:
  struct Owner {
    uint64_t id = 0;
    uint64_t instance = 0;
  };
  std::map<std::string, Owner> owners_;
  uint64_t next_id_ = 1;
};

}  // namespace gyre
