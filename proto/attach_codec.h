// What a worker and its coordinator tell each other until the worker is attached, as Gyre's types in both directions:
// hellos and welcomes, for control_codec.cc, which has the messages around them. attach_codec.cc has the answers to
// Info and Weights too. Pure functions, thread-safe.
#pragma once

#include "base/status.h"
#include "gyre/v1/cluster.pb.h"
#include "proto/control_codec.h"

namespace gyre {

void EncodeHello(const WorkerHello& hello, v1::WorkerHello* out);
// kFailedPrecondition: another protocol. kInvalidArgument: the message says which field is wrong, and why.
StatusOr<WorkerHello> DecodeHello(const v1::WorkerHello& hello);

void EncodeWelcome(const Welcome& welcome, v1::Welcome* out);
StatusOr<Welcome> DecodeWelcome(const v1::Welcome& welcome);

}  // namespace gyre
