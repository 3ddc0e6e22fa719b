// What a measurement was made on, and the limit that decode is held against.
#pragma once

#include <string>

namespace gyre::bench {

// A JSON object: processor, cores, ISA level, compiler.
std::string DescribeMachine();

// Bytes a second that `threads` threads read from memory in several streams each; the best of a few passes over a
// buffer far larger than the caches. Takes about a second.
double ReadBandwidth(int threads);

}  // namespace gyre::bench
