// A ring in this process as a Target.
#pragma once

#include <memory>
#include <string>

#include "client/target.h"
#include "runtime/runtime.h"

namespace gyre {

// `version` is Gyre's, for its status.
std::unique_ptr<Target> MakeLocalTarget(std::unique_ptr<Runtime> runtime, const std::string& version);

}  // namespace gyre
