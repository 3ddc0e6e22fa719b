// A sender for a link: sending does not wait for the peer.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include "transport/link.h"

namespace gyre {

// A link whose Send returns at once as long as at most `max_queued_bytes` of payload wait. What `link` has room for is
// sent by the caller's thread; what it has no room for waits in a queue, from which a thread sends it, so that the
// caller computes meanwhile. The thread starts with the first frame that waits. A frame that can't be sent by its
// deadline closes the link. The next Send returns the reason why an earlier frame was not sent. Destroying the link
// drops what waits. If the system gives no thread, Send waits.
//
// The coordinator's end has no limit, as steps in flight are few and their frames are small: a ring in which all hops
// wait to send would stand still, so one hop must never wait.
std::unique_ptr<Link> MakeQueuedLink(std::unique_ptr<Link> link,
                                     size_t max_queued_bytes = std::numeric_limits<size_t>::max());

}  // namespace gyre
