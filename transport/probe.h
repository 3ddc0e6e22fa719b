// A probe measures the link to another process: a few small frames there and back, then some bytes from there. It uses
// links for weights, which any two processes of a cluster may have: docs/wire.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/measured.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/ring_port.h"

namespace gyre {

// Limits on the cost of one measurement. The defaults keep it far below what a ring would notice.
struct ProbeLimits {
  Duration timeout = std::chrono::seconds(2);      // for the link, and for each answer
  Duration time = std::chrono::milliseconds(100);  // no more is asked for after so long
  uint64_t bytes = uint64_t{4} << 20;              // in all
  int round_trips = 5;                             // the shortest counts
};

// The most bytes in a frame of a probe's answer.
inline constexpr uint32_t kMaxProbeBytes = 1 << 20;

// Dials `address` with `hello`, and closes the link. On failure LinkSpeed::failure says why. Blocks for a few
// times limits.timeout at most.
LinkSpeed ProbeLink(RingPort& port, const std::string& address, const Hello& hello, const ProbeLimits& limits = {});

// The other end's part: answers one kProbe. kDataLoss: it asks for more than kMaxProbeBytes; errors of the link.
Status AnswerProbe(Link& link, const Frame& frame, Deadline deadline);

}  // namespace gyre
