// Workers' reports of their work, loads and traces, as Gyre's types in both directions. For control_codec.cc, which
// has the messages around them. Pure functions, thread-safe.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/member_load.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

// Times of a steady clock are sent as nanoseconds since its beginning.
uint64_t NanosOf(Deadline at);
Deadline MomentOf(uint64_t nanos);

void EncodeLoad(const MemberLoad& load, v1::Heartbeat* out);
// Values out of range are brought into it; counts that are no valid histogram count as none.
MemberLoad DecodeLoad(const v1::Heartbeat& heartbeat);

void EncodeTrace(const StageTrace& trace, v1::Traced* out);
// kInvalidArgument: more than kMaxTraceSpans.
StatusOr<StageTrace> DecodeTrace(const v1::Traced& traced);

// A rate from outside: if it is not a number, negative or absurdly large, it counts as unknown.
double Rate(double per_second);
void EncodeProbed(const StageProbed& probed, v1::Probed* out);
// kInvalidArgument: more than kMaxLinkSpeeds, or an invalid name. Numbers are brought into range.
StatusOr<StageProbed> DecodeProbed(const v1::Probed& probed);

}  // namespace gyre
