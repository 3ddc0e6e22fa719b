// Keys derived from a plan's key (Plan.key), which never leaves the members that the coordinator sent it to. Each use
// has a key of its own, so that a leak of one says nothing about the others or the plan's key.
#pragma once

#include "base/ids.h"
#include "base/sha256.h"

namespace gyre {

// The key by which hellos and welcomes prove that their sender knows the plan's key (transport/hello.h).
Hash256 HelloKey(const RingKey& plan);
// The plan's part in the keys of UDP links (transport/udp_hello.h).
Hash256 UdpKey(const RingKey& plan);

}  // namespace gyre
