// Helpers of serve and worker: flags, identities and the log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "cli/log_setup.h"
#include "cli/model_source.h"
#include "identity/identity.h"

namespace gyre {

// Workers that join and leave are logged, unless GYRE_LOG says otherwise.
void TellMore();
// Parses "A-B", both ends included; the coordinator knows how many layers there are.
StatusOr<LayerRange> ParseLayerPreference(const std::string& text);
// Returns 0 for "".
StatusOr<uint64_t> ParseSizeFlag(const char* flag, const std::string& text);

// Checks an identity's files once a second, and when it is told to.
class IdentityWatch {
 public:
  // null: there is no identity.
  explicit IdentityWatch(IdentityFolder* identity) : identity_(identity) {
    if (identity_ != nullptr) CatchHangups();
  }
  void Look(bool now) {
    if (identity_ == nullptr || (!now && Clock::now() < next_)) return;
    next_ = After(std::chrono::seconds(1));
    identity_->Refresh(now);
  }

 private:
  IdentityFolder* const identity_;
  Deadline next_ = Clock::now();
};

// The identity in a folder, for a role. null: no folder is named.
StatusOr<std::shared_ptr<IdentityFolder>> OpenIdentity(const std::string& folder, Role role,
                                                       const std::string& revoked);
// The file of this machine's measured speeds, in the cache of models; "" if there is no cache.
std::string KeptSpeeds(const SourceOptions& source);

}  // namespace gyre
