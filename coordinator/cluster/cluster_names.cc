#include "coordinator/cluster/cluster_names.h"

#include "identity/principal.h"

namespace gyre {

Membership MemberNames::Take(const std::string& wanted, uint64_t instance) {
  const uint64_t id = next_id_++;
  for (auto& [name, owner] : owners_) {
    if (instance == 0 || owner.instance != instance) continue;
    owner.id = id;
    return {name, id};
  }
  const std::string base = wanted.empty() ? "worker" : wanted;
  std::string name = base;
  for (int i = 2; owners_.count(name) > 0; ++i) {
    const std::string number = fmt::format("-{}", i);
    // A name that is too long would be refused by everybody who hears it.
    name = base.substr(0, kLongestName - number.size()) + number;
  }
  owners_[name] = {id, instance};
  return {name, id};
}

Membership MemberNames::TakeExactly(const std::string& name, uint64_t instance) {
  const uint64_t id = next_id_++;
  owners_[name] = {id, instance};
  return {name, id};
}

bool MemberNames::Taken(const std::string& name, uint64_t instance) const {
  const auto it = owners_.find(name);
  return it != owners_.end() && (instance == 0 || it->second.instance != instance);
}

void MemberNames::Free(const Membership& member) {
  const auto it = owners_.find(member.name);
  if (it != owners_.end() && it->second.id == member.id) owners_.erase(it);
}

}  // namespace gyre
