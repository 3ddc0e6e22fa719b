// Measures a member's machine when it joins a cluster, in half a second, and keeps the result until the machine is
// started again.
#pragma once

#include <string>

#include "base/measured.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace gyre {

struct MeasureOptions {
  Isa isa = Isa::kRef;
  int threads = 1;   // that compute
  std::string file;  // that weights are read from; "" = the disk is not measured
  std::string kept;  // file with what was measured before; "" = it is always measured
  // The device that is measured. Null, or one without hardware(): the host's processors are.
  Device* device = nullptr;
};

// Uses all the threads for about 0.3 s, unless `kept` has this machine's numbers since its start. A speed that can't be
// measured is 0. Do not call it while a stage of this process computes.
MachineSpeed MeasureMachine(const MeasureOptions& options);

// The speed in bytes per second at which the file's disk is read, past the page cache where the file system allows it:
// at most 64 MiB and 0.2 s are read. 0 = it can't be read.
double ReadRateOfDisk(const std::string& file);

}  // namespace gyre
