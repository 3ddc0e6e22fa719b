// Traces as Chrome's trace JSON, which Perfetto opens.
#pragma once

#include <string>
#include <vector>

#include "base/trace.h"

namespace gyre {

// Pure. `events` in the order of their times. Steps are spans in lanes, as many lanes as steps were in flight at once;
// requests are async spans, with the wait for their first rows in them. Times are microseconds since the first event. A
// span whose beginning is not among the events is left out; one without its end goes to the last event.
std::string TraceJson(const std::vector<TraceEvent>& events);

}  // namespace gyre
