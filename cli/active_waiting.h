// A limit on the busy waiting of OpenMP's threads between two products.
#pragma once

namespace gyre {

// About 20 microseconds, with libgomp: a stage's products follow each other faster, and a process that shares its
// processors with another does not delay it for long. libgomp's own 300,000 looks take milliseconds
// (bench/experiments.md). libgomp reads GOMP_SPINCOUNT while the program is loaded, so this function sets it and starts
// the program anew, once. It does nothing if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. Call it before anything else is
// read or started.
void LimitActiveWaiting(char** argv);

}  // namespace gyre
