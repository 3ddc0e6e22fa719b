// Describes the machine of a measurement and measures the limits that results are compared with.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/ops.h"

namespace gyre::bench {

// Describes this machine as the text of a JSON object: processor, cores, instruction set, bytes of memory, system,
// kernel, and the compiler of this program.
std::string DescribeMachine();
// The same for people, without the compiler: "Intel Xeon, 2 cores, avx512, 22.9 GiB of memory, Debian GNU/Linux 12,
// Linux 6.1.0".
std::string MachineText();

// Bytes per second that `threads` threads read from memory, several streams each: the best of `passes` passes over a
// buffer of `bytes` bytes, which must be far larger than the caches. Takes about a second with the defaults.
double ReadBandwidth(int threads, size_t bytes = size_t{512} << 20, int passes = 5);

// The hardware that multiplies: f32 FMAs, int8 dots (dpbusd, or maddubs and madd), or bf16 tiles.
enum class Unit { kFloat, kInteger, kTiles };
// The unit that multiplies rows by weights with this arithmetic.
Unit UnitOf(Isa isa, Arithmetic arithmetic, bool float_weights);
// Multiplications and additions per second of `threads` threads that use registers only: the best of a few passes.
// Takes about 40 ms. Returns 0 if it is not known.
double PeakOps(Isa isa, Unit unit, int threads);

}  // namespace gyre::bench
