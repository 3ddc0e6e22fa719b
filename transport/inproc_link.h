// Links inside one process: two bounded queues, one for each direction.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "transport/link.h"

namespace gyre {

struct InprocOptions {
  size_t max_queued_frames = 256;
  size_t max_queued_bytes = size_t{256} << 20;  // one frame always fits
  bool check_crc = false;                       // memory needs no checksum; tests switch it on
};

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> MakeInprocLinkPair(const InprocOptions& options = {});

}  // namespace gyre
