// Workers' reports of their work, loads and traces, as Gyre's types in both directions. For control_codec.cc, which
// has the messages around them. Pure functions, thread-safe.
#pragma once

#include "base/member_load.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

void EncodeLoad(const MemberLoad& load, v1::Heartbeat* out);
// Values out of range are brought into it; a histogram that is not valid is read as an empty one.
MemberLoad DecodeLoad(const v1::Heartbeat& heartbeat);

void EncodeTrace(const StageTrace& trace, v1::Traced* out);
// kInvalidArgument: more than kMaxTraceSpans.
StatusOr<StageTrace> DecodeTrace(const v1::Traced& traced);

void EncodeProbed(const StageProbed& probed, v1::Probed* out);
// kInvalidArgument: more than kMaxLinkSpeeds, or an invalid name. Numbers are brought into range.
StatusOr<StageProbed> DecodeProbed(const v1::Probed& probed);

}  // namespace gyre
