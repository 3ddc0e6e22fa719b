// How long OpenMP's threads look for the next product before they sleep.
#pragma once

namespace gyre {

// Some 20 microseconds, with libgomp: a stage's products follow each other faster, and who shares its processors with
// another process does not hold that up for long. libgomp's own 300,000 looks are milliseconds (docs/experiments.md).
// It reads GOMP_SPINCOUNT while the program is loaded, so this sets it and starts the program anew, once; not where
// GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. Call it before anything is read or begun.
void LimitActiveWaiting(char** argv);

}  // namespace gyre
