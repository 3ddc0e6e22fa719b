// What a measurement was made on, and the limits that it is held against.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace gyre::bench {

// A JSON object: processor, cores, ISA level, compiler.
std::string DescribeMachine();

// Bytes a second that `threads` threads read from memory in several streams each; the best of a few passes over a
// buffer far larger than the caches. Takes about a second.
double ReadBandwidth(int threads);

// What does the multiplying: f32 FMAs, int8 dots (dpbusd, or maddubs and madd), or tiles of bf16.
enum class Unit { kFloat, kInteger, kTiles };
// The unit that multiplies rows by weights of a kind.
Unit UnitOf(Isa isa, Arithmetic arithmetic, bool float_weights);
// Multiplications and additions a second of `threads` threads that work in registers only, the best of a few passes.
// Takes some 40 ms. 0 where it is not known.
double PeakOps(Isa isa, Unit unit, int threads);

}  // namespace gyre::bench
