// Plans and the stages that are prepared for them, as Gyre's types in both directions. For control_codec.cc, which has
// the messages around them. Pure functions, thread-safe.
#pragma once

#include "base/ids.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

void EncodePrepare(const PrepareRequest& request, v1::Prepare* out);
// `epoch`: the command's, and so the plan's. kInvalidArgument: the message says which field is wrong, and why.
StatusOr<PrepareRequest> DecodePrepare(const v1::Prepare& prepare, Epoch epoch);

}  // namespace gyre
