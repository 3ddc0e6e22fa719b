#include "proto/coordinators.h"

#include <grpcpp/client_context.h>

#include "base/host_port.h"

namespace gyre {

StatusOr<Coordinators> Coordinators::Parse(const std::string& text) {
  Coordinators out;
  GYRE_ASSIGN_OR_RETURN(out.all_, ParseAddresses(text));
  out.current_ = out.all_[0];
  out.left_ = out.all_.size() - 1;
  return out;
}

void Coordinators::Found() {
  followed_ = false;
  left_ = all_.size();
  // A coordinator that was named may be in the list; then it is not asked twice in the next round.
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i] != current_) continue;
    at_ = i;
    left_ = all_.size() - 1;
  }
}

bool Coordinators::Next(const std::string& leader) {
  if (!followed_ && leader != current_ && ParseHostPort(leader).ok()) {
    followed_ = true;
    current_ = leader;
    return true;
  }
  const bool round_is_over = left_ == 0;
  if (round_is_over) {
    left_ = all_.size();
    followed_ = false;
  }
  --left_;
  at_ = (at_ + 1) % all_.size();
  current_ = all_[at_];
  return !round_is_over;
}

LeaderAnswer ReadLeader(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(kLeaderTrailer);
  if (it == trailers.end()) return {};
  return {.stands_by = true, .leader = {it->second.data(), it->second.size()}};
}

}  // namespace gyre
