// The periodic report of a cluster member about its work.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/transport.h"

namespace gyre {

struct MemberLoad {
  double busy = 0;  // share of the time since the last report, 0 to 1
  uint64_t steps = 0;
  uint64_t resident_bytes = 0;
  uint64_t busy_us = 0;                    // spent in steps, since the start
  uint64_t rows_sent = 0;                  // activation rows sent to the next stage, since the start
  uint64_t row_bytes_sent = 0;             // bytes of the frames that carried them
  uint64_t round_trip_us = 0;              // of the link to the next stage; 0 = unknown, or in memory
  uint64_t answers_sent = 0;               // answered rows that it sent to the coordinator as the last stage
  uint64_t answer_bytes_sent = 0;          // bytes of the frames that carried them
  LatencyHistogram step_times;             // of all its steps, while they were computed
  Transport transport = Transport::kAuto;  // what carries that link; kAuto: there is none
  uint64_t in_layer_us = 0;                // the time that it has spent in its present layer; 0 = it is in none
  uint64_t layer_estimate_us = 0;          // the time that this should take; 0 = nothing was measured yet
  // These are about the plan that the member runs: its number, the last step that came, and the bytes of its incoming
  // link. If a stage has a step which the next stage never gets, the link between them loses data.
  uint64_t plan = 0, step_taken = 0, bytes_received = 0;
  bool in_step = false;  // it is at a frame, from its first byte's use to the end of what it sends on
  bool sending = false;  // the next one has not taken it in yet
  // The time for which its thread has not answered, though it neither computes nor sends; 0 = it answers.
  uint64_t unanswered_us = 0;
  // Its replica of another member (docs/faults.md): of which plan, up to which step it is whole, and how large; 0:
  // there is none.
  uint64_t replicated_plan = 0;
  std::optional<uint64_t> replicated_step;  // nullopt: it is not whole
  uint64_t replicated_pages = 0, replicated_bytes = 0;
  uint64_t weights_room = 0;  // bytes that fetched weights may take on its disk; 0 = it fetches none
  bool operator==(const MemberLoad&) const = default;
};

// The last steps of a plan that the coordinator sent into its ring and got back from it.
struct RingProgress {
  uint64_t plan = 0;
  uint64_t step_sent = 0, step_came = 0;  // the last ones; 0 = none
  uint64_t bytes_received = 0;            // from the last stage
  // When the last result came, or when the ring began to owe one; nullopt: it owes none. It stays when the ring breaks.
  std::optional<Deadline> owes_since;
};

}  // namespace gyre
