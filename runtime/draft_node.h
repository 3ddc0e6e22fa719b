// A worker's process that drafts: it has a small model and guesses tokens for a coordinator's texts
// (docs/speculation.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "identity/identity.h"
#include "kernels/device.h"
#include "model/weights.h"

namespace gyre {

struct DraftNodeOptions {
  std::string join;  // HOST:PORT of the coordinator, or of all that may lead, with commas
  std::shared_ptr<const Model> model;
  std::shared_ptr<Device> device;
  std::string name;                          // "" = its identity's, or the host's
  std::shared_ptr<IdentityFolder> identity;  // for TLS, and for its name; null = without
  std::string version;
  std::function<void(const std::string&)> say;  // lines for people: joined, lost, waiting
};

// Runs until `stopped` says so (looked at every 50 ms); OK then. Otherwise the sentence that makes it useless to try
// on: another vocabulary, a refusal. A coordinator that is not there is waited for.
Status RunDraftNode(const DraftNodeOptions& options, const std::function<bool()>& stopped);

}  // namespace gyre
