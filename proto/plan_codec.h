// The commands of a plan's change and their answers, as Gyre's types in both directions. For control_codec.cc, which
// has the messages around them. Pure functions, thread-safe.
#pragma once

#include "base/ids.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

void EncodeChange(const Change& change, v1::Change* out);
void EncodeDone(const StageDone& done, v1::ChangeDone* out);
// kInvalidArgument: the message says which field is wrong, and why.
StatusOr<Change> DecodeChange(const v1::Change& change);
StatusOr<StageDone> DecodeDone(const v1::ChangeDone& done);

}  // namespace gyre
