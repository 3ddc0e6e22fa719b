// The keys that come of a plan's key (Plan.key), which never leaves the members that the coordinator told it to. From
// it each use gets a key of its own, so that what one of them shows says nothing about the others or the plan's.
#pragma once

#include "base/ids.h"
#include "base/sha256.h"

namespace gyre {

// The key by which hellos and welcomes prove that their sender knows the plan's (transport/hello.h).
Hash256 HelloKey(const RingKey& plan);
// The plan's part in the keys of UDP links (transport/udp_hello.h).
Hash256 UdpKey(const RingKey& plan);

}  // namespace gyre
