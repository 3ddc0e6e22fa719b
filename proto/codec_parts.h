// What several messages of the control plane have in them, in both directions, with its bounds. Only for the codecs of
// this folder. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "base/transport.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

// These limits, and those of the codecs, are far beyond any cluster, and small enough that a hostile message costs
// little.
inline constexpr int kMostLayers = 1 << 16;

void EncodeRange(LayerRange range, v1::LayerRange* out);
LayerRange RangeOf(const v1::LayerRange& range);
// kInvalidArgument: not 0 <= begin <= end <= kMostLayers.
Status CheckLayers(const v1::LayerRange& range);

void EncodeEpoch(Epoch epoch, v1::Epoch* out);
Epoch EpochOf(const v1::Epoch& epoch);

// Used in both Prepare and Probe.
void EncodeSource(const WeightSource& source, v1::WeightSource* out);
StatusOr<WeightSource> DecodeSource(const v1::WeightSource& source);

// kInvalidArgument: a carrier that is unknown here.
StatusOr<Transport> DecodeTransport(uint32_t number);
// An address in a plan: "" for a member in the coordinator's process, ":PORT" for the host that the worker joined at.
Status CheckPlanAddress(const std::string& address);
// A text that goes to logs and terminals: printable ASCII only. `what`: its name in the message.
Status CheckPrintable(const char* what, const std::string& text, size_t most);

// Times of a steady clock are sent as nanoseconds since its beginning.
uint64_t NanosOf(Deadline at);
Deadline MomentOf(uint64_t nanos);

// A rate from outside: if it is not a number, negative or absurdly large, it counts as unknown.
double Rate(double per_second);

}  // namespace gyre
