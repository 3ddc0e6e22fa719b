// Traces as Chrome's trace JSON, which Perfetto opens.
#pragma once

#include <string>
#include <vector>

#include "base/trace.h"

namespace gyre {

// Pure. `events` in the order of their times, but for those of stages. Steps are spans in lanes, as many lanes as steps
// were in flight at once; requests are async spans, with the wait for their first rows in them. Each member is a
// process of its own: a line for what its stage computes and sends, and lanes for the link to the next one, on which a
// step lies from the end of its computing here to its beginning there, so that its wait for the next stage is in it.
// Times are microseconds since the first event. A span whose beginning is not among the events is left out; one without
// its end goes to the last event.
std::string TraceJson(const std::vector<TraceEvent>& events, const std::vector<TraceMember>& members = {});

}  // namespace gyre
